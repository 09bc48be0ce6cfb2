// Python bindings of the numeric kernels on dense arrays: statistics, quantizers, error feedback.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <functional>
#include <optional>
#include <string>
#include <tuple>

#include "arguments.hpp"

namespace perbit {

using Floats = Array<const float>;

static auto bind_scan(Floats x) {
    const Span in(x);
    nb::gil_scoped_release released;
    const Extent e = PERBIT_CALL(scan, in.data, in.size);
    return std::make_tuple(e.min, e.max, e.n_nonfinite);
}

static auto bind_moments(Floats x, std::optional<Array<uint64_t>> hist) {
    const Span in(x);
    uint64_t* bins = nullptr;
    if (hist) {
        require(hist->shape(0) == HISTOGRAM_BINS, "hist must have 2048 entries");
        bins = Span(*hist).data;
    }
    nb::gil_scoped_release released;
    const Moments m = PERBIT_CALL(moments, in.data, in.size, bins);
    return std::make_tuple(m.sum, m.sum_abs, m.sum_sq, m.max_abs, m.n_zero);
}

static nb::object bind_bucket_norms(Floats x, uint64_t bucket, const std::string& kind) {
    require(bucket > 0, "bucket must be positive");
    require(kind == "l2" || kind == "max", "kind must be 'l2' or 'max'");
    const Span in(x);
    const size_t buckets = in.size / bucket + (in.size % bucket != 0);
    auto norms = std::make_unique_for_overwrite<float[]>(buckets);
    {
        nb::gil_scoped_release released;
        if (kind == "l2")
            PERBIT_CALL(bucket_l2, in.data, in.size, bucket, norms.get());
        else
            PERBIT_CALL(bucket_max, in.data, in.size, bucket, norms.get());
    }
    return to_numpy(std::move(norms), buckets);
}

template <class S>
static void bind_quantize_uniform(Floats x, float scale, float offset, uint32_t levels, Array<S> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    require_finite(scale);
    require_finite(offset);
    require_alphabet<S>(levels);
    nb::gil_scoped_release released;
    PERBIT_CALL(quantize_uniform, in.data, in.size, scale, offset, levels, to.data);
}

template <class S>
static void bind_quantize_uniform_random(Floats x, float scale, float offset, uint32_t levels, uint64_t key, uint64_t start,
                                         Array<S> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    require_finite(scale);
    require_finite(offset);
    require_alphabet<S>(levels);
    require_start(start, in.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(quantize_uniform_random, in.data, in.size, scale, offset, levels, key, start, to.data);
}

template <class S>
static void bind_quantize_levels_random(Floats x, Floats scales, uint64_t bucket, uint32_t levels, uint64_t key,
                                        uint64_t start, Array<S> out) {
    const Span in(x);
    const Span scale(scales);
    const Span to(out);
    require_same_length(in.size, to.size);
    require(levels >= 1, "levels must be positive");
    require_alphabet<S>(2 * uint64_t(levels) + 1);
    require_buckets(start, in.size, bucket, scale.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(quantize_levels_random, in.data, in.size, scale.data, bucket, levels, key, start, to.data);
}

template <class S>
static void bind_quantize_codebook(Floats x, Floats thresholds, Array<S> out) {
    const Span in(x);
    const Span limits(thresholds);
    const Span to(out);
    require_same_length(in.size, to.size);
    require_alphabet<S>(limits.size + 1);
    for (size_t i = 1; i < limits.size; i++) require(limits.data[i - 1] <= limits.data[i], "thresholds must be ascending");
    nb::gil_scoped_release released;
    PERBIT_CALL(quantize_codebook, in.data, in.size, limits.data, limits.size, to.data);
}

template <class S>
static void bind_quantize_codebook_random(Floats x, Floats codebook, uint64_t key, uint64_t start, Array<S> out) {
    const Span in(x);
    const Span book(codebook);
    const Span to(out);
    require_same_length(in.size, to.size);
    require(book.size >= 2, "the codebook needs at least two entries");
    require_alphabet<S>(book.size);
    for (size_t i = 1; i < book.size; i++) require(book.data[i - 1] < book.data[i], "the codebook must be strictly ascending");
    require_start(start, in.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(quantize_codebook_random, in.data, in.size, book.data, book.size, key, start, to.data);
}

static void bind_lowfloat(Floats x, float scale, int exponent_bits, int mantissa_bits, uint32_t max_code, Array<uint8_t> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    require_finite(scale);
    require(1 <= exponent_bits && 0 <= mantissa_bits && exponent_bits <= 7 && mantissa_bits <= 7 - exponent_bits,
            "a low float has at least one exponent bit and at most seven bits besides the sign");
    require(1 <= max_code && max_code < 1u << (exponent_bits + mantissa_bits), "max_code does not fit the format");
    nb::gil_scoped_release released;
    PERBIT_CALL(lowfloat, in.data, in.size, scale, exponent_bits, mantissa_bits, max_code, to.data);
}

template <class S>
static void bind_dequantize(Array<const S> symbols, Floats table, Array<float> out) {
    const Span in(symbols);
    const Span values(table);
    const Span to(out);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(dequantize, in.data, in.size, values.data, values.size, to.data);
}

template <class S>
static void bind_dequantize_buckets(Array<const S> symbols, Floats table, Floats norms, uint64_t bucket, uint64_t start,
                                    Array<float> out) {
    const Span in(symbols);
    const Span values(table);
    const Span scale(norms);
    const Span to(out);
    require_same_length(in.size, to.size);
    require_buckets(start, in.size, bucket, scale.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(dequantize_buckets, in.data, in.size, values.data, values.size, scale.data, bucket, start, to.data);
}

template <class S>
static void bind_axpy_table(Array<float> out, Array<const S> symbols, Floats table, float weight) {
    const Span to(out);
    const Span in(symbols);
    const Span values(table);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(axpy_table, to.data, in.data, in.size, values.data, values.size, weight);
}

template <class S>
static void bind_axpy_buckets(Array<float> out, Array<const S> symbols, Floats table, Floats norms, uint64_t bucket, uint64_t start,
                              float weight) {
    const Span to(out);
    const Span in(symbols);
    const Span values(table);
    const Span scale(norms);
    require_same_length(in.size, to.size);
    require_buckets(start, in.size, bucket, scale.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(axpy_buckets, to.data, in.data, in.size, values.data, values.size, scale.data, bucket, start, weight);
}

static void bind_hadamard(Floats x, uint64_t block, Array<float> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    require(std::has_single_bit(block) && in.size % block == 0, "the length must be a multiple of the block, a power of two");
    nb::gil_scoped_release released;
    PERBIT_CALL(hadamard, in.data, in.size, block, to.data);
}

static void bind_match_patterns(Floats x, uint64_t length, Floats signs, Array<uint16_t> symbols, Array<float> agreement) {
    const Span in(x);
    const Span sign(signs);
    const Span to(symbols);
    const Span best(agreement);
    require(std::has_single_bit(length) && 8 <= length && length <= LONGEST_PATTERN,
            "the length of a pattern must be a power of two from 8 to 256");
    require(in.size % length == 0 && sign.size % length == 0, "values and signs must be whole blocks");
    require(1 <= sign.size && sign.size <= 1 << 15, "there must be 1 to 32768 signs");
    require_same_length(in.size / length, to.size);
    require_same_length(to.size, best.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(match_patterns, in.data, in.size, length, sign.data, sign.size / length, to.data, best.data);
}

// How many pairs there are.
static size_t count_pairs(const Span<const float>& pairs, uint64_t rows, uint64_t columns, const Span<float>& out) {
    const bool fits = rows >= 1 && columns >= 1 && out.size % rows == 0 && out.size / rows == columns;
    require(fits, "the output must have rows times columns values");
    require(pairs.size % (rows + columns) == 0, "pairs must be whole");
    return pairs.size / (rows + columns);
}

static void bind_multiply_pairs(Floats pairs, uint64_t rows, uint64_t columns, Array<float> out) {
    const Span in(pairs);
    const Span to(out);
    const size_t count = count_pairs(in, rows, columns, to);
    nb::gil_scoped_release released;
    PERBIT_CALL(multiply_pairs, in.data, count, rows, columns, to.data);
}

static void bind_axpy_pairs(Array<float> out, Floats pairs, uint64_t rows, uint64_t columns, float weight) {
    const Span to(out);
    const Span in(pairs);
    const size_t count = count_pairs(in, rows, columns, to);
    nb::gil_scoped_release released;
    PERBIT_CALL(axpy_pairs, to.data, in.data, count, rows, columns, weight);
}

static void bind_there_and_back(Floats matrix, uint64_t columns, Floats start, Array<float> there, Array<float> back) {
    const Span in(matrix);
    const Span vectors(start);
    const Span products(there);
    const Span to(back);
    require(columns >= 1 && in.size % columns == 0 && vectors.size % columns == 0, "rows and vectors must be whole");
    const size_t rows = in.size / columns, count = vectors.size / columns;
    const bool fits = rows ? products.size % rows == 0 && products.size / rows == count : products.size == 0;
    require(fits, "there must be a product for each row and vector");
    require_same_length(vectors.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(there_and_back, in.data, rows, columns, vectors.data, count, products.data, to.data);
}

static void bind_axpy(Array<float> out, Floats values, float weight) {
    const Span to(out);
    const Span in(values);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(axpy, to.data, in.data, in.size, weight);
}

static void bind_to_half(Floats x, Array<uint16_t> out) {
    const Span in(x);
    const Span to(out);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(to_half, in.data, in.size, to.data);
}

static void bind_from_half(nb::handle data, Array<float> out) {
    const ByteView in(data);
    const Span to(out);
    require(in.size() == 2 * to.size, "half-precision data has the wrong length for this many values");
    nb::gil_scoped_release released;
    PERBIT_CALL(from_half, in.data(), to.size, to.data);
}

static void bind_feedback_add(Floats g, Floats memory, float gamma, Array<float> out) {
    const Span in(g);
    const Span carried(memory);
    const Span to(out);
    require_same_length(in.size, carried.size);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(feedback_add, in.data, carried.data, in.size, gamma, to.data);
}

template <class S>
static void bind_feedback_update(Floats g, Floats memory, float gamma, Array<const S> symbols, Floats table,
                                 Array<float> out) {
    const Span in(g);
    const Span carried(memory);
    const Span codes(symbols);
    const Span values(table);
    const Span to(out);
    require_same_length(in.size, carried.size);
    require_same_length(in.size, codes.size);
    require_same_length(in.size, to.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(feedback_update, in.data, carried.data, in.size, gamma, codes.data, values.data, values.size, to.data);
}

template <class S>
static void bind_symbol_kernels(nb::module_& m) {
    m.def("quantize_uniform", &bind_quantize_uniform<S>, array("x"), nb::arg("scale"), nb::arg("offset"), nb::arg("levels"),
          array("out"));
    m.def("quantize_uniform_random", &bind_quantize_uniform_random<S>, array("x"), nb::arg("scale"), nb::arg("offset"),
          nb::arg("levels"), nb::arg("key"), nb::arg("start"), array("out"));
    m.def("quantize_levels_random", &bind_quantize_levels_random<S>, array("x"), array("scales"), nb::arg("bucket"),
          nb::arg("levels"), nb::arg("key"), nb::arg("start"), array("out"));
    m.def("quantize_codebook", &bind_quantize_codebook<S>, array("x"), array("thresholds"), array("out"));
    m.def("quantize_codebook_random", &bind_quantize_codebook_random<S>, array("x"), array("codebook"), nb::arg("key"),
          nb::arg("start"), array("out"));
    m.def("dequantize", &bind_dequantize<S>, array("symbols"), array("table"), array("out"));
    m.def("axpy_table", &bind_axpy_table<S>, array("out"), array("symbols"), array("table"), nb::arg("weight"));
    m.def("axpy_buckets", &bind_axpy_buckets<S>, array("out"), array("symbols"), array("table"), array("norms"), nb::arg("bucket"),
          nb::arg("start"), nb::arg("weight"));
    m.def("dequantize_buckets", &bind_dequantize_buckets<S>, array("symbols"), array("table"), array("norms"),
          nb::arg("bucket"), nb::arg("start"), array("out"));
    m.def("feedback_update", &bind_feedback_update<S>, array("g"), array("memory"), nb::arg("gamma"), array("symbols"),
          array("table"), array("out"));
}

void bind_positions(nb::module_& m);
void bind_sparse(nb::module_& m);
void bind_trellis(nb::module_& m);
void bind_rd(nb::module_& m);

void bind_numeric(nb::module_& m) {
    m.def("scan", &bind_scan, array("x"));
    m.def("moments", &bind_moments, array("x"), array("hist").none() = nb::none());
    m.def("bucket_norms", &bind_bucket_norms, array("x"), nb::arg("bucket"), nb::arg("kind"));
    m.def("lowfloat", &bind_lowfloat, array("x"), nb::arg("scale"), nb::arg("exponent_bits"), nb::arg("mantissa_bits"),
          nb::arg("max_code"), array("out"));
    m.def("hadamard", &bind_hadamard, array("x"), nb::arg("block"), array("out"));
    m.def("match_patterns", &bind_match_patterns, array("x"), nb::arg("length"), array("signs"), array("symbols"),
          array("agreement"));
    m.def("multiply_pairs", &bind_multiply_pairs, array("pairs"), nb::arg("rows"), nb::arg("columns"), array("out"));
    m.def("there_and_back", &bind_there_and_back, array("matrix"), nb::arg("columns"), array("start"), array("there"), array("back"));
    m.def("axpy_pairs", &bind_axpy_pairs, array("out"), array("pairs"), nb::arg("rows"), nb::arg("columns"), nb::arg("weight"));
    m.def("axpy", &bind_axpy, array("out"), array("values"), nb::arg("weight"));
    m.def("to_half", &bind_to_half, array("x"), array("out"));
    m.def("from_half", &bind_from_half, nb::arg("data"), array("out"));
    m.def("feedback_add", &bind_feedback_add, array("g"), array("memory"), nb::arg("gamma"), array("out"));
    bind_symbol_kernels<uint8_t>(m);
    bind_symbol_kernels<uint16_t>(m);
    bind_sparse(m);
    bind_trellis(m);
    bind_rd(m);
    bind_positions(m);
}

}  // namespace perbit
