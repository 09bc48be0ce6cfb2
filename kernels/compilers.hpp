// What GCC and clang on one side and MSVC on the other spell differently. All of it is about speed, none about results.
#pragma once

#if defined(_MSC_VER) && !defined(__clang__)
#define PERBIT_ALWAYS_INLINE [[msvc::forceinline]]
#define PERBIT_INLINE_LAMBDA
#define PERBIT_UNROLL(n)
#else
#define PERBIT_ALWAYS_INLINE [[gnu::always_inline]]
#define PERBIT_INLINE_LAMBDA __attribute__((always_inline))
#define PERBIT_PRAGMA(text) _Pragma(#text)
#define PERBIT_UNROLL(n) PERBIT_PRAGMA(GCC unroll n)
#endif
