// Which compiled back end is in use, and how a binding calls it.
#pragma once

namespace perbit {

bool cpu_has_avx2();
bool use_avx2();
void set_avx2(bool on);

}  // namespace perbit

// PERBIT_CALL(fn, args...) runs perbit::avx2::fn or perbit::portable::fn.
#ifdef PERBIT_HAVE_AVX2
#define PERBIT_CALL(fn, ...) (perbit::use_avx2() ? perbit::avx2::fn(__VA_ARGS__) : perbit::portable::fn(__VA_ARGS__))
#else
#define PERBIT_CALL(fn, ...) (perbit::portable::fn(__VA_ARGS__))
#endif
