// Fits a trellis quantizer to values: where the cells near zero have their mean, and what each of them costs.
//
// It starts from a Laplace distribution and learns, twice, from what a sample becomes. Rates matter only up to a common summand.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "logarithm.hpp"
#include "reduce.hpp"
#include "trellis.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t FIT_SAMPLE = 8192, FIT_STRETCHES = 8;
constexpr int FIT_ROUNDS = 2;
constexpr double FIT_FEWEST = 8;                         // values in a cell for its mean to be trusted
constexpr double SHIFT_UNITS = 64;                       // in a step
constexpr double BIT = 0.25, NAT = BIT / 0.6931471805599453;  // what a bit, and a nat, may cost: squares of the step

class TrellisFitter {
public:
    TrellisFitter(const float* x, size_t n, int zero, bool with_shifts)
        : sample_(sample(x, n)), model_{1.0f, float(2 * zero - 4), {}, {}, 0, zero}, with_shifts_(with_shifts) {}

    template <class S>
    TrellisFit fit() {
        std::vector<S> symbols(sample_.size());
        start();
        for (int round = 0; round < FIT_ROUNDS; round++) {
            trellis_encode(sample_.data(), sample_.size(), model_, symbols.data());
            learn(symbols.data());
        }
        return result_;
    }

private:
    // All values, or stretches of them from beginning to end.
    static std::vector<float> sample(const float* x, size_t n) {
        if (n <= FIT_SAMPLE) return {x, x + n};
        constexpr size_t width = FIT_SAMPLE / FIT_STRETCHES;
        std::vector<float> found;
        found.reserve(FIT_SAMPLE);
        for (size_t i = 0; i < FIT_STRETCHES; i++) {
            const float* begin = x + (n - width) * i / (FIT_STRETCHES - 1);
            found.insert(found.end(), begin, begin + width);
        }
        return found;
    }

    void start() {
        const double mean = std::max(block_sums(sample_.data(), sample_.size()).sum_abs / size(), 1e-3);
        for (int k = -8; k < 8; k++) set_rate(k, NAT / mean * std::fabs(2.0 * k + 0.5));
        set_slope(mean);
    }

    // Sums are made in four, by turns: a cell's next value need not wait for its last.
    template <class S>
    void learn(const S* symbols) {
        const size_t lanes = trellis_lanes(sample_.size());
        uint32_t states[32] = {};
        double sums[4][16] = {};
        uint32_t counts[4][16] = {};
        int64_t magnitudes = 0;  // in half steps
        size_t lane = 0;
        for (size_t i = 0; i < sample_.size(); i++) {
            const int k = int(symbols[i]) - model_.zero;
            magnitudes += std::abs(4 * k + 1);
            if (unsigned(k + 8) < 16) {
                sums[i & 3][k + 8] += double(float_of(bits_of(sample_[i]) ^ states[lane] << 31));
                counts[i & 3][k + 8]++;
            }
            states[lane] = trellis_next(states[lane], uint32_t(k) & 1);
            lane = lane + 1 == lanes ? 0 : lane + 1;
        }
        set_slope(std::max(0.5 * double(magnitudes) / size(), 0.1));
        const double all = exact_log2(double(sample_.size()) + 1.6);
        for (int k = -8; k < 8; k++) {
            const auto total = [&](const auto (&of)[4][16]) { return double((of[0][k + 8] + of[1][k + 8]) + (of[2][k + 8] + of[3][k + 8])); };
            const double count = total(counts);
            set_rate(k, BIT * (all - exact_log2(count + 0.1)));
            if (std::abs(k) <= 3) set_shift(k, count >= FIT_FEWEST ? total(sums) / count - (2.0 * k + 0.5) : 0.0);
        }
    }

    double size() const { return double(std::max(sample_.size(), size_t(1))); }

    void set_rate(int k, double rate) {
        result_.rates[k + 8] = float(rate);
        model_.rates[k & 1][(k + 8) >> 1] = float(rate);
    }
    void set_slope(double mean) { result_.slope = model_.slope = float(4.0 * NAT / mean); }
    void set_shift(int k, double away) {
        const double units = with_shifts_ ? std::clamp(std::nearbyint(away * SHIFT_UNITS), -127.0, 127.0) : 0.0;
        result_.shifts[k + 3] = int8_t(units);
        model_.shifts[k & 1][(k + 8) >> 1] = float(units / SHIFT_UNITS);
    }

    std::vector<float> sample_;
    TrellisModel model_;
    bool with_shifts_;
    TrellisFit result_{};
};

TrellisFit trellis_fit(const float* x, size_t n, bool wide, bool with_shifts) {
    TrellisFitter fitter(x, n, wide ? 2048 : 128, with_shifts);
    return wide ? fitter.fit<uint16_t>() : fitter.fit<uint8_t>();
}

}  // namespace perbit::PERBIT_ARCH
