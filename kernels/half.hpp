// IEEE half precision: float32 rounded to nearest even and saturated, and back.
#pragma once

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr uint32_t HALF_LARGEST = 0x477fe000;    // 65504 as float32 bits
constexpr uint32_t HALF_NORMAL = 0x38800000;     // 2^-14, the smallest normal half
constexpr uint32_t HALF_BIAS_SHIFT = 0x38000000;  // what the exponents differ by, as float32 bits
constexpr int HALF_SHIFT = 13;                   // mantissa bits a half lacks

// Adding 1/2 leaves a float32 with steps of 2^-24, those of subnormal halves: the addition does the rounding.
inline uint32_t half_subnormal(uint32_t a) { return bits_of(float_of(a) + 0.5f) - bits_of(0.5f); }
inline uint32_t half_normal(uint32_t a) {
    return (a + 0xfff + (a >> HALF_SHIFT & 1) - HALF_BIAS_SHIFT) >> HALF_SHIFT;
}

void to_half(const float* x, size_t n, uint16_t* out) {
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i]);
        const uint32_t a = std::min(bits & MAGNITUDE_MASK, HALF_LARGEST);
        const uint32_t small = half_subnormal(a), large = half_normal(a);
        out[i] = uint16_t((bits >> 16 & 0x8000) | (a < HALF_NORMAL ? small : large));
    }
}

// A half's bits in the place of a float32's are 2^112 too small; the product is exact, for subnormals too.
void from_half(const uint8_t* data, size_t n, float* out) {
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        std::memcpy(&half, data + 2 * i, sizeof half);
        const uint32_t magnitude = half & 0x7fffu;
        largest = std::max(largest, magnitude);
        const float value = float_of(magnitude << HALF_SHIFT) * 0x1p112f;
        out[i] = float_of(bits_of(value) | uint32_t(half & 0x8000u) << 16);
    }
    require(largest < 0x7c00, "a half-precision value is infinite or not a number");
}

}  // namespace perbit::PERBIT_ARCH
