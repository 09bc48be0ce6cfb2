// Random and corrupt inputs through the numeric kernels under sanitizers. Built twice, portable and with AVX2:
//   g++ -std=c++20 -g -O1 -ffp-contract=off -fsanitize=address,undefined -fno-sanitize-recover -I kernels
//       [-DPERBIT_AVX2 -mavx2 -mbmi -mbmi2 -mpopcnt -mlzcnt -msse4.2] tests/native/numeric_sanitized.cpp
// Every array is its own heap block of the exact size, so that the first byte read or written outside stops the run.
#ifdef PERBIT_AVX2
#define PERBIT_ARCH avx2
#define PERBIT_HAVE_AVX2 1
#else
#define PERBIT_ARCH portable
#endif
#include "numeric.hpp"
#include "entropy.hpp"  // counts for rd's levels

#include <cstdio>
#include <random>
#include <set>

using namespace perbit;
using namespace perbit::PERBIT_ARCH;

static std::mt19937_64 rng(1);
static size_t below(size_t n) { return n ? rng() % n : 0; }

template <class T>
struct Heap {
    std::unique_ptr<T[]> data;
    size_t size;

    explicit Heap(size_t n) : data(new T[n]()), size(n) {}
    operator T*() { return data.get(); }
};

static Heap<float> values(size_t n) {
    Heap<float> x(n);
    std::normal_distribution<float> normal;
    const float special[] = {0.0f, -0.0f, 1e-45f, 3e38f, -3e38f, 1.0f};
    for (size_t i = 0; i < n; i++) x[i] = below(5) ? normal(rng) : special[below(6)];
    return x;
}

template <class S>
static Heap<S> symbols(size_t n, size_t alphabet) {
    Heap<S> s(n);
    for (size_t i = 0; i < n; i++) s[i] = S(below(alphabet));
    return s;
}

template <class Call>
static bool accepted(const Call& call) {
    try {
        call();
        return true;
    } catch (const std::invalid_argument&) {
        return false;
    }
}

template <class S>
static void quantizers(size_t n) {
    Heap<float> x = values(n), back(n), memory = values(n);
    Heap<S> out(n);
    const size_t start = (size_t(1) << 20) - below(100), bucket = 1 + below(200);
    Heap<float> scales = values((start + n) / bucket + 1);
    for (size_t i = 0; i < scales.size; i++) scales[i] = float(below(100));
    const size_t alphabet = 2 + below(sizeof(S) == 1 ? 255 : 4095);
    quantize_uniform<S>(x, n, 3.0f, 8.0f, uint32_t(alphabet), out);
    quantize_uniform_random<S>(x, n, 3.0f, 8.0f, uint32_t(alphabet), rng(), start, out);
    quantize_levels_random<S>(x, n, scales, bucket, 1 + uint32_t(below(100)), rng(), start, out);
    std::set<float> distinct;
    while (distinct.size() < alphabet) distinct.insert(float(below(100000)) / 10000 - 5);
    Heap<float> book(alphabet);
    std::copy(distinct.begin(), distinct.end(), book.data.get());
    quantize_codebook<S>(x, n, book, alphabet - 1, out);
    quantize_codebook_random<S>(x, n, book, alphabet, rng(), start, out);
    dequantize<S>(out, n, book, alphabet, back);
    const size_t claimed = 1 + below(alphabet);  // a table that may be too short for the symbols
    Heap<float> table = values(claimed);
    accepted([&] { dequantize<S>(out, n, table, claimed, back); });
    accepted([&] { dequantize_buckets<S>(out, n, table, claimed, scales, bucket, start, back); });
    accepted([&] { feedback_update<S>(x, memory, n, 0.9f, out, table, claimed, memory); });
    accepted([&] { axpy_table<S>(back, out, n, table, claimed, 0.3f); });
    accepted([&] { axpy_buckets<S>(back, out, n, table, claimed, scales, bucket, start, 0.3f); });
}

template <class S>
static void packing(size_t n) {
    const unsigned bits = 1 + unsigned(below(8 * sizeof(S)));
    Heap<S> in = symbols<S>(n, size_t(1) << bits), out(n);
    Heap<uint8_t> data(packed_size(n, bits));
    pack<S>(in, n, bits, data);
    unpack<S>(data, data.size, bits, out, n);
    require(std::equal(in.data.get(), in.data.get() + n, out.data.get()), "unpack is not the inverse of pack");
    Heap<uint8_t> noise = symbols<uint8_t>(below(2 * data.size + 2), 256);
    accepted([&] { unpack<S>(noise, noise.size, bits, out, n); });
}

static void positions(size_t n) {
    Heap<float> x = values(n);
    const size_t k = below(n + 1);
    Heap<uint32_t> top(k);
    top_k(x, n, k, top);
    const Selection above = select_above(x, n, 1.0f);
    Heap<float> sum = values(n), add = values(k);
    scatter_add(sum, n, top, add, k, 0.5f);
    const unsigned b = unsigned(below(32));
    const std::vector<uint8_t> coded = golomb_encode(top, k, b);
    Heap<uint8_t> stream(coded.size());
    std::copy(coded.begin(), coded.end(), stream.data.get());
    Heap<uint32_t> decoded(k);
    golomb_decode(stream, stream.size, k, b, n, decoded);
    require(std::equal(top.data.get(), top.data.get() + k, decoded.data.get()), "golomb_decode is not the inverse");
    for (int trial = 0; trial < 20; trial++) {
        Heap<uint8_t> bad(below(stream.size + 3));
        for (size_t i = 0; i < bad.size; i++) bad[i] = i < stream.size ? stream[i] : uint8_t(rng());
        if (bad.size) bad[below(bad.size)] ^= uint8_t(1 << below(8));
        if (below(4) == 0) std::fill(bad.data.get(), bad.data.get() + bad.size, uint8_t(0));
        const size_t count = std::min<size_t>(k + below(3), bad.size * 8 / (b + 1));
        Heap<uint32_t> out(count);
        accepted([&] { golomb_decode(bad, bad.size, count, b, below(2) ? n : uint64_t(1) << 32, out); });
        Heap<uint32_t> anywhere(count);
        for (size_t i = 0; i < count; i++) anywhere[i] = uint32_t(rng() >> below(64));
        Heap<float> more = values(count);
        accepted([&] { scatter_add(sum, n, anywhere, more, count, 1.0f); });
    }
}

static void statistics(size_t n) {
    Heap<float> x = values(n), y = values(n), out(n);
    Heap<uint64_t> hist(HISTOGRAM_BINS);
    scan(x, n);
    moments(x, n, hist);
    const size_t bucket = 1 + below(n + 5);
    Heap<float> norms((n + bucket - 1) / bucket);
    bucket_l2(x, n, bucket, norms);
    bucket_max(x, n, bucket, norms);
    Heap<uint8_t> codes(n);
    const int e = 1 + int(below(7)), m = int(below(size_t(8 - e)));
    lowfloat(x, n, 0.3f, e, m, (1u << (e + m)) - 1, codes);
    crc32c(codes, n, uint32_t(rng()));
    feedback_add(x, y, n, 0.5f, out);
    axpy(out, x, n, 0.5f);
    const size_t block = size_t(1) << below(std::bit_width(n));
    if (n) hadamard(x, n - n % block, block, out);
    const size_t length = size_t(8) << below(6), turns = 1 + below(4), blocks = n / length;
    Heap<float> signs(turns * length), agreement(blocks);
    Heap<uint16_t> matched(blocks);
    for (size_t i = 0; i < turns * length; i++) signs.data[i] = below(2) ? 1.f : -1.f;
    match_patterns(x, blocks * length, length, signs.data.get(), turns, matched.data.get(), agreement.data.get());
}

static void products(size_t n) {
    const size_t rows = 1 + below(20), columns = 1 + n % 3000, count = below(10);
    Heap<float> pairs = values(count * (rows + columns)), out(rows * columns);
    multiply_pairs(pairs, count, rows, columns, out);
    axpy_pairs(out, pairs, count, rows, columns, 0.3f);
    Heap<float> matrix = values(rows * columns), start = values(count * columns), there(count * rows), back(count * columns);
    there_and_back(matrix, rows, columns, start, count, there, back);
}

static Heap<uint8_t> on_heap(const std::vector<uint8_t>& bytes) {
    Heap<uint8_t> copy(bytes.size());
    std::copy(bytes.begin(), bytes.end(), copy.data.get());
    return copy;
}

static void position_codes(size_t n) {
    const size_t k = n ? 1 + below(n) : 0;
    const unsigned low_bits = unsigned(below(12));
    Heap<float> x = values(n);
    Heap<uint32_t> top(k), decoded(k);
    top_k(x, n, k, top);
    Heap<uint8_t> gaps = on_heap(gaps_encode(top, k, n)), parts = on_heap(eliasfano_encode(top, k, low_bits, n));
    gaps_decode(gaps, gaps.size, k, n, decoded);
    require(std::equal(top.data.get(), top.data.get() + k, decoded.data.get()), "gaps_decode is not the inverse");
    eliasfano_decode(parts, parts.size, k, low_bits, n, decoded);
    require(std::equal(top.data.get(), top.data.get() + k, decoded.data.get()), "eliasfano_decode is not the inverse");
    const size_t chunk = 1 + below(600), chunks = (n + chunk - 1) / chunk;
    Heap<uint32_t> counts(chunks);
    std::fill_n(counts.data.get(), chunks, 0u);
    for (size_t i = 0; i < k; i++) counts.data[top.data[i] / chunk]++;
    Heap<uint8_t> counted = on_heap(counted_encode(top, counts, chunks, chunk, n));
    counted_decode(counted, counted.size, counts, chunks, chunk, n, decoded);
    require(std::equal(top.data.get(), top.data.get() + k, decoded.data.get()), "counted_decode is not the inverse");
    for (int trial = 0; trial < 4; trial++) {
        if (counted.size) counted[below(counted.size)] ^= uint8_t(1 << below(8));
        accepted([&] { counted_decode(counted, below(counted.size + 1), counts, chunks, chunk, n, decoded); });
        if (gaps.size) gaps[below(gaps.size)] ^= uint8_t(1 << below(8));
        if (parts.size) parts[below(parts.size)] ^= uint8_t(1 << below(8));
        accepted([&] { gaps_decode(gaps, below(gaps.size + 1), k, below(2) || k == 0 ? n : uint64_t(1) << 32, decoded); });
        accepted([&] { eliasfano_decode(parts, parts.size, k, low_bits, n, decoded); });
    }
}

static void bloom_filters(size_t n) {
    const bool blocked = below(2);
    const unsigned hashes = 1 + unsigned(below(blocked ? 8 : 32));
    const BloomShape shape{blocked ? (1 + below(20)) * 4 * hashes : 1 + below(300), hashes, uint32_t(rng()), blocked};
    const size_t k = std::min<size_t>(n, below(40));
    Heap<float> x = values(n);
    Heap<uint32_t> top(k), chosen(k);
    top_k(x, n, k, top);
    Heap<uint8_t> filter(shape.bytes);
    bloom_build(top, k, shape, filter);
    const std::vector<uint32_t> found = bloom_query(filter, shape, n, n);
    require(std::includes(found.begin(), found.end(), top.data.get(), top.data.get() + k), "a position was lost");
    if (found.size() < 5000) bloom_resolve(found.data(), found.size(), shape, k, below(2), chosen);
    accepted([&] { bloom_query(filter, shape, n, below(k + 1)); });
}

int main() {
    for (int round = 0; round < 400; round++) {
        const size_t n = round % 40 == 0 ? 65000 + below(60000) : below(300);
        statistics(n);
        products(n);
        quantizers<uint8_t>(n);
        quantizers<uint16_t>(n);
        packing<uint8_t>(n);
        packing<uint16_t>(n);
        positions(n);
        position_codes(n);
        bloom_filters(n);
    }
    std::puts("clean");
}
