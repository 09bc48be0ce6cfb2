// The decoders of both back ends behind libFuzzer's entry: the first byte chooses one, the next ones its parameters, the rest is the stream.
// Both must do the same: refuse, or give the same values. Streams and outputs are heap blocks of the exact size, so that the first byte
// read or written outside stops the run. `make fuzz-native` runs it; replay.cpp feeds it the corpus where there is no clang.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "both.hpp"
#include "entropy_tables.hpp"
#include "rd_decode.hpp"

static bool avx2_in_use = false;  // by what is made of kernels of either back end
bool perbit::use_avx2() { return avx2_in_use; }

using namespace perbit;

namespace {

// What the fuzzer gives, taken piece by piece; behind its end there are zeros.
class Input {
public:
    Input(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}

    template <class T>
    T take() {
        T value{};
        const size_t n = std::min(sizeof(T), left());
        if (n) std::memcpy(&value, at_, n);
        at_ += n;
        return value;
    }
    size_t below(size_t limit) { return take<uint32_t>() % limit; }
    size_t left() const { return size_t(end_ - at_); }

    // Few or many values: the borders between numbers of lanes and streams are where decoders change.
    size_t count() {
        static constexpr size_t BORDERS[] = {0, 1, 31, 32, 33, 1023, 1024, 1056, 8191, 8192, 8224, 65535, 65536, 65600};
        const uint16_t chosen = take<uint16_t>();
        return chosen & 1 ? BORDERS[(chosen >> 1) % std::size(BORDERS)] : chosen >> 5;
    }

    std::vector<uint8_t> rest() const { return {at_, end_}; }

private:
    const uint8_t *at_, *end_;
};

[[noreturn]] void differ(const char* what) {
    std::fprintf(stderr, "portable and AVX2 differ in %s\n", what);
    std::abort();
}

// What a decoder made of a stream: nothing if it refused.
template <class T>
struct Result {
    bool accepted = false;
    std::vector<T> values;
};

template <class T, class Decode>
Result<T> outcome(const std::vector<uint8_t>& stream, size_t n, const Decode& decode) {
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[stream.size()]);
    std::copy(stream.begin(), stream.end(), exact.get());
    const std::unique_ptr<T[]> out(new T[n]());
    try {
        if (decode(exact.get(), stream.size(), out.get()) != nullptr) return {};
    } catch (const std::invalid_argument&) {
        return {};
    }
    return {true, {out.get(), out.get() + n}};
}

template <class T, class Portable, class Avx2>
Result<T> both(const char* what, const std::vector<uint8_t>& stream, size_t n, const Portable& portable, const Avx2& avx2) {
    Result<T> a = outcome<T>(stream, n, portable), b = outcome<T>(stream, n, avx2);
    if (a.accepted != b.accepted) differ(what);
    if (a.accepted && n && std::memcmp(a.values.data(), b.values.data(), n * sizeof(T)) != 0) differ(what);
    return a;
}

// The same statements for each back end; decoders that throw return no error.
#define BOTH(T, what, stream, n, ...)                                                                               \
    both<T>(what, stream, n, [&](const uint8_t* data, size_t size, T* out) -> Error { using namespace portable; __VA_ARGS__; }, \
            [&](const uint8_t* data, size_t size, T* out) -> Error { using namespace avx2; __VA_ARGS__; })

std::vector<uint32_t> frequencies(Input& in, size_t alphabet, int bits) {
    std::vector<uint32_t> freqs(alphabet, 0);
    if (in.below(8) == 0) {  // as they come: most are refused
        for (auto& f : freqs) f = in.take<uint16_t>();
        return freqs;
    }
    uint32_t left = 1u << bits;
    for (size_t s = 0; s + 1 < alphabet && left; s++) {
        freqs[s] = std::min<uint32_t>(left, uint32_t(in.take<uint8_t>()) << (bits > 12 ? bits - 12 : 0));
        left -= freqs[s];
    }
    freqs[alphabet - 1] += left;
    return freqs;
}

size_t alphabet_of(Input& in, size_t most) {
    const size_t chosen = in.take<uint16_t>();
    return 1 + (chosen & 1 ? chosen >> 1 : (chosen >> 1) % 20) % most;
}

template <class S>
void rans(Input& in) {
    const size_t alphabet = alphabet_of(in, sizeof(S) == 1 ? 256 : MAX_ALPHABET), n = in.count();
    const int bits = RANS_MIN_BITS + int(in.below(9));
    const std::vector<uint32_t> freqs = frequencies(in, alphabet, bits);
    std::vector<float> table(alphabet);
    for (size_t s = 0; s < alphabet; s++) table[s] = float(s) / 7;
    const RansDecoderTable symbols = build_rans_decoder(freqs.data(), alphabet, bits, nullptr);
    const RansDecoderTable values = build_rans_decoder(freqs.data(), alphabet, bits, table.data());
    const std::vector<uint8_t> stream = in.rest();
    const auto found = BOTH(S, "rans", stream, n, return rans_decode(data, size, symbols.model, out, n));
    for (const S s : found.values)
        if (s >= alphabet) differ("the alphabet of rans");
    BOTH(float, "rans to floats", stream, n, return rans_decode(data, size, values.model, out, n));
}

template <class S>
void huffman(Input& in) {
    const size_t alphabet = alphabet_of(in, sizeof(S) == 1 ? 256 : MAX_ALPHABET), n = in.count();
    const int limit = huffman_limit(alphabet);
    const bool fits = in.below(8) != 0;
    std::vector<uint8_t> lengths(alphabet, 0);
    uint32_t left = 1u << limit;
    for (size_t s = 0; s < alphabet; s++) {
        lengths[s] = uint8_t(in.take<uint8_t>() % unsigned(limit + 1));
        const uint32_t span = lengths[s] ? 1u << (limit - lengths[s]) : 0;
        if (fits && span > left) lengths[s] = 0;
        left -= fits && lengths[s] ? span : 0;
    }
    const HuffmanDecoderTable decoder = build_huffman_decoder(lengths.data(), alphabet, n);
    const auto found = BOTH(S, "huffman", in.rest(), n, return huffman_decode(data, size, decoder.model, out, n));
    for (const S s : found.values)
        if (s >= alphabet) differ("the alphabet of huffman");
}

void check_positions(const Result<uint32_t>& found, uint64_t n) {
    for (size_t i = 0; i < found.values.size(); i++)
        if (found.values[i] >= n || (i && found.values[i] <= found.values[i - 1])) differ("the order of positions");
}

void golomb(Input& in) {
    const unsigned b = unsigned(in.below(32));
    const uint64_t n = in.take<uint32_t>();
    const std::vector<uint8_t> stream = in.rest();
    const size_t count = size_t(std::min<uint64_t>({in.count(), n, stream.size() * 8 / (b + 1)}));  // as the binding has it
    check_positions(BOTH(uint32_t, "golomb", stream, count, golomb_decode(data, size, count, b, n, out); return nullptr), n);
}

void gaps(Input& in) {
    const uint64_t n = in.take<uint32_t>();
    const size_t count = size_t(std::min<uint64_t>(in.count(), n));
    check_positions(BOTH(uint32_t, "gaps", in.rest(), count, gaps_decode(data, size, count, n, out); return nullptr), n);
}

void counted(Input& in) {
    const uint64_t chunk = 1 + in.below(300), n = in.below(5000);
    std::vector<uint32_t> counts;
    size_t count = 0;
    for (uint64_t begin = 0; begin < n; begin += chunk) {
        counts.push_back(uint32_t(in.below(std::min(chunk, n - begin) + 1)));
        count += counts.back();
    }
    check_positions(BOTH(uint32_t, "counted", in.rest(), count,
                         counted_decode(data, size, counts.data(), counts.size(), chunk, n, out); return nullptr), n);
}

void eliasfano(Input& in) {
    const unsigned low_bits = unsigned(in.below(32));
    const uint64_t n = in.below(8) ? in.take<uint16_t>() : in.take<uint32_t>();
    std::vector<uint8_t> stream = in.rest();
    const size_t count = size_t(std::min<uint64_t>(in.count(), n));
    const EliasFanoSize expected(count, low_bits, n);
    if (expected.low_bytes + expected.high_bytes > 1 << 20) return;
    stream.resize(expected.low_bytes + expected.high_bytes);  // the binding refuses any other size
    const auto found = BOTH(uint32_t, "eliasfano", stream, count, eliasfano_decode(data, size, count, low_bits, n, out); return nullptr);
    check_positions(found, n);
}

void bloom(Input& in) {
    const bool blocked = in.below(2);
    const unsigned hashes = 1 + unsigned(in.below(blocked ? 8 : 32));
    const uint32_t seed = in.take<uint32_t>();
    const uint64_t n = in.count(), limit = in.count();
    std::vector<uint8_t> filter = in.rest();
    if (blocked) filter.resize(filter.size() / (4 * hashes) * (4 * hashes));
    if (filter.empty()) return;
    const BloomShape shape{filter.size(), hashes, seed, blocked};
    std::vector<uint32_t> accepted;
    const auto query = [&](auto&& function) { return [&, function](const uint8_t* data, size_t, uint32_t* out) -> Error {
        accepted = function(data, shape, n, limit);
        std::copy(accepted.begin(), accepted.end(), out);
        return nullptr;
    }; };
    const auto found = both<uint32_t>("bloom", filter, size_t(std::min(n, limit)), query(portable::bloom_query), query(avx2::bloom_query));
    if (!found.accepted || accepted.size() > 4096) return;
    const size_t count = accepted.size() / 2;
    BOTH(uint32_t, "bloom_resolve", filter, count, (void)data; (void)size; bloom_resolve(accepted.data(), accepted.size(), shape, count, seed & 1, out);
         return nullptr);
}

template <class S>
void packed(Input& in) {
    const unsigned bits = 1 + unsigned(in.below(8 * sizeof(S)));
    const bool fits = in.below(4);
    std::vector<uint8_t> stream = in.rest();
    const size_t n = fits ? stream.size() * 8 / bits : in.count();
    if (fits) stream.resize(packed_size(n, bits));
    const auto found = BOTH(S, "unpack", stream, n, unpack(data, size, bits, out, n); return nullptr);
    std::vector<float> table(1 + in.below(300), 0.5f);
    if (!found.accepted) return;
    BOTH(float, "dequantize", stream, n, (void)data; (void)size; dequantize(found.values.data(), n, table.data(), table.size(), out);
         return nullptr);
}

void levels(Input& in) {
    const uint32_t mean = in.take<uint32_t>() % (LARGEST_MEAN + 1);
    const size_t wanted = in.below(4) ? in.below(512) : in.take<uint32_t>(), n = in.count();
    const size_t columns = std::min(wanted, n);  // as rd has it
    BOTH(uint32_t, "levels", in.rest(), n, levels_decode(data, size, n, columns, mean, out); return nullptr);
}

void halves(Input& in) {
    std::vector<uint8_t> stream = in.rest();
    stream.resize(stream.size() / 2 * 2);
    const size_t n = stream.size() / 2;
    const auto found = BOTH(float, "from_half", stream, n, (void)size; from_half(data, n, out); return nullptr);
    BOTH(float, "trellis_signs", stream, n, (void)data; (void)size; std::copy(found.values.begin(), found.values.end(), out);
         trellis_signs(out, n); return nullptr);
    BOTH(uint32_t, "crc32c", stream, 1, *out = crc32c(data, size, 7); return nullptr);
}

void scattered(Input& in) {
    const size_t n = in.count();
    std::vector<uint32_t> positions(in.left() / 4);
    for (auto& p : positions) p = in.take<uint32_t>();
    if (in.below(2) == 0 && n)
        for (auto& p : positions) p %= uint32_t(n);
    const std::vector<float> values(positions.size(), 1.5f);
    BOTH(float, "scatter_add", {}, n, (void)data; (void)size;
         scatter_add(out, n, positions.data(), values.data(), positions.size(), 2.0f); return nullptr);
}

// A tensor of `rd` as a whole, by a transform that is none.
void tensor(Input& in) {
    const size_t taps = in.below(2) ? 1 : 2 + in.below(8);
    const RdLayout planes{taps, 1 + in.below(50), 1 + in.below(50)}, whole{1, planes.rows, taps * planes.columns};
    const std::vector<float> transform(taps * taps, 0.25f);
    const float wanted = in.take<float>(), step = std::isfinite(wanted) ? wanted : 0.5f;
    const uint64_t left = in.below(4) ? uint64_t(1) << 40 : in.take<uint32_t>();
    const auto decode = [&](bool with_avx2) {
        return [&, with_avx2](const uint8_t* data, size_t size, float* out) -> Error {
            avx2_in_use = with_avx2;
            RdReader src(data, size, left, left);
            try {
                RdTensor(src, step, out).read(whole, planes, taps > 1 ? transform.data() : nullptr);
            } catch (const Unpaid&) {
                return "not paid for";
            } catch (const MalformedTable&) {
                return "a malformed table";
            }
            return nullptr;
        };
    };
    both<float>("a tensor of rd", in.rest(), planes.n(), decode(false), decode(true));
}

using Target = void (*)(Input&);
constexpr Target TARGETS[] = {rans<uint8_t>, rans<uint16_t>, huffman<uint8_t>, huffman<uint16_t>, golomb, gaps, eliasfano,
                              bloom, packed<uint8_t>, packed<uint16_t>, levels, halves, scattered, counted};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    constexpr uint8_t TENSOR = 240;
    Input in(data, size);
    const uint8_t chosen = in.take<uint8_t>();
    try {
        if (chosen >= TENSOR) tensor(in);
        else TARGETS[chosen % std::size(TARGETS)](in);
    } catch (const MalformedTable&) {
    }
    return 0;
}
