// Symbols of a quantizer as bytes: coding/families/rd/streams.py in one call.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "both.hpp"
#include "entropy_tables.hpp"
#include "logarithm.hpp"
#include "rans_table.hpp"

namespace perbit {

using Bytes = std::vector<uint8_t>;

enum StreamMode : uint8_t { STREAM_ZEROS, STREAM_ADAPTIVE, STREAM_RANS, STREAM_SPARSE };
enum BlockMode : uint8_t { BLOCK_CONSTANT, BLOCK_PACKED, BLOCK_TABLE };  // of coding/families/entropy.py
constexpr unsigned STREAM_MEANS = 27;

// The mean, in 1/256, at which a context begins.
constexpr uint32_t mean_of_context(unsigned context) { return ((2 + (context & 1)) << (context / 2 + 3)) - 16; }

inline unsigned alphabet_width(uint32_t alphabet) { return std::max(1u, unsigned(std::bit_width(alphabet - 1))); }

inline void put_varint(Bytes& out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) out.push_back(uint8_t(value | 0x80));
    out.push_back(uint8_t(value));
}

inline void put(Bytes& out, const Bytes& data) { out.insert(out.end(), data.begin(), data.end()); }

inline void put_section(Bytes& out, const Bytes& data) {
    put_varint(out, data.size());
    put(out, data);
}

enum class Use { LEVELS, STREAM, SYMBOLS, PLANES, GROUP };

// Room for one use at a time by this thread, kept for the next one: fresh pages would cost more than the work. Not cleared.
template <Use USE, class T>
T* room(size_t n) {
    constexpr size_t KEEP = (size_t(1) << 22) / sizeof(T);  // a larger one is an exception, and given back at the next call
    static thread_local std::unique_ptr<T[]> kept;
    static thread_local size_t capacity = 0;
    if (n > capacity || capacity > KEEP) {
        capacity = 0;
        kept.reset();  // first: never hold both
        kept.reset(new T[n]);
        capacity = n;
    }
    return kept.get();
}

inline void refuse(Error error) {
    if (error) throw std::invalid_argument(error);
}

// Twice the distance of a symbol from zero, less one below it.
inline void to_levels(const uint8_t* symbols, size_t n, uint8_t* levels) {
    for (size_t i = 0; i < n; i++) {
        const int8_t away = int8_t(symbols[i] ^ 128);
        levels[i] = uint8_t(away << 1) ^ uint8_t(away >> 7);
    }
}
inline void to_levels(const uint16_t* symbols, size_t n, uint16_t* levels) {
    for (size_t i = 0; i < n; i++) {
        const int16_t away = int16_t(symbols[i] - 2048);
        levels[i] = uint16_t(uint16_t(away << 1) ^ uint16_t(away >> 15));
    }
}

// Bits of an ideal code for values that occur so often, summed in their order.
inline double entropy_of(const uint32_t* counts, size_t n) {
    double all = 0, sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!counts[i]) continue;
        all += double(counts[i]);
        sum += double(counts[i]) * exact_log2(double(counts[i]));
    }
    return all * exact_log2(all) - sum;
}

// Levels in rows of `columns` (0: in no rows), with a table for each block.
template <class S>
class StreamWriter {
public:
    StreamWriter(const S* levels, size_t n, size_t columns, size_t block) : levels_(levels), n_(n), columns_(columns), block_(block) {
        for (size_t i = 0; i < n; i++) {
            largest_ = std::max(largest_, levels[i]);
            not_zero_ += levels[i] != 0;
            sum_ += levels[i];
        }
        require(largest_ < MAX_ALPHABET, "a symbol lies outside the alphabet");
    }

    Bytes write() const {
        if (!not_zero_) return {STREAM_ZEROS};
        return neighbours_tell() ? adaptive() : by_symbol();
    }

private:
    static constexpr size_t TINY = 512, PART = 1 << 13, FEW = 1 << 14, FEW_BYTES = 300, SPARSE_SHARE = 16;
    static constexpr unsigned LARGEST_TOLD = 7, TOLD_LEVELS = LARGEST_TOLD + 1, SUMS = 16;
    static constexpr double TOLD = 0.98, MISSED = 0.72, FASTER = 0.985;

    // Whether levels before and above save some percent; of few levels it is taken for granted, since no table pays.
    bool neighbours_tell() const {
        if (n_ <= TINY) return true;
        const size_t start = n_ > PART ? (n_ - PART) / 2 : 0, size = std::min(PART, n_);
        uint8_t part[PART];
        for (size_t i = 0; i < size; i++) part[i] = uint8_t(std::min<unsigned>(levels_[start + i], LARGEST_TOLD));
        const size_t above = 4 * columns_ < size ? 2 * columns_ : 0;
        uint32_t counts[SUMS * TOLD_LEVELS] = {}, sums[SUMS] = {}, levels[TOLD_LEVELS] = {};
        for (size_t i = std::max(above, size_t(2)); i < size; i++) {
            const unsigned before = part[i - 1] + part[i - 2];
            const unsigned near = before + (above ? unsigned(part[i - columns_] + part[i - above]) : before);
            counts[std::min(near, SUMS - 1) * TOLD_LEVELS + part[i]]++;
        }
        size_t seen = 0;
        for (size_t i = 0; i < SUMS * TOLD_LEVELS; i++) {
            seen += counts[i] != 0;
            sums[i / TOLD_LEVELS] += counts[i];
            levels[i % TOLD_LEVELS] += counts[i];
        }
        const double bits = entropy_of(counts, SUMS * TOLD_LEVELS) - entropy_of(sums, SUMS) + MISSED * double(seen);
        return bits < TOLD * entropy_of(levels, TOLD_LEVELS);
    }

    Bytes by_symbol() const {
        Bytes best = rans();
        if (not_zero_ * SPARSE_SHARE < n_) best = smaller(std::move(best), sparse());
        if (n_ > FEW || best.size() > FEW_BYTES) return best;
        Bytes slower = adaptive();
        return double(slower.size()) < FASTER * double(best.size()) ? slower : best;
    }

    static Bytes smaller(Bytes first, Bytes second) { return second.size() < first.size() ? std::move(second) : std::move(first); }

    Bytes adaptive() const {
        Bytes out{STREAM_ADAPTIVE};
        const std::vector<uint32_t> levels(levels_, levels_ + n_);
        put_levels(out, levels, columns_, sum_);
        return out;
    }

    Bytes rans() const {
        Bytes out{STREAM_RANS};
        put_varint(out, largest_);
        for (size_t begin = 0; begin < n_; begin += block_) put_block(out, levels_ + begin, std::min(block_, n_ - begin));
        return out;
    }

    // As coding/families/entropy.py has it: one symbol only, packed, or rANS with its table.
    void put_block(Bytes& out, const S* levels, size_t n) const {
        const uint32_t alphabet = uint32_t(largest_) + 1;
        uint64_t counts[MAX_ALPHABET];
        refuse(PERBIT_CALL(histogram, levels, n, alphabet, counts));
        Bytes block;
        if (std::count_if(counts, counts + alphabet, [](uint64_t count) { return count != 0; }) == 1) {
            block.push_back(BLOCK_CONSTANT);
            put_varint(block, levels[0]);
            return put_section(out, block);
        }
        const RansTable table = rans_table(counts, alphabet);
        const Bytes written = write_freqs(table.freqs.data(), alphabet, table.bits);
        const double lanes = double(rans_lanes(n));
        const double cost = table.cost - RANS_LANE_BITS * lanes + 8.0 * double(written.size());
        const unsigned width = alphabet_width(alphabet);
        if (double(packed_size(n, width)) <= cost / 8 + RANS_LANE_BITS / 8 * lanes) {
            block.resize(1 + packed_size(n, width));
            block[0] = BLOCK_PACKED;
            PERBIT_CALL(pack, levels, n, width, block.data() + 1);
            return put_section(out, block);
        }
        const RansEncoderTable encoder = build_rans_encoder(table.freqs.data(), alphabet, table.bits);
        const size_t capacity = 2 * n + 4 * rans_lanes(n);
        uint8_t* const stream = room<Use::STREAM, uint8_t>(capacity);
        size_t size = 0;
        refuse(PERBIT_CALL(rans_encode, levels, n, encoder.model, stream, capacity, &size));
        put_varint(out, 1 + written.size() + size);
        out.push_back(BLOCK_TABLE);
        put(out, written);
        out.insert(out.end(), stream + (capacity - size), stream + capacity);
    }

    Bytes sparse() const {
        Bytes out{STREAM_SPARSE};
        std::vector<uint32_t> at, levels;
        at.reserve(not_zero_);
        levels.reserve(not_zero_);
        for (size_t i = 0; i < n_; i++)
            if (levels_[i]) {
                at.push_back(uint32_t(i));
                levels.push_back(uint32_t(levels_[i]) - 1);
            }
        put_varint(out, not_zero_);
        put_section(out, PERBIT_CALL(gaps_encode, at.data(), at.size(), n_));
        put_levels(out, levels, 0, sum_ - not_zero_);
        return out;
    }

    static void put_levels(Bytes& out, const std::vector<uint32_t>& levels, size_t columns, uint64_t sum) {
        const uint64_t mean = 256 * sum / levels.size();
        unsigned context = 0;
        while (context < STREAM_MEANS && mean_of_context(context + 1) <= mean) context++;
        out.push_back(uint8_t(context));
        columns = std::min(columns, levels.size());
        put_section(out, PERBIT_CALL(levels_encode, levels.data(), levels.size(), columns, mean_of_context(context)));
    }

    const S* levels_;
    size_t n_, columns_, block_;
    S largest_ = 0;
    size_t not_zero_ = 0;
    uint64_t sum_ = 0;
};

// What no levels at all are worth is said like what is all zero.
template <class S>
Bytes write_stream(const S* symbols, size_t n, size_t columns, size_t block) {
    S* const levels = room<Use::LEVELS, S>(n);
    to_levels(symbols, n, levels);
    return StreamWriter<S>(levels, n, columns, block).write();
}

}  // namespace perbit
