// A pass over a matrix and back: the step by which a search comes closer to its largest singular vectors.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t DOT_LANES = 8;

// Lane j += lane j + half, for half = 4, 2, 1.
inline float folded(float (&lanes)[DOT_LANES]) {
    for (size_t half = DOT_LANES / 2; half; half /= 2)
        for (size_t j = 0; j < half; j++) lanes[j] += lanes[j + half];
    return lanes[0];
}

// One row and one vector.
inline void row_there_and_back(const float* row, size_t columns, const float* start, float* there, float* back) {
    float lanes[DOT_LANES] = {};
    size_t j = 0;
    for (; j + DOT_LANES <= columns; j += DOT_LANES)
        for (size_t lane = 0; lane < DOT_LANES; lane++) lanes[lane] += row[j + lane] * start[j + lane];
    for (size_t lane = 0; j + lane < columns; lane++) lanes[lane] += row[j + lane] * start[j + lane];
    const float product = *there = folded(lanes);
    for (j = 0; j < columns; j++) back[j] += product * row[j];
}

#ifdef PERBIT_AVX2

// Four rows and four vectors: what is loaded is used four times.
inline void rows_there_and_back(const float* matrix, size_t rows, size_t columns, const float* start, float* there, float* back) {
    constexpr size_t N = 4;
    const size_t whole = columns / DOT_LANES * DOT_LANES;
    __m256 sums[N][N];
    for (auto& of_row : sums)
        for (__m256& sum : of_row) sum = _mm256_setzero_ps();
    for (size_t j = 0; j < whole; j += DOT_LANES) {
        __m256 x[N];
        for (size_t r = 0; r < N; r++) x[r] = _mm256_loadu_ps(matrix + r * columns + j);
        for (size_t k = 0; k < N; k++) {
            const __m256 v = _mm256_loadu_ps(start + k * columns + j);
            for (size_t r = 0; r < N; r++) sums[r][k] = _mm256_add_ps(sums[r][k], _mm256_mul_ps(x[r], v));
        }
    }
    float products[N][N];
    for (size_t r = 0; r < N; r++)
        for (size_t k = 0; k < N; k++) {
            float lanes[DOT_LANES];
            _mm256_storeu_ps(lanes, sums[r][k]);
            for (size_t j = whole; j < columns; j++) lanes[j - whole] += matrix[r * columns + j] * start[k * columns + j];
            products[r][k] = there[k * rows + r] = folded(lanes);
        }
    for (size_t j = 0; j < whole; j += DOT_LANES) {
        __m256 x[N];
        for (size_t r = 0; r < N; r++) x[r] = _mm256_loadu_ps(matrix + r * columns + j);
        for (size_t k = 0; k < N; k++) {
            __m256 sum = _mm256_loadu_ps(back + k * columns + j);
            for (size_t r = 0; r < N; r++) sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(products[r][k]), x[r]));
            _mm256_storeu_ps(back + k * columns + j, sum);
        }
    }
    for (size_t k = 0; k < N; k++)
        for (size_t r = 0; r < N; r++)
            for (size_t j = whole; j < columns; j++) back[k * columns + j] += products[r][k] * matrix[r * columns + j];
}

#endif

// Products of the matrix with each of `count` vectors, and of the transposed matrix with these.
void there_and_back(const float* matrix, size_t rows, size_t columns, const float* start, size_t count, float* there, float* back) {
    std::fill(back, back + count * columns, 0.0f);
    size_t row = 0;
#ifdef PERBIT_AVX2
    for (; row + 4 <= rows; row += 4) {
        const float* four = matrix + row * columns;
        size_t k = 0;
        for (; k + 4 <= count; k += 4) rows_there_and_back(four, rows, columns, start + k * columns, there + k * rows + row, back + k * columns);
        for (; k < count; k++)
            for (size_t r = 0; r < 4; r++)
                row_there_and_back(four + r * columns, columns, start + k * columns, there + k * rows + row + r, back + k * columns);
    }
#endif
    for (; row < rows; row++)
        for (size_t k = 0; k < count; k++)
            row_there_and_back(matrix + row * columns, columns, start + k * columns, there + k * rows + row, back + k * columns);
}

}  // namespace perbit::PERBIT_ARCH
