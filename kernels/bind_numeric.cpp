// Python bindings of the numeric kernels.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "backend.hpp"

namespace nb = nanobind;

namespace perbit {

void bind_numeric(nb::module_&) {}

}  // namespace perbit
