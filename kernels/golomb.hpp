// Positions as Golomb-Rice coded gaps, least significant bit first: b low bits, then the quotient in unary.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

// Appends bits to a zeroed buffer that has eight spare bytes behind everything written.
class BitWriter {
public:
    static constexpr unsigned MAX_WIDTH = 56;  // with up to seven bits pending, a field still fits 64

    explicit BitWriter(uint8_t* out) : out_(out) {}

    void append(uint64_t field, unsigned width) {
        pending_ |= field << count_;
        count_ += width;
        store64(out_, pending_);
        out_ += count_ / 8;
        pending_ >>= count_ & ~7u;  // at most 56
        count_ %= 8;
    }

    void append_zeros(uint64_t width) {
        for (; width > MAX_WIDTH; width -= MAX_WIDTH) append(0, MAX_WIDTH);
        append(0, unsigned(width));
    }

private:
    uint8_t* out_;
    uint64_t pending_ = 0;
    unsigned count_ = 0;
};

inline uint64_t golomb_bits(const uint32_t* positions, size_t count, unsigned b) {
    uint64_t quotients = 0;
    int64_t previous = -1;
    for (size_t i = 0; i < count; i++) {
        const int64_t gap = int64_t(positions[i]) - previous - 1;
        require(gap >= 0, "positions must be strictly ascending");
        quotients += uint64_t(gap) >> b;
        previous = positions[i];
    }
    return quotients + uint64_t(count) * (b + 1);
}

std::vector<uint8_t> golomb_encode(const uint32_t* positions, size_t count, unsigned b) {
    const size_t size = size_t((golomb_bits(positions, count, b) + 7) / 8);
    std::vector<uint8_t> out(size + sizeof(uint64_t));
    BitWriter writer(out.data());
    const uint32_t low_mask = (uint32_t(1) << b) - 1;
    uint32_t next = 0;  // the smallest position that may follow
    for (size_t i = 0; i < count; i++) {
        const uint32_t gap = positions[i] - next, quotient = gap >> b;
        next = positions[i] + 1;
        if (quotient < BitWriter::MAX_WIDTH - b) {
            writer.append((gap & low_mask) | uint64_t(1) << (b + quotient), b + quotient + 1);
        } else {
            writer.append(gap & low_mask, b);
            writer.append_zeros(quotient);
            writer.append(1, 1);
        }
    }
    out.resize(size);
    return out;
}

// Reads bits; beyond the end there are zeros.
class BitReader {
public:
    BitReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

    uint64_t position() const { return at_; }
    uint64_t bits() const { return uint64_t(size_) * 8; }
    void skip(uint64_t count) { at_ += count; }

    // The next bits, at least 57 of them.
    uint64_t peek() const {
        const size_t byte = size_t(at_ / 8);
        uint64_t word = 0;
        if (byte + sizeof word <= size_)
            word = load64(data_ + byte);
        else if (byte < size_)
            std::memcpy(&word, data_ + byte, size_ - byte);
        return word >> at_ % 8;
    }

    // Skips zeros and the one behind them; returns how many zeros.
    uint64_t unary() {
        const uint64_t begin = at_;
        uint64_t window = peek();
        while (window == 0) {
            at_ += 64 - at_ % 8;  // to the next byte that has not been seen
            require(at_ < bits(), "position data ends within a code word");
            window = peek();
        }
        at_ += unsigned(std::countr_zero(window));
        return at_++ - begin;
    }

private:
    const uint8_t* data_;
    size_t size_;
    uint64_t at_ = 0;
};

void golomb_decode(const uint8_t* data, size_t size, size_t count, unsigned b, uint64_t n, uint32_t* out) {
    BitReader reader(data, size);
    const uint64_t low_mask = (uint64_t(1) << b) - 1, largest_quotient = n >> b;
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        const uint64_t window = reader.peek(), above = window >> b;
        uint64_t quotient;
        if (above != 0) [[likely]] {
            quotient = unsigned(std::countr_zero(above));
            reader.skip(b + quotient + 1);
        } else {
            reader.skip(b);
            quotient = reader.unary();
        }
        require(quotient <= largest_quotient, "a position lies outside the tensor");  // before the shift could overflow
        const uint64_t position = next + (quotient << b | (window & low_mask));
        require(position < n, "a position lies outside the tensor");
        out[i] = uint32_t(position);
        next = position + 1;
    }
    require((reader.position() + 7) / 8 == size, "position data has the wrong length");
    require(reader.position() % 8 == 0 || reader.peek() == 0, "position data has bits set behind its last code word");
}

}  // namespace perbit::PERBIT_ARCH
