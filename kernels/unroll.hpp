// A loop over constants: small arrays indexed by them stay in registers, which a loop unrolled late does not achieve.
#pragma once

#include <utility>

#include "compilers.hpp"

namespace perbit::PERBIT_ARCH {

// f(0), f(1), ... f(N - 1), each argument a compile-time constant
template <int N, class Function>
PERBIT_ALWAYS_INLINE inline void unroll(Function&& f) {
    [&]<int... k>(std::integer_sequence<int, k...>) PERBIT_INLINE_LAMBDA {
        (f(std::integral_constant<int, k>{}), ...);
    }(std::make_integer_sequence<int, N>{});
}

}  // namespace perbit::PERBIT_ARCH
