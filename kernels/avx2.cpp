// Every kernel family again, compiled for AVX2; PERBIT_AVX2 switches the hand-written parts on.
#define PERBIT_ARCH avx2
#define PERBIT_AVX2 1
#include "entropy.hpp"
#include "numeric.hpp"
