// Codebook quantizers: find the cell of each value among sorted boundaries.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "bits.hpp"
#include "random.hpp"

namespace perbit::PERBIT_ARCH {

// No value passes it, not even an infinite one: cells always stay below the true number of boundaries.
constexpr float PADDING = std::numeric_limits<float>::quiet_NaN();

// Up to 15 sorted boundaries, padded; a value has passed `cell` of them.
class FewBoundaries {
public:
    static constexpr size_t CELLS = 16;

    FewBoundaries(const float* values, size_t count) {
        std::fill(padded_, padded_ + CELLS, PADDING);
        std::copy(values, values + count, padded_);
#ifdef PERBIT_AVX2
        float level_1[8], level_2[8], level_3[8], level_4[8];
        for (int k = 0; k < 8; k++) {  // entry k: the boundary that a search compares with after the bits k
            level_1[k] = padded_[7];
            level_2[k] = padded_[3 + 8 * (k & 1)];
            level_3[k] = padded_[1 + 4 * (k & 3)];
            level_4[k] = padded_[2 * k];
        }
        level_1_ = _mm256_loadu_ps(level_1);
        level_2_ = _mm256_loadu_ps(level_2);
        level_3_ = _mm256_loadu_ps(level_3);
        level_4_ = _mm256_loadu_ps(level_4);
#endif
    }

    // Counting them all needs no branch and vectorises.
    uint32_t cell(float x) const {
        int32_t c = 0;
        for (size_t j = 0; j + 1 < CELLS; j++) c += x >= padded_[j];
        return uint32_t(c);
    }

#ifdef PERBIT_AVX2
    // A binary search whose four levels live in registers.
    __m256i cell(__m256 x) const {
        __m256i c = _mm256_sub_epi32(_mm256_setzero_si256(), passed(x, level_1_));
        c = descend(x, level_2_, c);
        c = descend(x, level_3_, c);
        return descend(x, level_4_, c);
    }

private:
    static __m256i passed(__m256 x, __m256 boundary) {  // -1 where x >= boundary
        return _mm256_castps_si256(_mm256_cmp_ps(x, boundary, _CMP_GE_OQ));
    }

    static __m256i descend(__m256 x, __m256 level, __m256i prefix) {
        const __m256i hit = passed(x, _mm256_permutevar8x32_ps(level, prefix));
        return _mm256_sub_epi32(_mm256_add_epi32(prefix, prefix), hit);
    }

    __m256 level_1_, level_2_, level_3_, level_4_;
#endif

private:
    float padded_[CELLS];
};

// Up to 65535 sorted boundaries. The leading bits of a value (its sign, exponent and a few mantissa bits) tell how many
// boundaries lie below all values with those bits; a short binary search over the boundaries within does the rest.
class ManyBoundaries {
public:
    ManyBoundaries(const float* values, size_t count) : first_(PREFIXES) {
        uint32_t prefix = 0, most = 0;
        for (size_t i = 0; i < count;) {
            const uint32_t here = prefix_of(values[i]);
            for (; prefix <= here; prefix++) first_[prefix] = uint16_t(i);
            const size_t begin = i;
            while (i < count && prefix_of(values[i]) == here) i++;
            most = std::max(most, uint32_t(i - begin));
        }
        for (; prefix < PREFIXES; prefix++) first_[prefix] = uint16_t(count);
        levels_ = unsigned(std::bit_width(most));
        padded_.assign(values, values + count);
        padded_.resize(count + (size_t(1) << MAX_LEVELS), PADDING);
    }

    // Calls body(search) with a function from value to cell. The depth is a constant there, because the loop around it is
    // hot; a few depths suffice, since searching deeper than needed only finds padding.
    template <class Body>
    void with_search(const Body& body) const {
        if (levels_ <= 1) return body([this](float x) { return search<1>(x); });
        if (levels_ == 2) return body([this](float x) { return search<2>(x); });
        if (levels_ == 3) return body([this](float x) { return search<3>(x); });
        if (levels_ <= 5) return body([this](float x) { return search<5>(x); });
        return body([this](float x) { return search<MAX_LEVELS>(x); });
    }

private:
    static constexpr unsigned PREFIX_BITS = 16;
    static constexpr unsigned MAX_LEVELS = 16;
    static constexpr size_t PREFIXES = size_t(1) << PREFIX_BITS;

    template <unsigned LEVELS>
    uint32_t search(float x) const {
        uint32_t c = first_[prefix_of(x)];
        for (unsigned level = LEVELS; level-- > 0;)  // a shifted comparison, because a branch would be mispredicted
            c += uint32_t(x >= padded_[c + (1u << level) - 1]) << level;
        return c;
    }

    // Ascending with x; both zeros have the prefix of +0.
    static uint32_t prefix_of(float x) {
        const uint32_t bits = bits_of(x + 0.0f);
        const uint32_t ascending = bits ^ (bits >> 31 ? UINT32_MAX : ~MAGNITUDE_MASK);
        return ascending >> (32 - PREFIX_BITS);
    }

    std::vector<uint16_t> first_;
    std::vector<float> padded_;
    unsigned levels_;  // of the search: 2^levels exceeds the number of boundaries that share a prefix
};

template <class S>
void quantize_codebook(const float* x, size_t n, const float* thresholds, size_t count, S* out) {
    if (count < FewBoundaries::CELLS) {
        const FewBoundaries boundaries(thresholds, count);
        size_t i = 0;
#ifdef PERBIT_AVX2
        const auto cell = [&](const float* from) { return boundaries.cell(_mm256_loadu_ps(from)); };
        for (; i + 32 <= n; i += 32) store32(out + i, cell(x + i), cell(x + i + 8), cell(x + i + 16), cell(x + i + 24));
#endif
        for (; i < n; i++) out[i] = S(boundaries.cell(x[i]));
    } else {
        ManyBoundaries(thresholds, count).with_search([&](const auto& cell) {
            for (size_t i = 0; i < n; i++) out[i] = S(cell(x[i]));
        });
    }
}

// The cells between neighbouring codebook entries: where each begins and one over its width.
template <class Boundaries>
struct Cells {
    Boundaries inner;  // all entries but the first and the last: values beyond those belong to the outermost cells
    std::vector<float> begin, inverse_width;

    Cells(const float* codebook, size_t size)
        : inner(codebook + 1, size - 2), begin(codebook, codebook + size - 1), inverse_width(size - 1) {
        for (size_t j = 0; j + 1 < size; j++) inverse_width[j] = 1.0f / (codebook[j + 1] - codebook[j]);
    }

    float chance_of_upper(float x, uint32_t cell) const { return (x - begin[cell]) * inverse_width[cell]; }
};

#ifdef PERBIT_AVX2

template <class S>
size_t codebook_random_vectors(const float* x, size_t n, const Cells<FewBoundaries>& cells, KeyWords words, uint32_t counter,
                               S* out) {
    const RegisterTable begin(cells.begin.data(), cells.begin.size());
    const RegisterTable inverse_width(cells.inverse_width.data(), cells.inverse_width.size());
    const __m256i eight_on = _mm256_set1_epi32(int(8 * GOLDEN));
    __m256i sequence = words.sequence(counter);
    const auto next = [&](const float* from) {
        const __m256 v = _mm256_loadu_ps(from);
        const __m256i j = cells.inner.cell(v);
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

#else

template <class S>
size_t codebook_random_vectors(const float*, size_t, const Cells<FewBoundaries>&, KeyWords, uint32_t, S*) {
    return 0;
}

#endif

// The random quantizer for one run of elements with few boundaries.
template <class S>
void codebook_random_run(const float* x, size_t n, const Cells<FewBoundaries>& cells, KeyWords words, uint32_t counter,
                         S* out) {
    for (size_t i = codebook_random_vectors(x, n, cells, words, counter, out); i < n; i++) {
        const uint32_t c = cells.inner.cell(x[i]);
        out[i] = S(c + (words.uniform24(counter + uint32_t(i)) < cells.chance_of_upper(x[i], c)));
    }
}

// With many, searching and random numbers get a loop each, so that the second one vectorises.
template <class S>
void codebook_random_run(const float* x, size_t n, const Cells<ManyBoundaries>& cells, KeyWords words, uint32_t counter,
                         S* out) {
    constexpr size_t PIECE = 256;
    cells.inner.with_search([&](const auto& search) {
        float chance[PIECE];
        uint32_t cell[PIECE];
        for (size_t i = 0; i < n; i += PIECE) {
            const size_t count = std::min(PIECE, n - i);
            for (size_t j = 0; j < count; j++) {
                cell[j] = search(x[i + j]);
                chance[j] = cells.chance_of_upper(x[i + j], cell[j]);
            }
            for (size_t j = 0; j < count; j++)
                out[i + j] = S(cell[j] + (words.uniform24(counter + uint32_t(i + j)) < chance[j]));
        }
    });
}

template <class Boundaries, class S>
void codebook_random(const float* x, size_t n, const Cells<Boundaries>& cells, uint64_t key, uint64_t start, S* out) {
    for_each_random_run(key, start, n, [&](size_t from, size_t count, KeyWords words, uint32_t counter) {
        codebook_random_run(x + from, count, cells, words, counter, out + from);
    });
}

template <class S>
void quantize_codebook_random(const float* x, size_t n, const float* codebook, size_t size, uint64_t key, uint64_t start,
                              S* out) {
    if (size <= FewBoundaries::CELLS)
        codebook_random(x, n, Cells<FewBoundaries>(codebook, size), key, start, out);
    else
        codebook_random(x, n, Cells<ManyBoundaries>(codebook, size), key, start, out);
}

}  // namespace perbit::PERBIT_ARCH
