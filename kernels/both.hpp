// The kernels of both back ends, and a call of the one in use.
#pragma once

#define PERBIT_ARCH portable
#include "numeric_api.hpp"
#undef PERBIT_ARCH
#ifdef PERBIT_HAVE_AVX2
#define PERBIT_ARCH avx2
#include "numeric_api.hpp"
#undef PERBIT_ARCH
#endif

#include "backend.hpp"
#include "entropy_api.hpp"

namespace perbit {

constexpr uint64_t MAX_LENGTH = uint64_t(1) << 32;  // positions are 32-bit

}  // namespace perbit
