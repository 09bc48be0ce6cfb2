// Positions in chunks that are known to hold so many: every value of a chunk is there with the share of the ones that are left.
#pragma once

#include <algorithm>

#include "bitcoder.hpp"

namespace perbit::PERBIT_ARCH {

// One decision for each value of [begin, end) until the last of `left` positions is known; the encoder says which values are there.
template <class Coder, class IsThere, class Found>
void walk_chunk(Coder& coder, uint64_t begin, uint64_t end, uint32_t left, const IsThere& is_there, const Found& found) {
    for (uint64_t at = begin; left != 0; at++) {
        const uint64_t open = end - at;
        if (left == open || coder.bit(is_there(at), probability(uint32_t((uint64_t(left) << 16) / open)))) {
            found(at);
            left--;
        }
    }
}

std::vector<uint8_t> counted_encode(const uint32_t* positions, const uint32_t* counts, size_t chunks, uint64_t chunk,
                                    uint64_t n) {
    BitEncoder coder;
    const uint32_t* next = positions;
    for (size_t i = 0; i < chunks; i++) {
        const uint64_t begin = i * chunk;
        walk_chunk(
            coder, begin, std::min(n, begin + chunk), counts[i], [&](uint64_t at) { return at == *next; },
            [&](uint64_t at) { require(*next++ == at, "positions must be strictly ascending and lie in their chunks"); });
    }
    return coder.finish();
}

void counted_decode(const uint8_t* data, size_t size, const uint32_t* counts, size_t chunks, uint64_t chunk, uint64_t n,
                    uint32_t* out) {
    BitDecoder coder(data, size);
    for (size_t i = 0; i < chunks; i++) {
        const uint64_t begin = i * chunk;
        walk_chunk(
            coder, begin, std::min(n, begin + chunk), counts[i], [](uint64_t) { return false; },
            [&](uint64_t at) { *out++ = uint32_t(at); });
    }
    coder.finish();
}

}  // namespace perbit::PERBIT_ARCH
