// The numeric kernels of one back end, as the bindings see them. No include guard: included once per PERBIT_ARCH.
//
// The bindings have checked array lengths and scalar ranges; what depends on the data (a symbol outside its table, a broken
// stream) is checked here and raises std::invalid_argument. S is uint8_t or uint16_t.
#include "numeric_types.hpp"

namespace perbit::PERBIT_ARCH {

Extent scan(const float* x, size_t n);
Moments moments(const float* x, size_t n, uint64_t* hist);
void bucket_l2(const float* x, size_t n, size_t bucket, float* out);
void bucket_max(const float* x, size_t n, size_t bucket, float* out);

template <class S>
void quantize_uniform(const float* x, size_t n, float scale, float offset, uint32_t levels, S* out);
template <class S>
void quantize_uniform_random(const float* x, size_t n, float scale, float offset, uint32_t levels, uint64_t key,
                             uint64_t start, S* out);
template <class S>
void quantize_levels_random(const float* x, size_t n, const float* scales, uint64_t bucket, uint32_t levels, uint64_t key,
                            uint64_t start, S* out);
template <class S>
void quantize_codebook(const float* x, size_t n, const float* thresholds, size_t count, S* out);
template <class S>
void quantize_codebook_random(const float* x, size_t n, const float* codebook, size_t size, uint64_t key, uint64_t start,
                              S* out);
void lowfloat(const float* x, size_t n, float scale, int exponent_bits, int mantissa_bits, uint32_t max_code, uint8_t* out);

template <class S>
void dequantize(const S* symbols, size_t n, const float* table, size_t size, float* out);
template <class S>
void dequantize_buckets(const S* symbols, size_t n, const float* table, size_t size, const float* norms, uint64_t bucket,
                        uint64_t start, float* out);
template <class S>
void axpy_table(float* out, const S* symbols, size_t n, const float* table, size_t size, float weight);
template <class S>
void axpy_buckets(float* out, const S* symbols, size_t n, const float* table, size_t size, const float* norms, uint64_t bucket,
                  uint64_t start, float weight);

void hadamard(const float* x, size_t n, size_t block, float* out);
void match_patterns(const float* x, size_t n, size_t length, const float* signs, size_t turns, uint16_t* symbols,
                    float* agreement);
void multiply_pairs(const float* pairs, size_t count, size_t rows, size_t columns, float* out);
void axpy_pairs(float* out, const float* pairs, size_t count, size_t rows, size_t columns, float weight);
void there_and_back(const float* matrix, size_t rows, size_t columns, const float* start, size_t count, float* there, float* back);
void add_pairs(const float* left, const float* right, size_t count, size_t rows, size_t columns, float* out);
void split_planes(const float* matrix, const float* values, size_t taps, size_t n, float* planes);
void mix_planes(const float* matrix, const float* planes, size_t taps, size_t n, float* out);

template <class S>
void trellis_encode(const float* x, size_t n, const TrellisModel& model, S* out);
void trellis_signs(float* values, size_t n);
TrellisFit trellis_fit(const float* x, size_t n, bool wide, bool with_shifts);
ScalarCost scalar_cost(const float* x, const float* noise, size_t n, float scale, float sigma, float rounding);
std::vector<uint8_t> levels_encode(const uint32_t* levels, size_t count, size_t columns, uint32_t mean);
void levels_decode(const uint8_t* data, size_t size, size_t count, size_t columns, uint32_t mean, uint32_t* out);
void levels_decode_table(const uint8_t* data, size_t size, size_t count, size_t columns, uint32_t mean, const float* table,
                         size_t alphabet, float* out);

void top_k(const float* x, size_t n, size_t k, uint32_t* out);
Selection select_above(const float* x, size_t n, float threshold);
void scatter_add(float* out, size_t n, const uint32_t* positions, const float* values, size_t count, float weight);
void axpy(float* out, const float* values, size_t n, float weight);

template <class S>
void pack(const S* symbols, size_t n, unsigned bits, uint8_t* out);
template <class S>
void unpack(const uint8_t* data, size_t size, unsigned bits, S* out, size_t n);

std::vector<uint8_t> golomb_encode(const uint32_t* positions, size_t count, unsigned b);
void golomb_decode(const uint8_t* data, size_t size, size_t count, unsigned b, uint64_t n, uint32_t* out);

std::vector<uint8_t> gaps_encode(const uint32_t* positions, size_t count, uint64_t n);
void gaps_decode(const uint8_t* data, size_t size, size_t count, uint64_t n, uint32_t* out);
std::vector<uint8_t> counted_encode(const uint32_t* positions, const uint32_t* counts, size_t chunks, uint64_t chunk,
                                    uint64_t n);
void counted_decode(const uint8_t* data, size_t size, const uint32_t* counts, size_t chunks, uint64_t chunk, uint64_t n,
                    uint32_t* out);
std::vector<uint8_t> eliasfano_encode(const uint32_t* positions, size_t count, unsigned low_bits, uint64_t n);
void eliasfano_decode(const uint8_t* data, size_t size, size_t count, unsigned low_bits, uint64_t n, uint32_t* out);

void bloom_build(const uint32_t* positions, size_t count, const BloomShape& shape, uint8_t* filter);
std::vector<uint32_t> bloom_query(const uint8_t* filter, const BloomShape& shape, uint64_t n, uint64_t limit);
void bloom_resolve(const uint32_t* accepted, size_t size, const BloomShape& shape, size_t count, bool skip, uint32_t* out);

void feedback_add(const float* g, const float* memory, size_t n, float gamma, float* out);
template <class S>
void feedback_update(const float* g, const float* memory, size_t n, float gamma, const S* symbols, const float* table,
                     size_t size, float* out);

void to_half(const float* x, size_t n, uint16_t* out);
void from_half(const uint8_t* data, size_t n, float* out);

uint32_t crc32c(const uint8_t* data, size_t size, uint32_t value);

}  // namespace perbit::PERBIT_ARCH
