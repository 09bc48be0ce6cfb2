// Positions as Elias-Fano: the low bits as they are, the high parts as a bit string in which number i sets bit high + i.
#pragma once

#include "golomb.hpp"

namespace perbit::PERBIT_ARCH {

std::vector<uint8_t> eliasfano_encode(const uint32_t* positions, size_t count, unsigned low_bits, uint64_t n) {
    const EliasFanoSize size(count, low_bits, n);
    std::vector<uint8_t> out(size.low_bytes + size.high_bytes + sizeof(uint64_t));
    FieldWriter low(out.data());
    const uint32_t mask = (uint32_t(1) << low_bits) - 1;
    uint64_t next = 0;
    for (size_t i = 0; i < count; i++) {
        require(positions[i] >= next, "positions must be strictly ascending");
        require(positions[i] < n, "a position lies outside the tensor");
        low.append(positions[i] & mask, low_bits);
        next = uint64_t(positions[i]) + 1;
    }
    // After the low bits: what their writer spilled over is zero.
    uint8_t* const high = out.data() + size.low_bytes;
    for (size_t i = 0; i < count; i++) {
        const uint64_t bit = (positions[i] >> low_bits) + uint64_t(i);
        high[bit / 8] |= uint8_t(1 << bit % 8);
    }
    out.resize(size.low_bytes + size.high_bytes);
    return out;
}

void eliasfano_decode(const uint8_t* data, size_t size, size_t count, unsigned low_bits, uint64_t n, uint32_t* out) {
    const size_t low_bytes = EliasFanoSize(count, low_bits, n).low_bytes;
    BitReader low(data, low_bytes), high(data + low_bytes, size - low_bytes);
    const uint64_t mask = (uint64_t(1) << low_bits) - 1;
    uint64_t above = 0, next = 0;
    for (size_t i = 0; i < count; i++) {
        above += high.unary();
        const uint64_t position = above << low_bits | (low.peek() & mask);
        low.skip(low_bits);
        require(position >= next, "positions do not ascend");
        require(position < n, "a position lies outside the tensor");
        out[i] = uint32_t(position);
        next = position + 1;
    }
    require(low.position() % 8 == 0 || low.peek() == 0, "position data has bits set behind its last low bits");
    while (high.position() < high.bits()) {
        require(high.peek() == 0, "position data has bits set behind its last position");
        high.skip(57);
    }
}

}  // namespace perbit::PERBIT_ARCH
