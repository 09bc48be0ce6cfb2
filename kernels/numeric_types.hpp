// What the numeric kernels and their bindings share, independent of the back end.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

namespace perbit {

static_assert(std::endian::native == std::endian::little, "streams are little-endian and read with plain loads");

constexpr size_t HISTOGRAM_BINS = 2048;  // exponent and the top three mantissa bits

constexpr size_t LONGEST_PATTERN = 256;
constexpr uint32_t LARGEST_LEVEL = 1u << 30, LARGEST_MEAN = 1023u << 8;

struct Extent {
    float min, max;
    uint64_t n_nonfinite;
};

struct Moments {
    double sum, sum_abs, sum_sq;
    float max_abs;
    uint64_t n_zero;
};

// How a trellis quantizes: in steps, with shifts and rates of the cells near zero by parity; further out rates grow by the slope.
struct TrellisModel {
    float inverse, limit;  // of the step; the largest magnitude in steps
    float shifts[2][8], rates[2][8], slope;
    int zero;  // the symbol of k = 0
};

// A machine fitted to values: shifts of k = -3 .. 3 in 1/64 steps, rates of k = -8 .. 7, and by how much they grow beyond.
struct TrellisFit {
    int8_t shifts[7];
    float rates[16], slope;
};

// Of a scalar quantizer: the sum of squared errors in its steps, and the bits of an ideal code.
struct ScalarCost {
    double error, bits;
};

struct Selection {
    std::unique_ptr<uint32_t[]> positions;
    size_t count = 0;
};

// A Bloom filter: how many bytes, hashes per position, their seed, and whether a position keeps to one block of it.
struct BloomShape {
    size_t bytes;
    unsigned hashes;
    uint32_t seed;
    bool blocked;

    uint64_t bits() const { return uint64_t(bytes) * 8; }
    uint64_t blocks() const { return bytes / (4 * hashes); }
};

// Bytes of the two parts of an Elias-Fano stream.
struct EliasFanoSize {
    size_t low_bytes, high_bytes;

    EliasFanoSize(uint64_t count, unsigned low_bits, uint64_t n)
        : low_bytes(size_t((count * low_bits + 7) / 8)),
          high_bytes(count ? size_t((count + ((n - 1) >> low_bits) + 7) / 8) : 0) {}
};

// std::invalid_argument becomes Python's ValueError.
static inline void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// Bytes of n packed symbols, without overflow for any n that fits memory.
static inline size_t packed_size(size_t n, unsigned bits) { return n / 8 * bits + (n % 8 * bits + 7) / 8; }

}  // namespace perbit
