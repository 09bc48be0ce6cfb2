// Which of many sign patterns a block of values agrees with most: the search of a vector quantizer.
#pragma once

#include <algorithm>
#include <cmath>

#include "hadamard.hpp"

namespace perbit::PERBIT_ARCH {

// Eight maxima side by side, which compilers keep in one register; a maximum does not depend on the order.
static inline float largest_magnitude(const float* y, size_t n) {
    float lanes[8] = {};
    for (size_t i = 0; i < n; i += 8)
        for (size_t lane = 0; lane < 8; lane++) {
            const float magnitude = std::fabs(y[i + lane]);
            lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
        }
    return *std::max_element(lanes, lanes + 8);
}

// Pattern (turn, row) is row `row` of the Hadamard matrix times the signs of `turn`. Of equal agreements the first wins.
void match_patterns(const float* x, size_t n, size_t length, const float* signs, size_t turns, uint16_t* symbols,
                    float* agreement) {
    float y[LONGEST_PATTERN];
    for (size_t block = 0; block < n / length; block++, x += length) {
        float best = 0;
        size_t pattern = 0;
        bool negative = false;
        for (size_t turn = 0; turn < turns; turn++) {
            for (size_t i = 0; i < length; i++) y[i] = x[i] * signs[turn * length + i];
            hadamard(y, length, length, y);
            const float largest = largest_magnitude(y, length);
            if (!(largest > best)) continue;
            const size_t row = std::find_if(y, y + length, [=](float v) { return std::fabs(v) == largest; }) - y;
            best = largest;
            pattern = turn * length + row;
            negative = y[row] < 0;
        }
        symbols[block] = uint16_t(2 * pattern + negative);
        agreement[block] = best;
    }
}

}  // namespace perbit::PERBIT_ARCH
