// Trellis-coded quantization: a finite machine says, value after value, which half of a fine grid may be used.
//
// One half of the grid has the points (2k + 1/2) steps for all whole k, the other their mirror images. The machine has eight states; the first
// bit of a state names the half, and the parity of k moves the machine on. The encoder finds the path with the least squared error plus rate
// (Viterbi). Since the halves mirror each other, one table of probabilities of k serves both. Values are dealt out to several machines, the lanes.
//
// k = 2j + parity, so that a value x is x - (2 parity + 1/2) - 4j away from its point; the 8 cells of each parity around zero
// have a shift (where their values lie on average) and a rate of their own.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr unsigned TRELLIS_STATES = 8;
constexpr float NEAR_LOW = -4.0f, NEAR_HIGH = 3.0f;  // the j that have a shift and a rate of their own
constexpr int NEAR_ZERO = 4;                         // where j = 0 stands among them
constexpr float NEVER = 1e30f;
constexpr float ROUNDER = 12582912.0f;  // adding and taking away 1.5 * 2^23 rounds to the nearest whole number, to even
constexpr size_t CALM_EVERY = 16;       // steps after which the smallest cost is taken off all

constexpr size_t trellis_lanes(size_t n) { return n < 1024 ? 1 : n < 8192 ? 4 : n < 65536 ? 8 : 32; }

// What follows a state: half, second and third bit become (half ^ second), (parity ^ third), half.
inline uint32_t trellis_next(uint32_t state, uint32_t parity) {
    const uint32_t half = state & 1, second = state >> 1 & 1, third = state >> 2;
    return (half ^ second) | (parity ^ third) << 1 | half << 2;
}

// Two states lead to each one, by different parities; they differ in their third bit, the choice.
constexpr uint32_t state_before(uint32_t state, uint32_t choice) {
    const uint32_t half = state >> 2;
    return half | (half ^ (state & 1)) << 1 | choice << 2;
}
constexpr uint32_t parity_before(uint32_t state, uint32_t choice) { return (state >> 1 & 1) ^ choice; }

struct Level {
    float j, cost;
};

// In this order NaN becomes the lowest level, as in trellis_avx2.hpp: indexes are made of what comes out.
inline float in_steps(float x, const TrellisModel& model) {
    return std::min(std::max(-model.limit, x * model.inverse), model.limit);
}

inline Level nearest_level(float x, uint32_t parity, const TrellisModel& model) {
    const float away = x - (parity ? 2.5f : 0.5f);
    const float j = (away * 0.25f + ROUNDER) - ROUNDER;
    const float near = std::min(std::max(j, NEAR_LOW), NEAR_HIGH);
    const int index = int(near) + NEAR_ZERO;
    const float error = (away - 4.0f * j) - model.shifts[parity][index];
    return {j, error * error + (model.rates[parity][index] + model.slope * std::abs(j - near))};
}

// k = 0 may win although another point is nearer: it is the cheapest by far where most values are small.
inline Level best_level(float x, uint32_t parity, const TrellisModel& model) {
    const Level nearest = nearest_level(x, parity, model);
    const float error = (x - 0.5f) - model.shifts[0][NEAR_ZERO];
    const float zero = error * error + model.rates[0][NEAR_ZERO];
    return parity == 0 && zero < nearest.cost ? Level{0.0f, zero} : nearest;
}

template <size_t LANES>
struct TrellisPaths {
    float costs[TRELLIS_STATES][LANES];  // of the best path to each state
    uint32_t states[LANES];              // on the way back

    TrellisPaths() {
        for (unsigned state = 0; state < TRELLIS_STATES; state++) std::fill_n(costs[state], LANES, state ? NEVER : 0.0f);
    }

    void forward(const float* x, size_t lane, const TrellisModel& model, uint8_t* choices) {
        const float value = in_steps(x[lane], model);
        float branch[2][2], next[TRELLIS_STATES];
        for (uint32_t parity = 0; parity < 2; parity++) {
            branch[0][parity] = best_level(value, parity, model).cost;
            branch[1][parity] = best_level(-value, parity, model).cost;
        }
        uint32_t chosen = 0;
        for (uint32_t state = 0; state < TRELLIS_STATES; state++) {
            const float first = costs[state_before(state, 0)][lane] + branch[state >> 2][parity_before(state, 0)];
            const float second = costs[state_before(state, 1)][lane] + branch[state >> 2][parity_before(state, 1)];
            chosen |= uint32_t(second < first) << state;
            next[state] = second < first ? second : first;
        }
        for (unsigned state = 0; state < TRELLIS_STATES; state++) costs[state][lane] = next[state];
        choices[lane] = uint8_t(chosen);
    }

    void calm(size_t lane) {
        float least = costs[0][lane];
        for (unsigned state = 1; state < TRELLIS_STATES; state++) least = std::min(least, costs[state][lane]);
        for (unsigned state = 0; state < TRELLIS_STATES; state++) costs[state][lane] -= least;
    }

    void turn(size_t lane) {
        states[lane] = 0;
        for (uint32_t state = 1; state < TRELLIS_STATES; state++)
            if (costs[state][lane] < costs[states[lane]][lane]) states[lane] = state;
    }

    template <class S>
    void backward(const float* x, size_t lane, const TrellisModel& model, const uint8_t* choices, S* out) {
        const uint32_t state = states[lane], choice = choices[lane] >> state & 1, parity = parity_before(state, choice);
        const float value = in_steps(x[lane], model);
        const Level level = best_level(state >> 2 ? -value : value, parity, model);
        out[lane] = S(2 * int(level.j) + int(parity) + model.zero);
        states[lane] = state_before(state, choice);
    }
};

}  // namespace perbit::PERBIT_ARCH

#ifdef PERBIT_AVX2
#include "trellis_states_avx2.hpp"
#endif

namespace perbit::PERBIT_ARCH {

// Each step holds one value of every lane, the last perhaps fewer.
template <size_t LANES, class S>
void trellis_encode_lanes(const float* x, size_t n, const TrellisModel& model, S* out) {
    TrellisPaths<LANES> paths;
    std::vector<uint8_t> choices(n);
#ifdef PERBIT_AVX2
    const TrellisVectors vectors(model);
    if constexpr (LANES < 8) {
        forward_states(paths, x, n, vectors, choices.data());
        for (size_t lane = 0; lane < LANES; lane++) paths.turn(lane);
        trace_states(paths, n, choices.data());
        return symbols_of_paths(x, n, vectors, choices.data(), out);
    }
#endif
    size_t begin = 0;
    for (size_t step = 0; begin < n; begin += LANES, step++) {
        const size_t lanes = std::min(LANES, n - begin);
#ifdef PERBIT_AVX2
        if (LANES % 8 == 0 && lanes == LANES)
            forward_vectors(paths, x + begin, vectors, &choices[begin]);
        else
#endif
            for (size_t lane = 0; lane < lanes; lane++) paths.forward(x + begin, lane, model, &choices[begin]);
        if (step % CALM_EVERY == CALM_EVERY - 1)
            for (size_t lane = 0; lane < LANES; lane++) paths.calm(lane);
    }
    for (size_t lane = 0; lane < LANES; lane++) paths.turn(lane);
    while (begin > 0) {
        begin -= LANES;
        const size_t lanes = std::min(LANES, n - begin);
#ifdef PERBIT_AVX2
        if (LANES % 8 == 0 && lanes == LANES)
            backward_vectors(paths, x + begin, vectors, &choices[begin], out + begin);
        else
#endif
            for (size_t lane = 0; lane < lanes; lane++) paths.backward(x + begin, lane, model, &choices[begin], out + begin);
    }
}

template <class S>
void trellis_encode(const float* x, size_t n, const TrellisModel& model, S* out) {
    switch (trellis_lanes(n)) {
        case 1: return trellis_encode_lanes<1>(x, n, model, out);
        case 4: return trellis_encode_lanes<4>(x, n, model, out);
        case 8: return trellis_encode_lanes<8>(x, n, model, out);
        default: return trellis_encode_lanes<32>(x, n, model, out);
    }
}

// Values of the first half, each with the parity of its k as its lowest bit, get the sign of the half they were chosen in.
template <size_t LANES>
void trellis_signs_lanes(float* values, size_t n) {
    uint32_t states[LANES] = {};
    size_t begin = 0;
#ifdef PERBIT_AVX2
    if (LANES % 8 == 0) begin = signs_vectors<LANES>(values, n, states);
#endif
    for (; begin < n; begin += LANES)
        for (size_t lane = 0; lane < std::min(LANES, n - begin); lane++) {
            const uint32_t bits = bits_of(values[begin + lane]), state = states[lane];
            values[begin + lane] = float_of(bits ^ state << 31);
            states[lane] = trellis_next(state, bits & 1);
        }
}

void trellis_signs(float* values, size_t n) {
    switch (trellis_lanes(n)) {
        case 1: return trellis_signs_lanes<1>(values, n);
        case 4: return trellis_signs_lanes<4>(values, n);
        case 8: return trellis_signs_lanes<8>(values, n);
        default: return trellis_signs_lanes<32>(values, n);
    }
}

}  // namespace perbit::PERBIT_ARCH
