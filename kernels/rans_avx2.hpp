// The AVX2 part of rANS: 32 lanes in four vectors of eight, whole groups of 32 symbols.
// Alphabets up to 16 keep every table in registers (lookup16.hpp); larger ones load one table entry per symbol.
// Hardware gathers are avoided: on many machines they are slower than the loads they stand for.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "entropy_api.hpp"
#include "lookup16.hpp"
#include "unroll.hpp"

namespace perbit::PERBIT_ARCH {

constexpr int VECTORS = 4;             // 32 lanes
constexpr uint32_t SMALL_ALPHABET = 16;
constexpr int SMALL_MAX_BITS = 15;     // slots and biases fit 16 bits, compared as signed

// For a mask of lanes, byte shuffles that collect their words at the end of 16 bytes (encoder)
// and that spread the first words of 16 bytes over the low halves of those lanes, zero elsewhere (decoder).
struct WordShuffles {
    alignas(32) uint8_t collect[256][16];
    alignas(32) uint8_t spread[256][32];

    constexpr WordShuffles() : collect{}, spread{} {
        constexpr uint8_t ZERO = 0x80;
        for (int mask = 0; mask < 256; ++mask) {
            int word = 0;
            for (int lane = 0; lane < 8; ++lane) {
                for (int b = 0; b < 4; ++b) spread[mask][4 * lane + b] = ZERO;
                if (mask >> lane & 1) {
                    spread[mask][4 * lane] = static_cast<uint8_t>(2 * word);
                    spread[mask][4 * lane + 1] = static_cast<uint8_t>(2 * word + 1);
                    ++word;
                }
            }
            int at = 8;
            for (int lane = 8; lane-- > 0;)
                if (mask >> lane & 1) {
                    --at;
                    collect[mask][2 * at] = static_cast<uint8_t>(2 * lane);
                    collect[mask][2 * at + 1] = static_cast<uint8_t>(2 * lane + 1);
                }
            for (int b = 0; b < 2 * at; ++b) collect[mask][b] = ZERO;
        }
    }
};
static constexpr WordShuffles SHUFFLES;

// ---- encoding

// One field of RansEncodeEntry per vector, for eight symbols.
struct EncodeFields {
    __m256i multiplier, threshold, complement, shift, bias;
};

// Lanes at or above their threshold send their low words to [p - 2 * count, p) in lane order.
inline __m256i emit_words(__m256i x, __m256i threshold, uint8_t*& p) {
    const __m256i due = _mm256_cmpeq_epi32(_mm256_max_epu32(x, threshold), x);
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(due)));
    const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    const __m128i row = _mm_load_si128(reinterpret_cast<const __m128i*>(SHUFFLES.collect[mask]));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p - 16), _mm_shuffle_epi8(words, row));
    p -= 2 * _mm_popcnt_u32(mask);
    return _mm256_blendv_epi8(x, _mm256_srli_epi32(x, 16), due);
}

inline __m256i multiply_high(__m256i a, __m256i b) {
    const __m256i even = _mm256_mul_epu32(a, b);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

inline __m256i encode_step(__m256i x, const EncodeFields& f, __m256i increment, uint8_t*& p) {
    x = emit_words(x, f.threshold, p);
    const __m256i product = multiply_high(_mm256_add_epi32(x, increment), f.multiplier);
    const __m256i quotient = _mm256_srlv_epi32(product, f.shift);
    return _mm256_add_epi32(_mm256_add_epi32(x, f.bias), _mm256_mullo_epi32(quotient, f.complement));
}

struct States {
    __m256i x[VECTORS];
    explicit States(const uint32_t* from) {
        for (int k = 0; k < VECTORS; ++k) x[k] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 8 * k));
    }
    void save(uint32_t* to) const {
        for (int k = 0; k < VECTORS; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * k), x[k]);
    }
};

// Tables in registers. freq and bias share one 32-bit value: 16 bits each, since bits <= 15.
inline void put_groups_small(const uint8_t* symbols, size_t groups, const RansEncoder& model, RansWriter& writer) {
    uint32_t multipliers[16], freq_bias[16];
    uint8_t shifts[16];
    constexpr uint8_t INVALID_SHIFT = 0x80;
    for (uint32_t s = 0; s < 16; ++s) {
        const RansEncodeEntry& e = model.entries[s];
        multipliers[s] = e.multiplier;
        freq_bias[s] = e.threshold >> (32 - model.bits) | e.bias << 16;
        shifts[s] = static_cast<uint8_t>((e.complement_shift >> 16 & 31) | (e.complement_shift & INVALID ? INVALID_SHIFT : 0));
    }
    const Planes multiplier_planes(multipliers), freq_bias_planes(freq_bias);
    const __m256i shift_plane = broadcast_16_bytes(shifts);
    const __m256i increment = _mm256_set1_epi32(static_cast<int>(model.increment));
    const __m256i total = _mm256_set1_epi32(1 << model.bits), low16 = _mm256_set1_epi32(0xffff);
    const __m128i threshold_shift = _mm_cvtsi32_si128(32 - model.bits);
    __m256i outside = _mm256_setzero_si256(), invalid = _mm256_setzero_si256();
    States states(writer.state);
    uint8_t* p = writer.p;
    for (size_t g = groups; g-- > 0;) {
        const __m256i group = load_plane_order(symbols + 32 * g);
        const __m256i shift_bytes = _mm256_shuffle_epi8(shift_plane, group);
        outside = _mm256_or_si256(outside, group);
        invalid = _mm256_or_si256(invalid, shift_bytes);
        __m256i multiplier[4], packed[4], shift[4];
        multiplier_planes.look_up(group, multiplier);
        freq_bias_planes.look_up(group, packed);
        widen_bytes(shift_bytes, shift);
        unroll<VECTORS>([&](auto step) PERBIT_INLINE_LAMBDA {
            constexpr int k = VECTORS - 1 - step;
            // The bias leaves at the top: 16 + (32 - bits) > 32.
            const EncodeFields fields{multiplier[k], _mm256_sll_epi32(packed[k], threshold_shift),
                                      _mm256_sub_epi32(total, _mm256_and_si256(packed[k], low16)), shift[k],
                                      _mm256_srli_epi32(packed[k], 16)};
            states.x[k] = encode_step(states.x[k], fields, increment, p);
        });
    }
    states.save(writer.state);
    writer.p = p;
    const __m256i flags = _mm256_or_si256(_mm256_and_si256(outside, _mm256_set1_epi8(static_cast<char>(0xf0))),
                                          _mm256_and_si256(invalid, _mm256_set1_epi8(static_cast<char>(INVALID_SHIFT))));
    if (!_mm256_testz_si256(flags, flags)) writer.seen |= INVALID;
}

// Loads the entries of eight symbols (16 bytes each) and transposes them into fields.
template <class Symbol>
inline __m256i load_fields(const RansEncodeEntry* entries, const Symbol* symbols, EncodeFields& f) {
    const auto pair = [&](int j) {  // symbols j and j + 4, one per half
        const auto* low = reinterpret_cast<const __m128i*>(entries + symbols[j]);
        const auto* high = reinterpret_cast<const __m128i*>(entries + symbols[j + 4]);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
    };
    const __m256i e0 = pair(0), e1 = pair(1), e2 = pair(2), e3 = pair(3);
    const __m256i first01 = _mm256_unpacklo_epi32(e0, e1), last01 = _mm256_unpackhi_epi32(e0, e1);
    const __m256i first23 = _mm256_unpacklo_epi32(e2, e3), last23 = _mm256_unpackhi_epi32(e2, e3);
    const __m256i complement_shift = _mm256_unpacklo_epi64(last01, last23);
    f.multiplier = _mm256_unpacklo_epi64(first01, first23);
    f.threshold = _mm256_unpackhi_epi64(first01, first23);
    f.complement = _mm256_and_si256(complement_shift, _mm256_set1_epi32(0xffff));
    f.shift = _mm256_srli_epi32(complement_shift, 16);
    f.bias = _mm256_unpackhi_epi64(last01, last23);
    return complement_shift;
}

template <class Symbol>
void put_groups_large(const Symbol* symbols, size_t groups, const RansEncoder& model, RansWriter& writer) {
    const __m256i increment = _mm256_set1_epi32(static_cast<int>(model.increment));
    __m256i seen = _mm256_setzero_si256();
    States states(writer.state);
    uint8_t* p = writer.p;
    for (size_t g = groups; g-- > 0;) {
        unroll<VECTORS>([&](auto step) PERBIT_INLINE_LAMBDA {
            constexpr int k = VECTORS - 1 - step;
            EncodeFields fields;
            seen = _mm256_or_si256(seen, load_fields(model.entries, symbols + 32 * g + 8 * k, fields));
            states.x[k] = encode_step(states.x[k], fields, increment, p);
        });
    }
    states.save(writer.state);
    writer.p = p;
    if (_mm256_movemask_ps(_mm256_castsi256_ps(seen)) != 0) writer.seen |= INVALID;
}

inline void rans_put_groups(const uint8_t* symbols, size_t groups, const RansEncoder& model, RansWriter& writer) {
    if (model.alphabet <= SMALL_ALPHABET && model.bits <= SMALL_MAX_BITS)
        put_groups_small(symbols, groups, model, writer);
    else
        put_groups_large(symbols, groups, model, writer);
}
inline void rans_put_groups(const uint16_t* symbols, size_t groups, const RansEncoder& model, RansWriter& writer) {
    put_groups_large(symbols, groups, model, writer);
}

// ---- decoding: every function stops at the group before which fewer than GROUP_BYTES are left, the most that one
// group can read (each vector loads 16 bytes, and takes what it needs of them).

constexpr ptrdiff_t GROUP_BYTES = 16 * VECTORS;

inline __m256i refill(__m256i x, const uint8_t*& p) {
    const __m256i due = _mm256_cmpeq_epi32(_mm256_srli_epi32(x, 16), _mm256_setzero_si256());
    const unsigned mask = static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(due)));
    const __m256i words = _mm256_shuffle_epi8(broadcast_16_bytes(p),
                                              _mm256_load_si256(reinterpret_cast<const __m256i*>(SHUFFLES.spread[mask])));
    p += 2 * _mm_popcnt_u32(mask);
    return _mm256_or_si256(_mm256_blendv_epi8(x, _mm256_slli_epi32(x, 16), due), words);
}

// Binary search among 16 cumulative frequencies, 16 slots at once; every table is a byte shuffle.
struct SlotSearch {
    __m256i last8, last4, last12, level3, level4;  // last k = start[k] - 1: slot > last k means symbol >= k
    __m256i freq_low, freq_high, start_low, start_high;

    explicit SlotSearch(const RansDecoder& model) {
        int16_t last[16];
        uint8_t bytes[4][16] = {};
        const int total = 1 << model.bits;
        for (uint32_t s = 0; s < 16; ++s) {
            const RansDecodeEntry& e = model.entries[s];
            last[s] = static_cast<int16_t>((s < model.alphabet ? e.start : total) - 1);
            bytes[0][s] = static_cast<uint8_t>(e.freq);
            bytes[1][s] = static_cast<uint8_t>(e.freq >> 8);
            bytes[2][s] = static_cast<uint8_t>(e.start);
            bytes[3][s] = static_cast<uint8_t>(e.start >> 8);
        }
        const int16_t third[8] = {last[2], last[6], last[10], last[14]};
        const int16_t fourth[8] = {last[1], last[3], last[5], last[7], last[9], last[11], last[13], last[15]};
        last8 = _mm256_set1_epi16(last[8]);
        last4 = _mm256_set1_epi16(last[4]);
        last12 = _mm256_set1_epi16(last[12]);
        level3 = broadcast_16_bytes(third);
        level4 = broadcast_16_bytes(fourth);
        freq_low = broadcast_16_bytes(bytes[0]);
        freq_high = broadcast_16_bytes(bytes[1]);
        start_low = broadcast_16_bytes(bytes[2]);
        start_high = broadcast_16_bytes(bytes[3]);
    }

    // The symbol, in both bytes of each 16-bit lane. Entry j of a level sits at bytes 2j and 2j + 1.
    __m256i symbols(__m256i slots) const {
        const __m256i second_byte = _mm256_set1_epi16(0x0100), two = _mm256_set1_epi16(0x0202);
        const __m256i above8 = _mm256_cmpgt_epi16(slots, last8);
        const __m256i above4 = _mm256_cmpgt_epi16(slots, _mm256_blendv_epi8(last4, last12, above8));
        const __m256i at3 =
            _mm256_or_si256(_mm256_and_si256(above8, _mm256_set1_epi16(0x0404)), _mm256_and_si256(above4, two));
        const __m256i above2 =
            _mm256_cmpgt_epi16(slots, _mm256_shuffle_epi8(level3, _mm256_or_si256(at3, second_byte)));
        const __m256i at4 = _mm256_or_si256(_mm256_add_epi8(at3, at3), _mm256_and_si256(above2, two));
        const __m256i above1 =
            _mm256_cmpgt_epi16(slots, _mm256_shuffle_epi8(level4, _mm256_or_si256(at4, second_byte)));
        return _mm256_sub_epi8(at4, above1);
    }

    static __m256i look_up16(__m256i low, __m256i high, __m256i symbols) {
        return _mm256_blendv_epi8(_mm256_shuffle_epi8(low, symbols), _mm256_shuffle_epi8(high, symbols),
                                  _mm256_set1_epi16(static_cast<int16_t>(0xff00)));
    }
    __m256i freqs(__m256i symbols) const { return look_up16(freq_low, freq_high, symbols); }
    __m256i starts(__m256i symbols) const { return look_up16(start_low, start_high, symbols); }
};

// Two vectors of states advance by one symbol each; returns the symbols as SlotSearch does.
inline __m256i take_small(const SlotSearch& search, __m256i mask, __m128i bits, __m256i& x0, __m256i& x1,
                          const uint8_t*& p) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i slots = _mm256_packus_epi32(_mm256_and_si256(x0, mask), _mm256_and_si256(x1, mask));
    const __m256i symbols = search.symbols(slots);
    const __m256i freqs = search.freqs(symbols), offsets = _mm256_sub_epi16(slots, search.starts(symbols));
    const auto advance = [&](__m256i x, __m256i freq, __m256i offset) {
        return _mm256_add_epi32(_mm256_mullo_epi32(freq, _mm256_srl_epi32(x, bits)), offset);
    };
    x0 = refill(advance(x0, _mm256_unpacklo_epi16(freqs, zero), _mm256_unpacklo_epi16(offsets, zero)), p);
    x1 = refill(advance(x1, _mm256_unpackhi_epi16(freqs, zero), _mm256_unpackhi_epi16(offsets, zero)), p);
    return symbols;
}

// Writes 32 decoded symbols given in plane order.
struct SymbolSink {
    uint8_t* out;
    explicit SymbolSink(const RansDecoder&, uint8_t* to) : out(to) {}
    void write(size_t i, __m256i symbols) const { store_plane_order(out + i, symbols); }
};
struct FloatSink {
    float* out;
    Planes planes;
    static Planes payloads(const RansDecoder& model) {
        uint32_t values[16];
        for (int s = 0; s < 16; ++s) values[s] = model.entries[s].payload;
        return Planes(values);
    }
    explicit FloatSink(const RansDecoder& model, float* to) : out(to), planes(payloads(model)) {}
    void write(size_t i, __m256i symbols) const {
        __m256i wide[4];
        planes.look_up(symbols, wide);
        for (int k = 0; k < 4; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 8 * k), wide[k]);
    }
};

template <class Sink>
size_t take_groups_small(const RansDecoder& model, RansReader& reader, const Sink& sink, size_t groups) {
    const SlotSearch search(model);
    const __m256i mask = _mm256_set1_epi32((1 << model.bits) - 1), low_byte = _mm256_set1_epi16(0xff);
    const __m128i bits = _mm_cvtsi32_si128(model.bits);
    States states(reader.state);
    const uint8_t* p = reader.p;
    size_t g = 0;
    for (; g < groups && reader.end - p >= GROUP_BYTES; ++g) {
        const __m256i first = take_small(search, mask, bits, states.x[0], states.x[1], p);
        const __m256i second = take_small(search, mask, bits, states.x[2], states.x[3], p);
        sink.write(32 * g, _mm256_packus_epi16(_mm256_and_si256(first, low_byte), _mm256_and_si256(second, low_byte)));
    }
    states.save(reader.state);
    reader.p = p;
    return g;
}

// The entries (8 bytes) of eight slots, split into freq | start << 16 and payload.
template <class Slot>
inline void load_entries(const Slot* symbol_of_slot, const RansDecodeEntry* entries, __m256i slots, __m256i& freq_start,
                         __m256i& payload) {
    alignas(32) uint32_t slot[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(slot), slots);
    const auto pair = [&](int j) {
        const auto* low = reinterpret_cast<const double*>(entries + symbol_of_slot[slot[j]]);
        const auto* high = reinterpret_cast<const double*>(entries + symbol_of_slot[slot[j + 1]]);
        return _mm_castpd_ps(_mm_loadh_pd(_mm_load_sd(low), high));
    };
    const __m256 even = _mm256_insertf128_ps(_mm256_castps128_ps256(pair(0)), pair(4), 1);
    const __m256 odd = _mm256_insertf128_ps(_mm256_castps128_ps256(pair(2)), pair(6), 1);
    freq_start = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0x88));
    payload = _mm256_castps_si256(_mm256_shuffle_ps(even, odd, 0xdd));
}

inline void write_payloads(float* out, const __m256i payload[4]) {
    for (int k = 0; k < 4; ++k) _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * k), payload[k]);
}
inline void write_payloads(uint8_t* out, const __m256i payload[4]) {
    store_plane_order(out, _mm256_packus_epi16(_mm256_packus_epi32(payload[0], payload[1]),
                                               _mm256_packus_epi32(payload[2], payload[3])));
}
inline void write_payloads(uint16_t* out, const __m256i payload[4]) {
    for (int k = 0; k < 4; k += 2) {
        const __m256i words = _mm256_packus_epi32(payload[k], payload[k + 1]);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + 8 * k), _mm256_permute4x64_epi64(words, 0xd8));
    }
}

template <class Slot, class Out>
size_t take_groups_large(const Slot* symbol_of_slot, const RansDecoder& model, RansReader& reader, Out* out,
                         size_t groups) {
    const __m256i mask = _mm256_set1_epi32((1 << model.bits) - 1), low16 = _mm256_set1_epi32(0xffff);
    const __m128i bits = _mm_cvtsi32_si128(model.bits);
    States states(reader.state);
    const uint8_t* p = reader.p;
    size_t g = 0;
    for (; g < groups && reader.end - p >= GROUP_BYTES; ++g) {
        __m256i payload[VECTORS];
        unroll<VECTORS>([&](auto k) PERBIT_INLINE_LAMBDA {
            const __m256i x = states.x[k], slots = _mm256_and_si256(x, mask);
            __m256i freq_start;
            load_entries(symbol_of_slot, model.entries, slots, freq_start, payload[k]);
            const __m256i offsets = _mm256_sub_epi32(slots, _mm256_srli_epi32(freq_start, 16));
            const __m256i freqs = _mm256_and_si256(freq_start, low16);
            states.x[k] =
                refill(_mm256_add_epi32(_mm256_mullo_epi32(freqs, _mm256_srl_epi32(x, bits)), offsets), p);
        });
        write_payloads(out + 32 * g, payload);
    }
    states.save(reader.state);
    reader.p = p;
    return g;
}

template <class Slot>
size_t rans_take_groups(const Slot* symbol_of_slot, const RansDecoder& model, RansReader& reader, uint8_t* out,
                        size_t groups) {
    return model.alphabet <= SMALL_ALPHABET && model.bits <= SMALL_MAX_BITS
               ? take_groups_small(model, reader, SymbolSink(model, out), groups)
               : take_groups_large(symbol_of_slot, model, reader, out, groups);
}
template <class Slot>
size_t rans_take_groups(const Slot* symbol_of_slot, const RansDecoder& model, RansReader& reader, float* out,
                        size_t groups) {
    return model.alphabet <= SMALL_ALPHABET && model.bits <= SMALL_MAX_BITS
               ? take_groups_small(model, reader, FloatSink(model, out), groups)
               : take_groups_large(symbol_of_slot, model, reader, out, groups);
}
template <class Slot>
size_t rans_take_groups(const Slot* symbol_of_slot, const RansDecoder& model, RansReader& reader, uint16_t* out,
                        size_t groups) {
    return take_groups_large(symbol_of_slot, model, reader, out, groups);
}

}  // namespace perbit::PERBIT_ARCH
