// Weighted additions of sparse and dense values.
#pragma once

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

// Two loops: all positions are checked before anything is written.
void scatter_add(float* out, size_t n, const uint32_t* positions, const float* values, size_t count, float weight) {
    uint32_t largest = 0;
    for (size_t i = 0; i < count; i++) largest = positions[i] > largest ? positions[i] : largest;
    require(count == 0 || largest < n, "a position lies outside the output");
    for (size_t i = 0; i < count; i++) out[positions[i]] += weight * values[i];
}

void axpy(float* out, const float* values, size_t n, float weight) {
    for (size_t i = 0; i < n; i++) out[i] += weight * values[i];
}

}  // namespace perbit::PERBIT_ARCH
