// Python bindings of the position coders: adaptive gaps, known counts, Elias-Fano, Bloom filters.
#include "arguments.hpp"

namespace perbit {

static nb::bytes to_bytes(const std::vector<uint8_t>& stream) { return nb::bytes(stream.data(), stream.size()); }

static void require_tensor(uint64_t n, uint64_t count) {
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large");
    require(count <= n, "there are more positions than elements");
}

static nb::bytes bind_gaps_encode(Array<const uint32_t> positions, uint64_t n) {
    const Span in(positions);
    require_tensor(n, in.size);
    std::vector<uint8_t> stream;
    {
        nb::gil_scoped_release released;
        stream = PERBIT_CALL(gaps_encode, in.data, in.size, n);
    }
    return to_bytes(stream);
}

static nb::object bind_gaps_decode(nb::handle data, uint64_t count, uint64_t n) {
    const ByteView in(data);
    require_tensor(n, count);
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(count);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(gaps_decode, in.data(), in.size(), count, n, positions.get());
    }
    return to_numpy(std::move(positions), count);
}

// How many positions there are in all, each chunk's count no more than what it can hold.
static size_t counted_in_all(const Span<const uint32_t>& counts, uint64_t chunk, uint64_t n) {
    require(n <= MAX_LENGTH, "positions are 32-bit: n is too large");
    require(chunk >= 1 && chunk <= 1 << 16, "a chunk has 1 to 65536 values");
    require(counts.size == (n + chunk - 1) / chunk, "there must be a count for every chunk");
    size_t total = 0;
    for (size_t i = 0; i < counts.size; i++) {
        require(counts.data[i] <= std::min(chunk, n - i * chunk), "a chunk has more positions than values");
        total += counts.data[i];
    }
    return total;
}

static nb::bytes bind_counted_encode(Array<const uint32_t> positions, Array<const uint32_t> counts, uint64_t chunk, uint64_t n) {
    const Span in(positions), each(counts);
    require(counted_in_all(each, chunk, n) == in.size, "the counts are not those of the positions");
    std::vector<uint8_t> stream;
    {
        nb::gil_scoped_release released;
        stream = PERBIT_CALL(counted_encode, in.data, each.data, each.size, chunk, n);
    }
    return to_bytes(stream);
}

static nb::object bind_counted_decode(nb::handle data, Array<const uint32_t> counts, uint64_t chunk, uint64_t n) {
    const ByteView in(data);
    const Span each(counts);
    const size_t total = counted_in_all(each, chunk, n);
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(total);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(counted_decode, in.data(), in.size(), each.data, each.size, chunk, n, positions.get());
    }
    return to_numpy(std::move(positions), total);
}

static void require_low_bits(unsigned low_bits) { require(low_bits <= 31, "low_bits must be 0 to 31"); }

static nb::bytes bind_eliasfano_encode(Array<const uint32_t> positions, unsigned low_bits, uint64_t n) {
    const Span in(positions);
    require_low_bits(low_bits);
    require_tensor(n, in.size);
    std::vector<uint8_t> stream;
    {
        nb::gil_scoped_release released;
        stream = PERBIT_CALL(eliasfano_encode, in.data, in.size, low_bits, n);
    }
    return to_bytes(stream);
}

static nb::object bind_eliasfano_decode(nb::handle data, uint64_t count, unsigned low_bits, uint64_t n) {
    const ByteView in(data);
    require_low_bits(low_bits);
    require_tensor(n, count);
    const EliasFanoSize expected(count, low_bits, n);
    require(in.size() == expected.low_bytes + expected.high_bytes, "position data has the wrong length");
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(count);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(eliasfano_decode, in.data(), in.size(), count, low_bits, n, positions.get());
    }
    return to_numpy(std::move(positions), count);
}

static BloomShape bloom_shape(uint64_t bytes, unsigned hashes, uint32_t seed, bool blocked) {
    require(hashes >= 1 && hashes <= (blocked ? 8u : 32u), "a filter has 1 to 32 hashes, a blocked one 1 to 8");
    require(bytes >= 1 && bytes < uint64_t(1) << 29, "a filter has 1 to 2^29 - 1 bytes");
    require(!blocked || bytes % (4 * hashes) == 0, "a blocked filter holds whole blocks");
    return {size_t(bytes), hashes, seed, blocked};
}

static nb::bytes bind_bloom_build(Array<const uint32_t> positions, uint64_t bytes, unsigned hashes, uint32_t seed,
                                  bool blocked) {
    const Span in(positions);
    const BloomShape shape = bloom_shape(bytes, hashes, seed, blocked);
    auto [result, filter] = new_bytes(shape.bytes);
    std::fill_n(filter, shape.bytes, uint8_t(0));
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(bloom_build, in.data, in.size, shape, filter);
    }
    return std::move(result);
}

static nb::object bind_bloom_query(nb::handle filter, uint64_t n, unsigned hashes, uint32_t seed, bool blocked,
                                   uint64_t limit) {
    const ByteView in(filter);
    require_tensor(n, 0);
    const BloomShape shape = bloom_shape(in.size(), hashes, seed, blocked);
    std::unique_ptr<uint32_t[]> positions;
    size_t count;
    {
        nb::gil_scoped_release released;
        const std::vector<uint32_t> found = PERBIT_CALL(bloom_query, in.data(), shape, n, limit);
        count = found.size();
        positions = std::make_unique_for_overwrite<uint32_t[]>(count);
        std::copy(found.begin(), found.end(), positions.get());
    }
    return to_numpy(std::move(positions), count);
}

static nb::object bind_bloom_resolve(Array<const uint32_t> accepted, uint64_t bytes, unsigned hashes, uint32_t seed,
                                     bool blocked, uint64_t count, bool skip) {
    const Span in(accepted);
    const BloomShape shape = bloom_shape(bytes, hashes, seed, blocked);
    require(count <= in.size, "the filter accepts fewer positions than there are");
    auto positions = std::make_unique_for_overwrite<uint32_t[]>(count);
    {
        nb::gil_scoped_release released;
        PERBIT_CALL(bloom_resolve, in.data, in.size, shape, count, skip, positions.get());
    }
    return to_numpy(std::move(positions), count);
}

void bind_positions(nb::module_& m) {
    m.def("gaps_encode", &bind_gaps_encode, array("positions"), nb::arg("n"));
    m.def("gaps_decode", &bind_gaps_decode, nb::arg("data"), nb::arg("count"), nb::arg("n"));
    m.def("counted_encode", &bind_counted_encode, array("positions"), array("counts"), nb::arg("chunk"), nb::arg("n"));
    m.def("counted_decode", &bind_counted_decode, nb::arg("data"), array("counts"), nb::arg("chunk"), nb::arg("n"));
    m.def("eliasfano_encode", &bind_eliasfano_encode, array("positions"), nb::arg("low_bits"), nb::arg("n"));
    m.def("eliasfano_decode", &bind_eliasfano_decode, nb::arg("data"), nb::arg("count"), nb::arg("low_bits"), nb::arg("n"));
    m.def("bloom_build", &bind_bloom_build, array("positions"), nb::arg("n_bytes"), nb::arg("hashes"), nb::arg("seed"),
          nb::arg("blocked"));
    m.def("bloom_query", &bind_bloom_query, nb::arg("data"), nb::arg("n"), nb::arg("hashes"), nb::arg("seed"),
          nb::arg("blocked"), nb::arg("limit"));
    m.def("bloom_resolve", &bind_bloom_resolve, array("accepted"), nb::arg("n_bytes"), nb::arg("hashes"), nb::arg("seed"),
          nb::arg("blocked"), nb::arg("count"), nb::arg("skip"));
}

}  // namespace perbit
