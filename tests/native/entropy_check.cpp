// The entropy kernels under AddressSanitizer: round trips, then random damage. Exact-size heap buffers let it see any
// byte read or written outside. Also every reciprocal division at the states where it would fail first.
//   g++ -std=c++20 -O1 -g -fsanitize=address,undefined -DPERBIT_HAVE_AVX2 -Ikernels -c kernels/portable.cpp -o p.o
//   g++ ... -mavx2 -mbmi -mbmi2 -mpopcnt -mlzcnt -msse4.2 -c kernels/avx2.cpp -o a.o
//   g++ ... tests/native/entropy_check.cpp p.o a.o -o check && ./check
#include <cstdio>
#include <cstdlib>
#include <random>

#include "entropy_tables.hpp"

using namespace perbit;
static std::mt19937_64 rng(1);
static size_t decoded, refused;

static void require(bool ok, const char* what) {
    if (!ok) std::printf("FAILED: %s\n", what), std::exit(1);
}

static void check_divisions() {
    for (int bits = RANS_MIN_BITS; bits <= RANS_MAX_BITS; ++bits)
        for (uint32_t f = 1; f < 1u << bits; ++f)
            for (bool up : {true, false}) {
                const Reciprocal r = reciprocal(f, bits, up);
                if (!r.exact) {
                    require(f > 1u << (bits - 1) && reciprocal(f, bits, !up).exact, "one rounding is exact");
                    continue;
                }
                const uint64_t limit = uint64_t{f} << (32 - bits);
                const auto check = [&](uint64_t x) {
                    const uint64_t q = (uint64_t{static_cast<uint32_t>(x) + !up} * r.multiplier >> 32) >> r.shift;
                    require(q == x / f - (f == 1 && up), "division");
                };
                // The error grows with x, and shows first next to a multiple of f.
                for (uint64_t k = 1; k <= 4; ++k) check(limit - (k - 1) * f - 1), check(limit - k * f);
                for (int k = 0; k < 8; ++k) check(1 + rng() % (limit - 1));
            }
}

static std::vector<uint32_t> random_freqs(size_t alphabet, int bits) {
    std::vector<uint32_t> freqs(alphabet, 0);
    uint32_t left = 1u << bits;
    freqs[rng() % alphabet]++, left--;
    while (left != 0) {
        const uint32_t share = std::min<uint32_t>(left, 1 + rng() % (1 + (2u << bits) / alphabet));
        uint32_t& f = freqs[rng() % alphabet];
        if (f + share < 1u << bits) f += share, left -= share;
    }
    return freqs;
}

template <class Out, class Decode>
static bool decodes_to(const std::vector<uint8_t>& data, const std::vector<Out>& expected, Decode&& decode) {
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[data.size()]);
    std::copy(data.begin(), data.end(), exact.get());
    const std::unique_ptr<Out[]> out(new Out[expected.size()]);
    const Error error = decode(exact.get(), data.size(), out.get(), expected.size());
    ++(error ? refused : decoded);
    return !error && std::equal(expected.begin(), expected.end(), out.get());
}

static void damage(std::vector<uint8_t>& data) {
    if (rng() % 3 == 0) data.resize(rng() % (data.size() + 1));
    if (rng() % 5 == 0) data.resize(data.size() + 1 + rng() % 40, static_cast<uint8_t>(rng()));
    if (rng() % 8 == 0)
        for (auto& b : data) b = static_cast<uint8_t>(rng());
    for (size_t k = 0; k < 1 + rng() % 4 && !data.empty(); ++k) data[rng() % data.size()] ^= 1 << rng() % 8;
}

template <class Out, class Portable, class Avx2>
static void check_stream(const std::vector<uint8_t>& stream, const std::vector<Out>& expected, Portable&& portable,
                         Avx2&& avx2) {
    require(decodes_to(stream, expected, portable) && decodes_to(stream, expected, avx2), "round trip");
    for (int k = 0; k < 4; ++k) {
        auto damaged = stream;
        damage(damaged);
        decodes_to(damaged, expected, portable);
        decodes_to(damaged, expected, avx2);
    }
}

template <class Symbol>
static void check_rans(size_t n, size_t alphabet, int bits) {
    const auto freqs = random_freqs(alphabet, bits);
    std::vector<Symbol> by_slot, symbols(n);
    for (size_t s = 0; s < alphabet; ++s) by_slot.insert(by_slot.end(), freqs[s], static_cast<Symbol>(s));
    for (auto& s : symbols) s = by_slot[rng() % by_slot.size()];
    const auto encoder = build_rans_encoder(freqs.data(), alphabet, bits);
    const size_t capacity = 2 * n + 4 * rans_lanes(n);
    const auto encode = [&](auto&& function) {
        const std::unique_ptr<uint8_t[]> buffer(new uint8_t[capacity]);
        size_t size = 0;
        require(!function(buffer.get(), &size), "encode");
        return std::vector<uint8_t>(buffer.get() + capacity - size, buffer.get() + capacity);
    };
    const auto stream = encode([&](uint8_t* b, size_t* z) {
        return portable::rans_encode(symbols.data(), n, encoder.model, b, capacity, z); });
    require(stream == encode([&](uint8_t* b, size_t* z) {
        return avx2::rans_encode(symbols.data(), n, encoder.model, b, capacity, z); }), "same rANS stream");
    std::vector<float> table(alphabet), values(n);
    for (size_t s = 0; s < alphabet; ++s) table[s] = static_cast<float>(s) / 7;
    for (size_t i = 0; i < n; ++i) values[i] = table[symbols[i]];
    const auto decoder = build_rans_decoder(freqs.data(), alphabet, bits, nullptr);
    const auto fused = build_rans_decoder(freqs.data(), alphabet, bits, table.data());
    const auto with = [](auto&& model, auto&& function) {
        return [&model, function](const uint8_t* d, size_t z, auto* out, size_t m) { return function(d, z, model, out, m); };
    };
    const auto plain = [](auto&&... a) { return portable::rans_decode(a...); };
    const auto fast = [](auto&&... a) { return avx2::rans_decode(a...); };
    check_stream(stream, symbols, with(decoder.model, plain), with(decoder.model, fast));
    check_stream(stream, values, with(fused.model, plain), with(fused.model, fast));
}

template <class Symbol>
static void check_huffman(size_t n, size_t alphabet) {
    // Random lengths within the Kraft inequality, often an incomplete code.
    const int limit = huffman_limit(alphabet);
    std::vector<uint8_t> lengths(alphabet, 0);
    uint32_t left = 1u << limit;
    std::vector<Symbol> present, symbols(n);
    for (size_t s = 0; s < alphabet && left; ++s) {
        const int length = 1 + static_cast<int>(rng() % static_cast<unsigned>(limit));
        const uint32_t span = 1u << (limit - length);
        if (span > left || (span == left && s + 1 < alphabet && rng() % 2)) continue;
        lengths[s] = static_cast<uint8_t>(length), left -= span, present.push_back(static_cast<Symbol>(s));
    }
    if (present.empty()) lengths[0] = 1, present.push_back(0);
    for (auto& s : symbols) s = present[rng() % present.size()];
    const auto encoder = build_huffman_encoder(lengths.data(), alphabet);
    const int streams = huffman_streams(n);
    const size_t stride = 2 * ((n + streams - 1) / streams) + 2 * HUFFMAN_SLACK;
    const auto encode = [&](auto&& function) {
        const std::unique_ptr<uint8_t[]> buffer(new uint8_t[stride * streams]);
        size_t sizes[HUFFMAN_MAX_STREAMS];
        require(!function(buffer.get(), sizes), "encode");
        std::vector<uint8_t> joined(4 * static_cast<size_t>(streams - 1));
        for (int j = 0; j + 1 < streams; ++j) {
            const auto size = static_cast<uint32_t>(sizes[j]);
            std::memcpy(joined.data() + 4 * j, &size, 4);
        }
        for (int j = 0; j < streams; ++j)
            joined.insert(joined.end(), buffer.get() + j * stride, buffer.get() + j * stride + sizes[j]);
        return joined;
    };
    const auto stream = encode([&](uint8_t* b, size_t* z) {
        return portable::huffman_encode(symbols.data(), n, encoder.model, b, stride, z); });
    require(stream == encode([&](uint8_t* b, size_t* z) {
        return avx2::huffman_encode(symbols.data(), n, encoder.model, b, stride, z); }), "same Huffman stream");
    const auto decoder = build_huffman_decoder(lengths.data(), alphabet, n);
    check_stream(stream, symbols,
        [&](const uint8_t* d, size_t z, Symbol* out, size_t m) { return portable::huffman_decode(d, z, decoder.model, out, m); },
        [&](const uint8_t* d, size_t z, Symbol* out, size_t m) { return avx2::huffman_decode(d, z, decoder.model, out, m); });
}

int main() {
    check_divisions();
    for (int round = 0; round < 6; ++round)
        for (size_t n : {0u, 1u, 7u, 33u, 1023u, 1024u, 5000u, 8192u, 65535u, 65536u, 65567u, 70001u})
            for (size_t alphabet : {2u, 3u, 15u, 16u, 17u, 64u, 256u, 257u, 4096u}) {
                const int bits = std::max<int>(8 + static_cast<int>(rng() % 9), std::bit_width(alphabet));
                if (alphabet <= 256) check_rans<uint8_t>(n, alphabet, bits), check_huffman<uint8_t>(n, alphabet);
                if (alphabet > 16) check_rans<uint16_t>(n, alphabet, bits), check_huffman<uint16_t>(n, alphabet);
            }
    std::printf("entropy kernels: %zu streams decoded, %zu refused, nothing out of bounds\n", decoded, refused);
}
