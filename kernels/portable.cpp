// Every kernel family, compiled for any machine.
#define PERBIT_ARCH portable
#include "entropy.hpp"
#include "numeric.hpp"
