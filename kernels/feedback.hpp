// Error feedback: what compression lost is carried to the next round.
#pragma once

#include "bits.hpp"
#include "dequantize.hpp"

namespace perbit::PERBIT_ARCH {

void feedback_add(const float* g, const float* memory, size_t n, float gamma, float* out) {
    for (size_t i = 0; i < n; i++) out[i] = g[i] + gamma * memory[i];
}

struct StoreResidual {
    const float *g, *memory;
    float gamma;
    float* out;

    void operator()(size_t i, float value) const { out[i] = (g[i] + gamma * memory[i]) - value; }
#ifdef PERBIT_AVX2
    void operator()(size_t i, __m256 values) const {
        const __m256 carried = _mm256_mul_ps(_mm256_set1_ps(gamma), _mm256_loadu_ps(memory + i));
        _mm256_storeu_ps(out + i, _mm256_sub_ps(_mm256_add_ps(_mm256_loadu_ps(g + i), carried), values));
    }
#endif
};

// out may be memory itself: element i depends on nothing but element i.
template <class S>
void feedback_update(const float* g, const float* memory, size_t n, float gamma, const S* symbols, const float* table,
                     size_t size, float* out) {
    require_symbols_below(symbols, n, size);
    lookup(symbols, n, table, size, StoreResidual{g, memory, gamma, out});
}

}  // namespace perbit::PERBIT_ARCH
