// The fast Walsh-Hadamard transform, unnormalised, of consecutive blocks.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

// Stage h replaces every pair (a, b) at distance h by (a + b, a - b). Stages run from h = 1 up; each result is one float
// addition, so the order of the pairs within a stage does not matter and every back end gives the same bits.
static inline void butterflies(float* x, size_t n, size_t h) {
    for (size_t base = 0; base < n; base += 2 * h)
        for (size_t i = base; i < base + h; i++) {
            const float a = x[i], b = x[i + h];
            x[i] = a + b;
            x[i + h] = a - b;
        }
}

// Stages h and 2h in one pass over memory.
static inline void two_stages(float* x, size_t n, size_t h) {
    for (size_t base = 0; base < n; base += 4 * h)
        for (size_t i = base; i < base + h; i++) {
            const float a = x[i] + x[i + h], b = x[i] - x[i + h];
            const float c = x[i + 2 * h] + x[i + 3 * h], d = x[i + 2 * h] - x[i + 3 * h];
            x[i] = a + c;
            x[i + h] = b + d;
            x[i + 2 * h] = a - c;
            x[i + 3 * h] = b - d;
        }
}

#ifdef PERBIT_AVX2
// (a + b, a - b) as (b + a, a + (-b)): the partner comes by a shuffle, the sign by flipping a bit.
static inline __m256 register_stage(__m256 v, __m256 partner, __m256 signs) {
    return _mm256_add_ps(partner, _mm256_xor_ps(v, signs));
}

// Stages 1, 2 and 4 within registers.
static inline void first_stages(float* x, size_t n) {
    const __m256 odd = _mm256_setr_ps(0.f, -0.f, 0.f, -0.f, 0.f, -0.f, 0.f, -0.f);
    const __m256 upper_pairs = _mm256_setr_ps(0.f, 0.f, -0.f, -0.f, 0.f, 0.f, -0.f, -0.f);
    const __m256 upper_half = _mm256_setr_ps(0.f, 0.f, 0.f, 0.f, -0.f, -0.f, -0.f, -0.f);
    for (size_t i = 0; i < n; i += 8) {
        __m256 v = _mm256_loadu_ps(x + i);
        v = register_stage(v, _mm256_permute_ps(v, 0xB1), odd);
        v = register_stage(v, _mm256_permute_ps(v, 0x4E), upper_pairs);
        v = register_stage(v, _mm256_permute2f128_ps(v, v, 1), upper_half);
        _mm256_storeu_ps(x + i, v);
    }
}
#else
static inline void first_stages(float* x, size_t n) {
    two_stages(x, n, 1);
    butterflies(x, n, 4);
}
#endif

// out may be x itself. n is a multiple of block, a power of two.
void hadamard(const float* x, size_t n, size_t block, float* out) {
    for (size_t begin = 0; begin < n; begin += block) {
        float* y = out + begin;
        if (y != x + begin) std::copy(x + begin, x + begin + block, y);
        size_t h = 1;
        if (block >= 8) {
            first_stages(y, block);
            h = 8;
        }
        for (; 4 * h <= block; h *= 4) two_stages(y, block, h);
        if (h < block) butterflies(y, block, h);
    }
}

}  // namespace perbit::PERBIT_ARCH
