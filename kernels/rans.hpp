// Interleaved rANS: 32-bit states, 16-bit words (format in README.md). Scalar code for every lane count; the AVX2
// build hands the whole groups of 32 symbols to rans_avx2.hpp and keeps the scalar code for both ends of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "entropy_api.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t RANS_MAX_LANES = 32;
constexpr Error RANS_NO_FREQUENCY = "a symbol has no frequency, so it cannot be coded";
constexpr Error RANS_TOO_SHORT = "the rANS stream ends before its last symbol";
constexpr Error RANS_TOO_LONG = "the rANS stream goes on after its last symbol";
constexpr Error RANS_CORRUPT = "the rANS stream is corrupt";

inline uint16_t load_u16(const uint8_t* p) {
    uint16_t v;
    std::memcpy(&v, p, 2);
    return v;
}

// ---- encoding: from the last symbol to the first, from the end of the buffer downwards

struct RansWriter {
    uint32_t state[RANS_MAX_LANES];
    uint8_t* p;         // the stream so far is [p, end)
    uint32_t seen = 0;  // OR of complement_shift over all coded symbols: shows whether one was INVALID
};

// At most one word leaves per symbol: afterwards x < 2^16 <= threshold. The store happens in any case, the pointer
// moves only if the word was due; there is always room, for the states are still to be written.
inline uint32_t rans_put(uint32_t x, const RansEncodeEntry& e, uint32_t increment, uint8_t*& p) {
    const uint16_t word = static_cast<uint16_t>(x);
    std::memcpy(p - 2, &word, 2);
    const bool emit = x >= e.threshold;
    p -= 2 * emit;
    x = emit ? x >> 16 : x;
    const uint32_t shift = e.complement_shift >> 16 & 31;
    const uint32_t quotient = static_cast<uint32_t>(uint64_t{x + increment} * e.multiplier >> 32) >> shift;
    return x + e.bias + quotient * (e.complement_shift & 0xffff);
}

template <size_t LANES, class Symbol>
void rans_put_range(const Symbol* symbols, size_t begin, size_t end, const RansEncoder& model, RansWriter& writer) {
    const RansEncodeEntry* entries = model.entries;
    const uint32_t increment = model.increment;
    uint32_t seen = writer.seen;
    uint8_t* p = writer.p;
    uint32_t* state = writer.state;
    const auto put = [&](size_t i, size_t lane) {
        const RansEncodeEntry& e = entries[symbols[i]];
        seen |= e.complement_shift;
        state[lane] = rans_put(state[lane], e, increment, p);
    };
    size_t i = end;
    while (i > begin && i % LANES != 0) --i, put(i, i % LANES);
    while (i >= begin + LANES) {
        i -= LANES;
        for (size_t lane = LANES; lane-- > 0;) put(i + lane, lane);
    }
    while (i > begin) --i, put(i, i % LANES);
    writer.seen = seen;
    writer.p = p;
}

}  // namespace perbit::PERBIT_ARCH

// ---- decoding

namespace perbit::PERBIT_ARCH {

struct RansReader {
    uint32_t state[RANS_MAX_LANES];
    const uint8_t* p;
    const uint8_t* end;
};

inline void rans_emit(uint8_t* out, uint32_t payload) { *out = static_cast<uint8_t>(payload); }
inline void rans_emit(uint16_t* out, uint32_t payload) { *out = static_cast<uint16_t>(payload); }
inline void rans_emit(float* out, uint32_t payload) { std::memcpy(out, &payload, 4); }

// Decodes symbols [begin, end). Invariant: every state is at least RANS_LOW, hence one word always refills it.
// CHECKED looks at the end of the data before each word; unchecked needs two bytes per symbol left.
template <size_t LANES, bool CHECKED, class Slot, class Out>
bool rans_take_range(const Slot* symbol_of_slot, const RansDecoder& model, RansReader& reader, Out* out, size_t begin,
                     size_t end) {
    const int bits = model.bits;
    const uint32_t mask = (1u << bits) - 1;
    const RansDecodeEntry* entries = model.entries;
    const uint8_t* p = reader.p;
    uint32_t* state = reader.state;
    for (size_t i = begin; i < end; ++i) {
        uint32_t& x = state[i % LANES];
        const uint32_t slot = x & mask;
        const RansDecodeEntry e = entries[symbol_of_slot[slot]];
        rans_emit(out + i, e.payload);
        const uint32_t next = e.freq * (x >> bits) + slot - e.start;
        const bool refill = next < RANS_LOW;
        if constexpr (CHECKED) {
            if (refill && reader.end - p < 2) return false;
            x = refill ? next << 16 | load_u16(p) : next;
        } else {
            // Arithmetic instead of a choice: the processor could not predict the branch.
            const uint32_t all = 0u - refill;
            x = next << (16 & all) | (load_u16(p) & all);
        }
        p += 2 * refill;
    }
    reader.p = p;
    return true;
}

}  // namespace perbit::PERBIT_ARCH

#ifdef PERBIT_AVX2
#include "rans_avx2.hpp"
#endif

namespace perbit::PERBIT_ARCH {

template <size_t LANES, class Symbol>
void rans_put_all(const Symbol* symbols, size_t n, const RansEncoder& model, RansWriter& writer) {
    size_t whole = n;
#ifdef PERBIT_AVX2
    if constexpr (LANES == RANS_MAX_LANES) {
        whole = 0;
        rans_put_range<LANES>(symbols, n - n % LANES, n, model, writer);
        rans_put_groups(symbols, n / LANES, model, writer);
    }
#endif
    rans_put_range<LANES>(symbols, 0, whole, model, writer);
}

template <size_t LANES, class Symbol>
void rans_write(const Symbol* symbols, size_t n, const RansEncoder& model, RansWriter& writer) {
    for (uint32_t& x : writer.state) x = RANS_LOW;
    rans_put_all<LANES>(symbols, n, model, writer);
    writer.p -= 4 * LANES;
    std::memcpy(writer.p, writer.state, 4 * LANES);
}

template <class Symbol>
Error rans_encode_symbols(const Symbol* symbols, size_t n, const RansEncoder& model, uint8_t* buffer, size_t capacity,
                          size_t* size) {
    *size = 0;
    if (n == 0) return nullptr;
    RansWriter writer{{}, buffer + capacity};
    switch (rans_lanes(n)) {
        case 1: rans_write<1>(symbols, n, model, writer); break;
        case 4: rans_write<4>(symbols, n, model, writer); break;
        case 8: rans_write<8>(symbols, n, model, writer); break;
        default: rans_write<32>(symbols, n, model, writer);
    }
    *size = static_cast<size_t>(buffer + capacity - writer.p);
    return writer.seen & INVALID ? RANS_NO_FREQUENCY : nullptr;
}

Error rans_encode(const uint8_t* symbols, size_t n, const RansEncoder& model, uint8_t* buffer, size_t capacity,
                  size_t* size) {
    return rans_encode_symbols(symbols, n, model, buffer, capacity, size);
}

Error rans_encode(const uint16_t* symbols, size_t n, const RansEncoder& model, uint8_t* buffer, size_t capacity,
                  size_t* size) {
    uint16_t largest = 0;
    for (size_t i = 0; i < n; ++i) largest = symbols[i] > largest ? symbols[i] : largest;
    if (n != 0 && largest >= model.alphabet) return RANS_NO_FREQUENCY;
    return rans_encode_symbols(symbols, n, model, buffer, capacity, size);
}

template <size_t LANES, class Slot, class Out>
Error rans_read(const Slot* symbol_of_slot, const uint8_t* data, size_t size, const RansDecoder& model, Out* out,
                size_t n) {
    if (size < 4 * LANES) return RANS_TOO_SHORT;
    RansReader reader{{}, data + 4 * LANES, data + size};
    std::memcpy(reader.state, data, 4 * LANES);
    for (size_t lane = 0; lane < LANES; ++lane)
        if (reader.state[lane] < RANS_LOW) return RANS_CORRUPT;
    size_t i = 0;
#ifdef PERBIT_AVX2
    if constexpr (LANES == RANS_MAX_LANES) i = rans_take_groups(symbol_of_slot, model, reader, out, n / LANES) * LANES;
#endif
    constexpr size_t STRIDE = 4 * LANES;  // symbols decoded per look at the end of the data
    while (n - i >= STRIDE && static_cast<size_t>(reader.end - reader.p) > 2 * STRIDE) {
        rans_take_range<LANES, false>(symbol_of_slot, model, reader, out, i, i + STRIDE);
        i += STRIDE;
    }
    if (!rans_take_range<LANES, true>(symbol_of_slot, model, reader, out, i, n)) return RANS_TOO_SHORT;
    if (reader.p != reader.end) return RANS_TOO_LONG;
    for (size_t lane = 0; lane < LANES; ++lane)
        if (reader.state[lane] != RANS_LOW) return RANS_CORRUPT;
    return nullptr;
}

template <class Slot, class Out>
Error rans_read_lanes(const Slot* symbol_of_slot, const uint8_t* data, size_t size, const RansDecoder& model, Out* out,
                      size_t n) {
    switch (rans_lanes(n)) {
        case 1: return rans_read<1>(symbol_of_slot, data, size, model, out, n);
        case 4: return rans_read<4>(symbol_of_slot, data, size, model, out, n);
        case 8: return rans_read<8>(symbol_of_slot, data, size, model, out, n);
        default: return rans_read<32>(symbol_of_slot, data, size, model, out, n);
    }
}

template <class Out>
Error rans_decode_any(const uint8_t* data, size_t size, const RansDecoder& model, Out* out, size_t n) {
    if (n == 0) return size == 0 ? nullptr : RANS_TOO_LONG;
    return model.symbol_of_slot8 ? rans_read_lanes(model.symbol_of_slot8, data, size, model, out, n)
                                 : rans_read_lanes(model.symbol_of_slot16, data, size, model, out, n);
}

Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& model, uint8_t* out, size_t n) {
    return rans_decode_any(data, size, model, out, n);
}
Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& model, uint16_t* out, size_t n) {
    return rans_decode_any(data, size, model, out, n);
}
Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& model, float* out, size_t n) {
    return rans_decode_any(data, size, model, out, n);
}

}  // namespace perbit::PERBIT_ARCH
