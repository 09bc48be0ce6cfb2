// Canonical Huffman over up to eight independent streams (format in README.md). Four streams advance together: the
// steps of one stream wait for each other, those of four do not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "entropy_api.hpp"
#include "histogram.hpp"
#include "lookup16.hpp"
#include "unroll.hpp"

namespace perbit::PERBIT_ARCH {

constexpr Error HUFFMAN_NO_CODE = "a symbol has no code word, so it cannot be coded";
constexpr Error HUFFMAN_TOO_SHORT = "the Huffman stream ends before its last symbol";
constexpr Error HUFFMAN_TOO_LONG = "the Huffman stream goes on after its last symbol";
constexpr Error HUFFMAN_NO_SUCH_WORD = "the Huffman stream holds a code word that does not exist";
constexpr Error HUFFMAN_BAD_SIZES = "the sizes of the Huffman streams do not fit the data";
constexpr int TOGETHER = 4;  // streams advancing together

// The symbols of stream j are [begin, end).
struct Segment {
    size_t begin, end;
    Segment(size_t n, int streams, int j) {
        const size_t length = (n + static_cast<size_t>(streams) - 1) / static_cast<size_t>(streams);
        begin = static_cast<size_t>(j) * length;
        end = begin + length < n ? begin + length : n;
    }
    size_t size() const { return end - begin; }
};

// ---- encoding

struct BitWriter {
    uint8_t* p;
    uint64_t bits = 0;  // not yet stored, fewer than eight between flushes
    unsigned count = 0;

    void put(uint64_t code, unsigned length) {
        bits |= code << count;
        count += length;
    }
    void flush() {  // leaves at most seven bits; needs count < 64
        std::memcpy(p, &bits, 8);
        p += count >> 3;
        bits >>= count & ~7u;
        count &= 7;
    }
};

// The OR of everything coded: shows afterwards whether a symbol had no code or no place in the table.
struct Seen {
    uint32_t entries = 0, symbols = 0;
    bool valid() const { return (entries & INVALID) == 0 && (symbols & 0xf0f0f0f0u) == 0; }
};

// How a step codes STEP symbols between two flushes; their codes and seven bits left over stay below 64 bits.
struct PairCoder {
    static constexpr size_t STEP = 4;
    const uint32_t* pairs;
    void put(const uint8_t* s, BitWriter& w, Seen& seen) const {
        uint32_t four;
        std::memcpy(&four, s, 4);
        const uint32_t first = pairs[(four | four >> 4) & 255], second = pairs[(four >> 16 | four >> 20) & 255];
        w.put(first & 0xffffff, first >> 24 & 63);
        w.put(second & 0xffffff, second >> 24 & 63);
        seen.entries |= first | second;
        seen.symbols |= four;
    }
};
template <size_t SYMBOLS>
struct SingleCoder {
    static constexpr size_t STEP = SYMBOLS;
    const uint32_t* codes;
    template <class Symbol>
    void put(const Symbol* s, BitWriter& w, Seen& seen) const {
        for (size_t k = 0; k < STEP; ++k) {
            const uint32_t entry = codes[s[k]];
            seen.entries |= entry;
            w.put(entry & 0xffff, entry >> 16 & 31);
        }
    }
};

template <int K, class Coder, class Symbol>
void huffman_put_streams(const Coder& coder, const uint32_t* codes, const Symbol* symbols, size_t n, int streams,
                         int first, uint8_t* buffer, size_t stride, size_t* sizes, Seen& all) {
    BitWriter writers[K];
    const Symbol* from[K];
    size_t shortest = n;
    unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
        const Segment segment(n, streams, first + k);
        from[k] = symbols + segment.begin;
        writers[k].p = buffer + static_cast<size_t>(first + k) * stride;
        shortest = segment.size() < shortest ? segment.size() : shortest;
    });
    Seen seen;
    size_t i = 0;
    for (; i + Coder::STEP <= shortest; i += Coder::STEP) {
        unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
            coder.put(from[k] + i, writers[k], seen);
            writers[k].flush();
        });
    }
    const SingleCoder<1> single{codes};
    unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
        const size_t size = Segment(n, streams, first + k).size();
        for (size_t j = i; j < size; ++j) {
            single.put(from[k] + j, writers[k], seen);
            writers[k].flush();
        }
        const uint8_t* begin = buffer + static_cast<size_t>(first + k) * stride;
        std::memcpy(writers[k].p, &writers[k].bits, 8);
        sizes[first + k] = static_cast<size_t>(writers[k].p - begin) + (writers[k].count != 0);
    });
    all.entries |= seen.entries;
    all.symbols |= seen.symbols;
}

template <class Coder, class Symbol>
Error huffman_put_all(const Coder& coder, const uint32_t* codes, const Symbol* symbols, size_t n, uint8_t* buffer,
                      size_t stride, size_t* sizes) {
    const int streams = huffman_streams(n);
    Seen seen;
    if (streams == 1) {
        huffman_put_streams<1>(coder, codes, symbols, n, 1, 0, buffer, stride, sizes, seen);
    } else {
        for (int first = 0; first < streams; first += TOGETHER)
            huffman_put_streams<TOGETHER>(coder, codes, symbols, n, streams, first, buffer, stride, sizes, seen);
    }
    return seen.valid() ? nullptr : HUFFMAN_NO_CODE;
}

Error huffman_encode(const uint8_t* symbols, size_t n, const HuffmanEncoder& model, uint8_t* buffer, size_t stride,
                     size_t* sizes) {
    if (model.pairs) return huffman_put_all(PairCoder{model.pairs}, model.codes, symbols, n, buffer, stride, sizes);
    return huffman_put_all(SingleCoder<4>{model.codes}, model.codes, symbols, n, buffer, stride, sizes);
}

Error huffman_encode(const uint16_t* symbols, size_t n, const HuffmanEncoder& model, uint8_t* buffer, size_t stride,
                     size_t* sizes) {
    uint16_t largest = 0;
    for (size_t i = 0; i < n; ++i) largest = symbols[i] > largest ? symbols[i] : largest;
    if (n != 0 && largest >= model.alphabet) return HUFFMAN_NO_CODE;
    return huffman_put_all(SingleCoder<3>{model.codes}, model.codes, symbols, n, buffer, stride, sizes);
}

// ---- decoding

template <class Symbol>
struct StreamReader {
    const uint8_t* data;
    size_t size;     // bytes
    size_t at = 0;   // bits taken
    Symbol* out;
    Symbol* out_end;

    size_t room() const { return static_cast<size_t>(out_end - out); }
    size_t bytes_left() const { return size - (at >> 3); }
};

// One table look-up: some symbols, at least one unless the code word does not exist.
struct GroupTaker {
    static constexpr int STEPS = 4;                              // look-ups per eight bytes: 4 * 11 + 7 <= 64 bits
    static constexpr size_t MOST_BYTES = 6;                      // taken by these
    static constexpr size_t MOST_SYMBOLS = STEPS * HUFFMAN_GROUP;  // written by these
    static constexpr size_t OVERSHOOT = 8 - HUFFMAN_GROUP;       // the last store reaches this much further
    const uint64_t* table;
    uint64_t mask;
    void take(uint64_t& window, size_t& at, uint8_t*& out) const {
        const uint64_t entry = table[window & mask];
        std::memcpy(out, &entry, 8);
        const unsigned used = static_cast<unsigned>(entry >> 56);
        window >>= used;
        at += used;
        out += entry >> 48 & 255;
    }
};
struct SingleTaker {
    static constexpr int STEPS = 3;  // 3 * 15 + 7 <= 64 bits
    static constexpr size_t MOST_BYTES = 6;
    static constexpr size_t MOST_SYMBOLS = STEPS;
    static constexpr size_t OVERSHOOT = 1;  // a word that does not exist stores without advancing
    const uint32_t* table;
    uint64_t mask;
    template <class Symbol>
    void take(uint64_t& window, size_t& at, Symbol*& out) const {
        const uint32_t entry = table[window & mask];
        *out = static_cast<Symbol>(entry);
        const unsigned used = entry >> 16;
        window >>= used;
        at += used;
        out += used != 0;
    }
};

// Rounds that all K streams can make without leaving their data or their part of the output.
template <int K, class Taker, class Symbol>
size_t safe_rounds(const StreamReader<Symbol>* readers) {
    size_t rounds = SIZE_MAX;
    const auto limit = [&](size_t available, size_t reserve, size_t per_round) {
        const size_t fit = available < reserve ? 0 : (available - reserve) / per_round;
        rounds = fit < rounds ? fit : rounds;
    };
    for (int k = 0; k < K; ++k) {
        limit(readers[k].room(), Taker::OVERSHOOT, Taker::MOST_SYMBOLS);
        limit(readers[k].bytes_left(), 8, Taker::MOST_BYTES);
    }
    return rounds;
}

// The fast part: whole rounds for K streams at once. False if a stream stood still: no such code word.
template <int K, class Taker, class Symbol>
bool huffman_take_rounds(const Taker& taker, StreamReader<Symbol>* readers) {
    while (const size_t rounds = safe_rounds<K, Taker>(readers)) {
        const uint8_t* data[K];
        size_t at[K];
        Symbol* out[K];
        unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
            data[k] = readers[k].data, at[k] = readers[k].at, out[k] = readers[k].out;
        });
        for (size_t r = 0; r < rounds; ++r) {
            uint64_t window[K];
            unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
                window[k] = load_u64(data[k] + (at[k] >> 3)) >> (at[k] & 7);
            });
            unroll<Taker::STEPS * K>([&](auto step) PERBIT_INLINE_LAMBDA {
                constexpr int k = step % K;
                taker.take(window[k], at[k], out[k]);
            });
        }
        bool moved = true;
        unroll<K>([&](auto k) PERBIT_INLINE_LAMBDA {
            moved = moved && static_cast<size_t>(out[k] - readers[k].out) >= rounds * Taker::STEPS;
            readers[k].at = at[k];
            readers[k].out = out[k];
        });
        if (!moved) return false;
    }
    return true;
}

// The last symbols of a stream, one by one with every check, and its padding.
template <class Symbol>
Error huffman_finish(const HuffmanDecoder& model, StreamReader<Symbol>& r) {
    const size_t bits = 8 * r.size;
    const uint32_t mask = (1u << model.width) - 1;
    const auto window = [&] {  // at least 24 bits, zeros after the end
        uint64_t bytes = 0;
        const size_t left = r.bytes_left();
        std::memcpy(&bytes, r.data + (r.at >> 3), left < 4 ? left : 4);
        return bytes >> (r.at & 7);
    };
    while (r.out < r.out_end) {
        const uint32_t entry = model.singles[window() & mask];
        if (entry == 0) return HUFFMAN_NO_SUCH_WORD;
        r.at += entry >> 16;
        if (r.at > bits) return HUFFMAN_TOO_SHORT;
        *r.out++ = static_cast<Symbol>(entry);
    }
    if (bits - r.at >= 8) return HUFFMAN_TOO_LONG;
    return window() == 0 ? nullptr : HUFFMAN_TOO_LONG;
}

// A few streams from beginning to end.
template <int K, class Symbol>
Error huffman_take_streams(const HuffmanDecoder& model, StreamReader<Symbol>* readers) {
    const uint64_t mask = (1u << model.width) - 1;
    bool known = true;
    if constexpr (sizeof(Symbol) == 1) {
        if (model.groups) known = huffman_take_rounds<K>(GroupTaker{model.groups, mask}, readers);
    } else {
        known = huffman_take_rounds<K>(SingleTaker{model.singles, mask}, readers);
    }
    if (!known) return HUFFMAN_NO_SUCH_WORD;
    for (int k = 0; k < K; ++k)
        if (const Error error = huffman_finish(model, readers[k])) return error;
    return nullptr;
}

template <class Symbol>
Error huffman_decode_symbols(const uint8_t* data, size_t size, const HuffmanDecoder& model, Symbol* out, size_t n) {
    const int streams = huffman_streams(n);
    const size_t header = 4 * static_cast<size_t>(streams - 1);
    if (size < header) return HUFFMAN_TOO_SHORT;
    StreamReader<Symbol> readers[HUFFMAN_MAX_STREAMS];
    size_t begin = header;
    for (int j = 0; j < streams; ++j) {
        size_t length = size - begin;
        if (j + 1 < streams) {
            uint32_t stated;
            std::memcpy(&stated, data + 4 * j, 4);
            if (stated > length) return HUFFMAN_BAD_SIZES;
            length = stated;
        }
        const Segment segment(n, streams, j);
        readers[j] = {data + begin, length, 0, out + segment.begin, out + segment.end};
        begin += length;
    }
    if (streams == 1) return huffman_take_streams<1>(model, readers);
    for (int first = 0; first < streams; first += TOGETHER)
        if (const Error error = huffman_take_streams<TOGETHER>(model, readers + first)) return error;
    return nullptr;
}

Error huffman_decode(const uint8_t* data, size_t size, const HuffmanDecoder& model, uint8_t* out, size_t n) {
    return huffman_decode_symbols(data, size, model, out, n);
}
Error huffman_decode(const uint8_t* data, size_t size, const HuffmanDecoder& model, uint16_t* out, size_t n) {
    return huffman_decode_symbols(data, size, model, out, n);
}

}  // namespace perbit::PERBIT_ARCH
