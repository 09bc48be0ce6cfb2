// Symbol counts. Neighbouring equal symbols would wait for each other's increments in one table, so the counts are
// spread over several and added at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef PERBIT_AVX2
#include <immintrin.h>
#endif

#include "entropy_api.hpp"

namespace perbit::PERBIT_ARCH {

constexpr Error SYMBOL_OUTSIDE = "a symbol lies outside the alphabet";
constexpr size_t HISTOGRAM_BLOCK = size_t{1} << 30;  // 32-bit sub-counts cannot overflow within a block

inline uint64_t load_u64(const void* p) {
    uint64_t v;
    std::memcpy(&v, p, 8);
    return v;
}

// Two 4-bit symbols make one 8-bit index: half the increments. Returns the OR of all symbols.
inline uint64_t count_nibbles(const uint8_t* symbols, size_t n, uint64_t counts[16]) {
    constexpr int TABLES = 4;
    uint32_t sub[TABLES][256] = {};
    uint64_t seen = 0;
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint64_t a = load_u64(symbols + i), b = load_u64(symbols + i + 8);
        seen |= a | b;
        const uint64_t both = a | b << 4;
        for (int k = 0; k < 8; ++k) ++sub[k % TABLES][both >> (8 * k) & 255];
    }
    for (; i < n; ++i) {
        seen |= symbols[i];
        ++counts[symbols[i] & 15];
    }
    for (auto& table : sub)
        for (int pair = 0; pair < 256; ++pair) {
            counts[pair & 15] += table[pair];
            counts[pair >> 4] += table[pair];
        }
    return seen;
}

#ifdef PERBIT_AVX2

// Compares 32 symbols with each of the 16 values: no memory traffic at all. Byte counters last 255 rounds.
inline uint64_t count_nibbles_avx2(const uint8_t* symbols, size_t n, uint64_t counts[16]) {
    constexpr size_t ROUNDS = 255, STEP = 32;
    constexpr int HALF = 8;  // values counted in one sweep over a run of rounds: what the registers hold
    __m256i seen = _mm256_setzero_si256();
    size_t i = 0;
    while (n - i >= STEP) {
        const size_t rounds = (n - i) / STEP < ROUNDS ? (n - i) / STEP : ROUNDS;
        for (int base = 0; base < 16; base += HALF) {
            __m256i tally[HALF] = {};
            for (size_t r = 0; r < rounds; ++r) {
                const __m256i s = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols + i + r * STEP));
                seen = _mm256_or_si256(seen, s);
#pragma GCC unroll 8
                for (int v = 0; v < HALF; ++v)
                    tally[v] = _mm256_sub_epi8(
                        tally[v], _mm256_cmpeq_epi8(s, _mm256_set1_epi8(static_cast<char>(base + v))));
            }
            for (int v = 0; v < HALF; ++v) {
                alignas(32) uint64_t sums[4];
                _mm256_store_si256(reinterpret_cast<__m256i*>(sums), _mm256_sad_epu8(tally[v], _mm256_setzero_si256()));
                counts[base + v] += sums[0] + sums[1] + sums[2] + sums[3];
            }
        }
        i += rounds * STEP;
    }
    alignas(32) uint64_t any[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(any), seen);
    return any[0] | any[1] | any[2] | any[3] | count_nibbles(symbols + i, n - i, counts);
}

#endif

inline void count_bytes(const uint8_t* symbols, size_t n, uint64_t counts[256]) {
    constexpr int TABLES = 8;
    uint32_t sub[TABLES][256] = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t eight = load_u64(symbols + i);
        for (int k = 0; k < 8; ++k) ++sub[k][eight >> (8 * k) & 255];
    }
    for (; i < n; ++i) ++sub[0][symbols[i]];
    for (const auto& table : sub)
        for (int v = 0; v < 256; ++v) counts[v] += table[v];
}

Error histogram(const uint8_t* symbols, size_t n, uint32_t alphabet, uint64_t* counts) {
    uint64_t all[256] = {};
    bool outside = false;
    for (size_t i = 0; i < n; i += HISTOGRAM_BLOCK) {
        const size_t count = n - i < HISTOGRAM_BLOCK ? n - i : HISTOGRAM_BLOCK;
        if (alphabet > 16) {
            count_bytes(symbols + i, count, all);
        } else {
#ifdef PERBIT_AVX2
            const uint64_t seen = count_nibbles_avx2(symbols + i, count, all);
#else
            const uint64_t seen = count_nibbles(symbols + i, count, all);
#endif
            outside |= (seen & 0xf0f0f0f0f0f0f0f0u) != 0;
        }
    }
    for (uint32_t v = alphabet; v < 256; ++v) outside |= all[v] != 0;
    for (uint32_t v = 0; v < alphabet; ++v) counts[v] = v < 256 ? all[v] : 0;
    return outside ? SYMBOL_OUTSIDE : nullptr;
}

Error histogram(const uint16_t* symbols, size_t n, uint32_t alphabet, uint64_t* counts) {
    constexpr int TABLES = 4;
    uint32_t sub[TABLES][MAX_ALPHABET + 1];  // the last entry catches everything outside
    std::memset(counts, 0, alphabet * sizeof(uint64_t));
    for (size_t i = 0; i < n; i += HISTOGRAM_BLOCK) {
        const size_t end = n - i < HISTOGRAM_BLOCK ? n : i + HISTOGRAM_BLOCK;
        for (auto& table : sub) std::memset(table, 0, (alphabet + 1) * sizeof(uint32_t));
        const auto index = [&](size_t j) { return symbols[j] < alphabet ? symbols[j] : alphabet; };
        size_t j = i;
        for (; j + TABLES <= end; j += TABLES)
            for (int k = 0; k < TABLES; ++k) ++sub[k][index(j + k)];
        for (; j < end; ++j) ++sub[0][index(j)];
        for (const auto& table : sub) {
            if (table[alphabet] != 0) return SYMBOL_OUTSIDE;
            for (uint32_t v = 0; v < alphabet; ++v) counts[v] += table[v];
        }
    }
    return nullptr;
}

}  // namespace perbit::PERBIT_ARCH
