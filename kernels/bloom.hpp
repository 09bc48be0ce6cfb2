// Bloom filters over positions, hashed by MurmurHash3 (x86, 32 bits, of the position as four bytes).
//
// Standard: a filter of m bits, a position sets bit (hash(seed + i)·m >> 32) for each hash i.
// Blocked: blocks of k words of 32 bits. hash(seed) chooses the block, the top five bits of hash(seed + 1)·SALT[i] the bit of
// word i: one look into memory per query.
#pragma once

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "bits.hpp"
#include "compilers.hpp"

namespace perbit::PERBIT_ARCH {

constexpr uint32_t SALT[8] = {0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31};
constexpr unsigned MAX_BLOCK_WORDS = 8;

// The part of MurmurHash3 that does not depend on the seed, and the part that does.
inline uint32_t murmur_key(uint32_t x) { return std::rotl(x * 0xcc9e2d51u, 15) * 0x1b873593u; }

inline uint32_t murmur_finish(uint32_t key, uint32_t seed) {
    uint32_t h = std::rotl(seed ^ key, 13) * 5 + 0xe6546b64u;
    h ^= 4;  // bytes
    h = (h ^ h >> 16) * 0x85ebca6bu;
    h = (h ^ h >> 13) * 0xc2b2ae35u;
    return h ^ h >> 16;
}

inline uint32_t into_range(uint32_t hash, uint64_t range) { return uint32_t(hash * range >> 32); }

// The bit that hash i of position x stands for.
class BloomBits {
public:
    explicit BloomBits(const BloomShape& shape) : shape_(shape) {}

    uint32_t operator()(uint32_t key, unsigned i) const {
        if (!shape_.blocked) return into_range(murmur_finish(key, shape_.seed + i), shape_.bits());
        const uint32_t block = into_range(murmur_finish(key, shape_.seed), shape_.blocks());
        const uint32_t bit = (murmur_finish(key, shape_.seed + 1) * SALT[i]) >> 27;
        return (block * shape_.hashes + i) * 32 + bit;
    }

private:
    BloomShape shape_;
};

void bloom_build(const uint32_t* positions, size_t count, const BloomShape& shape, uint8_t* filter) {
    const BloomBits bits(shape);
    for (size_t p = 0; p < count; p++) {
        const uint32_t key = murmur_key(positions[p]);
        for (unsigned i = 0; i < shape.hashes; i++) {
            const uint32_t bit = bits(key, i);
            filter[bit / 8] |= uint8_t(1 << bit % 8);
        }
    }
}

// The filter as words, with room to load eight of them at the last one.
inline std::vector<uint32_t> padded_words(const uint8_t* filter, const BloomShape& shape) {
    std::vector<uint32_t> words(shape.bytes / 4 + 1 + MAX_BLOCK_WORDS);
    if (shape.bytes) std::memcpy(words.data(), filter, shape.bytes);
    return words;
}

#ifdef PERBIT_AVX2

// Byte j of entry m is the index of the j-th bit of m: the order in which a permute packs the lanes of mask m.
constexpr auto LANES_OF = [] {
    std::array<uint64_t, 256> table{};
    for (unsigned m = 0; m < 256; m++)
        for (unsigned lane = 0, found = 0; lane < 8; lane++)
            if (m >> lane & 1) table[m] |= uint64_t(lane) << 8 * found++;
    return table;
}();

// Eight hashes at a time.
struct Murmur8 {
    static __m256i rotate(__m256i x, int by) { return _mm256_or_si256(_mm256_slli_epi32(x, by), _mm256_srli_epi32(x, 32 - by)); }
    static __m256i times(__m256i x, uint32_t factor) { return _mm256_mullo_epi32(x, _mm256_set1_epi32(int(factor))); }
    static __m256i key(__m256i x) { return times(rotate(times(x, 0xcc9e2d51u), 15), 0x1b873593u); }

    static __m256i finish(__m256i key, uint32_t seed) {
        __m256i h = rotate(_mm256_xor_si256(key, _mm256_set1_epi32(int(seed))), 13);
        h = _mm256_add_epi32(_mm256_add_epi32(h, _mm256_slli_epi32(h, 2)), _mm256_set1_epi32(int(0xe6546b64u)));
        h = _mm256_xor_si256(h, _mm256_set1_epi32(4));
        h = times(_mm256_xor_si256(h, _mm256_srli_epi32(h, 16)), 0x85ebca6bu);
        h = times(_mm256_xor_si256(h, _mm256_srli_epi32(h, 13)), 0xc2b2ae35u);
        return _mm256_xor_si256(h, _mm256_srli_epi32(h, 16));
    }

    static __m256i into_range(__m256i hash, uint64_t range) {
        const __m256i factor = _mm256_set1_epi64x((long long)range);
        const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(hash, factor), 32);
        const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(hash, 32), factor);
        return _mm256_blend_epi32(even, odd, 0b10101010);
    }
};

#endif

constexpr size_t QUERY_STRETCH = 1024;  // positions asked at a time: their survivors stay in the first cache
constexpr size_t QUERY_SLACK = 8;       // survivors() may write this many entries behind the last one

class BloomQuery {
public:
    BloomQuery(const uint8_t* filter, const BloomShape& shape)
        : words_(padded_words(filter, shape)), shape_(shape), bits_(shape) {}

    // Writes the accepted positions among begin .. begin + count - 1, ascending; returns how many.
    size_t survivors(uint32_t begin, size_t count, uint32_t* out) const {
        if (shape_.blocked) return survivors_of_block(begin, count, out);
        std::iota(out, out + count, begin);
        for (unsigned i = 0; i < shape_.hashes && count; i++) count = survivors_of_hash(i, count, out);
        return count;
    }

private:
    // Of out[0 .. count), those whose i-th bit is set: about half, so that later hashes have little to do.
    size_t survivors_of_hash(unsigned i, size_t count, uint32_t* out) const {
        size_t kept = 0, at = 0;
#ifdef PERBIT_AVX2
        const uint32_t seed = shape_.seed + i;
        const uint64_t bits = shape_.bits();
        const int* words = (const int*)words_.data();
        for (; at + 8 <= count; at += 8) {
            const __m256i x = _mm256_loadu_si256((const __m256i*)(out + at));
            const __m256i bit = Murmur8::into_range(Murmur8::finish(Murmur8::key(x), seed), bits);
            const __m256i word = _mm256_i32gather_epi32(words, _mm256_srli_epi32(bit, 5), 4);
            const __m256i to_sign = _mm256_andnot_si256(bit, _mm256_set1_epi32(31));  // 31 - bit % 32
            const int alive = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_sllv_epi32(word, to_sign)));
            const __m256i lanes = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)LANES_OF[size_t(alive)]));
            _mm256_storeu_si256((__m256i*)(out + kept), _mm256_permutevar8x32_epi32(x, lanes));
            kept += unsigned(_mm_popcnt_u32(unsigned(alive)));
        }
#endif
        for (; at < count; at++) {
            const uint32_t x = out[at], bit = bits_(murmur_key(x), i);
            out[kept] = x;
            kept += words_[bit / 32] >> bit % 32 & 1;
        }
        return kept;
    }

    size_t survivors_of_block(uint32_t begin, size_t count, uint32_t* out) const {
        size_t kept = 0, at = 0;
#ifdef PERBIT_AVX2
        const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const __m256i salts = _mm256_loadu_si256((const __m256i*)SALT);
        const __m256i ones = _mm256_srli_epi32(_mm256_cmpgt_epi32(_mm256_set1_epi32(int(shape_.hashes)), lanes), 31);
        const uint32_t seed = shape_.seed, hashes = shape_.hashes;
        const uint64_t blocks = shape_.blocks();
        const uint32_t* words = words_.data();
        alignas(32) uint32_t first[QUERY_STRETCH], pattern[QUERY_STRETCH];
        for (; at + 8 <= count; at += 8) {
            const __m256i key = Murmur8::key(_mm256_add_epi32(_mm256_set1_epi32(int(begin + uint32_t(at))), lanes));
            const __m256i block = Murmur8::into_range(Murmur8::finish(key, seed), blocks);
            _mm256_store_si256((__m256i*)(first + at), Murmur8::times(block, hashes));
            _mm256_store_si256((__m256i*)(pattern + at), Murmur8::finish(key, seed + 1));
        }
        PERBIT_UNROLL(4)
        for (size_t i = 0; i < at; i++) {
            const __m256i bit = _mm256_srli_epi32(_mm256_mullo_epi32(_mm256_set1_epi32(int(pattern[i])), salts), 27);
            const __m256i stored = _mm256_loadu_si256((const __m256i*)(words + first[i]));
            if (_mm256_testc_si256(stored, _mm256_sllv_epi32(ones, bit))) [[unlikely]]
                out[kept++] = begin + uint32_t(i);
        }
#endif
        for (; at < count; at++) {
            out[kept] = begin + uint32_t(at);
            kept += accepts(out[kept]);
        }
        return kept;
    }

    bool accepts(uint32_t x) const {
        const uint32_t key = murmur_key(x);
        for (unsigned i = 0; i < shape_.hashes; i++) {
            const uint32_t bit = bits_(key, i);
            if (!(words_[bit / 32] >> bit % 32 & 1)) return false;
        }
        return true;
    }

    std::vector<uint32_t> words_;
    BloomShape shape_;
    BloomBits bits_;
};

std::vector<uint32_t> bloom_query(const uint8_t* filter, const BloomShape& shape, uint64_t n, uint64_t limit) {
    const BloomQuery query(filter, shape);
    uint32_t found[QUERY_STRETCH + QUERY_SLACK];
    std::vector<uint32_t> positions;
    for (uint64_t begin = 0; begin < n; begin += QUERY_STRETCH) {
        const size_t count = query.survivors(uint32_t(begin), size_t(std::min<uint64_t>(QUERY_STRETCH, n - begin)), found);
        require(count <= limit - positions.size(), "the filter accepts more positions than there are");
        positions.insert(positions.end(), found, found + count);
    }
    return positions;
}

// A position that sets a bit: positions of one bit are drawn in the order of `draw`.
struct Member {
    uint32_t bit, draw, rank;
    auto key() const { return std::tuple(bit, draw, rank); }
};

// Which members of each bit's set are still to be drawn, and whether another set has drawn one of them since this one's last turn.
struct ConflictSet {
    uint32_t bit, size;
    size_t next, end;
    bool explained = false;
};

// The sets by bit, over members by bit.
inline std::vector<ConflictSet> conflict_sets(const std::vector<Member>& members) {
    std::vector<ConflictSet> sets;
    for (size_t begin = 0, end; begin < members.size(); begin = end) {
        for (end = begin; end < members.size() && members[end].bit == members[begin].bit;) end++;
        sets.push_back({members[begin].bit, uint32_t(end - begin), begin, end});
    }
    return sets;
}

// Chooses count of the accepted positions: sets of positions that share a bit, smallest first, give one member each, again and
// again; a set of one is a true position. Members come in the order of hash(seed - 1), which is the draw. With skip, every set has
// an order of its own, hash(seed - 1 - bit), and gives nothing in a turn before which another set has drawn one of its members:
// that position explains the bit.
void bloom_resolve(const uint32_t* accepted, size_t size, const BloomShape& shape, size_t count, bool skip, uint32_t* out) {
    std::vector<uint32_t> order(accepted, accepted + size);
    const auto draw = [&](uint32_t x) { return uint64_t(murmur_finish(murmur_key(x), shape.seed - 1)) << 32 | x; };
    if (!skip) std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return draw(a) < draw(b); });

    const BloomBits bits(shape);
    std::vector<Member> members;
    members.reserve(size * shape.hashes);
    for (size_t rank = 0; rank < size; rank++) {
        const uint32_t key = murmur_key(order[rank]);
        for (unsigned i = 0; i < shape.hashes; i++) {
            const uint32_t bit = bits(key, i);
            members.push_back({bit, skip ? murmur_finish(key, shape.seed - 1 - bit) : uint32_t(rank), uint32_t(rank)});
        }
    }
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) { return a.key() < b.key(); });
    const auto twin = [](const Member& a, const Member& b) { return a.key() == b.key(); };
    members.erase(std::unique(members.begin(), members.end(), twin), members.end());

    std::vector<ConflictSet> sets = conflict_sets(members);
    std::vector<uint32_t> turns(sets.size());
    std::iota(turns.begin(), turns.end(), 0u);
    std::stable_sort(turns.begin(), turns.end(), [&](uint32_t a, uint32_t b) { return sets[a].size < sets[b].size; });
    const auto explain = [&](uint32_t x, uint32_t own) {
        const uint32_t key = murmur_key(x);
        for (unsigned i = 0; i < shape.hashes; i++) {
            const uint32_t bit = bits(key, i);
            const auto at = std::lower_bound(sets.begin(), sets.end(), bit, [](const ConflictSet& s, uint32_t b) { return s.bit < b; });
            if (bit != own) at->explained = true;
        }
    };

    std::vector<bool> taken(size);
    for (size_t chosen = 0; chosen < count;) {
        for (const uint32_t turn : turns) {
            ConflictSet& set = sets[turn];
            while (set.next < set.end && taken[members[set.next].rank]) set.next++;
            const bool passes = set.next == set.end || (skip && set.explained);
            set.explained = false;
            if (passes) continue;
            taken[members[set.next].rank] = true;
            if (++chosen == count) break;
            if (skip) explain(order[members[set.next].rank], set.bit);
        }
        std::erase_if(turns, [&](uint32_t turn) { return sets[turn].next == sets[turn].end; });
    }
    size_t kept = 0;
    for (size_t rank = 0; rank < size; rank++)
        if (taken[rank]) out[kept++] = order[rank];
    std::sort(out, out + kept);
}

}  // namespace perbit::PERBIT_ARCH
