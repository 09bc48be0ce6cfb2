// One-pass statistics: range, moments, bucket norms.
#pragma once

#include <algorithm>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

constexpr size_t SUM_BLOCK = 65536;
constexpr size_t LANES = 16;

// Floats compare like these integers (with -0 below +0), and integer minima vectorise without any NaN rules.
inline int32_t ordered_bits(float x) {
    const int32_t bits = int32_t(bits_of(x));
    return bits ^ ((bits >> 31) & int32_t(MAGNITUDE_MASK));
}

inline float from_ordered_bits(int32_t key) {
    const float value = float_of(uint32_t(key ^ ((key >> 31) & int32_t(MAGNITUDE_MASK))));
    return value + 0.0f;  // -0 becomes +0
}

Extent scan(const float* x, size_t n) {
    if (n == 0) return {0, 0, 0};
    int32_t low = INT32_MAX, high = INT32_MIN;
    uint64_t n_nonfinite = 0;
    for (size_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const size_t end = std::min(n, begin + SUM_BLOCK);
        uint32_t nonfinite = 0;  // 32 bits wide like the data, so that the loop vectorises
        for (size_t i = begin; i < end; i++) {
            const int32_t key = ordered_bits(x[i]);
            low = key < low ? key : low;
            high = key > high ? key : high;
            nonfinite += magnitude(x[i]) >= INFINITY_BITS;
        }
        n_nonfinite += nonfinite;
    }
    if (n_nonfinite) return {0, 0, n_nonfinite};
    return {from_ordered_bits(low), from_ordered_bits(high), 0};
}

// The 16 running sums of a block: element i goes to lane i mod 16.
struct LaneSum {
#ifdef PERBIT_AVX2
    __m256d lanes[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};

    double fold() const {
        const __m256d eight[2] = {_mm256_add_pd(lanes[0], lanes[2]), _mm256_add_pd(lanes[1], lanes[3])};
        alignas(32) double four[4];
        _mm256_store_pd(four, _mm256_add_pd(eight[0], eight[1]));
        return (four[0] + four[2]) + (four[1] + four[3]);
    }
#else
    double lanes[LANES] = {};

    double fold() {
        for (size_t half = LANES / 2; half; half /= 2)
            for (size_t j = 0; j < half; j++) lanes[j] += lanes[j + half];
        return lanes[0];
    }
#endif
};

struct BlockSums {
    double sum = 0, sum_abs = 0, sum_sq = 0;
};

#ifdef PERBIT_AVX2

// Calls body(lane quarter, four values as doubles) for n values, n a multiple of 16.
template <class Body>
inline void for_each_quarter(const float* x, size_t n, const Body& body) {
    for (size_t i = 0; i < n; i += LANES) {
        body(0, _mm256_cvtps_pd(_mm_loadu_ps(x + i)));
        body(1, _mm256_cvtps_pd(_mm_loadu_ps(x + i + 4)));
        body(2, _mm256_cvtps_pd(_mm_loadu_ps(x + i + 8)));
        body(3, _mm256_cvtps_pd(_mm_loadu_ps(x + i + 12)));
    }
}

// A short last row is completed with zeros, which change no sum.
template <class Body>
inline void for_each_quarter_padded(const float* x, size_t n, const Body& body) {
    const size_t whole = n / LANES * LANES;
    for_each_quarter(x, whole, body);
    if (whole == n) return;
    float last[LANES] = {};
    std::memcpy(last, x + whole, (n - whole) * sizeof(float));
    for_each_quarter(last, LANES, body);
}

inline BlockSums block_sums(const float* x, size_t n) {
    LaneSum sum, sum_abs, sum_sq;
    const __m256d sign = _mm256_set1_pd(-0.0);
    for_each_quarter_padded(x, n, [&](int q, __m256d v) {
        sum.lanes[q] = _mm256_add_pd(sum.lanes[q], v);
        sum_abs.lanes[q] = _mm256_add_pd(sum_abs.lanes[q], _mm256_andnot_pd(sign, v));
        sum_sq.lanes[q] = _mm256_add_pd(sum_sq.lanes[q], _mm256_mul_pd(v, v));
    });
    return {sum.fold(), sum_abs.fold(), sum_sq.fold()};
}

inline double block_sum_sq(const float* x, size_t n) {
    LaneSum sum_sq;
    for_each_quarter_padded(x, n, [&](int q, __m256d v) {
        sum_sq.lanes[q] = _mm256_add_pd(sum_sq.lanes[q], _mm256_mul_pd(v, v));
    });
    return sum_sq.fold();
}

#else

inline BlockSums block_sums(const float* x, size_t n) {
    LaneSum sum, sum_abs, sum_sq;
    const auto add = [&](size_t lane, double v) {
        sum.lanes[lane] += v;
        sum_abs.lanes[lane] += std::fabs(v);
        sum_sq.lanes[lane] += v * v;
    };
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) add(j, x[i + j]);
    for (size_t j = 0; i + j < n; j++) add(j, x[i + j]);
    return {sum.fold(), sum_abs.fold(), sum_sq.fold()};
}

inline double block_sum_sq(const float* x, size_t n) {
    LaneSum sum_sq;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (size_t j = 0; j < LANES; j++) sum_sq.lanes[j] += double(x[i + j]) * double(x[i + j]);
    for (size_t j = 0; i + j < n; j++) sum_sq.lanes[j] += double(x[i + j]) * double(x[i + j]);
    return sum_sq.fold();
}

#endif

// Four tables, so that a run of equal values does not wait for its own last increment.
class MagnitudeHistogram {
public:
    explicit MagnitudeHistogram(uint64_t* total) : total_(total) {}

    void add(const float* x, size_t n) {
        if (pending_ + n > UINT32_MAX) flush();
        pending_ += n;
        size_t i = 0;
        for (; i + 4 <= n; i += 4)
            for (size_t j = 0; j < 4; j++) counts_[j][bin(x[i + j])]++;
        for (; i < n; i++) counts_[0][bin(x[i])]++;
    }

    void flush() {
        for (size_t b = 0; b < HISTOGRAM_BINS; b++)
            for (auto& counts : counts_) {
                total_[b] += counts[b];
                counts[b] = 0;
            }
        pending_ = 0;
    }

private:
    static uint32_t bin(float x) { return (bits_of(x) >> 20) % HISTOGRAM_BINS; }

    uint64_t* total_;
    uint64_t pending_ = 0;
    uint32_t counts_[4][HISTOGRAM_BINS] = {};
};

inline void count_zeros_and_max(const float* x, size_t n, uint64_t& n_zero, uint32_t& max_magnitude) {
    uint32_t zeros = 0;
    int32_t largest = int32_t(max_magnitude);
    for (size_t i = 0; i < n; i++) {
        const int32_t m = int32_t(magnitude(x[i]));
        zeros += m == 0;
        largest = m > largest ? m : largest;
    }
    n_zero += zeros;
    max_magnitude = uint32_t(largest);
}

Moments moments(const float* x, size_t n, uint64_t* hist) {
    Moments total{};
    uint32_t max_magnitude = 0;
    MagnitudeHistogram histogram(hist);
    for (size_t begin = 0; begin < n; begin += SUM_BLOCK) {
        const float* block = x + begin;
        const size_t count = std::min(n - begin, SUM_BLOCK);
        const BlockSums sums = block_sums(block, count);
        total.sum += sums.sum;
        total.sum_abs += sums.sum_abs;
        total.sum_sq += sums.sum_sq;
        count_zeros_and_max(block, count, total.n_zero, max_magnitude);
        if (hist) histogram.add(block, count);
    }
    if (hist) histogram.flush();
    total.max_abs = float_of(max_magnitude);
    return total;
}

inline double sum_of_squares(const float* x, size_t n) {
    double total = 0;
    for (size_t begin = 0; begin < n; begin += SUM_BLOCK) total += block_sum_sq(x + begin, std::min(n - begin, SUM_BLOCK));
    return total;
}

void bucket_l2(const float* x, size_t n, size_t bucket, float* out) {
    for_each_bucket_run(0, n, bucket, [&](size_t offset, size_t count, size_t index) {
        out[index] = float(std::sqrt(sum_of_squares(x + offset, count)));
    });
}

void bucket_max(const float* x, size_t n, size_t bucket, float* out) {
    for_each_bucket_run(0, n, bucket, [&](size_t offset, size_t count, size_t index) {
        int32_t largest = 0;
        for (size_t i = 0; i < count; i++) largest = std::max(largest, int32_t(magnitude(x[offset + i])));
        out[index] = float_of(uint32_t(largest));
    });
}

}  // namespace perbit::PERBIT_ARCH
