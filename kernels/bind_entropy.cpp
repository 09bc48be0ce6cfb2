// Python bindings of the entropy kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "backend.hpp"

namespace nb = nanobind;

namespace perbit {

void bind_entropy(nb::module_&) {}

}  // namespace perbit
