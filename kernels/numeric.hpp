// The numeric kernels, written against PERBIT_ARCH (see README.md for what each one computes).
#include "numeric_api.hpp"

#include "bits.hpp"
#include "bloom.hpp"
#include "counted.hpp"
#include "crc32c.hpp"
#include "deadzone.hpp"
#include "dequantize.hpp"
#include "eliasfano.hpp"
#include "feedback.hpp"
#include "gaps.hpp"
#include "golomb.hpp"
#include "half.hpp"
#include "hadamard.hpp"
#include "levels.hpp"
#include "lowfloat.hpp"
#include "codebook.hpp"
#include "pack.hpp"
#include "patterns.hpp"
#include "products.hpp"
#include "quantize.hpp"
#include "random.hpp"
#include "reduce.hpp"
#include "scatter.hpp"
#include "search.hpp"
#include "select.hpp"
#include "trellis.hpp"
#include "trellis_fit.hpp"

namespace perbit::PERBIT_ARCH {

#define PERBIT_INSTANTIATE(S)                                                                                                \
    template void quantize_uniform(const float*, size_t, float, float, uint32_t, S*);                                        \
    template void quantize_uniform_random(const float*, size_t, float, float, uint32_t, uint64_t, uint64_t, S*);             \
    template void quantize_levels_random(const float*, size_t, const float*, uint64_t, uint32_t, uint64_t, uint64_t, S*);    \
    template void quantize_codebook(const float*, size_t, const float*, size_t, S*);                                         \
    template void quantize_codebook_random(const float*, size_t, const float*, size_t, uint64_t, uint64_t, S*);              \
    template void dequantize(const S*, size_t, const float*, size_t, float*);                                                \
    template void dequantize_buckets(const S*, size_t, const float*, size_t, const float*, uint64_t, uint64_t, float*);      \
    template void axpy_table(float*, const S*, size_t, const float*, size_t, float);                                         \
    template void axpy_buckets(float*, const S*, size_t, const float*, size_t, const float*, uint64_t, uint64_t, float);     \
    template void trellis_encode(const float*, size_t, const TrellisModel&, S*);                                             \
    template void pack(const S*, size_t, unsigned, uint8_t*);                                                                \
    template void unpack(const uint8_t*, size_t, unsigned, S*, size_t);                                                      \
    template void feedback_update(const float*, const float*, size_t, float, const S*, const float*, size_t, float*);

PERBIT_INSTANTIATE(uint8_t)
PERBIT_INSTANTIATE(uint16_t)
#undef PERBIT_INSTANTIATE

}  // namespace perbit::PERBIT_ARCH
