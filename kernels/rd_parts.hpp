// Values of a tensor, quantized and coded: coding/families/rd/parts.py in one call.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>

#include "rd_choose.hpp"
#include "rd_points.hpp"
#include "rd_streams.hpp"

namespace perbit {

constexpr size_t RD_CHUNK = size_t(1) << 20;  // values that have a trellis, and a table, of their own

inline TrellisModel model_of(const TrellisFit& fit, int zero) {
    TrellisModel model{1.0f, float(2 * zero - 4), {}, {}, fit.slope, zero};
    for (int k = -8; k < 8; k++) {
        model.shifts[k & 1][(k + 8) >> 1] = k >= -3 && k <= 3 ? float(fit.shifts[k + 3]) / 64 : 0.0f;
        model.rates[k & 1][(k + 8) >> 1] = fit.rates[k + 8];
    }
    return model;
}

// What the other end makes of symbols that one trellis has made, in steps.
template <class S>
void decode_symbols(const S* symbols, size_t n, const TrellisFit& fit, int zero, float* out) {
    Points points;
    std::copy_n(fit.shifts, PART_SHIFTS, points.shifts);
    const std::vector<float> table = points.by_symbol(zero);
    PERBIT_CALL(dequantize, symbols, n, table.data(), table.size(), out);
    PERBIT_CALL(trellis_signs, out, n);
}

template <class S>
class PartWriter {
public:
    PartWriter(const float* values, size_t n) : values_(values), n_(n), symbols_(room<Use::SYMBOLS, S>(n)) {
        fit_ = PERBIT_CALL(trellis_fit, values, n, sizeof(S) == 2, n >= SHIFTS_PAY);
        const TrellisModel model = model_of(fit_, ZERO);
        for_each_chunk([&](size_t begin, size_t size) { PERBIT_CALL(trellis_encode, values + begin, size, model, symbols_ + begin); });
    }

    Bytes write(size_t columns) const {
        const bool shifted = std::any_of(fit_.shifts, fit_.shifts + PART_SHIFTS, [](int8_t shift) { return shift != 0; });
        const uint8_t kind = shifted ? PART_SHIFTED : PART_TRELLIS;
        Bytes out{uint8_t(kind + (sizeof(S) == 2))};
        if (shifted) out.insert(out.end(), fit_.shifts, fit_.shifts + PART_SHIFTS);
        put(out, write_stream(symbols_, n_, columns, RD_CHUNK));
        return out;
    }

    // The squared error of what the other end will make of it.
    double error() const {
        const std::unique_ptr<float[]> decoded(new float[std::min(n_, RD_CHUNK)]);
        double total = 0;
        for_each_chunk([&](size_t begin, size_t size) {
            decode_symbols(symbols_ + begin, size, fit_, ZERO, decoded.get());
            for (size_t i = 0; i < size; i++) decoded[i] = values_[begin + i] - decoded[i];
            total += PERBIT_CALL(moments, decoded.get(), size, nullptr).sum_sq;
        });
        return total;
    }

private:
    static constexpr int ZERO = sizeof(S) == 1 ? ZERO_OF_BYTES : ZERO_OF_WORDS;
    static constexpr size_t SHIFTS_PAY = 256;

    template <class Body>
    void for_each_chunk(const Body& body) const {
        for (size_t begin = 0; begin < n_; begin += RD_CHUNK) body(begin, std::min(RD_CHUNK, n_ - begin));
    }

    const float* values_;
    size_t n_;
    S* symbols_;
    TrellisFit fit_;
};

// By the trellis, or nothing where that is as good at this exchange rate.
template <class S>
Bytes write_part_of(const float* values, size_t n, size_t columns, double slope, double energy) {
    constexpr double DOUBTFUL = 0.1, FEWEST_BITS = 256;
    const PartWriter<S> part(values, n);
    Bytes coded = part.write(columns);
    const double bits = 8.0 * double(coded.size());
    const bool pays = bits > std::max(DOUBTFUL * double(n), FEWEST_BITS) || part.error() < energy - slope * bits;
    return pays ? coded : Bytes{PART_NOTHING};
}

inline Bytes write_part(const float* values, size_t n, size_t columns, double slope) {
    constexpr float SMALL = 2.0f, FARTHEST_OF_BYTES = 252.0f;
    constexpr double WEAK = 0.12;
    const Moments found = PERBIT_CALL(moments, values, n, nullptr);
    const bool hopeless = slope >= RD_SLOPE && found.max_abs < SMALL && found.sum_sq / double(n) <= WEAK;
    if (found.max_abs == 0 || hopeless) return {PART_NOTHING};
    return found.max_abs <= FARTHEST_OF_BYTES ? write_part_of<uint8_t>(values, n, columns, slope, found.sum_sq)
                                              : write_part_of<uint16_t>(values, n, columns, slope, found.sum_sq);
}

}  // namespace perbit
