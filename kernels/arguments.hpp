// How the bindings of the numeric kernels take and return Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "both.hpp"

namespace perbit {

namespace nb = nanobind;

constexpr uint64_t MAX_INDEX = uint64_t(1) << 63;   // global element indices, with room for sums

// Arguments declared with array("name") are never converted: a copy would swallow what is written into it.
template <class T>
using Array = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

inline auto array(const char* name) { return nb::arg(name).noconvert(); }

// A plain view of an array, usable without the GIL while the arguments live.
template <class T>
struct Span {
    T* data;
    size_t size;

    Span(const Array<T>& a) : data(a.data()), size(a.shape(0)) {
        require(reinterpret_cast<uintptr_t>(data) % sizeof(T) == 0, "an array is not aligned to its element size");
    }
};

// The bytes of any object with a contiguous buffer.
class ByteView {
public:
    explicit ByteView(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ByteView(const ByteView&) = delete;
    ByteView& operator=(const ByteView&) = delete;
    ~ByteView() { PyBuffer_Release(&view_); }

    const uint8_t* data() const { return static_cast<const uint8_t*>(view_.buf); }
    size_t size() const { return size_t(view_.len); }

private:
    Py_buffer view_;
};

// A new numpy array that owns the memory.
template <class T>
nb::object to_numpy(std::unique_ptr<T[]> values, size_t size) {
    T* data = values.get();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    values.release();
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(data, {size}, owner));
}

// A new bytes object and where to write its content before anyone else sees it.
inline std::pair<nb::bytes, uint8_t*> new_bytes(size_t size) {
    PyObject* object = PyBytes_FromStringAndSize(nullptr, Py_ssize_t(size));
    if (!object) throw nb::python_error();
    return {nb::steal<nb::bytes>(object), reinterpret_cast<uint8_t*>(PyBytes_AsString(object))};
}

inline void require_same_length(size_t a, size_t b) { require(a == b, "array lengths differ"); }
inline void require_finite(float value) { require(std::isfinite(value), "a scalar argument is not finite"); }

inline void require_start(uint64_t start, size_t n) {
    require(start <= MAX_INDEX && n <= MAX_INDEX - start, "start is out of range");
}

// Buckets of the tensor that elements start .. start + n - 1 belong to must all be there.
inline void require_buckets(uint64_t start, size_t n, uint64_t bucket, size_t buckets) {
    require(bucket > 0, "bucket must be positive");
    require_start(start, n);
    require(n == 0 || (start + n - 1) / bucket < buckets, "there are fewer bucket scales than buckets");
}

template <class S>
void require_alphabet(uint64_t members) {
    require(members >= 1 && members - 1 <= S(-1), "the alphabet does not fit the symbol type");
}

}  // namespace perbit
