// Small whole numbers under an adaptive binary arithmetic code: levels of a quantizer whose size changes along rows and columns.
//
// A level is coded in unary ("is it above 0, above 1, ..."), beyond LEVEL_NODES by its bits. Every decision starts at its probability
// for a geometric distribution with the mean of its context, and learns in three: the means of few and of many levels before,
// and the mean of this column (without columns: the two levels before). Encoder and decoder run the same code.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "bitcoder.hpp"

namespace perbit::PERBIT_ARCH {

constexpr unsigned LEVEL_NODES = 18;
constexpr unsigned MEAN_BITS = 8;              // fraction bits of a mean
constexpr uint32_t LARGEST_IN_MEAN = 1023;     // larger levels count as this much
constexpr unsigned FINE = 32, COARSE = 10;     // contexts of a mean: half octaves, octaves
constexpr uint32_t MEAN_FLOOR = 16;            // below, means are as good as zero

struct RunningMean {
    int32_t value;  // in 2^-MEAN_BITS

    void add(uint32_t level, unsigned rate) {
        value += (int32_t(std::min(level, LARGEST_IN_MEAN) << MEAN_BITS) - value) >> rate;
    }
    unsigned fine() const {
        const uint32_t y = uint32_t(value) + MEAN_FLOOR;
        const unsigned octave = 31 - unsigned(std::countl_zero(y));
        return 2 * (octave - 4) + (y >> (octave - 1) & 1);
    }
    unsigned coarse() const { return std::min(fine() / 2, COARSE - 1); }
};

// The chance that a geometric level with this mean goes on, in 2^-STATE_BITS.
inline uint32_t goes_on(uint32_t mean) {
    const uint64_t m = mean + MEAN_FLOOR / 2;
    return uint32_t((m << STATE_BITS) / (m + (1u << MEAN_BITS)));
}

// A mean in the middle of a context.
inline uint32_t mean_of_fine(unsigned context) {
    const uint32_t y = (2 + (context & 1)) << (context / 2 + 3);
    return y + y / 4 - MEAN_FLOOR;
}

// Every probability before anything is learnt; the same for all streams, so computed once.
struct FreshLevels {
    std::array<uint32_t, LEVEL_NODES * COARSE * COARSE> both;
    std::array<uint32_t, LEVEL_NODES * FINE> one;

    FreshLevels() {
        for (unsigned node = 0; node < LEVEL_NODES; node++) {
            for (unsigned c = 0; c < FINE; c++) one[node * FINE + c] = fresh(goes_on(mean_of_fine(c)));
            for (unsigned a = 0; a < COARSE; a++)
                for (unsigned b = 0; b < COARSE; b++)
                    both[(node * COARSE + a) * COARSE + b] = fresh(goes_on((mean_of_fine(2 * a) + mean_of_fine(2 * b)) / 2));
        }
    }

    static const FreshLevels& get() {
        static const FreshLevels levels;
        return levels;
    }
};

class LevelModel {
public:
    LevelModel(size_t columns, uint32_t mean)
        : both_(FreshLevels::get().both), few_(FreshLevels::get().one), many_(few_), column_(columns, RunningMean{int32_t(mean)}) {
        for (RunningMean* m : {&fast_, &slow_, &last_, &before_}) m->value = int32_t(mean);
    }

    // Codes a level and returns it; the decoder's argument does not matter.
    template <class Coder>
    PERBIT_ALWAYS_INLINE uint32_t code(Coder& coder, uint32_t level) {
        RunningMean& across = column_.empty() ? before_ : column_[at_];
        const RunningMean along = column_.empty() ? last_ : fast_;
        const unsigned both = along.coarse() * COARSE + across.coarse();
        const RunningMean near{(along.value + across.value) / 2};
        const unsigned few = near.fine(), many = slow_.fine();
        uint32_t result = 0;
        while (result < LEVEL_NODES &&
               learnt_bit(coder, level > result, both_[result * COARSE * COARSE + both], many_[result * FINE + many],
                          few_[result * FINE + few]))
            result++;
        if (result == LEVEL_NODES) result += rest(coder, level - LEVEL_NODES);
        if (column_.empty()) {
            before_ = last_;
            last_.value = int32_t(std::min(result, LARGEST_IN_MEAN) << MEAN_BITS);
        } else {
            across.add(result, 2);
            at_ = at_ + 1 == column_.size() ? 0 : at_ + 1;
        }
        fast_.add(result, 2);
        slow_.add(result, 4);
        return result;
    }

private:
    // Elias gamma of value + 1, every bit at one half.
    template <class Coder>
    static uint32_t rest(Coder& coder, uint32_t value) {
        constexpr uint32_t HALF = 1u << 15;
        const uint64_t wanted = uint64_t(value) + 1;
        const unsigned size = 63 - unsigned(std::countl_zero(wanted));
        unsigned bits = 0;
        while (bits < 30 && coder.bit(bits < size, HALF)) bits++;
        uint64_t result = 1;
        for (unsigned below = bits; below-- > 0;) result = result << 1 | coder.bit(wanted >> below & 1, HALF);
        return uint32_t(result - 1);
    }

    std::array<uint32_t, LEVEL_NODES * COARSE * COARSE> both_;
    std::array<uint32_t, LEVEL_NODES * FINE> few_, many_;
    std::vector<RunningMean> column_;
    size_t at_ = 0;
    RunningMean fast_, slow_, last_, before_;
};

std::vector<uint8_t> levels_encode(const uint32_t* levels, size_t count, size_t columns, uint32_t mean) {
    BitEncoder coder;
    LevelModel model(columns, mean);
    for (size_t i = 0; i < count; i++) {
        require(levels[i] <= LARGEST_LEVEL, "a level is too large");
        model.code(coder, levels[i]);
    }
    return coder.finish();
}

// Calls put(i, level) for every level of a stream.
template <class Put>
inline void read_levels(const uint8_t* data, size_t size, size_t count, size_t columns, uint32_t mean, const Put& put) {
    BitDecoder coder(data, size);
    LevelModel model(columns, mean);
    for (size_t i = 0; i < count; i++) {
        const uint32_t level = model.code(coder, 0);
        require(level <= LARGEST_LEVEL, "a level is too large");
        put(i, level);
    }
    coder.finish();
}

void levels_decode(const uint8_t* data, size_t size, size_t count, size_t columns, uint32_t mean, uint32_t* out) {
    read_levels(data, size, count, columns, mean, [&](size_t i, uint32_t level) { out[i] = level; });
}

void levels_decode_table(const uint8_t* data, size_t size, size_t count, size_t columns, uint32_t mean, const float* table,
                         size_t alphabet, float* out) {
    bool outside = false;  // said in the end: a stream that is broken anyway is called that
    read_levels(data, size, count, columns, mean, [&](size_t i, uint32_t level) {
        outside |= level >= alphabet;
        out[i] = level < alphabet ? table[level] : 0.0f;
    });
    if (outside) throw std::invalid_argument("a level outside the alphabet of " + std::to_string(alphabet));
}

}  // namespace perbit::PERBIT_ARCH
