// Builds and checks the tables the entropy kernels work with. Frequencies and lengths may come from an attacker:
// nothing is built from them before they are known to be sound. Included by the bindings only, compiled once.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "entropy_api.hpp"

namespace perbit {

struct MalformedTable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

inline void check_freqs(const uint32_t* freqs, size_t alphabet, int bits) {
    if (bits < RANS_MIN_BITS || bits > RANS_MAX_BITS) throw MalformedTable("rANS bits must lie in 8..16");
    if (alphabet == 0 || alphabet > MAX_ALPHABET) throw MalformedTable("the alphabet must have 1..4096 symbols");
    const uint64_t total = uint64_t{1} << bits;
    uint64_t sum = 0;
    for (size_t s = 0; s < alphabet; ++s) {
        if (freqs[s] >= total) throw MalformedTable("every rANS frequency must be below 2^bits");
        sum += freqs[s];
    }
    if (sum != total) throw MalformedTable("rANS frequencies must sum to 2^bits");
}

// Division by f as multiplication, with k = 32 + floor(log2 f). Rounding 2^k / f up is exact for x < X if
// (f * m - 2^k) * X <= 2^k, rounding down and adding one to x if (2^k - f * m) * X <= 2^k. Here X = f << (32 - bits),
// so that either holds for every f <= 2^(bits - 1): whatever the one larger frequency needs, the others follow, and
// the increment is the same for the whole table.
struct Reciprocal {
    uint32_t multiplier, shift;
    bool exact;
};

inline Reciprocal reciprocal(uint32_t f, int bits, bool round_up) {
    const uint32_t log = static_cast<uint32_t>(31 - std::countl_zero(f));
    const uint64_t power = uint64_t{1} << (32 + log), limit = uint64_t{f} << (32 - bits);
    if (std::has_single_bit(f)) {
        // Up: 2^31 and one shift less; for f = 1 there is none, see build_rans_encoder. Down: (x + 1)(2^32 - 1) >> 32 = x.
        if (round_up && f > 1) return {1u << 31, log - 1, true};
        return {0xffffffffu, log, true};
    }
    const uint64_t m = power / f + round_up;
    const uint64_t error = round_up ? f * m - power : power - f * m;
    return {static_cast<uint32_t>(m), log, error <= power / limit};
}

struct RansEncoderTable {
    std::vector<RansEncodeEntry> entries;
    RansEncoder model;
};

inline RansEncoderTable build_rans_encoder(const uint32_t* freqs, size_t alphabet, int bits) {
    check_freqs(freqs, alphabet, bits);
    bool round_up = true;
    for (size_t s = 0; s < alphabet; ++s)
        if (freqs[s] != 0) round_up = round_up && reciprocal(freqs[s], bits, true).exact;
    const uint32_t total = 1u << bits;
    RansEncoderTable table;
    table.entries.assign(alphabet < 256 ? 256 : alphabet, RansEncodeEntry{0, 0, INVALID, 0});
    uint32_t start = 0;
    for (size_t s = 0; s < alphabet; ++s) {
        const uint32_t f = freqs[s];
        if (f == 0) continue;
        const Reciprocal r = reciprocal(f, bits, round_up);
        // Without the increment, f = 1 yields the quotient x - 1: the bias makes up for it (x >= 1 always).
        const uint32_t missing = f == 1 && round_up ? total - 1 : 0;
        table.entries[s] = {r.multiplier, f << (32 - bits), (total - f) | r.shift << 16, start + missing};
        start += f;
    }
    table.model = {table.entries.data(), static_cast<uint32_t>(alphabet), round_up ? 0u : 1u, bits};
    return table;
}

struct RansDecoderTable {
    std::vector<uint8_t> slots8;
    std::vector<uint16_t> slots16;
    std::vector<RansDecodeEntry> entries;
    RansDecoder model;
};

// payloads: the bits of a float per symbol, or null for the symbols themselves
inline RansDecoderTable build_rans_decoder(const uint32_t* freqs, size_t alphabet, int bits, const float* payloads) {
    check_freqs(freqs, alphabet, bits);
    const size_t total = size_t{1} << bits;
    RansDecoderTable table;
    table.entries.assign(alphabet < 16 ? 16 : alphabet, RansDecodeEntry{0, 0, 0});
    if (alphabet <= 256) table.slots8.resize(total);
    else table.slots16.resize(total);
    uint32_t start = 0;
    for (size_t s = 0; s < alphabet; ++s) {
        uint32_t payload = static_cast<uint32_t>(s);
        if (payloads) std::memcpy(&payload, payloads + s, 4);
        // A symbol after the last slot has start = total, which is stored as total mod 2^16 and never used.
        table.entries[s] = {static_cast<uint16_t>(freqs[s]), static_cast<uint16_t>(start), payload};
        if (alphabet <= 256) std::memset(table.slots8.data() + start, static_cast<int>(s), freqs[s]);
        else std::fill_n(table.slots16.begin() + start, freqs[s], static_cast<uint16_t>(s));
        start += freqs[s];
    }
    table.model = {alphabet <= 256 ? table.slots8.data() : nullptr, alphabet <= 256 ? nullptr : table.slots16.data(),
                   table.entries.data(), static_cast<uint32_t>(alphabet), bits};
    return table;
}

// ---- Huffman

// Returns the longest length in use (at least 1, so that tables exist).
inline int check_lengths(const uint8_t* lengths, size_t alphabet) {
    if (alphabet == 0 || alphabet > MAX_ALPHABET) throw MalformedTable("the alphabet must have 1..4096 symbols");
    const int limit = huffman_limit(alphabet);
    uint32_t kraft = 0;
    int longest = 1;
    for (size_t s = 0; s < alphabet; ++s) {
        if (lengths[s] > limit) throw MalformedTable("a Huffman code length exceeds the limit");
        if (lengths[s] == 0) continue;
        kraft += 1u << (limit - lengths[s]);
        longest = lengths[s] > longest ? lengths[s] : longest;
    }
    if (kraft > 1u << limit) throw MalformedTable("the Huffman code is over-full");
    return longest;
}

inline uint32_t reverse_bits(uint32_t code, int length) {
    uint32_t reversed = 0;
    for (int b = 0; b < length; ++b) reversed |= (code >> b & 1) << (length - 1 - b);
    return reversed;
}

// Bit-reversed canonical codes of checked lengths.
inline std::vector<uint16_t> canonical_codes(const uint8_t* lengths, size_t alphabet) {
    uint32_t next[HUFFMAN_LONG_LIMIT + 2] = {}, count[HUFFMAN_LONG_LIMIT + 1] = {};
    for (size_t s = 0; s < alphabet; ++s) ++count[lengths[s]];
    count[0] = 0;
    for (int l = 1; l <= HUFFMAN_LONG_LIMIT; ++l) next[l] = (next[l - 1] + count[l - 1]) << 1;
    std::vector<uint16_t> codes(alphabet, 0);
    for (size_t s = 0; s < alphabet; ++s)
        if (lengths[s] != 0) codes[s] = static_cast<uint16_t>(reverse_bits(next[lengths[s]]++, lengths[s]));
    return codes;
}

struct HuffmanEncoderTable {
    std::vector<uint32_t> codes, pairs;
    HuffmanEncoder model;
};

inline HuffmanEncoderTable build_huffman_encoder(const uint8_t* lengths, size_t alphabet) {
    check_lengths(lengths, alphabet);
    const std::vector<uint16_t> codes = canonical_codes(lengths, alphabet);
    HuffmanEncoderTable table;
    table.codes.assign(alphabet < 256 ? 256 : alphabet, INVALID);
    for (size_t s = 0; s < alphabet; ++s)
        if (lengths[s] != 0) table.codes[s] = codes[s] | uint32_t{lengths[s]} << 16;
    if (alphabet <= 16) {
        table.pairs.assign(256, INVALID);
        for (size_t a = 0; a < alphabet; ++a)
            for (size_t b = 0; b < alphabet; ++b)
                if (lengths[a] != 0 && lengths[b] != 0)
                    table.pairs[a | b << 4] = codes[a] | uint32_t{codes[b]} << lengths[a] |
                                              static_cast<uint32_t>(lengths[a] + lengths[b]) << 24;
    }
    table.model = {table.codes.data(), alphabet <= 16 ? table.pairs.data() : nullptr, static_cast<uint32_t>(alphabet)};
    return table;
}

struct HuffmanDecoderTable {
    std::vector<uint32_t> singles;
    std::vector<uint64_t> groups;
    HuffmanDecoder model;
};

// As many whole code words as `width` bits hold, up to six.
inline uint64_t group_of_words(const std::vector<uint32_t>& singles, uint32_t window, unsigned width) {
    uint64_t symbols = 0, count = 0;
    unsigned used = 0;
    while (count < HUFFMAN_GROUP) {
        const uint32_t entry = singles[window >> used];
        const unsigned length = entry >> 16;
        if (entry == 0 || used + length > width) break;
        symbols |= uint64_t{entry & 255} << (8 * count++);
        used += length;
    }
    return symbols | count << 48 | uint64_t{used} << 56;
}

inline HuffmanDecoderTable build_huffman_decoder(const uint8_t* lengths, size_t alphabet, size_t n) {
    const int width = check_lengths(lengths, alphabet);
    const std::vector<uint16_t> codes = canonical_codes(lengths, alphabet);
    HuffmanDecoderTable table;
    table.singles.assign(size_t{1} << width, 0);
    for (size_t s = 0; s < alphabet; ++s)
        if (lengths[s] != 0)
            for (size_t v = codes[s]; v < table.singles.size(); v += size_t{1} << lengths[s])
                table.singles[v] = static_cast<uint32_t>(s) | uint32_t{lengths[s]} << 16;
    const bool grouped = alphabet <= 256 && n >= table.singles.size();  // below, building costs more than it saves
    if (grouped) {
        table.groups.resize(table.singles.size());
        for (uint32_t v = 0; v < table.groups.size(); ++v)
            table.groups[v] = group_of_words(table.singles, v, static_cast<unsigned>(width));
    }
    table.model = {table.singles.data(), grouped ? table.groups.data() : nullptr, width};
    return table;
}

}  // namespace perbit
