// Symbols back to values by table.
#pragma once

#include <vector>

#include "bits.hpp"

namespace perbit::PERBIT_ARCH {

#ifdef PERBIT_AVX2

template <class S, class Table, class Use>
inline size_t lookup_vectors(const S* symbols, size_t n, const Table& table, const Use& use) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) use(i, table(load8(symbols + i)));
    return i;
}

#endif

// Calls use(i, table[symbols[i]]) for all i, with i and eight values at once where AVX2 is there (use takes both kinds).
// Every symbol must lie below size.
template <class S, class Use>
inline void lookup(const S* symbols, size_t n, const float* table, size_t size, const Use& use) {
    size_t i = 0;
#ifdef PERBIT_AVX2
    if (size <= 16)
        i = lookup_vectors(symbols, n, RegisterTable(table, size), use);
    else if (size <= 32)
        i = lookup_vectors(symbols, n, WideRegisterTable(table, size), use);
    else
        i = lookup_vectors(symbols, n, MemoryTable{table}, use);
#else
    (void)size;
#endif
    for (; i < n; i++) use(i, table[symbols[i]]);
}

struct StoreValue {
    float* out;

    void operator()(size_t i, float value) const { out[i] = value; }
#ifdef PERBIT_AVX2
    void operator()(size_t i, __m256 values) const { _mm256_storeu_ps(out + i, values); }
#endif
};

struct StoreScaled {
    float* out;
    float factor;

    void operator()(size_t i, float value) const { out[i] = value * factor; }
#ifdef PERBIT_AVX2
    void operator()(size_t i, __m256 values) const { _mm256_storeu_ps(out + i, _mm256_mul_ps(values, _mm256_set1_ps(factor))); }
#endif
};

template <class S>
void dequantize(const S* symbols, size_t n, const float* table, size_t size, float* out) {
    require_symbols_below(symbols, n, size);
    lookup(symbols, n, table, size, StoreValue{out});
}

template <class S>
void dequantize_buckets(const S* symbols, size_t n, const float* table, size_t size, const float* norms, uint64_t bucket,
                        uint64_t start, float* out) {
    require_symbols_below(symbols, n, size);
    for_each_bucket_run(start, n, bucket, [&](size_t offset, size_t count, size_t index) {
        lookup(symbols + offset, count, table, size, StoreScaled{out + offset, norms[index]});
    });
}

struct AddValue {
    float* out;

    void operator()(size_t i, float value) const { out[i] += value; }
#ifdef PERBIT_AVX2
    void operator()(size_t i, __m256 values) const { _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), values)); }
#endif
};

struct AddScaled {
    float* out;
    float factor, weight;

    void operator()(size_t i, float value) const { out[i] += weight * (value * factor); }
#ifdef PERBIT_AVX2
    void operator()(size_t i, __m256 values) const {
        const __m256 scaled = _mm256_mul_ps(values, _mm256_set1_ps(factor));
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), _mm256_mul_ps(_mm256_set1_ps(weight), scaled)));
    }
#endif
};

template <class S>
void axpy_table(float* out, const S* symbols, size_t n, const float* table, size_t size, float weight) {
    require_symbols_below(symbols, n, size);
    std::vector<float> weighted(table, table + size);
    for (float& value : weighted) value *= weight;
    lookup(symbols, n, weighted.data(), size, AddValue{out});
}

template <class S>
void axpy_buckets(float* out, const S* symbols, size_t n, const float* table, size_t size, const float* norms, uint64_t bucket,
                  uint64_t start, float weight) {
    require_symbols_below(symbols, n, size);
    for_each_bucket_run(start, n, bucket, [&](size_t offset, size_t count, size_t index) {
        lookup(symbols + offset, count, table, size, AddScaled{out + offset, norms[index], weight});
    });
}

}  // namespace perbit::PERBIT_ARCH
