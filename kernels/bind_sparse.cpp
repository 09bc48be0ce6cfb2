// Python bindings of the numeric kernels on positions and byte streams: selection, scattering, packing, Golomb, CRC.
#include "arguments.hpp"

namespace perbit {

static nb::object bind_top_k(Array<const float> x, uint64_t k) {
    const Span in(x);
    require(in.size <= MAX_LENGTH, "positions are 32-bit: the array is too long");
    require(k <= in.size, "k is larger than the array");
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(k);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(top_k, in.data, in.size, k, positions.get());
    }
    return to_numpy(std::move(positions), k);
}

static nb::object bind_select_above(Array<const float> x, float threshold) {
    const Span in(x);
    require(in.size <= MAX_LENGTH, "positions are 32-bit: the array is too long");
    require(threshold >= 0, "threshold must not be negative");
    Selection found;
    {
        nb::gil_scoped_release released;
        found = PERBIT_CALL(select_above, in.data, in.size, threshold);
    }
    return to_numpy(std::move(found.positions), found.count);
}

static void bind_scatter_add(Array<float> out, Array<const uint32_t> positions, Array<const float> values, float weight) {
    const Span to(out);
    const Span at(positions);
    const Span in(values);
    require_same_length(at.size, in.size);
    nb::gil_scoped_release released;
    PERBIT_CALL(scatter_add, to.data, to.size, at.data, in.data, in.size, weight);
}

template <class S>
static void require_bits(unsigned bits) {
    require(bits >= 1 && bits <= 8 * sizeof(S), "bits must be 1 to 8 for uint8 symbols, 1 to 16 for uint16");
}

template <class S>
static nb::bytes bind_pack(Array<const S> symbols, unsigned bits) {
    const Span in(symbols);
    require_bits<S>(bits);
    auto [result, out] = new_bytes(packed_size(in.size, bits));
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(pack, in.data, in.size, bits, out);
    }
    return std::move(result);
}

template <class S>
static void bind_unpack(nb::handle data, unsigned bits, Array<S> out) {
    const ByteView in(data);
    const Span to(out);
    require_bits<S>(bits);
    nb::gil_scoped_release released;
    PERBIT_CALL(unpack, in.data(), in.size(), bits, to.data, to.size);
}

static void require_rice_parameter(unsigned b) { require(b <= 31, "b must be 0 to 31"); }

static nb::bytes bind_golomb_encode(Array<const uint32_t> positions, unsigned b) {
    const Span in(positions);
    require_rice_parameter(b);
    std::vector<uint8_t> stream;
    {
        nb::gil_scoped_release released;
        stream = PERBIT_CALL(golomb_encode, in.data, in.size, b);
    }
    return nb::bytes(stream.data(), stream.size());
}

static nb::object bind_golomb_decode(nb::handle data, uint64_t count, unsigned b, uint64_t n) {
    const ByteView in(data);
    require_rice_parameter(b);
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large");
    // Before anything is allocated: every position takes at least b + 1 bits, and they are distinct.
    require(count <= uint64_t(in.size()) * 8 / (b + 1), "position data is too short for this many positions");
    require(count <= n, "there are more positions than elements");
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(count);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(golomb_decode, in.data(), in.size(), count, b, n, positions.get());
    }
    return to_numpy(std::move(positions), count);
}

static uint32_t bind_crc32c(nb::handle data, uint32_t value) {
    const ByteView in(data);
    nb::gil_scoped_release released;
    return PERBIT_CALL(crc32c, in.data(), in.size(), value);
}

template <class S>
static void bind_packing(nb::module_& m) {
    m.def("pack", &bind_pack<S>, array("symbols"), nb::arg("bits"));
    m.def("unpack", &bind_unpack<S>, nb::arg("data"), nb::arg("bits"), array("out"));
}

void bind_sparse(nb::module_& m) {
    m.def("top_k", &bind_top_k, array("x"), nb::arg("k"));
    m.def("select_above", &bind_select_above, array("x"), nb::arg("threshold"));
    m.def("scatter_add", &bind_scatter_add, array("out"), array("positions"), array("values"), nb::arg("weight"));
    m.def("golomb_encode", &bind_golomb_encode, array("positions"), nb::arg("b"));
    m.def("golomb_decode", &bind_golomb_decode, nb::arg("data"), nb::arg("count"), nb::arg("b"), nb::arg("n"));
    m.def("crc32c", &bind_crc32c, nb::arg("data"), nb::arg("value") = 0);
    bind_packing<uint8_t>(m);
    bind_packing<uint16_t>(m);
}

}  // namespace perbit
