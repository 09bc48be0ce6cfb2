// Positions as gaps under an adaptive binary arithmetic code: clusters, rows and dead regions cost less than chance.
//
// A gap plus one is its class (how often it can be halved) in unary, then the bits below its first one. Every decision starts
// at its probability for positions strewn evenly and learns in three contexts: the local density over a few and over many
// gaps, and the classes of the two gaps before. Encoder and decoder run the same code; only the coder's `bit` differs.
#pragma once

#include <algorithm>
#include <array>

#include "bitcoder.hpp"

namespace perbit::PERBIT_ARCH {

constexpr unsigned GAP_CLASSES = 33;       // gap + 1 is 1 .. 2^32
constexpr unsigned GAP_NODES = 4;          // of a class: does it go on, the bit below the first one, the next bit after 0, after 1
constexpr unsigned GAP_LEARNT_BITS = 2;    // the bits further down keep their probability
constexpr unsigned DENSITIES = 64, PAIRS = 256;

// A running mean of log2(gap + 1), straight between powers of two, with twelve fraction bits.
struct LocalDensity {
    int32_t mean;
    unsigned rate;

    void add(int32_t log) { mean += (log - mean) >> rate; }
    unsigned context() const { return std::min(unsigned(mean) >> 11, DENSITIES - 1); }
};

class GapModel {
public:
    GapModel(uint64_t n, uint64_t count)
        : pair_(GAP_CLASSES * GAP_NODES * PAIRS), fast_(GAP_CLASSES * GAP_NODES * DENSITIES), slow_(fast_.size()) {
        uint64_t absent = ((n - count) << 32) / n;  // the probability, in 2^-32, that the next 2^c positions are absent
        for (unsigned c = 0; c < GAP_CLASSES; c++) {
            one_[c] = uint32_t((absent << STATE_BITS) / ((uint64_t(1) << 32) + absent));
            goes_on_[c] = uint32_t(absent >> (32 - STATE_BITS));
            absent = absent * absent >> 32;
        }
        for (unsigned c = 0; c < GAP_CLASSES; c++)
            for (unsigned node = 0; node < GAP_NODES; node++) start(c, node);
        const uint64_t mean = n / count;
        const unsigned c = class_of(mean);
        before_ = last_ = c;
        few_.mean = many_.mean = log_of(mean, c);
    }

    // Codes gap + 1 and returns it; the decoder's argument does not matter.
    template <class Coder>
    uint64_t code(Coder& coder, uint64_t value) {
        const unsigned wanted = class_of(value | 1);
        const Contexts at{std::min(last_, 15u) * 16 + std::min(before_, 15u), few_.context(), many_.context()};
        unsigned c = 0;
        while (c < GAP_CLASSES - 1 && decision(coder, c < wanted, c * GAP_NODES, at)) c++;
        uint64_t result = 1;
        for (unsigned below = c; below-- > 0;) {
            const bool bit = value >> below & 1;
            const unsigned done = c - 1 - below;
            const bool is_one = done < GAP_LEARNT_BITS
                                    ? decision(coder, bit, c * GAP_NODES + (done ? 2 + unsigned(result & 1) : 1), at)
                                    : coder.bit(bit, probability(one_[below] >> (STATE_BITS - 16)));
            result = result << 1 | is_one;
        }
        const int32_t log = log_of(result, c);
        few_.add(log);
        many_.add(log);
        before_ = last_;
        last_ = c;
        return result;
    }

private:
    struct Contexts {
        unsigned pair, few, many;
    };

    static unsigned class_of(uint64_t value) { return 63 - unsigned(std::countl_zero(value)); }
    static int32_t log_of(uint64_t value, unsigned c) { return int32_t(c << 12) + int32_t((value << 12 >> c) - 4096); }

    void start(unsigned c, unsigned node) {
        const unsigned below = c - std::min(c, node == 1 ? 1u : 2u);  // which bit the node decides
        const uint32_t state = fresh(node == 0 ? goes_on_[c] : one_[below]);
        const size_t at = c * GAP_NODES + node;
        std::fill_n(pair_.begin() + ptrdiff_t(at * PAIRS), PAIRS, state);
        std::fill_n(fast_.begin() + ptrdiff_t(at * DENSITIES), DENSITIES, state);
        std::fill_n(slow_.begin() + ptrdiff_t(at * DENSITIES), DENSITIES, state);
    }

    template <class Coder>
    bool decision(Coder& coder, bool bit, unsigned node, const Contexts& at) {
        return learnt_bit(coder, bit, pair_[node * PAIRS + at.pair], fast_[node * DENSITIES + at.few],
                          slow_[node * DENSITIES + at.many]);
    }

    std::vector<uint32_t> pair_, fast_, slow_;
    std::array<uint32_t, GAP_CLASSES> goes_on_, one_;
    LocalDensity few_{0, 2}, many_{0, 4};
    unsigned last_, before_;
};

std::vector<uint8_t> gaps_encode(const uint32_t* positions, size_t count, uint64_t n) {
    BitEncoder coder;
    if (count == 0) return coder.finish();
    GapModel model(n, count);
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        require(positions[i] >= next, "positions must be strictly ascending");
        require(positions[i] < n, "a position lies outside the tensor");
        model.code(coder, positions[i] - next + 1);
        next = uint64_t(positions[i]) + 1;
    }
    return coder.finish();
}

void gaps_decode(const uint8_t* data, size_t size, size_t count, uint64_t n, uint32_t* out) {
    BitDecoder coder(data, size);
    if (count == 0) return coder.finish();
    GapModel model(n, count);
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        next += model.code(coder, 1);
        require(next <= n, "a position lies outside the tensor");
        out[i] = uint32_t(next - 1);
    }
    coder.finish();
}

}  // namespace perbit::PERBIT_ARCH
