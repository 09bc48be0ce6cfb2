// What a scalar quantizer with a dead zone makes of values: a quick judgement of what a residual would cost.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "entropy_api.hpp"
#include "logarithm.hpp"
#include "reduce.hpp"

namespace perbit::PERBIT_ARCH {

// Of scale*x + sigma*noise.
struct DeadZone {
    float scale, sigma, rounding;

    // The error, in steps, and the level of a value.
    float error(float x, float noise, uint8_t& level) const {
        const float size = std::fabs(x * scale + noise * sigma);
        const int32_t found = int32_t(std::min(255.0f, size + rounding));
        level = uint8_t(found);
        return size - float(found);
    }

#ifdef PERBIT_AVX2
    __m256 errors(const float* x, const float* noise, __m256i& levels) const {
        const __m256 moved = _mm256_mul_ps(_mm256_loadu_ps(noise), _mm256_set1_ps(sigma));
        const __m256 value = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(scale)), moved);
        const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), value);
        levels = _mm256_cvttps_epi32(_mm256_min_ps(_mm256_add_ps(size, _mm256_set1_ps(rounding)), _mm256_set1_ps(255.0f)));
        return _mm256_sub_ps(size, _mm256_cvtepi32_ps(levels));
    }
#endif
};

// The sum of squared errors, in the order of `moments`, and the level of each value.
#ifdef PERBIT_AVX2
inline double dead_zone_block(const float* x, const float* noise, size_t n, const DeadZone& zone, uint8_t* levels) {
    LaneSum sum;
    const auto add = [&](int quarter, __m256 errors) {
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(errors)), high = _mm256_cvtps_pd(_mm256_extractf128_ps(errors, 1));
        sum.lanes[quarter] = _mm256_add_pd(sum.lanes[quarter], _mm256_mul_pd(low, low));
        sum.lanes[quarter + 1] = _mm256_add_pd(sum.lanes[quarter + 1], _mm256_mul_pd(high, high));
    };
    const size_t whole = n / 32 * 32;
    for (size_t i = 0; i < whole; i += 32) {
        __m256i found[4];
        for (size_t k = 0; k < 4; k++) add(int(2 * k % 4), zone.errors(x + i + 8 * k, noise + i + 8 * k, found[k]));
        store32(levels + i, found[0], found[1], found[2], found[3]);
    }
    float rest[32] = {};  // zeros change no sum
    for (size_t i = whole; i < n; i++) rest[i - whole] = zone.error(x[i], noise[i], levels[i]);
    for (size_t k = 0; k < 4; k++) add(int(2 * k % 4), _mm256_loadu_ps(rest + 8 * k));
    return sum.fold();
}
#else
inline double dead_zone_block(const float* x, const float* noise, size_t n, const DeadZone& zone, uint8_t* levels) {
    std::vector<float> errors(n);
    for (size_t i = 0; i < n; i++) errors[i] = zone.error(x[i], noise[i], levels[i]);
    return block_sum_sq(errors.data(), n);
}
#endif

// Most often all levels have four bits; many of these are counted much faster, and few need small tables only. Returns what none is above.
inline uint8_t count_levels(const uint8_t* levels, size_t n, uint64_t counts[256]) {
    constexpr size_t MANY = 2048;
    uint8_t most = 0;  // no level is above this
    for (size_t i = 0; i < n; i++) most |= levels[i];
    if (most >= 16) {
        histogram(levels, n, 256, counts);
    } else if (n >= MANY) {
        histogram(levels, n, 16, counts);
    } else {
        uint32_t tables[4][16] = {};
        for (size_t i = 0; i < n; i++) tables[i & 3][levels[i]]++;
        for (size_t level = 0; level < 16; level++)
            counts[level] = (tables[0][level] + tables[1][level]) + (tables[2][level] + tables[3][level]);
    }
    return most;
}

ScalarCost scalar_cost(const float* x, const float* noise, size_t n, float scale, float sigma, float rounding) {
    if (n == 0) return {0, 0};
    const DeadZone zone{scale, sigma, rounding};
    std::vector<uint8_t> levels(n);
    double error = 0, bits = 0;
    for (size_t begin = 0; begin < n; begin += SUM_BLOCK)
        error += dead_zone_block(x + begin, noise + begin, std::min(SUM_BLOCK, n - begin), zone, levels.data() + begin);
    uint64_t counts[256];
    const size_t most = count_levels(levels.data(), n, counts);
    const double all = exact_log2(double(n));
    for (size_t level = 0; level <= most; level++)
        if (counts[level]) bits += double(counts[level]) * (all - exact_log2(double(counts[level])) + (level ? 1.0 : 0.0));
    return {error, bits};
}

}  // namespace perbit::PERBIT_ARCH
