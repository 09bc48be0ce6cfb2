// Floats of at most 8 bits with any split into exponent and mantissa.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr int FLOAT_MANTISSA = 23, FLOAT_BIAS = 127;

void lowfloat(const float* x, size_t n, float scale, int exponent_bits, int mantissa_bits, uint32_t max_code, uint8_t* out) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int dropped = FLOAT_MANTISSA - mantissa_bits;
    const int sign_shift = 31 - (exponent_bits + mantissa_bits);
    const int32_t below_half = (1 << (dropped - 1)) - 1;
    const int32_t rebias = (FLOAT_BIAS - bias) << mantissa_bits;
    const int32_t largest = int32_t(max_code);
    const float smallest_normal = float_of(uint32_t(FLOAT_BIAS + 1 - bias) << FLOAT_MANTISSA);
    // Added to a subnormal magnitude, this number's last bit is the format's smallest step, so the addition itself rounds.
    const int32_t magic_bits = (FLOAT_BIAS + 1 - bias + dropped) << FLOAT_MANTISSA;
    const float magic = float_of(uint32_t(magic_bits));

    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i] * scale);
        const int32_t m = int32_t(bits & MAGNITUDE_MASK);
        const float size = float_of(uint32_t(m));
        const int32_t normal = ((m + below_half + ((m >> dropped) & 1)) >> dropped) - rebias;
        const int32_t subnormal = int32_t(bits_of(size + magic)) - magic_bits;
        int32_t code = size < smallest_normal ? subnormal : normal;
        code = code < largest ? code : largest;
        const int32_t sign = int32_t((bits & ~MAGNITUDE_MASK) >> sign_shift);
        out[i] = uint8_t(code == 0 ? 0 : sign | code);
    }
}

}  // namespace perbit::PERBIT_ARCH
