// Symbol counts. Neighbouring equal symbols would wait for each other's increments in one table, so the counts are
// spread over several and added at the end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef PERBIT_AVX2
#include <immintrin.h>
#endif

#include "compilers.hpp"
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

// Counts, for each of the eight bit positions, the bytes of the vectors added that have it set. Carry-save adders keep
// one bit of each count per vector, so that only every sixteenth vector is counted out.
constexpr size_t COUNTED_STEP = 16 * 32;

struct BitCounter {
    __m256i ones = _mm256_setzero_si256(), twos = ones, fours = ones, eights = ones;
    uint64_t counts[8] = {};

    static void add(__m256i& carry, __m256i& sum, __m256i a, __m256i b) {
        const __m256i half = _mm256_xor_si256(sum, a);
        carry = _mm256_or_si256(_mm256_and_si256(sum, a), _mm256_and_si256(half, b));
        sum = _mm256_xor_si256(half, b);
    }

    void count_out(__m256i bits, uint64_t weight) {
        PERBIT_UNROLL(8)
        for (int position = 7; position >= 0; --position) {
            counts[position] += weight * static_cast<unsigned>(_mm_popcnt_u32(static_cast<unsigned>(_mm256_movemask_epi8(bits))));
            bits = _mm256_add_epi8(bits, bits);
        }
    }

    template <class Load>
    void add_sixteen(const Load& vector) {
        __m256i two[2], four[2], eight[2], sixteen;
        PERBIT_UNROLL(2)
        for (int h = 0; h < 2; ++h) {
            PERBIT_UNROLL(2)
            for (int q = 0; q < 2; ++q) {
                const int at = 8 * h + 4 * q;
                add(two[0], ones, vector(at), vector(at + 1));
                add(two[1], ones, vector(at + 2), vector(at + 3));
                add(four[q], twos, two[0], two[1]);
            }
            add(eight[h], fours, four[0], four[1]);
        }
        add(sixteen, eights, eight[0], eight[1]);
        count_out(sixteen, 16);
    }

    void finish() {
        count_out(ones, 1);
        count_out(twos, 2);
        count_out(fours, 4);
        count_out(eights, 8);
    }
};

// Counts symbols below 8 * COUNTERS as far as they fill whole steps; returns the OR of these symbols. A symbol becomes one bit of a byte,
// each eight symbols in a counter of their own. Where the index of a look-up has its highest bit set, it finds 0.
template <int COUNTERS>
inline uint64_t count_few_avx2(const uint8_t* symbols, size_t n, uint64_t* counts) {
    const __m256i low_bits = _mm256_setr_epi8(1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                              1, 2, 4, 8, 16, 32, 64, -128, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m256i high_bits = _mm256_permute4x64_epi64(low_bits, 0xb1);
    const __m256i below_16 = _mm256_set1_epi8(0x70), from_16 = _mm256_set1_epi8(-16);
    __m256i seen = _mm256_setzero_si256();
    BitCounter counters[COUNTERS];
    for (size_t i = 0; i < n; i += COUNTED_STEP) {
        const auto load = [&](int k) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols + i) + k); };
        counters[0].add_sixteen([&](int k) {
            const __m256i s = load(k);
            seen = _mm256_or_si256(seen, s);
            return _mm256_shuffle_epi8(low_bits, _mm256_add_epi8(s, below_16));
        });
        counters[1].add_sixteen([&](int k) { return _mm256_shuffle_epi8(high_bits, _mm256_add_epi8(load(k), below_16)); });
        if constexpr (COUNTERS == 4) {
            counters[2].add_sixteen([&](int k) { return _mm256_shuffle_epi8(low_bits, _mm256_add_epi8(load(k), from_16)); });
            counters[3].add_sixteen([&](int k) { return _mm256_shuffle_epi8(high_bits, _mm256_add_epi8(load(k), from_16)); });
        }
    }
    for (int counter = 0; counter < COUNTERS; ++counter) {
        counters[counter].finish();
        for (int v = 0; v < 8; ++v) counts[8 * counter + v] += counters[counter].counts[v];
    }
    alignas(32) uint64_t any[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(any), seen);
    return any[0] | any[1] | any[2] | any[3];
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
        const uint8_t* block = symbols + i;
        size_t done = 0;
        uint64_t seen = 0;
#ifdef PERBIT_AVX2
        if (alphabet <= 32) {
            done = count / COUNTED_STEP * COUNTED_STEP;
            seen = alphabet <= 16 ? count_few_avx2<2>(block, done, all) : count_few_avx2<4>(block, done, all);
        }
#endif
        if (alphabet <= 16)
            seen |= count_nibbles(block + done, count - done, all);
        else
            count_bytes(block + done, count - done, all);
        outside |= (seen & (alphabet <= 16 ? 0xf0f0f0f0f0f0f0f0u : 0xe0e0e0e0e0e0e0e0u)) != 0;
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
