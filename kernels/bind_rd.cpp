// Python bindings of what `rd` does in one call: choosing components, coding a part, decoding a tensor. Made of the kernels of either back end.
#include <nanobind/stl/array.h>

#include "arguments.hpp"
#include "rd_decode.hpp"

namespace perbit {

// Without the GIL; a malformed table is a malformed argument.
template <class Function>
static auto unlocked(const Function& function) {
    nb::gil_scoped_release released;
    try {
        return function();
    } catch (const MalformedTable& error) {
        throw std::invalid_argument(error.what());
    }
}

static nb::bytes to_bytes(const Bytes& data) { return nb::bytes(data.data(), data.size()); }

static nb::tuple bind_choose_components(Array<const float> sent, Array<const double> sigma, Array<const float> values,
                                        Array<const float> left, Array<const float> right, Array<const float> noise,
                                        size_t strong, double energy, double unit, double largest, size_t rows, size_t columns) {
    const Span vectors(sent), sampled(values), l(left), r(right), normal(noise);
    const Span s(sigma);
    require(s.size >= 1 && s.size <= 64 && rows <= MAX_LENGTH && columns <= MAX_LENGTH, "there must be 1 to 64 components");
    require(vectors.size == s.size * (rows + columns), "components must be whole");
    require(l.size % s.size == 0 && r.size % s.size == 0, "sampled components must be whole");
    const size_t sampled_rows = l.size / s.size, sampled_columns = r.size / s.size;
    require(sampled_rows >= 1 && sampled_columns >= 1 && sampled.size == sampled_rows * sampled_columns, "the sample must be whole");
    require(strong <= sampled_rows && sampled_rows <= rows, "there are too many sampled rows");
    require(normal.size >= std::max(sampled.size, rows + columns), "there is too little noise");
    const ComponentSample sample{vectors.data, sampled.data, l.data, r.data, normal.data, s.data, s.size, sampled_rows, sampled_columns,
                                 strong, rows, columns, energy, unit, largest};
    const Judgement found = unlocked([&] { return Judge(sample).best(); });
    return nb::make_tuple(found.rank, found.coarse, found.error, found.bits);
}

template <class S>
static nb::bytes bind_write_stream(Array<const S> symbols, uint64_t columns, uint64_t block) {
    const Span in(symbols);
    require(in.size <= MAX_LENGTH && columns <= MAX_LENGTH && block >= 1, "there are too many symbols or columns");
    return to_bytes(unlocked([&] { return write_stream(in.data, in.size, columns, block); }));
}

static nb::bytes bind_write_part(Array<const float> values, uint64_t columns, double slope) {
    const Span in(values);
    require(in.size <= MAX_LENGTH && columns <= MAX_LENGTH, "there are too many values or columns");
    return to_bytes(unlocked([&] { return write_part(in.data, in.size, columns, slope); }));
}

template <class S>
static void bind_trellis_decode(Array<const S> symbols, Array<const int8_t> shifts, Array<float> out) {
    const Span in(symbols);
    const Span s(shifts);
    const Span to(out);
    require(s.size == PART_SHIFTS, "there are shifts of k = -3 .. 3");
    require_same_length(in.size, to.size);
    TrellisFit fit{};
    std::copy_n(s.data, PART_SHIFTS, fit.shifts);
    unlocked([&] { decode_symbols(in.data, in.size, fit, sizeof(S) == 1 ? ZERO_OF_BYTES : ZERO_OF_WORDS, to.data); });
}

static float bind_less_products(Array<const float> values, double unit, Array<float> products) {
    const Span in(values);
    const Span to(products);
    require_same_length(in.size, to.size);
    const float times = float(unit);
    uint32_t largest = 0;
    unlocked([&] {
        for (size_t i = 0; i < in.size; i++) {
            to.data[i] = in.data[i] * times - to.data[i];
            const uint32_t magnitude = std::bit_cast<uint32_t>(to.data[i]) & 0x7fffffff;
            largest = magnitude > largest ? magnitude : largest;
        }
    });
    return largest < 0x7f800000 ? std::bit_cast<float>(largest) : 0.0f;
}

// Shapes are (planes, rows, columns); the transform is empty where there are no frequencies.
static nb::tuple bind_decode_tensor(nb::handle data, std::array<size_t, 3> whole, std::array<size_t, 3> by_frequency,
                                    Array<const float> transform, float step, uint64_t memory, uint64_t operations, Array<float> out) {
    const ByteView in(data);
    const Span matrix(transform);
    const Span to(out);
    const RdLayout plain{whole[0], whole[1], whole[2]}, planes{by_frequency[0], by_frequency[1], by_frequency[2]};
    require(plain.n() == to.size && (matrix.size == 0 || (planes.n() == to.size && planes.planes >= 2 && planes.planes <= 256 &&
                                                          matrix.size == planes.planes * planes.planes)),
            "the output must have the shape");
    require_finite(step);
    RdReader src(in.data(), in.size(), memory, operations);
    unlocked([&] {
        try {
            RdTensor(src, step, to.data).read(plain, planes, matrix.size ? matrix.data : nullptr);
        } catch (const Unpaid&) {  // the caller sees what was spent
        }
    });
    nb::list sections;
    for (const auto& [name, length] : src.sections) sections.append(nb::make_tuple(name, length));
    return nb::make_tuple(src.position(), nb::make_tuple(src.memory_spent, src.operations_spent), sections);
}

void bind_rd(nb::module_& m) {
    m.def("choose_components", &bind_choose_components);
    m.def("write_part", &bind_write_part);
    m.def("write_stream", &bind_write_stream<uint8_t>);
    m.def("write_stream", &bind_write_stream<uint16_t>);
    m.def("trellis_decode", &bind_trellis_decode<uint8_t>);
    m.def("trellis_decode", &bind_trellis_decode<uint16_t>);
    m.def("less_products", &bind_less_products);
    m.def("decode_tensor", &bind_decode_tensor);
}

}  // namespace perbit
