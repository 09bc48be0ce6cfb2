// The matrix that pairs of vectors stand for: what a low-rank codec decodes.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "reduce.hpp"

namespace perbit::PERBIT_ARCH {

// What a product of pairs may be beyond float32, and where it goes.
struct Saturated {
    static constexpr double most = std::numeric_limits<float>::max();
    static double cut(double sum) { return sum > most ? most : sum < -most ? -most : sum; }
#ifdef PERBIT_AVX2
    static __m256d cut(__m256d sum) {
        return _mm256_max_pd(_mm256_set1_pd(-most), _mm256_min_pd(_mm256_set1_pd(most), sum));
    }
#endif
};

struct Bounded {  // no sum can be too large
    template <class Sum>
    static Sum cut(Sum sum) {
        return sum;
    }
};

struct Written {
    void put(float* to, float value) const { *to = value; }
#ifdef PERBIT_AVX2
    void put(float* to, __m128 values) const { _mm_storeu_ps(to, values); }
#endif
};

struct Added {
    float weight;
    void put(float* to, float value) const { *to += weight * value; }
#ifdef PERBIT_AVX2
    void put(float* to, __m128 values) const {
        _mm_storeu_ps(to, _mm_add_ps(_mm_loadu_ps(to), _mm_mul_ps(_mm_set1_ps(weight), values)));
    }
#endif
};

// A stretch of a row: the sum over all pairs of their factor in `left` times their stretch, which are `step` apart in `right`.
template <class Range, class Out>
inline void multiply_row(const double* left, const double* right, size_t count, size_t step, size_t width, const Out& out, float* to) {
    size_t begin = 0;
#ifdef PERBIT_AVX2
    for (; begin + 32 <= width; begin += 32) {  // whose sums stay in registers
        __m256d sums[8];
        for (__m256d& sum : sums) sum = _mm256_setzero_pd();
        for (size_t pair = 0; pair < count; pair++) {
            const __m256d factor = _mm256_set1_pd(left[pair]);
            const double* values = right + pair * step + begin;
            for (size_t i = 0; i < 8; i++) sums[i] = _mm256_add_pd(sums[i], _mm256_mul_pd(factor, _mm256_loadu_pd(values + 4 * i)));
        }
        for (size_t i = 0; i < 8; i++) out.put(to + begin + 4 * i, _mm256_cvtpd_ps(Range::cut(sums[i])));
    }
#endif
    constexpr size_t TILE = 32;
    for (; begin < width; begin += TILE) {
        const size_t n = std::min(TILE, width - begin);
        double sums[TILE] = {};
        for (size_t pair = 0; pair < count; pair++) {
            const double* values = right + pair * step + begin;
            for (size_t i = 0; i < n; i++) sums[i] += left[pair] * values[i];
        }
        for (size_t i = 0; i < n; i++) out.put(to + begin + i, float(Range::cut(sums[i])));
    }
}

// All rows, for a stretch of columns at a time: its right vectors become doubles once, and stay in the cache.
template <class Range, class Out>
void multiply_rows(const float* pairs, size_t count, size_t rows, size_t columns, const Out& out, float* to) {
    constexpr size_t CACHED = 4096, LEAST = 64;
    const size_t next = rows + columns, step = std::min(columns, std::max(LEAST, CACHED / std::max<size_t>(count, 1)));
    std::vector<double> left(count), right(count * step);
    for (size_t begin = 0; begin < columns; begin += step) {
        const size_t width = std::min(step, columns - begin);
        for (size_t pair = 0; pair < count; pair++) {
            const float* values = pairs + pair * next + rows + begin;
            std::copy(values, values + width, right.begin() + pair * step);
        }
        for (size_t row = 0; row < rows; row++) {
            for (size_t pair = 0; pair < count; pair++) left[pair] = pairs[pair * next + row];
            multiply_row<Range>(left.data(), right.data(), count, step, width, out, to + row * columns + begin);
        }
    }
}

// Sums are made in double, pair after pair.
template <class Out>
void multiply_pairs_to(const float* pairs, size_t count, size_t rows, size_t columns, const Out& out, float* to) {
    const Extent range = scan(pairs, count * (rows + columns));
    const double largest = std::max(-range.min, range.max);
    if (range.n_nonfinite == 0 && largest * largest * double(count) <= Saturated::most)
        multiply_rows<Bounded>(pairs, count, rows, columns, out, to);
    else
        multiply_rows<Saturated>(pairs, count, rows, columns, out, to);
}

void multiply_pairs(const float* pairs, size_t count, size_t rows, size_t columns, float* out) {
    multiply_pairs_to(pairs, count, rows, columns, Written{}, out);
}

void axpy_pairs(float* out, const float* pairs, size_t count, size_t rows, size_t columns, float weight) {
    multiply_pairs_to(pairs, count, rows, columns, Added{weight}, out);
}

template <size_t FIXED>
inline void add_row(const float* left, size_t step, const float* right, size_t count, size_t columns, size_t width, float* out) {
    constexpr size_t STRETCH = FIXED ? FIXED : 64;
    if (FIXED) width = FIXED;
    float sums[STRETCH] = {};
    for (size_t pair = 0; pair < count; pair++) {
        const float factor = left[pair * step];
        const float* values = right + pair * columns;
        for (size_t i = 0; i < width; i++) sums[i] += factor * values[i];
    }
    for (size_t i = 0; i < width; i++) out[i] += sums[i];
}

// Single precision, pair after pair: `left` and `right` hold the vectors of all pairs, one after the other.
void add_pairs(const float* left, const float* right, size_t count, size_t rows, size_t columns, float* out) {
    constexpr size_t STRETCH = 64;  // columns whose sums stay in registers
    for (size_t begin = 0; begin < columns; begin += STRETCH) {
        const size_t width = std::min(STRETCH, columns - begin);
        for (size_t row = 0; row < rows; row++) {
            float* to = out + row * columns + begin;
            if (width == STRETCH)
                add_row<STRETCH>(left + row, rows, right + begin, count, columns, width, to);
            else
                add_row<0>(left + row, rows, right + begin, count, columns, width, to);
        }
    }
}

// Values of as many taps, side by side, become planes of frequencies: by sums in the order of the taps.
void split_planes(const float* matrix, const float* values, size_t taps, size_t n, float* planes) {
    constexpr size_t STRETCH = 64, MOST_TAPS = 256;
    float turned[MOST_TAPS * STRETCH];
    for (size_t begin = 0; begin < n; begin += STRETCH) {
        const size_t width = std::min(STRETCH, n - begin);
        for (size_t i = 0; i < width; i++)
            for (size_t tap = 0; tap < taps; tap++) turned[tap * STRETCH + i] = values[(begin + i) * taps + tap];
        for (size_t row = 0; row < taps; row++) {
            float* to = planes + row * n + begin;
            std::fill(to, to + width, 0.0f);
            if (width == STRETCH)
                add_row<STRETCH>(matrix + row * taps, 1, turned, taps, STRETCH, width, to);
            else
                add_row<0>(matrix + row * taps, 1, turned, taps, STRETCH, width, to);
        }
    }
}

// Values of `taps` frequencies, plane after plane, become those of as many taps, side by side: one pass, by sums in the order of the planes.
void mix_planes(const float* matrix, const float* planes, size_t taps, size_t n, float* out) {
    constexpr size_t STRETCH = 64;
    float sums[STRETCH];
    for (size_t begin = 0; begin < n; begin += STRETCH) {
        const size_t width = std::min(STRETCH, n - begin);
        for (size_t tap = 0; tap < taps; tap++) {
            std::fill(sums, sums + width, 0.0f);
            if (width == STRETCH)
                add_row<STRETCH>(matrix + tap, taps, planes + begin, taps, n, width, sums);
            else
                add_row<0>(matrix + tap, taps, planes + begin, taps, n, width, sums);
            for (size_t i = 0; i < width; i++) out[(begin + i) * taps + tap] = sums[i];
        }
    }
}

}  // namespace perbit::PERBIT_ARCH
