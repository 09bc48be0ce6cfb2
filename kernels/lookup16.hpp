// Table look-up by 4-bit symbols, 32 at a time: the tables stay in registers, one byte plane each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef PERBIT_AVX2
#include <immintrin.h>
#endif

#include "entropy_api.hpp"

namespace perbit::PERBIT_ARCH {

#ifdef PERBIT_AVX2

// A vector of 32 symbols in "plane order": the low half holds symbols 0-3, 8-11, 16-19, 24-27, the high half the
// others. Widening its bytes within each half then yields symbols 0-7, 8-15, 16-23, 24-31 in four vectors.
inline __m256i load_plane_order(const uint8_t* symbols) {
    const __m256i natural = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(symbols));
    return _mm256_permutevar8x32_epi32(natural, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

inline void store_plane_order(uint8_t* out, __m256i symbols) {
    const __m256i natural = _mm256_permutevar8x32_epi32(symbols, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), natural);
}

inline __m256i broadcast_16_bytes(const void* bytes) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(bytes)));
}

// Sixteen values of up to four bytes: plane p holds byte p of each.
struct Planes {
    __m256i plane[4];

    explicit Planes(const uint32_t values[16]) {
        for (int p = 0; p < 4; ++p) {
            uint8_t bytes[16];
            for (int i = 0; i < 16; ++i) bytes[i] = static_cast<uint8_t>(values[i] >> (8 * p));
            plane[p] = broadcast_16_bytes(bytes);
        }
    }

    // symbols in plane order, all below 16; out in natural order
    void look_up(__m256i symbols, __m256i out[4]) const {
        const __m256i b0 = _mm256_shuffle_epi8(plane[0], symbols), b1 = _mm256_shuffle_epi8(plane[1], symbols);
        const __m256i b2 = _mm256_shuffle_epi8(plane[2], symbols), b3 = _mm256_shuffle_epi8(plane[3], symbols);
        const __m256i lo01 = _mm256_unpacklo_epi8(b0, b1), hi01 = _mm256_unpackhi_epi8(b0, b1);
        const __m256i lo23 = _mm256_unpacklo_epi8(b2, b3), hi23 = _mm256_unpackhi_epi8(b2, b3);
        out[0] = _mm256_unpacklo_epi16(lo01, lo23);
        out[1] = _mm256_unpackhi_epi16(lo01, lo23);
        out[2] = _mm256_unpacklo_epi16(hi01, hi23);
        out[3] = _mm256_unpackhi_epi16(hi01, hi23);
    }
};

inline void widen_bytes(__m256i bytes, __m256i out[4]) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i lo = _mm256_unpacklo_epi8(bytes, zero), hi = _mm256_unpackhi_epi8(bytes, zero);
    out[0] = _mm256_unpacklo_epi16(lo, zero);
    out[1] = _mm256_unpackhi_epi16(lo, zero);
    out[2] = _mm256_unpacklo_epi16(hi, zero);
    out[3] = _mm256_unpackhi_epi16(hi, zero);
}

inline size_t look_up_planes(const uint8_t* symbols, size_t n, const float* table, uint32_t alphabet, float* out) {
    uint32_t values[16] = {};
    std::memcpy(values, table, alphabet * sizeof(float));
    const Planes planes(values);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i wide[4];
        planes.look_up(load_plane_order(symbols + i), wide);
        for (int k = 0; k < 4; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 8 * k), wide[k]);
    }
    return i;
}

#endif

Error look_up(const uint8_t* symbols, size_t n, const float* table, [[maybe_unused]] uint32_t alphabet, float* out) {
    size_t i = 0;
#ifdef PERBIT_AVX2
    if (alphabet <= 16) i = look_up_planes(symbols, n, table, alphabet, out);
#endif
    for (; i < n; ++i) out[i] = table[symbols[i]];
    return nullptr;
}

Error look_up(const uint16_t* symbols, size_t n, const float* table, uint32_t, float* out) {
    for (size_t i = 0; i < n; ++i) out[i] = table[symbols[i]];
    return nullptr;
}

}  // namespace perbit::PERBIT_ARCH
