// Uniform quantizers, rounding to the nearest or at random without bias.
#pragma once

#include "bits.hpp"
#include "random.hpp"

namespace perbit::PERBIT_ARCH {

// clip(floor(v), 0, top): clipped first, so that the truncation is a floor and always fits.
inline int32_t clipped_floor(float v, float top) {
    v = v > 0.0f ? v : 0.0f;
    v = v < top ? v : top;
    return int32_t(v);
}

template <class S>
void quantize_uniform(const float* x, size_t n, float scale, float offset, uint32_t levels, S* out) {
    const float top = float(levels - 1);
    for (size_t i = 0; i < n; i++) out[i] = S(clipped_floor(x[i] * scale + offset, top));
}

template <class S>
void quantize_uniform_random(const float* x, size_t n, float scale, float offset, uint32_t levels, uint64_t key,
                             uint64_t start, S* out) {
    const float top = float(levels - 1);
    for_each_random_run(key, start, n, [&](size_t from, size_t count, KeyWords words, uint32_t counter) {
        const float* in = x + from;
        S* to = out + from;
        for (size_t i = 0; i < count; i++) {
            const float u = words.uniform24(counter + uint32_t(i));
            to[i] = S(clipped_floor((in[i] * scale + offset) + u, top));
        }
    });
}

template <class S>
void quantize_levels_random(const float* x, size_t n, const float* scales, uint64_t bucket, uint32_t levels, uint64_t key,
                            uint64_t start, S* out) {
    const float top = float(levels);
    const int32_t zero = int32_t(levels);
    for_each_random_run(key, start, n, [&](size_t from, size_t count, KeyWords words, uint32_t counter) {
        for_each_bucket_run(start + from, count, bucket, [&](size_t within, size_t length, size_t index) {
            const float scale = scales[index];
            const float* in = x + from + within;
            S* to = out + from + within;
            const uint32_t first = counter + uint32_t(within);
            for (size_t i = 0; i < length; i++) {
                const float u = words.uniform24(first + uint32_t(i));
                const int32_t level = clipped_floor(std::fabs(in[i]) * scale + u, top);
                to[i] = S(in[i] >= 0.0f ? zero + level : zero - level);
            }
        });
    });
}

}  // namespace perbit::PERBIT_ARCH
