// Exact selection of the largest magnitudes.
//
// A deterministic sample brackets the k-th magnitude, one pass collects the positions above the lower bracket, and an exact
// selection among those few decides. A sample that misleads costs time, never correctness.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

using Words = std::unique_ptr<uint32_t[]>;  // not initialised: pages that stay unused cost nothing

inline Words make_words(size_t n) { return std::make_unique_for_overwrite<uint32_t[]>(n); }

// The caller's array belongs to the caller, whose other threads may write to it: what one pass has found the next one need not.
// Indexes are bounded by what the kernel itself holds, never by an earlier pass over x.
constexpr const char* CHANGED = "the array was changed while it was read";

constexpr size_t COLLECT_BLOCK = 64;                 // positions that collect() looks at together
constexpr size_t COLLECT_SLACK = COLLECT_BLOCK + 4;  // entries it may write beyond those it was promised

inline size_t count_reaching(const float* x, size_t n, uint32_t threshold) {
    constexpr size_t PIECE = size_t(1) << 30;  // the inner count stays below 2^32 and vectorises
    size_t total = 0;
    for (size_t begin = 0; begin < n; begin += PIECE) {
        const size_t end = std::min(n, begin + PIECE);
        uint32_t count = 0;
        for (size_t i = begin; i < end; i++) count += int32_t(magnitude(x[i])) >= int32_t(threshold);
        total += count;
    }
    return total;
}

#ifdef PERBIT_AVX2

// Bit i tells whether the magnitude of x[i] reaches threshold.
inline uint32_t reaching_mask32(const float* x, __m256i below_threshold) {
    const __m256i mask = _mm256_set1_epi32(int(MAGNITUDE_MASK));
    const auto reaches = [&](const float* p) {
        return _mm256_cmpgt_epi32(_mm256_and_si256(_mm256_loadu_si256((const __m256i*)p), mask), below_threshold);
    };
    const __m256i low = _mm256_packs_epi32(reaches(x), reaches(x + 8));
    const __m256i high = _mm256_packs_epi32(reaches(x + 16), reaches(x + 24));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // the packs work within 128-bit halves
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
    return uint32_t(_mm256_movemask_epi8(bytes));
}

// Writes the positions of the bits of word, always at least four entries: hits are few, and a branch on their number
// would be mispredicted.
inline size_t write_positions(uint64_t word, uint32_t base, uint32_t* out) {
    const size_t hits = size_t(_mm_popcnt_u64(word));
    do {
        for (int j = 0; j < 4; j++) {
            out[j] = base + uint32_t(_tzcnt_u64(word));
            word = _blsr_u64(word);
        }
        out += 4;
    } while (word);
    return hits;
}

#endif

// Positions whose magnitude is at least threshold, ascending; returns how many, which is more than `most` only if the array was
// changed after they were counted. `out` has room for `most` and COLLECT_SLACK more.
inline size_t collect(const float* x, size_t n, uint32_t threshold, size_t most, uint32_t* out) {
    size_t found = 0, i = 0;
#ifdef PERBIT_AVX2
    const __m256i below = _mm256_set1_epi32(int(threshold) - 1);
    for (; i + COLLECT_BLOCK <= n && found <= most; i += COLLECT_BLOCK) {
        const uint64_t word = reaching_mask32(x + i, below) | uint64_t(reaching_mask32(x + i + 32, below)) << 32;
        found += write_positions(word, uint32_t(i), out + found);
    }
#endif
    for (; i < n && found <= most; i++) {
        out[found] = uint32_t(i);
        found += magnitude(x[i]) >= threshold;
    }
    return found;
}

// Magnitudes around the k-th largest: low most likely at or below it, high most likely above it.
struct Bracket {
    uint32_t low, high;
};

constexpr Bracket EVERYTHING{0, INFINITY_BITS};
constexpr size_t SAMPLE_RUN = 4;                        // neighbours taken together: one cache miss for four values
constexpr size_t SAMPLE_RUNS = 4096;
constexpr size_t SAMPLE_FROM = 4 * SAMPLE_RUN * SAMPLE_RUNS;  // shorter inputs are searched whole

inline Words draw_sample(const float* x, size_t n) {
    constexpr uint64_t LCG_MULTIPLIER = 6364136223846793005, LCG_INCREMENT = 1442695040888963407;
    Words sample = make_words(SAMPLE_RUNS * SAMPLE_RUN);
    const size_t stratum = (n - SAMPLE_RUN) / SAMPLE_RUNS;  // one run in each
    uint64_t state = n;
    for (size_t r = 0; r < SAMPLE_RUNS; r++) {
        state = state * LCG_MULTIPLIER + LCG_INCREMENT;
        const float* run = x + r * stratum + (state >> 33) % stratum;
        for (size_t j = 0; j < SAMPLE_RUN; j++) sample[r * SAMPLE_RUN + j] = magnitude(run[j]);
    }
    return sample;
}

inline Bracket bracket_by_sample(const float* x, size_t n, size_t k) {
    constexpr size_t SIZE = SAMPLE_RUNS * SAMPLE_RUN;
    constexpr double DEVIATIONS = 5, MARGIN = 8;
    const Words sample = draw_sample(x, n);
    const double share = double(k) / double(n), rank = share * SIZE;
    const double spread = DEVIATIONS * std::sqrt(rank * (1 - share)) + MARGIN;

    uint32_t* const begin = sample.get();
    uint32_t* const low = begin + std::min(SIZE - 1, size_t(rank + spread));
    std::nth_element(begin, low, begin + SIZE, std::greater<>());
    if (rank <= spread) return {*low, INFINITY_BITS};
    uint32_t* const high = begin + size_t(rank - spread);
    std::nth_element(begin, high, low, std::greater<>());
    return {*low, *high};
}

// The largest multiple of 2^16 that at least k magnitudes reach: exact, for the inputs that fool the sample.
inline uint32_t low_by_counting(const float* x, size_t n, size_t k) {
    std::vector<size_t> counts(1 << 15);
    for (size_t i = 0; i < n; i++) counts[magnitude(x[i]) >> 16]++;
    size_t bin = counts.size(), reached = 0;
    while (reached < k) reached += counts[--bin];
    return uint32_t(bin) << 16;
}

// The k-th largest of count magnitudes. Those from high on are only counted, if fewer than k.
inline uint32_t kth_largest(const uint32_t* magnitudes, size_t count, size_t k, uint32_t high) {
    const Words rest = make_words(count + 1);
    size_t below = 0;
    for (size_t i = 0; i < count; i++) {
        rest[below] = magnitudes[i];
        below += magnitudes[i] < high;
    }
    size_t rank = k - 1;
    if (count - below <= rank) {
        rank -= count - below;
    } else {
        std::copy(magnitudes, magnitudes + count, rest.get());
        below = count;
    }
    std::nth_element(rest.get(), rest.get() + rank, rest.get() + below, std::greater<>());
    return rest[rank];
}

void top_k(const float* x, size_t n, size_t k, uint32_t* out) {
    if (k == 0) return;
    if (k == n) return std::iota(out, out + n, 0u);

    const Words positions = make_words(n + COLLECT_SLACK);
    Bracket bracket = n < SAMPLE_FROM ? EVERYTHING : bracket_by_sample(x, n, k);
    size_t found = collect(x, n, bracket.low, n, positions.get());
    if (found < k) {
        bracket = {low_by_counting(x, n, k), INFINITY_BITS};
        found = collect(x, n, bracket.low, n, positions.get());
        require(found >= k, CHANGED);
    }

    const Words magnitudes = make_words(found);
    for (size_t i = 0; i < found; i++) magnitudes[i] = magnitude(x[positions[i]]);
    const uint32_t kth = kth_largest(magnitudes.get(), found, k, bracket.high);

    size_t larger = 0;
    for (size_t i = 0; i < found; i++) larger += magnitudes[i] > kth;
    size_t ties = k - larger, kept = 0;  // ties go to the lowest positions
    for (size_t i = 0; kept < k; i++) {
        const bool tie = magnitudes[i] == kth && ties > 0;
        ties -= tie;
        out[kept] = positions[i];
        kept += tie || magnitudes[i] > kth;
    }
}

Selection select_above(const float* x, size_t n, float threshold) {
    const uint32_t bits = magnitude(threshold);
    const size_t expected = count_reaching(x, n, bits);
    Words positions = make_words(expected + COLLECT_SLACK);
    const size_t count = collect(x, n, bits, expected, positions.get());
    require(count <= expected, CHANGED);
    return {std::move(positions), count};
}

}  // namespace perbit::PERBIT_ARCH
