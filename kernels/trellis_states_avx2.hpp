// The trellis quantizer with few lanes: the eight states of one lane in a vector, the same arithmetic as trellis.hpp.
//
// What does not depend on the path is computed for eight values at once: what the four branches cost, and in the end the symbols.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "trellis_avx2.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t BRANCH_BLOCK = 512;  // values whose branches are computed ahead; whole rounds of CALM_EVERY steps

struct alignas(16) Branches {
    float costs[4];  // half 0 even, half 0 odd, half 1 even, half 1 odd
};

// Eight values, or the fewer that are left and zeros.
struct Eight {
    float values[8] = {};
    const float* data;

    Eight(const float* x, size_t left) : data(x) {
        if (left >= 8) return;
        std::memcpy(values, x, left * sizeof(float));
        data = values;
    }
};

inline void branch_costs(const float* x, size_t n, const TrellisVectors& v, Branches* out) {
    for (size_t i = 0; i < n; i += 8) {
        const Eight eight(x + i, n - i);
        const BranchCosts costs(v.in_steps(eight.data), v);
        const auto pairs = [&](int half, bool upper) {
            const __m256 even = costs.of[half][0], odd = costs.of[half][1];
            return _mm256_castps_pd(upper ? _mm256_unpackhi_ps(even, odd) : _mm256_unpacklo_ps(even, odd));
        };
        const __m256d low = pairs(0, false), high = pairs(0, true), turned_low = pairs(1, false), turned_high = pairs(1, true);
        const __m256d rows[4] = {_mm256_unpacklo_pd(low, turned_low), _mm256_unpackhi_pd(low, turned_low),
                                 _mm256_unpacklo_pd(high, turned_high), _mm256_unpackhi_pd(high, turned_high)};
        unroll<4>([&](auto r) {
            _mm_store_ps(out[i + r].costs, _mm_castpd_ps(_mm256_castpd256_pd128(rows[r])));
            _mm_store_ps(out[i + r + 4].costs, _mm_castpd_ps(_mm256_extractf128_pd(rows[r], 1)));
        });
    }
}

// Costs of all states after one more value; bit s of the result says which of two states leads to state s.
inline uint8_t next_costs(__m256& costs, const Branches& branches) {
    const __m256 branch = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(branches.costs));
    const __m256i from = _mm256_setr_epi32(state_before(0, 0), state_before(1, 0), state_before(2, 0), state_before(3, 0),
                                           state_before(4, 0), state_before(5, 0), state_before(6, 0), state_before(7, 0));
    const __m256i by = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3), by_other = _mm256_setr_epi32(1, 1, 0, 0, 3, 3, 2, 2);
    const __m256i from_other = _mm256_add_epi32(from, _mm256_set1_epi32(4));
    const __m256 first = _mm256_add_ps(_mm256_permutevar8x32_ps(costs, from), _mm256_permutevar_ps(branch, by));
    const __m256 second = _mm256_add_ps(_mm256_permutevar8x32_ps(costs, from_other), _mm256_permutevar_ps(branch, by_other));
    costs = _mm256_min_ps(second, first);
    return uint8_t(_mm256_movemask_ps(_mm256_cmp_ps(second, first, _CMP_LT_OQ)));
}

inline __m256 calmed(__m256 costs) {
    __m256 least = _mm256_min_ps(costs, _mm256_permute2f128_ps(costs, costs, 1));
    least = _mm256_min_ps(least, _mm256_permute_ps(least, 0x4e));
    return _mm256_sub_ps(costs, _mm256_min_ps(least, _mm256_permute_ps(least, 0xb1)));
}

template <size_t LANES>
void forward_states(TrellisPaths<LANES>& paths, const float* x, size_t n, const TrellisVectors& v, uint8_t* choices) {
    constexpr size_t ROUND = LANES * CALM_EVERY;
    static_assert(BRANCH_BLOCK % ROUND == 0);
    Branches branches[BRANCH_BLOCK];
    __m256 costs[LANES];
    unroll<LANES>([&](auto lane) { costs[lane] = _mm256_setr_ps(0, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER, NEVER); });
    for (size_t begin = 0; begin < n; begin += BRANCH_BLOCK) {
        const size_t count = std::min(BRANCH_BLOCK, n - begin);
        branch_costs(x + begin, count, v, branches);
        uint8_t* const chosen = choices + begin;
        size_t i = 0;
        for (; i + LANES <= count; i += LANES) {
            unroll<LANES>([&](auto lane) { chosen[i + lane] = next_costs(costs[lane], branches[i + lane]); });
            if ((i + LANES) % ROUND == 0) unroll<LANES>([&](auto lane) { costs[lane] = calmed(costs[lane]); });
        }
        unroll<LANES>([&](auto lane) {
            if (i + lane < count) chosen[i + lane] = next_costs(costs[lane], branches[i + lane]);
        });
    }
    for (size_t lane = 0; lane < LANES; lane++) {
        float by_state[TRELLIS_STATES];
        _mm256_storeu_ps(by_state, costs[lane]);
        for (size_t state = 0; state < TRELLIS_STATES; state++) paths.costs[state][lane] = by_state[state];
    }
}

// Half and parity of every value, in the place of choices: what a state and its choice say, and the state before.
template <size_t LANES>
void trace_states(TrellisPaths<LANES>& paths, size_t n, uint8_t* choices) {
    static constexpr auto STEPS = [] {
        std::array<uint8_t, 2 * TRELLIS_STATES> steps{};
        for (uint32_t state = 0; state < TRELLIS_STATES; state++)
            for (uint32_t choice = 0; choice < 2; choice++)
                steps[2 * state + choice] =
                    uint8_t(state_before(state, choice) << 2 | parity_before(state, choice) << 1 | state >> 2);
        return steps;
    }();
    const auto step = [&](size_t i, uint32_t& state) {
        const uint8_t found = STEPS[2 * state + (choices[i] >> state & 1)];
        choices[i] = found & 3;
        state = found >> 2;
    };
    size_t i = n;
    while (i % LANES != 0) --i, step(i, paths.states[i % LANES]);
    uint32_t states[LANES];
    std::copy_n(paths.states, LANES, states);
    while (i > 0) {
        i -= LANES;
        unroll<LANES>([&](auto lane) { step(i + lane, states[lane]); });
    }
}

template <class S>
void symbols_of_paths(const float* x, size_t n, const TrellisVectors& v, const uint8_t* halves_and_parities, S* out) {
    for (size_t i = 0; i < n; i += 8) {
        const size_t count = std::min(n - i, size_t(8));
        const Eight eight(x + i, count);
        alignas(8) uint8_t codes[8] = {};
        S symbols[8];
        std::memcpy(codes, halves_and_parities + i, count);
        const __m256i code = load8(codes);
        const __m256i half = _mm256_and_si256(code, _mm256_set1_epi32(1));
        store_symbols(symbols_of(v.in_steps(eight.data), half, _mm256_srli_epi32(code, 1), v), symbols);
        std::memcpy(out + i, symbols, count * sizeof(S));
    }
}

}  // namespace perbit::PERBIT_ARCH
