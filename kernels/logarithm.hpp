// A logarithm by sums and products alone: the same bits on every machine, which a library's need not be.
#pragma once

#include <cmath>

namespace perbit {

// Each file that is compiled has its own: those for AVX2 must not be shared. Base 2, of a positive finite number, to about 1e-12: x = m 2^e with m around 1, and the series of artanh((m - 1) / (m + 1)).
static inline double exact_log2(double x) {
    constexpr double TWO_BY_LN2 = 2.8853900817779268, SQRT_HALF = 0.7071067811865476;
    int exponent;
    double m = std::frexp(x, &exponent);
    if (m < SQRT_HALF) {
        m = m + m;
        exponent--;
    }
    const double z = (m - 1.0) / (m + 1.0), w = z * z;
    double series = 1.0 / 13.0;
    for (const double term : {1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0}) series = series * w + term;
    return exponent + (TWO_BY_LN2 * z) * series;
}

}  // namespace perbit
