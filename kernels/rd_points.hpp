// What symbols of `rd` stand for.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace perbit {

enum PartKind : uint8_t { PART_NOTHING, PART_TRELLIS, PART_WIDE, PART_SHIFTED, PART_WIDE_SHIFTED, PART_GRID };
constexpr size_t PART_SHIFTS = 7;  // of k = -3 .. 3
constexpr int ZERO_OF_BYTES = 128, ZERO_OF_WORDS = 2048;

// Values of levels, the distances from zero: k = 0, -1, 1, -2, 2, …, in steps of this size. On the trellis the parity of k is the lowest bit.
struct Points {
    int8_t shifts[PART_SHIFTS] = {};
    bool on_grid = false;
    double step = 1;

    static int k_of(uint32_t level) { return level & 1 ? -int(level / 2) - 1 : int(level / 2); }

    float at(int k) const {
        constexpr double MOST = std::numeric_limits<float>::max();
        double point = on_grid ? double(k) : 2.0 * k + 0.5;
        if (!on_grid && k >= -3 && k <= 3) point += double(shifts[k + 3]) / 64;
        const float value = float(std::clamp(point * step, -MOST, MOST));
        return on_grid ? value : std::bit_cast<float>((std::bit_cast<uint32_t>(value) & ~1u) | (uint32_t(k) & 1));
    }

    std::vector<float> by_level(uint32_t count) const {
        std::vector<float> values(count);
        for (uint32_t level = 0; level < count; level++) values[level] = at(k_of(level));
        return values;
    }

    std::vector<float> by_symbol(int zero) const {
        std::vector<float> values(size_t(2 * zero));
        for (int k = -zero; k < zero; k++) values[size_t(k + zero)] = at(k);
        return values;
    }
};

}  // namespace perbit
