// What a scalar quantizer with a dead zone makes of values: a quick judgement of what a residual would cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "logarithm.hpp"
#include "reduce.hpp"

namespace perbit::PERBIT_ARCH {

// Errors, in steps of the quantizer, of scale*x + sigma*noise, and the level of each.
inline void dead_zone(const float* x, const float* noise, size_t n, float scale, float sigma, float rounding, float* errors,
                      uint8_t* levels) {
    for (size_t i = 0; i < n; i++) {
        const float size = std::fabs(x[i] * scale + noise[i] * sigma);
        const int32_t level = int32_t(std::min(255.0f, size + rounding));
        errors[i] = size - float(level);
        levels[i] = uint8_t(level);
    }
}

ScalarCost scalar_cost(const float* x, const float* noise, size_t n, float scale, float sigma, float rounding) {
    if (n == 0) return {0, 0};
    std::vector<float> errors(n);
    std::vector<uint8_t> levels(n);
    dead_zone(x, noise, n, scale, sigma, rounding, errors.data(), levels.data());
    uint32_t counts[4][256] = {};
    for (size_t i = 0; i < n; i++) counts[i & 3][levels[i]]++;
    double bits = 0;
    const double all = exact_log2(double(n));
    for (size_t level = 0; level < 256; level++) {
        const uint32_t count = (counts[0][level] + counts[1][level]) + (counts[2][level] + counts[3][level]);
        if (count) bits += double(count) * (all - exact_log2(double(count)) + (level ? 1.0 : 0.0));
    }
    return {sum_of_squares(errors.data(), n), bits};
}

}  // namespace perbit::PERBIT_ARCH
