// The entropy kernels, written against PERBIT_ARCH.
#pragma once

#include "entropy_api.hpp"
#include "histogram.hpp"
#include "huffman.hpp"
#include "rans.hpp"
