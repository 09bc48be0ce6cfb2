// Codebook quantizers: find the cell of each value among sorted boundaries.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "bits.hpp"
#include "random.hpp"

namespace perbit::PERBIT_ARCH {

// Sorted boundaries padded with +inf to a power of two, at least 16; a finite value has passed `cell` of them.
// A value that is not finite still gets a cell below size().
class Boundaries {
public:
    static constexpr size_t SMALL = 16;

    Boundaries(const float* values, size_t count) : padded_(std::bit_ceil(std::max(count + 1, SMALL))) {
        std::copy(values, values + count, padded_.begin());
        std::fill(padded_.begin() + ptrdiff_t(count), padded_.end(), std::numeric_limits<float>::infinity());
    }

    size_t size() const { return padded_.size(); }
    bool small() const { return size() == SMALL; }

    uint32_t cell(float x) const {
        uint32_t c = 0;
        for (uint32_t step = uint32_t(size() / 2); step; step /= 2) c += x >= padded_[c + step - 1] ? step : 0;
        return c;
    }

    const float* data() const { return padded_.data(); }

private:
    std::vector<float> padded_;
};

#ifdef PERBIT_AVX2

// The same search, eight values at a time: four levels in registers, then one gather a level.
class VectorSearch {
public:
    explicit VectorSearch(const Boundaries& boundaries) : data_(boundaries.data()), stride_(int(boundaries.size() / 16)) {
        float level_1[8], level_2[8], level_3[8], level_4[8];
        const auto top = [&](int j) { return data_[(j + 1) * stride_ - 1]; };
        for (int k = 0; k < 8; k++) {  // entry k: the boundary that cell prefix k compares with
            level_1[k] = top(7);
            level_2[k] = top(3 + 8 * (k & 1));
            level_3[k] = top(1 + 4 * (k & 3));
            level_4[k] = top(2 * k);
        }
        level_1_ = _mm256_loadu_ps(level_1);
        level_2_ = _mm256_loadu_ps(level_2);
        level_3_ = _mm256_loadu_ps(level_3);
        level_4_ = _mm256_loadu_ps(level_4);
        stride_bits_ = std::countr_zero(unsigned(stride_));
    }

    template <bool SMALL>
    __m256i cell(__m256 x) const {
        __m256i c = _mm256_sub_epi32(_mm256_setzero_si256(), passed(x, level_1_));
        c = descend(x, level_2_, c);
        c = descend(x, level_3_, c);
        c = descend(x, level_4_, c);
        if constexpr (!SMALL) {
            c = _mm256_slli_epi32(c, stride_bits_);
            for (int step = stride_ / 2; step; step /= 2) {
                const __m256 boundary = _mm256_i32gather_ps(data_ + step - 1, c, 4);
                c = _mm256_add_epi32(c, _mm256_and_si256(passed(x, boundary), _mm256_set1_epi32(step)));
            }
        }
        return c;
    }

private:
    static __m256i passed(__m256 x, __m256 boundary) {  // -1 where x >= boundary
        return _mm256_castps_si256(_mm256_cmp_ps(x, boundary, _CMP_GE_OQ));
    }

    static __m256i descend(__m256 x, __m256 level, __m256i prefix) {
        const __m256i hit = passed(x, _mm256_permutevar8x32_ps(level, prefix));
        return _mm256_sub_epi32(_mm256_add_epi32(prefix, prefix), hit);
    }

    const float* data_;
    int stride_, stride_bits_;
    __m256 level_1_, level_2_, level_3_, level_4_;
};

template <bool SMALL, class S>
size_t codebook_vectors(const float* x, size_t n, const VectorSearch& search, S* out) {
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i a = search.cell<SMALL>(_mm256_loadu_ps(x + i)), b = search.cell<SMALL>(_mm256_loadu_ps(x + i + 8));
        const __m256i c = search.cell<SMALL>(_mm256_loadu_ps(x + i + 16)), d = search.cell<SMALL>(_mm256_loadu_ps(x + i + 24));
        store32(out + i, a, b, c, d);
    }
    return i;
}

#else

// Few boundaries: counting them all is branch-free and vectorises.
template <class S>
size_t codebook_by_counting(const float* x, size_t n, const float* boundaries, S* out) {
    for (size_t i = 0; i < n; i++) {
        int32_t c = 0;
        for (size_t j = 0; j + 1 < Boundaries::SMALL; j++) c += x[i] >= boundaries[j];
        out[i] = S(c);
    }
    return n;
}

#endif

template <class S>
void quantize_codebook(const float* x, size_t n, const float* thresholds, size_t count, S* out) {
    const Boundaries boundaries(thresholds, count);
    size_t i = 0;
#ifdef PERBIT_AVX2
    const VectorSearch search(boundaries);
    i = boundaries.small() ? codebook_vectors<true>(x, n, search, out) : codebook_vectors<false>(x, n, search, out);
#else
    if (boundaries.small()) i = codebook_by_counting(x, n, boundaries.data(), out);
#endif
    for (; i < n; i++) out[i] = S(boundaries.cell(x[i]));
}

// The cells between neighbouring codebook entries: where each begins and one over its width, padded to the search's range.
struct Cells {
    Boundaries inner;  // all entries but the first and the last: values beyond those belong to the outermost cells
    std::vector<float> begin, inverse_width;

    Cells(const float* codebook, size_t size)
        : inner(codebook + 1, size - 2), begin(inner.size(), 0.0f), inverse_width(inner.size(), 0.0f) {
        for (size_t j = 0; j + 1 < size; j++) {
            begin[j] = codebook[j];
            inverse_width[j] = 1.0f / (codebook[j + 1] - codebook[j]);
        }
    }

    uint32_t random_symbol(float x, float u) const {
        const uint32_t j = inner.cell(x);
        return j + (u < (x - begin[j]) * inverse_width[j]);
    }
};

#ifdef PERBIT_AVX2

template <bool SMALL, class Table, class S>
size_t codebook_random_vectors(const float* x, size_t n, const VectorSearch& search, const Table& begin,
                               const Table& inverse_width, KeyWords words, uint32_t counter, S* out) {
    __m256i sequence = words.sequence(counter);
    const __m256i eight_on = _mm256_set1_epi32(int(8 * GOLDEN));
    const auto next = [&](const float* from) {
        const __m256 v = _mm256_loadu_ps(from);
        const __m256i j = search.cell<SMALL>(v);
        const __m256 p = _mm256_mul_ps(_mm256_sub_ps(v, begin(j)), inverse_width(j));
        const __m256 u = words.uniform24(sequence);
        sequence = _mm256_add_epi32(sequence, eight_on);
        return _mm256_sub_epi32(j, _mm256_castps_si256(_mm256_cmp_ps(u, p, _CMP_LT_OQ)));
    };
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i a = next(x + i), b = next(x + i + 8), c = next(x + i + 16), d = next(x + i + 24);
        store32(out + i, a, b, c, d);
    }
    return i;
}

#endif

template <class S>
void quantize_codebook_random(const float* x, size_t n, const float* codebook, size_t size, uint64_t key, uint64_t start,
                              S* out) {
    const Cells cells(codebook, size);
#ifdef PERBIT_AVX2
    const VectorSearch search(cells.inner);
#endif
    for_each_random_run(key, start, n, [&](size_t from, size_t count, KeyWords words, uint32_t counter) {
        const float* in = x + from;
        S* to = out + from;
        size_t i = 0;
#ifdef PERBIT_AVX2
        if (cells.inner.small()) {
            const RegisterTable begin(cells.begin.data(), 16), inverse_width(cells.inverse_width.data(), 16);
            i = codebook_random_vectors<true>(in, count, search, begin, inverse_width, words, counter, to);
        } else {
            const MemoryTable begin{cells.begin.data()}, inverse_width{cells.inverse_width.data()};
            i = codebook_random_vectors<false>(in, count, search, begin, inverse_width, words, counter, to);
        }
#endif
        for (; i < count; i++) to[i] = S(cells.random_symbol(in[i], words.uniform24(counter + uint32_t(i))));
    });
}

}  // namespace perbit::PERBIT_ARCH
