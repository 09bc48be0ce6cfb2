// Python bindings of the kernels behind `rd`: the trellis quantizer, adaptive levels, sums of products.
#include <cmath>

#include "arguments.hpp"

namespace perbit {

static TrellisModel trellis_model(float inverse, Array<const float> shifts, Array<const float> rates, float slope, int zero) {
    const Span s(shifts);
    const Span r(rates);
    require(s.size == 16 && r.size == 16, "shifts and rates are those of k = -8 .. 7");
    require_finite(inverse);
    require_finite(slope);
    TrellisModel model{inverse, float(2 * zero - 4), {}, {}, slope, zero};
    for (size_t i = 0; i < 16; i++) {
        require_finite(s.data[i]);
        require_finite(r.data[i]);
        model.shifts[i & 1][i >> 1] = s.data[i];
        model.rates[i & 1][i >> 1] = r.data[i];
    }
    return model;
}

template <class S>
static void bind_trellis_encode(Array<const float> x, float inverse, Array<const float> shifts, Array<const float> rates,
                                float slope, Array<S> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    const TrellisModel model = trellis_model(inverse, shifts, rates, slope, sizeof(S) == 1 ? 128 : 2048);
    nb::gil_scoped_release released;
    PERBIT_CALL(trellis_encode, in.data, in.size, model, to.data);
}

static void bind_trellis_signs(Array<float> values) {
    const Span in(values);
    nb::gil_scoped_release released;
    PERBIT_CALL(trellis_signs, in.data, in.size);
}

static float bind_trellis_fit(Array<const float> x, bool wide, bool with_shifts, Array<int8_t> shifts, Array<float> rates) {
    const Span in(x);
    const Span s(shifts);
    const Span r(rates);
    require(s.size == 7 && r.size == 16, "there are shifts of k = -3 .. 3 and rates of k = -8 .. 7");
    TrellisFit found;
    {
        nb::gil_scoped_release released;
        found = PERBIT_CALL(trellis_fit, in.data, in.size, wide, with_shifts);
    }
    std::copy_n(found.shifts, 7, s.data);
    std::copy_n(found.rates, 16, r.data);
    return found.slope;
}

static nb::tuple bind_scalar_cost(Array<const float> x, Array<const float> noise, float scale, float sigma, float rounding) {
    const Span in(x);
    const Span with(noise);
    require_same_length(in.size, with.size);
    ScalarCost cost;
    {
        nb::gil_scoped_release released;
        cost = PERBIT_CALL(scalar_cost, in.data, with.data, in.size, scale, sigma, rounding);
    }
    return nb::make_tuple(cost.error, cost.bits);
}

static void require_levels(uint64_t columns, uint32_t mean) {
    require(columns <= MAX_LENGTH, "there are too many columns");
    require(mean <= LARGEST_MEAN, "the mean is too large");
}

static nb::bytes bind_levels_encode(Array<const uint32_t> levels, uint64_t columns, uint32_t mean) {
    const Span in(levels);
    require_levels(columns, mean);
    std::vector<uint8_t> stream;
    {
        nb::gil_scoped_release released;
        stream = PERBIT_CALL(levels_encode, in.data, in.size, columns, mean);
    }
    return nb::bytes(stream.data(), stream.size());
}

static void bind_levels_decode(nb::handle data, uint64_t columns, uint32_t mean, Array<uint32_t> out) {
    const ByteView in(data);
    const Span to(out);
    require_levels(columns, mean);
    nb::gil_scoped_release released;
    PERBIT_CALL(levels_decode, in.data(), in.size(), to.size, columns, mean, to.data);
}

static void bind_levels_decode_table(nb::handle data, uint64_t columns, uint32_t mean, Array<const float> table, Array<float> out) {
    const ByteView in(data);
    const Span values(table);
    const Span to(out);
    require_levels(columns, mean);
    nb::gil_scoped_release released;
    PERBIT_CALL(levels_decode_table, in.data(), in.size(), to.size, columns, mean, values.data, values.size, to.data);
}

static void bind_add_pairs(Array<const float> left, Array<const float> right, uint64_t rows, uint64_t columns, Array<float> out) {
    const Span l(left);
    const Span r(right);
    const Span to(out);
    require(rows >= 1 && columns >= 1 && to.size / rows == columns && to.size % rows == 0,
            "the output must have rows times columns values");
    require(l.size % rows == 0 && r.size % columns == 0 && l.size / rows == r.size / columns, "pairs must be whole");
    nb::gil_scoped_release released;
    PERBIT_CALL(add_pairs, l.data, r.data, l.size / rows, rows, columns, to.data);
}

// The side of the matrix between frequencies and taps.
static size_t taps_of(const Span<const float>& matrix, const Span<const float>& in, const Span<float>& to) {
    const size_t taps = size_t(std::sqrt(double(matrix.size)) + 0.5);
    require(taps >= 1 && taps <= 256 && taps * taps == matrix.size, "the matrix must be square, of at most 256 taps");
    require(in.size % taps == 0, "planes must be whole");
    require_same_length(in.size, to.size);
    return taps;
}

static void bind_mix_planes(Array<const float> matrix, Array<const float> planes, Array<float> out) {
    const Span m(matrix), in(planes);
    const Span to(out);
    const size_t taps = taps_of(m, in, to);
    nb::gil_scoped_release released;
    PERBIT_CALL(mix_planes, m.data, in.data, taps, in.size / taps, to.data);
}

static void bind_split_planes(Array<const float> matrix, Array<const float> values, Array<float> out) {
    const Span m(matrix), in(values);
    const Span to(out);
    const size_t taps = taps_of(m, in, to);
    nb::gil_scoped_release released;
    PERBIT_CALL(split_planes, m.data, in.data, taps, in.size / taps, to.data);
}

template <class S>
static void bind_symbols(nb::module_& m) {
    m.def("trellis_encode", &bind_trellis_encode<S>, array("x"), nb::arg("inverse"), array("shifts"), array("rates"),
          nb::arg("slope"), array("out"));
}

void bind_trellis(nb::module_& m) {
    bind_symbols<uint8_t>(m);
    bind_symbols<uint16_t>(m);
    m.def("trellis_signs", &bind_trellis_signs, array("values"));
    m.def("levels_encode", &bind_levels_encode, array("levels"), nb::arg("columns"), nb::arg("mean"));
    m.def("levels_decode", &bind_levels_decode, nb::arg("data"), nb::arg("columns"), nb::arg("mean"), array("out"));
    m.def("levels_decode_table", &bind_levels_decode_table, nb::arg("data"), nb::arg("columns"), nb::arg("mean"), array("table"),
          array("out"));
    m.def("trellis_fit", &bind_trellis_fit, array("x"), nb::arg("wide"), nb::arg("with_shifts"), array("shifts"), array("rates"));
    m.def("scalar_cost", &bind_scalar_cost, array("x"), array("noise"), nb::arg("scale"), nb::arg("sigma"), nb::arg("rounding"));
    m.def("add_pairs", &bind_add_pairs, array("left"), array("right"), nb::arg("rows"), nb::arg("columns"), array("out"));
    m.def("split_planes", &bind_split_planes, array("matrix"), array("values"), array("out"));
    m.def("mix_planes", &bind_mix_planes, array("matrix"), array("planes"), array("out"));
}

}  // namespace perbit
