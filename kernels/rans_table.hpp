// The table of a rANS stream: frequencies that suit counts, and both as a few bytes (serialisation: README.md). Compiled once.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "entropy_api.hpp"
#include "entropy_tables.hpp"
#include "logarithm.hpp"

namespace perbit {

// With states of at least 2^16 a symbol costs this many bits more, at 16 bits; a lane's last state costs 24 of its 32 bits.
constexpr double RANS_STATE_LOSS = 0.005, RANS_LANE_BITS = 24;

struct RansTable {
    std::vector<uint32_t> freqs;
    int bits = 0;
    double cost = 0;  // of the stream in bits, without the table
};

// How finely to divide the probabilities: what finer saves in the stream, it costs in the table.
inline int best_bits(const std::vector<double>& c, double n) {
    const double count = double(c.size());
    std::vector<double> p(c);
    double same = 0;
    for (double& each : p) {
        each /= n;
        same += each * each;
    }
    const int lowest = std::max(RANS_MIN_BITS, int(std::bit_width(c.size() - 1)));
    int best = lowest;
    double least = std::numeric_limits<double>::infinity();
    for (int bits = lowest; bits <= RANS_MAX_BITS; bits++) {
        const double unit = std::ldexp(1.0, -bits);
        double raised = 0, rounded = 0;
        for (const double each : p) {
            raised += std::max(unit - each, 0.0);
            rounded += each > unit ? unit * unit / each : 0.0;
        }
        constexpr double LN2 = 0.6931471805599453;
        const double state = RANS_STATE_LOSS * std::ldexp(1.0, 2 * (bits - 16)) * (1 - same);
        const double cost = n * (raised / LN2 + rounded / (24 * LN2) + state) + count * bits;
        if (cost < least) {
            least = cost;
            best = bits;
        }
    }
    return best;
}

// max(1, floor(share)), where what the raised ones receive is taken from the others in proportion.
inline std::vector<int64_t> proportional(const std::vector<double>& c, double n, int64_t total) {
    double scale = double(total) / n;
    while (true) {
        double rest = 0;
        int64_t rare = 0;
        for (const double each : c) {
            if (each * scale < 1) rare++;
            else rest += each;
        }
        if (rest == 0) break;
        const double tighter = double(std::max(total - rare, int64_t(1))) / rest;
        if (tighter >= scale) break;
        scale = tighter;
    }
    std::vector<int64_t> shares(c.size());
    for (size_t i = 0; i < c.size(); i++) shares[i] = std::max(int64_t(std::floor(c[i] * scale)), int64_t(1));
    return shares;
}

// The indices of the smallest keys, the first of equal ones first.
inline std::vector<size_t> smallest(const std::vector<double>& keys, size_t count) {
    std::vector<size_t> order(keys.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return keys[a] < keys[b]; });
    order.resize(std::min(count, order.size()));
    return order;
}

// Frequencies of the symbols that occur, in proportion to their counts: they sum to 2^bits, and none is zero.
inline std::vector<int64_t> normalised(const std::vector<double>& c, double n, int bits) {
    const int64_t total = int64_t(1) << bits;
    std::vector<int64_t> f = proportional(c, n, total);
    std::vector<double> keys(c.size());
    const auto missing = [&] { return total - std::accumulate(f.begin(), f.end(), int64_t(0)); };
    for (int64_t more = missing(); more > 0; more = missing()) {  // one unit each where it shortens the code most
        for (size_t i = 0; i < c.size(); i++) keys[i] = -(c[i] * exact_log2(1 + 1 / double(f[i])));
        for (const size_t i : smallest(keys, size_t(more))) f[i]++;
    }
    for (int64_t fewer = -missing(); fewer > 0; fewer = -missing()) {  // and where its loss lengthens the code least
        int64_t able = 0;
        for (size_t i = 0; i < c.size(); i++) {
            able += f[i] > 1;
            keys[i] = f[i] > 1 ? -c[i] * exact_log2(1 - 1 / double(f[i])) : std::numeric_limits<double>::infinity();
        }
        for (const size_t i : smallest(keys, size_t(std::min(fewer, able)))) f[i]--;
    }
    return f;
}

inline RansTable rans_table(const uint64_t* counts, size_t alphabet) {
    std::vector<double> c;
    std::vector<size_t> present;
    double n = 0;
    for (size_t s = 0; s < alphabet; s++)
        if (counts[s]) {
            c.push_back(double(counts[s]));
            present.push_back(s);
            n += c.back();
        }
    if (c.size() < 2) throw MalformedTable("a rANS table needs at least two symbols that occur");
    RansTable table;
    table.bits = best_bits(c, n);
    const std::vector<int64_t> f = normalised(c, n, table.bits);
    table.freqs.assign(alphabet, 0);
    double same = 0;
    for (size_t i = 0; i < c.size(); i++) {
        const double p = std::ldexp(double(f[i]), -table.bits);
        table.freqs[present[i]] = uint32_t(f[i]);
        table.cost -= c[i] * exact_log2(p);
        same += p * p;
    }
    table.cost += n * (RANS_STATE_LOSS * std::ldexp(1.0, 2 * (table.bits - 16)) * (1 - same));
    table.cost += RANS_LANE_BITS * double(rans_lanes(size_t(n)));
    return table;
}

// ---- serialisation

class TableWriter {
public:
    void put(uint32_t value, unsigned width) {
        pending_ |= uint64_t(value) << count_;
        for (count_ += width; count_ >= 8; count_ -= 8, pending_ >>= 8) out_.push_back(uint8_t(pending_));
    }
    void gamma(uint32_t value) {
        const unsigned after = unsigned(std::bit_width(value)) - 1;
        put(0, after);
        put(1, 1);
        put(value - (1u << after), after);
    }
    std::vector<uint8_t> finish() {
        if (count_) out_.push_back(uint8_t(pending_));
        return std::move(out_);
    }

private:
    std::vector<uint8_t> out_;
    uint64_t pending_ = 0;
    unsigned count_ = 0;
};

// A guess for the first class: that of the mean frequency.
inline int first_class(int bits, size_t alphabet) { return std::max(bits - int(std::bit_width(alphabet - 1)), 1); }

// 0, 1, -1, 2, -2 ... as 1, 2, 3, 4, 5 ...
inline uint32_t folded(int difference) { return uint32_t(difference > 0 ? 2 * difference : 1 - 2 * difference); }
inline int unfolded(uint32_t code) { return code % 2 ? -int(code / 2) : int(code / 2); }

inline std::vector<uint8_t> write_freqs(const uint32_t* freqs, size_t alphabet, int bits) {
    TableWriter out;
    out.put(uint32_t(bits - RANS_MIN_BITS), 4);
    size_t last = alphabet - 1;
    while (freqs[last] == 0) last--;
    out.gamma(uint32_t(alphabet - last));
    int guess = first_class(bits, alphabet);
    uint32_t zeros = 0;
    for (size_t symbol = 0; symbol <= last; symbol++) {
        const int size = std::bit_width(freqs[symbol]);
        if (size == 0) {
            zeros++;
            continue;
        }
        if (zeros) {  // announced as class 0, which no symbol has
            out.gamma(folded(-guess));
            out.gamma(zeros);
            zeros = 0;
        }
        if (symbol == last) break;
        out.gamma(folded(size - guess));
        out.put(freqs[symbol] - (1u << (size - 1)), unsigned(size - 1));
        guess = size;
    }
    return out.finish();
}

// Bits of a table, LSB first; zeros after its end, which `finish` reports.
class TableReader {
public:
    TableReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    uint32_t take(unsigned width) {
        const uint64_t value = window() & ((uint64_t(1) << width) - 1);
        position_ += width;
        return uint32_t(value);
    }
    uint32_t gamma() {
        const uint64_t bits = window();
        const int after = bits ? std::countr_zero(bits) : -1;
        if (after < 0 || after > 12) throw MalformedTable("a table ends early or is corrupt");  // nothing exceeds 2^13
        position_ += 2 * size_t(after) + 1;
        return 1u << after | (uint32_t(bits >> (after + 1)) & ((1u << after) - 1));
    }
    size_t finish() const {
        const size_t used = (position_ + 7) / 8;
        if (used > size_) throw MalformedTable("a table ends early");
        if (window() & ((1u << (8 * used - position_)) - 1)) throw MalformedTable("a table has non-zero padding");
        return used;
    }

private:
    uint64_t window() const {
        uint64_t value = 0;
        const size_t begin = position_ >> 3;
        if (begin < size_) std::memcpy(&value, data_ + begin, std::min(size_ - begin, size_t(8)));
        return value >> (position_ & 7);
    }

    const uint8_t* data_;
    size_t size_, position_ = 0;
};

struct ReadFreqs {
    std::vector<uint32_t> freqs;
    int bits;
    size_t used;
};

inline ReadFreqs read_freqs(const uint8_t* data, size_t size, size_t alphabet) {
    TableReader in(data, size);
    const int bits = RANS_MIN_BITS + int(in.take(4));
    if (bits > RANS_MAX_BITS) throw MalformedTable("a rANS table has more than 16 bits");
    if (alphabet == 0 || alphabet > MAX_ALPHABET) throw MalformedTable("the alphabet must have 1..4096 symbols");
    std::vector<uint32_t> freqs(alphabet, 0);
    const uint32_t after = in.gamma();
    if (after > alphabet) throw MalformedTable("a table has more symbols than its alphabet");
    const size_t last = alphabet - after;
    int guess = first_class(bits, alphabet);
    int64_t left = int64_t(1) << bits;
    bool after_zeros = false;
    size_t symbol = 0;
    while (symbol < last) {
        const int length = guess + unfolded(in.gamma());
        if (length == 0 && !after_zeros) {
            symbol += in.gamma();
            after_zeros = true;
            continue;
        }
        if (length < 1 || length > bits) throw MalformedTable("a table holds an impossible class");
        freqs[symbol] = 1u << (length - 1) | in.take(unsigned(length - 1));
        left -= freqs[symbol];
        if (left <= 0) throw MalformedTable("the frequencies of a rANS table exceed their sum");
        symbol++;
        guess = length;
        after_zeros = false;
    }
    if (symbol != last) throw MalformedTable("a table has more symbols than its alphabet");
    if (left == int64_t(1) << bits) throw MalformedTable("a rANS table needs at least two symbols");
    freqs[last] = uint32_t(left);
    return {std::move(freqs), bits, in.finish()};
}

}  // namespace perbit
