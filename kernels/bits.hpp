// Small words about bits and vectors that every numeric kernel uses.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#ifdef PERBIT_AVX2
#include <immintrin.h>
#endif

#include "numeric_types.hpp"

namespace perbit::PERBIT_ARCH {

constexpr uint32_t MAGNITUDE_MASK = 0x7fffffff;
constexpr uint32_t INFINITY_BITS = 0x7f800000;

inline uint32_t bits_of(float x) { return std::bit_cast<uint32_t>(x); }
inline float float_of(uint32_t bits) { return std::bit_cast<float>(bits); }

// Magnitudes of finite floats compare like these integers, which always fit an int32.
inline uint32_t magnitude(float x) { return bits_of(x) & MAGNITUDE_MASK; }

inline uint64_t load64(const uint8_t* p) {
    uint64_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store64(uint8_t* p, uint64_t v) { std::memcpy(p, &v, sizeof v); }

// Calls body(offset, count, bucket index) for each run of elements of one bucket; element 0 has global index start.
template <class Body>
inline void for_each_bucket_run(uint64_t start, size_t n, uint64_t bucket, const Body& body) {
    uint64_t index = start / bucket, left = bucket - start % bucket;
    for (size_t offset = 0; offset < n;) {
        const size_t count = left < n - offset ? size_t(left) : n - offset;
        body(offset, count, size_t(index));
        offset += count;
        index += 1;
        left = bucket;
    }
}

// An OR of all symbols would not bound them by a table size that is no power of two; their maximum does.
template <class S>
inline void require_symbols_below(const S* symbols, size_t n, size_t size) {
    if (size > S(-1)) return;
    S largest = 0;
    for (size_t i = 0; i < n; i++) largest = symbols[i] > largest ? symbols[i] : largest;
    require(n == 0 || largest < size, "a symbol lies outside its table");
}

#ifdef PERBIT_AVX2

inline __m256i load8(const uint8_t* p) { return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p)); }
inline __m256i load8(const uint16_t* p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)); }

// 32 values below 256 (65536) from four vectors, in order; the packs work within 128-bit halves, the permutes undo that.
inline void store32(uint8_t* p, __m256i a, __m256i b, __m256i c, __m256i d) {
    const __m256i mixed = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i*)p, _mm256_permutevar8x32_epi32(mixed, order));
}

inline void store32(uint16_t* p, __m256i a, __m256i b, __m256i c, __m256i d) {
    constexpr int ORDER = 0b11011000;  // quarters 0, 2, 1, 3
    _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), ORDER));
    _mm256_storeu_si256((__m256i*)(p + 16), _mm256_permute4x64_epi64(_mm256_packus_epi32(c, d), ORDER));
}

// Tables of floats looked up eight at a time: up to 16 entries live in two registers, up to 32 in four, longer ones are gathered.
struct RegisterTable {
    __m256 low, high;

    RegisterTable(const float* table, size_t size) {
        float padded[16] = {};
        std::copy(table, table + size, padded);
        low = _mm256_loadu_ps(padded);
        high = _mm256_loadu_ps(padded + 8);
    }

    __m256 operator()(__m256i index) const {
        const __m256 bit3_as_sign = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index), bit3_as_sign);
    }
};

struct WideRegisterTable {
    RegisterTable low, high;

    WideRegisterTable(const float* table, size_t size) : low(table, 16), high(table + 16, size - 16) {}

    __m256 operator()(__m256i index) const {
        return _mm256_blendv_ps(low(index), high(index), _mm256_castsi256_ps(_mm256_slli_epi32(index, 27)));
    }
};

struct MemoryTable {
    const float* table;

    __m256 operator()(__m256i index) const { return _mm256_i32gather_ps(table, index, 4); }
};

#endif

}  // namespace perbit::PERBIT_ARCH
