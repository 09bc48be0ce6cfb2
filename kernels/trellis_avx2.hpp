// The AVX2 part of the trellis quantizer: eight lanes in a vector, the same arithmetic as trellis.hpp.
#pragma once

#include <immintrin.h>

#include "unroll.hpp"

namespace perbit::PERBIT_ARCH {

struct TrellisVectors {
    __m256 inverse, low, high, slope, zero_shift, zero_rate;
    __m256 shifts[2], rates[2];            // of j = -4 .. 3
    __m256 near_shifts[2], near_rates[2];  // of j mod 8
    __m256i zero;

    explicit TrellisVectors(const TrellisModel& model)
        : inverse(_mm256_set1_ps(model.inverse)), low(_mm256_set1_ps(-model.limit)), high(_mm256_set1_ps(model.limit)),
          slope(_mm256_set1_ps(model.slope)), zero_shift(_mm256_set1_ps(model.shifts[0][NEAR_ZERO])),
          zero_rate(_mm256_set1_ps(model.rates[0][NEAR_ZERO])), zero(_mm256_set1_epi32(model.zero)) {
        for (int parity = 0; parity < 2; parity++) {
            shifts[parity] = _mm256_loadu_ps(model.shifts[parity]);
            rates[parity] = _mm256_loadu_ps(model.rates[parity]);
            near_shifts[parity] = _mm256_permute2f128_ps(shifts[parity], shifts[parity], 1);
            near_rates[parity] = _mm256_permute2f128_ps(rates[parity], rates[parity], 1);
        }
    }

    __m256 in_steps(const float* x) const {
        return _mm256_min_ps(_mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(x), inverse), low), high);
    }
};

struct LevelVector {
    __m256 j, cost;
};

// `shifts` and `rates` look up eight entries by index.
template <class Shifts, class Rates>
inline LevelVector nearest_levels(__m256 away, const TrellisVectors& v, const Shifts& shifts, const Rates& rates) {
    const __m256 rounder = _mm256_set1_ps(ROUNDER);
    const __m256 j = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(away, _mm256_set1_ps(0.25f)), rounder), rounder);
    const __m256 near = _mm256_min_ps(_mm256_max_ps(j, _mm256_set1_ps(NEAR_LOW)), _mm256_set1_ps(NEAR_HIGH));
    const __m256i index = _mm256_add_epi32(_mm256_cvtps_epi32(near), _mm256_set1_epi32(NEAR_ZERO));
    const __m256 beyond = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(j, near));
    const __m256 error = _mm256_sub_ps(_mm256_sub_ps(away, _mm256_mul_ps(_mm256_set1_ps(4.0f), j)), shifts(index));
    const __m256 rate = _mm256_add_ps(rates(index), _mm256_mul_ps(v.slope, beyond));
    return {j, _mm256_add_ps(_mm256_mul_ps(error, error), rate)};
}

// Whether all values, and their negatives, have their levels among those with shifts and rates of their own.
inline bool are_near(__m256 in_steps) {
    constexpr float REACH = 14.0f;
    const __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), in_steps);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(REACH), _CMP_GT_OQ)) == 0;
}

// As nearest_levels for values that are near. The lowest bits of j + ROUNDER are those of j, and look up eight entries by j mod 8.
template <class Shifts, class Rates>
inline LevelVector near_levels(__m256 away, const Shifts& shifts, const Rates& rates) {
    const __m256 rounder = _mm256_set1_ps(ROUNDER);
    const __m256 raised = _mm256_add_ps(_mm256_mul_ps(away, _mm256_set1_ps(0.25f)), rounder);
    const __m256 j = _mm256_sub_ps(raised, rounder);
    const __m256i index = _mm256_castps_si256(raised);
    const __m256 error = _mm256_sub_ps(_mm256_sub_ps(away, _mm256_mul_ps(_mm256_set1_ps(4.0f), j)), shifts(index));
    return {j, _mm256_add_ps(_mm256_mul_ps(error, error), rates(index))};
}

inline __m256 zero_cost(__m256 even_away, const TrellisVectors& v) {
    const __m256 error = _mm256_sub_ps(even_away, v.zero_shift);
    return _mm256_add_ps(_mm256_mul_ps(error, error), v.zero_rate);
}

template <bool NEAR>
inline __m256 branch_cost(__m256 x, int parity, const TrellisVectors& v) {
    const __m256 away = _mm256_sub_ps(x, _mm256_set1_ps(parity ? 2.5f : 0.5f));
    const auto look_up = [](__m256 table) { return [=](__m256i index) { return _mm256_permutevar8x32_ps(table, index); }; };
    const __m256 cost = NEAR ? near_levels(away, look_up(v.near_shifts[parity]), look_up(v.near_rates[parity])).cost
                             : nearest_levels(away, v, look_up(v.shifts[parity]), look_up(v.rates[parity])).cost;
    return parity ? cost : _mm256_min_ps(zero_cost(away, v), cost);
}

// What levels of even and odd k cost, in either half.
struct BranchCosts {
    __m256 of[2][2];

    BranchCosts(__m256 value, const TrellisVectors& v) {
        if (are_near(value)) fill<true>(value, v);
        else fill<false>(value, v);
    }

private:
    template <bool NEAR>
    void fill(__m256 value, const TrellisVectors& v) {
        const __m256 turned = _mm256_xor_ps(value, _mm256_set1_ps(-0.0f));
        unroll<2>([&](auto parity) {
            of[0][parity] = branch_cost<NEAR>(value, parity, v);
            of[1][parity] = branch_cost<NEAR>(turned, parity, v);
        });
    }
};

// The lowest byte of each lane.
inline void store_bytes(__m256i values, uint8_t* out) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}
inline void store_symbols(__m256i values, uint8_t* out) { store_bytes(values, out); }
inline void store_symbols(__m256i values, uint16_t* out) {
    const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(values), _mm256_extracti128_si256(values, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), words);
}

template <size_t LANES>
void forward_vectors(TrellisPaths<LANES>& paths, const float* x, const TrellisVectors& v, uint8_t* choices) {
    for (size_t lane = 0; lane + 8 <= LANES; lane += 8) {
        const BranchCosts branch(v.in_steps(x + lane), v);
        __m256 before[TRELLIS_STATES];
        unroll<TRELLIS_STATES>([&](auto s) { before[s] = _mm256_loadu_ps(&paths.costs[s][lane]); });
        __m256i chosen = _mm256_setzero_si256();
        unroll<TRELLIS_STATES>([&](auto s) {
            constexpr uint32_t state = s;
            const __m256 first = _mm256_add_ps(before[state_before(state, 0)], branch.of[state >> 2][parity_before(state, 0)]);
            const __m256 second = _mm256_add_ps(before[state_before(state, 1)], branch.of[state >> 2][parity_before(state, 1)]);
            const __m256i is_second = _mm256_castps_si256(_mm256_cmp_ps(second, first, _CMP_LT_OQ));
            chosen = _mm256_or_si256(chosen, _mm256_and_si256(is_second, _mm256_set1_epi32(1 << state)));
            _mm256_storeu_ps(&paths.costs[state][lane], _mm256_min_ps(second, first));
        });
        store_bytes(chosen, choices + lane);
    }
}

// Of values in these halves, by levels of these parities.
inline __m256i symbols_of(__m256 in_steps, __m256i half, __m256i parity, const TrellisVectors& v) {
    const __m256 is_odd = _mm256_castsi256_ps(_mm256_slli_epi32(parity, 31));
    const __m256 value = _mm256_xor_ps(in_steps, _mm256_castsi256_ps(_mm256_slli_epi32(half, 31)));
    const __m256 even_away = _mm256_sub_ps(value, _mm256_set1_ps(0.5f));
    const __m256 away = _mm256_blendv_ps(even_away, _mm256_sub_ps(value, _mm256_set1_ps(2.5f)), is_odd);
    const auto pick = [&](const __m256 (&of)[2], __m256i index) {
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(of[0], index), _mm256_permutevar8x32_ps(of[1], index), is_odd);
    };
    const auto look_up = [&](const __m256 (&of)[2]) { return [&](__m256i index) { return pick(of, index); }; };
    const LevelVector nearest = are_near(in_steps) ? near_levels(away, look_up(v.near_shifts), look_up(v.near_rates))
                                                   : nearest_levels(away, v, look_up(v.shifts), look_up(v.rates));
    const __m256 zero_wins = _mm256_cmp_ps(zero_cost(even_away, v), nearest.cost, _CMP_LT_OQ);
    const __m256i is_zero = _mm256_andnot_si256(_mm256_srai_epi32(_mm256_castps_si256(is_odd), 31), _mm256_castps_si256(zero_wins));
    const __m256i j = _mm256_andnot_si256(is_zero, _mm256_cvtps_epi32(nearest.j));
    return _mm256_add_epi32(_mm256_add_epi32(_mm256_add_epi32(j, j), parity), v.zero);
}

template <size_t LANES, class S>
void backward_vectors(TrellisPaths<LANES>& paths, const float* x, const TrellisVectors& v, const uint8_t* choices, S* out) {
    const __m256i one = _mm256_set1_epi32(1);
    for (size_t lane = 0; lane + 8 <= LANES; lane += 8) {
        const __m256i state = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(&paths.states[lane]));
        const __m256i choice = _mm256_and_si256(_mm256_srlv_epi32(load8(choices + lane), state), one);
        const __m256i half = _mm256_srli_epi32(state, 2);
        const __m256i parity = _mm256_xor_si256(_mm256_and_si256(_mm256_srli_epi32(state, 1), one), choice);
        store_symbols(symbols_of(v.in_steps(x + lane), half, parity, v), out + lane);
        const __m256i second = _mm256_xor_si256(half, _mm256_and_si256(state, one));
        const __m256i before = _mm256_or_si256(_mm256_or_si256(half, _mm256_slli_epi32(second, 1)), _mm256_slli_epi32(choice, 2));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(&paths.states[lane]), before);
    }
}

// Bits of a state in vectors of their own: half, second, third. Returns how many values are done: all whole steps.
template <size_t LANES>
size_t signs_vectors(float* values, size_t n, uint32_t* states) {
    constexpr int VECTORS_OF_LANES = LANES / 8;
    __m256i half[VECTORS_OF_LANES], second[VECTORS_OF_LANES], third[VECTORS_OF_LANES];
    for (int v = 0; v < VECTORS_OF_LANES; v++) half[v] = second[v] = third[v] = _mm256_setzero_si256();
    size_t begin = 0;
    for (; begin + LANES <= n; begin += LANES)
        unroll<VECTORS_OF_LANES>([&](auto v) {
            __m256i* at = reinterpret_cast<__m256i*>(values + begin + 8 * v);
            const __m256i bits = _mm256_loadu_si256(at);
            _mm256_storeu_si256(at, _mm256_xor_si256(bits, _mm256_slli_epi32(half[v], 31)));
            const __m256i next = _mm256_xor_si256(half[v], second[v]);  // only their lowest bits count
            second[v] = _mm256_xor_si256(bits, third[v]);
            third[v] = half[v];
            half[v] = next;
        });
    const __m256i one = _mm256_set1_epi32(1);
    for (int v = 0; v < VECTORS_OF_LANES; v++) {
        const __m256i low = _mm256_or_si256(_mm256_and_si256(half[v], one), _mm256_slli_epi32(_mm256_and_si256(second[v], one), 1));
        const __m256i all = _mm256_or_si256(low, _mm256_slli_epi32(_mm256_and_si256(third[v], one), 2));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(states + 8 * v), all);
    }
    return begin;
}

}  // namespace perbit::PERBIT_ARCH
