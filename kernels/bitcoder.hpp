// A binary arithmetic code whose probabilities learn: the coder of everything that is small or clustered.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "bits.hpp"
#include "compilers.hpp"

namespace perbit::PERBIT_ARCH {

constexpr unsigned STATE_BITS = 22, COUNT_BITS = 10;  // of a learnt probability
constexpr uint32_t LAST_COUNT = 252;                  // from here on a new bit weighs 1/256

// The interval [low, high] of a 32-bit binary arithmetic code without carries; p is the probability of a one in 1/65536.
struct Interval {
    uint32_t low = 0, high = 0xffffffff;

    uint32_t split(uint32_t p) const { return low + uint32_t(uint64_t(high - low) * p >> 16); }
    void narrow(bool bit, uint32_t middle) { (bit ? high : low) = bit ? middle : middle + 1; }
    bool settled() const { return ((low ^ high) >> 24) == 0; }
    void shift() {
        low <<= 8;
        high = high << 8 | 255;
    }
    // One byte that lies inside, zeros behind it; none if all zeros do.
    bool needs_end() const { return low != 0; }
    uint8_t end() const { return uint8_t((low >> 24) + 1); }
};

class BitEncoder {
public:
    PERBIT_ALWAYS_INLINE bool bit(bool value, uint32_t p) {
        interval_.narrow(value, interval_.split(p));
        for (; interval_.settled(); interval_.shift()) out_.push_back(uint8_t(interval_.high >> 24));
        return value;
    }

    std::vector<uint8_t> finish() {
        if (interval_.needs_end()) out_.push_back(interval_.end());
        return std::move(out_);
    }

private:
    Interval interval_;
    std::vector<uint8_t> out_;
};

class BitDecoder {
public:
    BitDecoder(const uint8_t* data, size_t size) : data_(data), size_(size) {
        for (size_t i = 0; i < 4; i++) code_ = code_ << 8 | byte(i);
    }

    PERBIT_ALWAYS_INLINE bool bit(bool, uint32_t p) {
        const uint32_t middle = interval_.split(p);
        const bool value = code_ <= middle;
        interval_.narrow(value, middle);
        for (; interval_.settled(); interval_.shift()) {
            require(taken_ < size_, "the coded data ends early");
            code_ = code_ << 8 | byte(++taken_ + 3);
        }
        return value;
    }

    void finish() const {
        require(size_ == taken_ + interval_.needs_end(), "the coded data has the wrong length");
        require(!interval_.needs_end() || data_[taken_] == interval_.end(), "the coded data ends in a wrong byte");
    }

private:
    uint32_t byte(size_t i) const { return i < size_ ? data_[i] : 0; }

    const uint8_t* data_;
    size_t size_;
    size_t taken_ = 0;
    uint32_t code_ = 0;
    Interval interval_;
};

inline uint32_t probability(uint32_t p) { return std::clamp(p, 16u, 65520u); }

// A probability that has seen nothing yet.
inline uint32_t fresh(uint32_t p) { return p << COUNT_BITS; }

PERBIT_ALWAYS_INLINE inline void learn(uint32_t& state, bool bit) {
    static constexpr auto WEIGHTS = [] {
        std::array<int32_t, LAST_COUNT + 1> weights{};
        for (uint32_t seen = 0; seen <= LAST_COUNT; seen++) weights[seen] = int32_t(65536 / (seen + 4));
        return weights;
    }();
    constexpr int32_t CERTAIN = (1 << STATE_BITS) - 1;
    const uint32_t seen = state & ((1 << COUNT_BITS) - 1);
    const int32_t p = int32_t(state >> COUNT_BITS);
    const int64_t step = int64_t((bit ? CERTAIN : 0) - p) * WEIGHTS[seen] >> 16;
    state = uint32_t(p + int32_t(step)) << COUNT_BITS | std::min(seen + 1, LAST_COUNT);
}

// One decision under the mean of three learnt probabilities, the last of which counts twice; they learn what it was.
template <class Coder>
PERBIT_ALWAYS_INLINE inline bool learnt_bit(Coder& coder, bool bit, uint32_t& a, uint32_t& b, uint32_t& c) {
    const uint32_t sum = (a >> COUNT_BITS) + (b >> COUNT_BITS) + 2 * (c >> COUNT_BITS);
    const bool value = coder.bit(bit, probability(sum >> (STATE_BITS + 2 - 16)));
    for (uint32_t* state : {&a, &b, &c}) learn(*state, value);
    return value;
}

}  // namespace perbit::PERBIT_ARCH
