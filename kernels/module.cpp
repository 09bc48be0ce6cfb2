// The compiled module perbit._native: back-end selection; the kernels themselves are bound in bind_*.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "backend.hpp"
#include "cpu.hpp"

namespace nb = nanobind;

namespace perbit {

bool cpu_has_avx2() { return cpu_runs_avx2(); }

static std::atomic<bool> avx2_in_use{cpu_has_avx2()};

bool use_avx2() { return avx2_in_use.load(std::memory_order_relaxed); }
void set_avx2(bool on) { avx2_in_use.store(on && cpu_has_avx2(), std::memory_order_relaxed); }

void bind_entropy(nb::module_& m);
void bind_numeric(nb::module_& m);

}  // namespace perbit

NB_MODULE(_native, m) {
    m.def("has_avx2", &perbit::cpu_has_avx2);
    m.def("set_backend", [](const std::string& name) {
        if (name != "portable" && name != "avx2") throw std::invalid_argument("back end must be 'portable' or 'avx2'");
        perbit::set_avx2(name == "avx2");
    });
    perbit::bind_entropy(m);
    perbit::bind_numeric(m);
}
