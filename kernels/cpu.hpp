// What this machine's processor can do, asked in the way of each compiler.
#pragma once

#if defined(PERBIT_HAVE_AVX2) && defined(_MSC_VER)
#include <immintrin.h>
#include <intrin.h>
#elif defined(PERBIT_HAVE_AVX2)
#include <cpuid.h>
#endif

namespace perbit {

#if !defined(PERBIT_HAVE_AVX2)

inline bool cpu_runs_avx2() { return false; }

#elif defined(_MSC_VER)

inline bool cpu_runs_avx2() {
    const auto bit = [](int word, int at) { return (word >> at & 1) != 0; };
    int last[4], basic[4], more[4], extended[4];  // eax, ebx, ecx, edx
    __cpuid(last, 0);
    if (last[0] < 7) return false;
    __cpuid(basic, 1);
    __cpuidex(more, 7, 0);
    __cpuid(extended, int(0x80000001));
    const bool saves_registers = bit(basic[2], 27) && (_xgetbv(0) & 6) == 6;  // the system keeps ymm for each thread
    const bool sse42 = bit(basic[2], 20), popcnt = bit(basic[2], 23), lzcnt = bit(extended[2], 5);
    const bool bmi = bit(more[1], 3), avx2 = bit(more[1], 5), bmi2 = bit(more[1], 8);
    return saves_registers && sse42 && popcnt && lzcnt && bmi && avx2 && bmi2;
}

#else

// Before version 18 clang's __builtin_cpu_supports does not know lzcnt.
inline bool cpu_has_lzcnt() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) && (ecx >> 5 & 1);
}

inline bool cpu_runs_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("sse4.2") && cpu_has_lzcnt();
}

#endif

}  // namespace perbit
