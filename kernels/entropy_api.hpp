// What the entropy kernels take and return: plain tables built once per call, raw pointers, and an error sentence
// (nullptr = success). Nothing here allocates or throws, so that no library template is compiled with AVX2 flags
// and then shared with the portable code by the linker.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace perbit {

static_assert(std::endian::native == std::endian::little, "streams are little-endian and are read in place");

using Error = const char*;  // a sentence for the user, or nullptr

constexpr uint32_t MAX_ALPHABET = 4096;
constexpr uint32_t INVALID = 1u << 31;  // flag in an encoder's table: this symbol has no code

// ---- rANS
constexpr int RANS_MIN_BITS = 8, RANS_MAX_BITS = 16;
constexpr uint32_t RANS_LOW = 1u << 16;  // states live in [RANS_LOW, 2^32)

// Part of the format: few lanes for short streams, because each costs four bytes.
constexpr size_t rans_lanes(size_t n) { return n < 1024 ? 1 : n < 8192 ? 4 : n < 65536 ? 8 : 32; }

// x // f == ((x + increment) * multiplier >> 32) >> shift, for every x < threshold; the new state is
// x + bias + quotient * complement.
struct RansEncodeEntry {
    uint32_t multiplier;
    uint32_t threshold;         // freq << (32 - bits): a state this large emits a word first
    uint32_t complement_shift;  // (2^bits - freq) | shift << 16 | INVALID
    uint32_t bias;
};
struct RansEncoder {
    const RansEncodeEntry* entries;  // at least 256, so that no uint8 symbol points outside
    uint32_t alphabet;
    uint32_t increment;
    int bits;
};

struct RansDecodeEntry {
    uint16_t freq, start;
    uint32_t payload;  // what to write: the symbol, or the bits of its float32
};
struct RansDecoder {
    const uint8_t* symbol_of_slot8;    // 2^bits entries when alphabet <= 256, else null
    const uint16_t* symbol_of_slot16;  // 2^bits entries when alphabet > 256, else null
    const RansDecodeEntry* entries;    // max(alphabet, 16)
    uint32_t alphabet;
    int bits;
};

// ---- Huffman
constexpr int HUFFMAN_MAX_STREAMS = 8;
constexpr int HUFFMAN_SHORT_LIMIT = 11, HUFFMAN_LONG_LIMIT = 15;  // alphabets up to 256, and above
constexpr int HUFFMAN_GROUP = 6;                                  // symbols in one entry of the grouped decode table
constexpr size_t HUFFMAN_SLACK = 8;                               // writers store eight bytes at a time

constexpr int huffman_limit(size_t alphabet) { return alphabet <= 256 ? HUFFMAN_SHORT_LIMIT : HUFFMAN_LONG_LIMIT; }
constexpr int huffman_streams(size_t n) { return n < 1024 ? 1 : HUFFMAN_MAX_STREAMS; }

struct HuffmanEncoder {
    const uint32_t* codes;  // code | length << 16 | INVALID; at least 256 entries
    const uint32_t* pairs;  // both codes | total length << 24 | INVALID, by first | second << 4; null above 16 symbols
    uint32_t alphabet;
};
struct HuffmanDecoder {
    const uint32_t* singles;  // by the next `width` bits: symbol | length << 16; 0 = no such code word
    const uint64_t* groups;   // up to six symbols, a byte each | count << 48 | bits << 56; 0 = none; null above 256 symbols
    int width;                // length of the longest code word in use
};

#define PERBIT_DECLARE_ENTROPY(arch)                                                                                \
    namespace arch {                                                                                                \
    Error histogram(const uint8_t* symbols, size_t n, uint32_t alphabet, uint64_t* counts);                         \
    Error histogram(const uint16_t* symbols, size_t n, uint32_t alphabet, uint64_t* counts);                        \
    /* Writes at the end of buffer[0, capacity), capacity >= 2 n + 4 lanes; *size bytes. */                         \
    Error rans_encode(const uint8_t* s, size_t n, const RansEncoder& m, uint8_t* buffer, size_t cap, size_t* size);  \
    Error rans_encode(const uint16_t* s, size_t n, const RansEncoder& m, uint8_t* buffer, size_t cap, size_t* size); \
    Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& m, uint8_t* out, size_t n);              \
    Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& m, uint16_t* out, size_t n);             \
    Error rans_decode(const uint8_t* data, size_t size, const RansDecoder& m, float* out, size_t n);                \
    /* Stream j goes to buffer + j * stride, its size to sizes[j]; stride leaves HUFFMAN_SLACK unused bytes. */     \
    Error huffman_encode(const uint8_t* s, size_t n, const HuffmanEncoder& m, uint8_t* buffer, size_t stride,       \
                         size_t* sizes);                                                                            \
    Error huffman_encode(const uint16_t* s, size_t n, const HuffmanEncoder& m, uint8_t* buffer, size_t stride,      \
                         size_t* sizes);                                                                            \
    Error huffman_decode(const uint8_t* data, size_t size, const HuffmanDecoder& m, uint8_t* out, size_t n);        \
    Error huffman_decode(const uint8_t* data, size_t size, const HuffmanDecoder& m, uint16_t* out, size_t n);       \
    /* out[i] = table[symbols[i]]; every symbol is known to be below alphabet. */                                   \
    Error look_up(const uint8_t* symbols, size_t n, const float* table, uint32_t alphabet, float* out);             \
    Error look_up(const uint16_t* symbols, size_t n, const float* table, uint32_t alphabet, float* out);            \
    }
PERBIT_DECLARE_ENTROPY(portable)
#ifdef PERBIT_HAVE_AVX2
PERBIT_DECLARE_ENTROPY(avx2)
#endif

}  // namespace perbit
