// The matrix that pairs of vectors stand for: what a low-rank codec decodes.
#pragma once

#include <algorithm>
#include <limits>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

#ifdef PERBIT_AVX2

// 32 columns of a row, whose sums stay in registers.
inline void multiply_32(const float* left, const float* right, size_t step, size_t count, float* out) {
    const __m256d most = _mm256_set1_pd(std::numeric_limits<float>::max()), least = _mm256_sub_pd(_mm256_setzero_pd(), most);
    __m256d sums[8];
    for (__m256d& sum : sums) sum = _mm256_setzero_pd();
    for (size_t pair = 0; pair < count; pair++, left += step, right += step) {
        const __m256d factor = _mm256_set1_pd(*left);
        for (size_t i = 0; i < 8; i++)
            sums[i] = _mm256_add_pd(sums[i], _mm256_mul_pd(factor, _mm256_cvtps_pd(_mm_loadu_ps(right + 4 * i))));
    }
    for (size_t i = 0; i < 8; i++)
        _mm_storeu_ps(out + 4 * i, _mm256_cvtpd_ps(_mm256_max_pd(least, _mm256_min_pd(most, sums[i]))));
}

#endif

// Sums are made in double, pair after pair, for a stretch of columns that stays in the cache.
void multiply_pairs(const float* pairs, size_t count, size_t rows, size_t columns, float* out) {
    constexpr size_t STRETCH = 256;
    constexpr double most = std::numeric_limits<float>::max();
    double sums[STRETCH];
    for (size_t begin = 0; begin < columns; begin += STRETCH) {
        const size_t width = std::min(STRETCH, columns - begin);
        for (size_t row = 0; row < rows; row++) {
            float* to = out + row * columns + begin;
            size_t done = 0;
#ifdef PERBIT_AVX2
            for (; done + 32 <= width; done += 32)
                multiply_32(pairs + row, pairs + rows + begin + done, rows + columns, count, to + done);
#endif
            std::fill(sums + done, sums + width, 0.0);
            const float* left = pairs;
            for (size_t pair = 0; pair < count; pair++, left += rows + columns) {
                const double factor = left[row];
                const float* right = left + rows + begin;
                for (size_t i = done; i < width; i++) sums[i] += factor * right[i];
            }
            for (size_t i = done; i < width; i++) to[i] = float(sums[i] > most ? most : sums[i] < -most ? -most : sums[i]);
        }
    }
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
