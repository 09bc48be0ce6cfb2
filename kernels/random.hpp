// Counter-based random numbers: element i of a tensor gets the same number whoever computes it, in whatever order.
#pragma once

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr unsigned COUNTER_BITS = 20;  // elements that share one pair of key words
constexpr uint64_t COUNTER_MASK = (uint64_t(1) << COUNTER_BITS) - 1;
constexpr uint32_t GOLDEN = 0x9E3779B9;
constexpr uint32_t MIX_1 = 0x7feb352d, MIX_2 = 0x846ca68b;
constexpr float TWO_TO_MINUS_24 = 0x1p-24f;

inline uint64_t splitmix64(uint64_t v) {
    v += 0x9E3779B97F4A7C15;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EB;
    return v ^ (v >> 31);
}

struct KeyWords {
    uint32_t k0, k1;

    KeyWords(uint64_t key, uint64_t index) {
        const uint64_t z = splitmix64(key + (index >> COUNTER_BITS));
        k0 = uint32_t(z);
        k1 = uint32_t(z >> 32);
    }

    float uniform24(uint32_t counter) const {
        uint32_t x = counter * GOLDEN + k0;
        x ^= x >> 16;
        x *= MIX_1;
        x ^= k1;
        x ^= x >> 15;
        x *= MIX_2;
        x ^= x >> 16;
        return float(int32_t(x >> 8)) * TWO_TO_MINUS_24;  // the signed conversion is the one SIMD has
    }

#ifdef PERBIT_AVX2
    __m256 uniform24(__m256i counter_times_golden_plus_k0) const {
        __m256i x = counter_times_golden_plus_k0;
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(int(MIX_1)));
        x = _mm256_xor_si256(x, _mm256_set1_epi32(int(k1)));
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 15));
        x = _mm256_mullo_epi32(x, _mm256_set1_epi32(int(MIX_2)));
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
        return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(x, 8)), _mm256_set1_ps(TWO_TO_MINUS_24));
    }

    // The argument above for counters counter .. counter + 7; eight further on is an addition of 8 * GOLDEN.
    __m256i sequence(uint32_t counter) const {
        const __m256i lanes = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(int(GOLDEN)));
        return _mm256_add_epi32(_mm256_set1_epi32(int(counter * GOLDEN + k0)), lanes);
    }
#endif
};

// Calls body(offset, count, words, counter) for each run of elements that share their key words.
template <class Body>
inline void for_each_random_run(uint64_t key, uint64_t start, size_t n, const Body& body) {
    for (size_t offset = 0; offset < n;) {
        const uint64_t index = start + offset;
        const uint64_t left = COUNTER_MASK + 1 - (index & COUNTER_MASK);
        const size_t count = left < n - offset ? size_t(left) : n - offset;
        body(offset, count, KeyWords(key, index), uint32_t(index & COUNTER_MASK));
        offset += count;
    }
}

}  // namespace perbit::PERBIT_ARCH
