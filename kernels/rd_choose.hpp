// Which components of a matrix are worth their bits, judged by a sample of it: coding/families/rd/judging.py in one call.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "both.hpp"

namespace perbit {

constexpr double RD_SLOPE = 0.25;  // what a bit may cost, in squares of the step

// The components of a matrix and a sample of it, of which the last rows, the strong ones, stand for themselves alone.
struct ComponentSample {
    const float *sent, *values, *left, *right, *noise;
    const double* sigma;
    size_t count, sampled_rows, sampled_columns, strong, rows, columns;
    double energy, unit, largest;
};

// So many components, their vectors so coarse; the error and the bits of everything, about.
struct Judgement {
    size_t rank, coarse;
    double error, bits;
};

class Judge {
public:
    explicit Judge(const ComponentSample& sample)
        : in_(sample), residuals_(sample.count + 1), vector_costs_(sample.count * COARSE_INDEXES) {
        const size_t weak = in_.sampled_rows - in_.strong;
        if (weak) groups_.push_back({double(in_.rows - in_.strong), 0, weak});
        if (in_.strong) groups_.push_back({double(in_.strong), weak, in_.strong});
        residuals_[0].assign(in_.values, in_.values + in_.sampled_rows * in_.sampled_columns);
    }

    Judgement best() {
        look(0, 0);
        std::vector<size_t> ranks;
        for (const size_t rank : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64})
            if (rank <= in_.count) ranks.push_back(rank);
        for (size_t i = FIRST_TRIED; i < ranks.size(); i += 3) look(ranks[i], 0);
        look(ranks.back(), 0);
        Judgement now = least();
        while (now.rank && now.coarse < COARSEST_TRIED) {  // coarser as long as that helps
            look(now.rank, now.coarse + 2);
            const Judgement next = least();
            if (next.coarse == now.coarse) break;
            now = next;
        }
        // Those beside it; nothing at all stands before the first one.
        const size_t at = size_t(std::find(ranks.begin(), ranks.end(), now.rank) - ranks.begin());
        const size_t begin = now.rank && at ? at - 1 : 0, end = std::min(now.rank ? at + 2 : 1, ranks.size());
        for (size_t i = begin; i < end; i++) look(ranks[i], now.coarse);
        return least();
    }

private:
    static constexpr size_t FIRST_TRIED = 2, COARSEST_TRIED = 6, COARSE_INDEXES = COARSEST_TRIED / 2 + 1;
    static constexpr double CORRECTED_FULLY = 1.3, TOLD_FROM_ROUNDING = 1e-5, HEAD = 24, SCALAR = 1.69, REACH = 250 * SCALAR, GAIN = 0.2;
    static constexpr float ROUNDING = 0.36f;

    struct Group {
        double stands_for;  // so many rows
        size_t begin, rows;
    };
    struct Cost {
        double error, bits;
    };

    // Every choice is judged once; of equal ones the first is the best.
    void look(size_t rank, size_t index) {
        for (const Judgement& each : found_)
            if (each.rank == rank && each.coarse == index) return;
        const Cost cost = judged(rank, index);
        found_.push_back({rank, index, cost.error, cost.bits});
    }

    Judgement least() const {
        return *std::min_element(found_.begin(), found_.end(), [](const Judgement& a, const Judgement& b) {
            return a.error + RD_SLOPE * a.bits < b.error + RD_SLOPE * b.bits;
        });
    }

    Cost judged(size_t rank, size_t index) {
        Cost vectors{0, 0}, total{0, 0};
        for (size_t component = 0; component < rank; component++) {
            const Cost cost = vector_cost(component, index);
            vectors.error += cost.error;
            vectors.bits += cost.bits;
        }
        const double noise = vectors.error / (double(in_.rows) * double(in_.columns));
        const double unit = in_.unit * correction(rank);
        for (const Group& group : groups_) {
            const Cost cost = each_value(part(rank, group), group.rows * in_.sampled_columns, unit, noise, unit * in_.largest);
            total.error += group.stands_for * cost.error;
            total.bits += group.stands_for * cost.bits;
        }
        const double columns = double(in_.columns);
        return {columns * total.error, columns * total.bits + vectors.bits};
    }

    // Error and bits a value, of values times a unit and with noise, that reach so far in steps.
    Cost each_value(const float* values, size_t n, double unit, double noise, double reach) const {
        const double coarser = std::max(1.0, reach / REACH), scale = 1 / (SCALAR * coarser), count = double(n);
        const float times = float(unit * scale), sigma = float(std::sqrt(noise) * scale);
        ScalarCost found = PERBIT_CALL(scalar_cost, values, in_.noise, n, times, sigma, ROUNDING);
        if (coarser > 1) found.bits += std::log2(coarser) * double(n - size_t(std::count(values, values + n, 0.0f)));
        const double error = found.error / count * (SCALAR * SCALAR), bits = found.bits / count;
        return {error, bits - GAIN * std::min(1.0, bits)};
    }

    Cost vector_cost(size_t component, size_t index) {
        std::optional<Cost>& known = vector_costs_[component * COARSE_INDEXES + index / 2];
        if (!known) {
            const size_t size = in_.rows + in_.columns;
            const double step = std::ldexp(1.0, int(index / 2)), unit = in_.unit / step;
            const Cost cost = each_value(in_.sent + component * size, size, unit, 0.0, in_.sigma[component] * unit);
            known = Cost{double(size) * cost.error * (step * step), double(size) * cost.bits + HEAD};
        }
        return *known;
    }

    // What the first components leave of the sample: of what fewer have left, where that is known.
    const float* residual(size_t rank) {
        if (residuals_[rank].empty()) {
            size_t k = rank - 1;
            while (residuals_[k].empty()) k--;
            residuals_[rank] = residuals_[k];
            for (; k < rank; k++) take_off(k, residuals_[rank].data());
        }
        return residuals_[rank].data();
    }

    void take_off(size_t component, float* values) const {
        const float* left = in_.left + component * in_.sampled_rows;
        const float* right = in_.right + component * in_.sampled_columns;
        for (size_t row = 0; row < in_.sampled_rows; row++, values += in_.sampled_columns)
            for (size_t i = 0; i < in_.sampled_columns; i++) values[i] -= left[row] * right[i];
    }

    const float* part(size_t rank, const Group& group) { return residual(rank) + group.begin * in_.sampled_columns; }

    // What gives the residual of the sample the energy that the whole one is known to have, where most of it will be sent as zeros.
    double correction(size_t rank) {
        double known = in_.energy, sampled = 0;
        for (size_t k = 0; k < rank; k++) known -= in_.sigma[k] * in_.sigma[k];
        for (const Group& group : groups_) {
            const size_t n = group.rows * in_.sampled_columns;
            sampled += group.stands_for * PERBIT_CALL(moments, part(rank, group), n, nullptr).sum_sq / double(n);
        }
        sampled *= double(in_.columns);
        if (!(known > TOLD_FROM_ROUNDING * in_.energy && sampled > 0)) return 1.0;
        const double weight = CORRECTED_FULLY - known * (in_.unit * in_.unit) / (double(in_.rows) * double(in_.columns));
        return std::pow(known / sampled, 0.5 * std::min(1.0, std::max(0.0, weight)));
    }

    const ComponentSample& in_;
    std::vector<Group> groups_;
    std::vector<std::vector<float>> residuals_;
    std::vector<std::optional<Cost>> vector_costs_;
    std::vector<Judgement> found_;
};

}  // namespace perbit
