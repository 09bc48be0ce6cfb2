// Symbols as dense bit fields, least significant bit first.
//
// Eight symbols of `bits` bits fill exactly `bits` bytes, so groups of eight are independent of each other.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t GROUP = 8;
constexpr size_t GROUP_ROOM = 16;  // a group is read and written as two 64-bit words

struct Fields {
    uint64_t first, second;  // four symbols each, in the low 4 * bits bits
};

// Two fields of 4 * bits bits as one field of 128.
inline void store_group(Fields fields, unsigned bits, uint8_t* out) {
    const unsigned width = 4 * bits;  // 4 .. 64
    if (width == 64) {
        store64(out, fields.first);
        store64(out + 8, fields.second);
    } else {
        store64(out, fields.first | fields.second << width);
        store64(out + 8, fields.second >> (64 - width));
    }
}

inline Fields load_group(const uint8_t* data, unsigned bits) {
    const uint64_t low = load64(data), high = load64(data + 8);
    const unsigned width = 4 * bits;
    if (width == 64) return {low, high};
    return {low, low >> width | high << (64 - width)};  // bits above the field are for the reader to ignore
}

#ifdef PERBIT_AVX2

inline uint64_t every_field(uint8_t, unsigned bits) { return 0x0101010101010101 * ((1u << bits) - 1); }
inline uint64_t every_field(uint16_t, unsigned bits) { return 0x0001000100010001 * ((1u << bits) - 1); }

inline void pack_group(const uint8_t* symbols, unsigned bits, uint8_t* out) {
    store64(out, _pext_u64(load64(symbols), every_field(uint8_t(), bits)));
}

inline void pack_group(const uint16_t* symbols, unsigned bits, uint8_t* out) {
    const uint8_t* in = reinterpret_cast<const uint8_t*>(symbols);
    const uint64_t fields = every_field(uint16_t(), bits);
    store_group({_pext_u64(load64(in), fields), _pext_u64(load64(in + 8), fields)}, bits, out);
}

inline void unpack_group(const uint8_t* data, unsigned bits, uint8_t* symbols) {
    store64(symbols, _pdep_u64(load64(data), every_field(uint8_t(), bits)));
}

inline void unpack_group(const uint8_t* data, unsigned bits, uint16_t* symbols) {
    uint8_t* out = reinterpret_cast<uint8_t*>(symbols);
    const uint64_t fields = every_field(uint16_t(), bits);
    const Fields group = load_group(data, bits);
    store64(out, _pdep_u64(group.first, fields));
    store64(out + 8, _pdep_u64(group.second, fields));
}

#else

template <class S>
inline uint64_t join_four(const S* s, unsigned bits) {
    return uint64_t(s[0]) | uint64_t(s[1]) << bits | uint64_t(s[2]) << 2 * bits | uint64_t(s[3]) << 3 * bits;
}

template <class S>
inline void split_four(uint64_t field, unsigned bits, S* s) {
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    for (unsigned j = 0; j < 4; j++) s[j] = S(field >> j * bits & mask);
}

template <class S>
inline void pack_group(const S* symbols, unsigned bits, uint8_t* out) {
    store_group({join_four(symbols, bits), join_four(symbols + 4, bits)}, bits, out);
}

template <class S>
inline void unpack_group(const uint8_t* data, unsigned bits, S* symbols) {
    const Fields group = load_group(data, bits);
    split_four(group.first, bits, symbols);
    split_four(group.second, bits, symbols + 4);
}

#endif

template <class S>
inline void require_fit(const S* symbols, size_t n, unsigned bits) {
    S all = 0;
    for (size_t i = 0; i < n; i++) all |= symbols[i];
    require(uint32_t(all) >> bits == 0, "a symbol does not fit in the given number of bits");
}

template <class S>
void pack(const S* symbols, size_t n, unsigned bits, uint8_t* out) {
    require_fit(symbols, n, bits);
    size_t i = 0, left = packed_size(n, bits);
    for (; i + GROUP <= n && left >= GROUP_ROOM; i += GROUP, out += bits, left -= bits) pack_group(symbols + i, bits, out);
    for (; i < n; i += GROUP) {  // the last groups through buffers that have the room
        S group[GROUP] = {};
        uint8_t bytes[GROUP_ROOM];
        std::copy(symbols + i, symbols + std::min(n, i + GROUP), group);
        pack_group(group, bits, bytes);
        const size_t used = std::min<size_t>(left, bits);
        std::memcpy(out, bytes, used);
        out += used;
        left -= used;
    }
}

template <class S>
void unpack(const uint8_t* data, size_t size, unsigned bits, S* out, size_t n) {
    require(size == packed_size(n, bits), "packed data has the wrong length for this many symbols");
    const unsigned last_bits = unsigned(n % 8 * bits % 8);
    require(last_bits == 0 || data[size - 1] >> last_bits == 0, "packed data has bits set behind its last symbol");
    size_t i = 0, left = size;
    for (; i + GROUP <= n && left >= GROUP_ROOM; i += GROUP, data += bits, left -= bits) unpack_group(data, bits, out + i);
    for (; i < n; i += GROUP) {
        S group[GROUP];
        uint8_t bytes[GROUP_ROOM] = {};
        const size_t used = std::min<size_t>(left, bits);
        std::memcpy(bytes, data, used);
        unpack_group(bytes, bits, group);
        std::copy(group, group + std::min(GROUP, n - i), out + i);
        data += used;
        left -= used;
    }
}

}  // namespace perbit::PERBIT_ARCH
