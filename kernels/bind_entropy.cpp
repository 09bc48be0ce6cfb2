// Python bindings of the entropy kernels: argument checks, memory, and the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>

#include "backend.hpp"
#include "entropy_api.hpp"
#include "entropy_tables.hpp"
#include "rans_table.hpp"

namespace nb = nanobind;

namespace perbit {
namespace {

using ReadArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using WriteArray = nb::ndarray<nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Read = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Write = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Any bytes-like object, held while in use.
class Bytes {
public:
    explicit Bytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~Bytes() { PyBuffer_Release(&view_); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return static_cast<size_t>(view_.len); }

private:
    Py_buffer view_;
};

void raise_on(Error error) {
    if (error) throw nb::value_error(error);
}

// Runs a function without the GIL.
template <class Function>
auto unlocked(Function&& function) {
    nb::gil_scoped_release released;
    return function();
}

// Calls function(pointer, n) with the symbols as uint8 or uint16.
template <class Array, class Function>
auto with_symbols(const Array& symbols, Function&& function) {
    constexpr bool READ_ONLY = std::is_same_v<Array, ReadArray>;
    using Byte = std::conditional_t<READ_ONLY, const uint8_t, uint8_t>;
    using Word = std::conditional_t<READ_ONLY, const uint16_t, uint16_t>;
    if (symbols.dtype() == nb::dtype<uint8_t>()) return function(static_cast<Byte*>(symbols.data()), symbols.size());
    if (symbols.dtype() == nb::dtype<uint16_t>()) return function(static_cast<Word*>(symbols.data()), symbols.size());
    throw nb::type_error("symbols must be uint8 or uint16");
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> numpy_array(std::unique_ptr<T[]> values, size_t n) {
    T* data = values.get();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    values.release();
    return {data, {n}, owner};
}

// Room for one call, kept by the thread for the next: fresh pages would cost more than the coding. Not cleared.
uint8_t* scratch(size_t bytes) {
    constexpr size_t KEEP = size_t{1} << 23;  // a larger buffer is an exception, and given back at the next call
    static thread_local std::unique_ptr<uint8_t[]> buffer;
    static thread_local size_t capacity = 0;
    if (bytes > capacity || capacity > KEEP) {
        buffer.reset();  // first: never hold both
        buffer.reset(new uint8_t[bytes]);
        capacity = bytes;
    }
    return buffer.get();
}

nb::object histogram(ReadArray symbols, size_t alphabet) {
    if (alphabet == 0 || alphabet > MAX_ALPHABET) throw nb::value_error("the alphabet must have 1..4096 symbols");
    auto counts = std::make_unique<uint64_t[]>(alphabet);
    raise_on(with_symbols(symbols, [&](const auto* data, size_t n) {
        return unlocked([&] { return PERBIT_CALL(histogram, data, n, static_cast<uint32_t>(alphabet), counts.get()); });
    }));
    return nb::cast(numpy_array(std::move(counts), alphabet));
}

nb::object to_numpy(const std::vector<uint32_t>& values) {
    auto copy = std::make_unique<uint32_t[]>(values.size());
    std::copy(values.begin(), values.end(), copy.get());
    return nb::cast(numpy_array(std::move(copy), values.size()));
}

nb::tuple bind_rans_table(Read<uint64_t> counts) {
    const RansTable table = rans_table(counts.data(), counts.size());
    const std::vector<uint8_t> written = write_freqs(table.freqs.data(), table.freqs.size(), table.bits);
    return nb::make_tuple(to_numpy(table.freqs), table.bits, nb::bytes(written.data(), written.size()), table.cost);
}

nb::tuple rans_read_table(nb::handle data, size_t alphabet) {
    const Bytes bytes(data);
    const ReadFreqs found = read_freqs(bytes.data(), bytes.size(), alphabet);
    return nb::make_tuple(to_numpy(found.freqs), found.bits, found.used);
}

// The stream at the end of a scratch buffer.
std::pair<const uint8_t*, size_t> rans_stream(ReadArray symbols, Read<uint32_t> freqs, int bits) {
    const size_t n = symbols.size(), capacity = 2 * n + 4 * rans_lanes(n);
    uint8_t* const buffer = scratch(capacity);
    size_t size = 0;
    raise_on(with_symbols(symbols, [&](const auto* data, size_t) {
        return unlocked([&] {
            const RansEncoderTable table = build_rans_encoder(freqs.data(), freqs.size(), bits);
            return PERBIT_CALL(rans_encode, data, n, table.model, buffer, capacity, &size);
        });
    }));
    return {buffer + (capacity - size), size};
}

nb::bytes rans_encode(ReadArray symbols, Read<uint32_t> freqs, int bits) {
    const auto [stream, size] = rans_stream(symbols, freqs, bits);
    return nb::bytes(stream, size);
}

size_t rans_encode_into(ReadArray symbols, Read<uint32_t> freqs, int bits, Write<uint8_t> out) {
    const auto [stream, size] = rans_stream(symbols, freqs, bits);
    if (size > out.size()) throw nb::value_error("the stream does not fit the output");
    std::memcpy(out.data(), stream, size);
    return size;
}

template <class Symbol>
void check_room_for(size_t alphabet) {
    if (sizeof(Symbol) == 1 && alphabet > 256) throw nb::value_error("an alphabet above 256 needs uint16 symbols");
}

void check_table(Read<float> table, size_t alphabet) {
    if (table.size() != alphabet) throw nb::value_error("the value table must have one entry per symbol");
}

void rans_decode(nb::handle data, Read<uint32_t> freqs, int bits, WriteArray out) {
    const Bytes bytes(data);
    raise_on(with_symbols(out, [&](auto* to, size_t n) {
        check_room_for<std::remove_pointer_t<decltype(to)>>(freqs.size());
        return unlocked([&] {
            const RansDecoderTable decoder = build_rans_decoder(freqs.data(), freqs.size(), bits, nullptr);
            return PERBIT_CALL(rans_decode, bytes.data(), bytes.size(), decoder.model, to, n);
        });
    }));
}

void rans_decode_table(nb::handle data, Read<uint32_t> freqs, int bits, Read<float> table, Write<float> out) {
    const Bytes bytes(data);
    check_table(table, freqs.size());
    raise_on(unlocked([&] {
        const RansDecoderTable decoder = build_rans_decoder(freqs.data(), freqs.size(), bits, table.data());
        return PERBIT_CALL(rans_decode, bytes.data(), bytes.size(), decoder.model, out.data(), out.size());
    }));
}

// Stream sizes, then the streams side by side.
nb::bytes join_streams(const uint8_t* buffer, size_t stride, const size_t* sizes, int streams) {
    size_t total = 4 * static_cast<size_t>(streams - 1);
    for (int j = 0; j < streams; ++j) total += sizes[j];
    nb::bytes joined = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(total)));
    if (!joined.is_valid()) throw nb::python_error();
    auto* p = reinterpret_cast<uint8_t*>(PyBytes_AsString(joined.ptr()));
    for (int j = 0; j + 1 < streams; ++j, p += 4) {
        const uint32_t size = static_cast<uint32_t>(sizes[j]);
        std::memcpy(p, &size, 4);
    }
    for (int j = 0; j < streams; p += sizes[j], ++j)
        std::memcpy(p, buffer + static_cast<size_t>(j) * stride, sizes[j]);
    return joined;
}

nb::bytes huffman_encode(ReadArray symbols, Read<uint8_t> lengths) {
    const size_t n = symbols.size();
    if (n > UINT32_MAX) throw nb::value_error("too many symbols for one Huffman call");
    const int streams = huffman_streams(n);
    const size_t longest = (n + static_cast<size_t>(streams) - 1) / static_cast<size_t>(streams);
    const size_t stride = 2 * longest + 2 * HUFFMAN_SLACK;  // no code word exceeds two bytes
    uint8_t* const buffer = scratch(stride * static_cast<size_t>(streams));
    size_t sizes[HUFFMAN_MAX_STREAMS] = {};
    raise_on(with_symbols(symbols, [&](const auto* data, size_t) {
        return unlocked([&] {
            const HuffmanEncoderTable table = build_huffman_encoder(lengths.data(), lengths.size());
            return PERBIT_CALL(huffman_encode, data, n, table.model, buffer, stride, sizes);
        });
    }));
    return join_streams(buffer, stride, sizes, streams);
}

void huffman_decode(nb::handle data, Read<uint8_t> lengths, WriteArray out) {
    const Bytes bytes(data);
    raise_on(with_symbols(out, [&](auto* to, size_t n) {
        check_room_for<std::remove_pointer_t<decltype(to)>>(lengths.size());
        return unlocked([&] {
            const HuffmanDecoderTable decoder = build_huffman_decoder(lengths.data(), lengths.size(), n);
            return PERBIT_CALL(huffman_decode, bytes.data(), bytes.size(), decoder.model, to, n);
        });
    }));
}

template <class Symbol>
Error huffman_decode_values(const Bytes& bytes, Read<uint8_t> lengths, Read<float> table, Write<float> out) {
    const size_t n = out.size(), alphabet = lengths.size();
    const HuffmanDecoderTable decoder = build_huffman_decoder(lengths.data(), alphabet, n);
    const std::unique_ptr<Symbol[]> symbols(new Symbol[n]);
    if (const Error error = PERBIT_CALL(huffman_decode, bytes.data(), bytes.size(), decoder.model, symbols.get(), n))
        return error;
    return PERBIT_CALL(look_up, symbols.get(), n, table.data(), static_cast<uint32_t>(alphabet), out.data());
}

void huffman_decode_table(nb::handle data, Read<uint8_t> lengths, Read<float> table, Write<float> out) {
    const Bytes bytes(data);
    check_table(table, lengths.size());
    raise_on(unlocked([&] {
        return lengths.size() <= 256 ? huffman_decode_values<uint8_t>(bytes, lengths, table, out)
                                     : huffman_decode_values<uint16_t>(bytes, lengths, table, out);
    }));
}

}  // namespace

void bind_entropy(nb::module_& m) {
    nb::register_exception_translator([](const std::exception_ptr& p, void*) {
        try {
            std::rethrow_exception(p);
        } catch (const MalformedTable& e) {
            PyErr_SetString(PyExc_ValueError, e.what());
        }
    });
    // noconvert: an array of another type is a mistake, and a converted `out` would be lost.
    const auto array = [](const char* name) { return nb::arg(name).noconvert(); };
    m.def("histogram", &histogram, array("symbols"), nb::arg("alphabet"));
    m.def("rans_table", &bind_rans_table, array("counts"));
    m.def("rans_read_table", &rans_read_table, nb::arg("data"), nb::arg("alphabet"));
    m.def("rans_encode", &rans_encode, array("symbols"), array("freqs"), nb::arg("bits"));
    m.def("rans_encode_into", &rans_encode_into, array("symbols"), array("freqs"), nb::arg("bits"), array("out"));
    m.def("rans_decode", &rans_decode, nb::arg("data"), array("freqs"), nb::arg("bits"), array("out"));
    m.def("rans_decode_table", &rans_decode_table, nb::arg("data"), array("freqs"), nb::arg("bits"), array("table"),
          array("out"));
    m.def("huffman_encode", &huffman_encode, array("symbols"), array("lengths"));
    m.def("huffman_decode", &huffman_decode, nb::arg("data"), array("lengths"), array("out"));
    m.def("huffman_decode_table", &huffman_decode_table, nb::arg("data"), array("lengths"), array("table"),
          array("out"));
}

}  // namespace perbit
