// Feeds decoders.cpp with files and with random changes of them, for compilers without libFuzzer: `replay ROUNDS FILE...`.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

static std::mt19937_64 rng(1);

static void run(const std::vector<uint8_t>& input) {
    const std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
    std::copy(input.begin(), input.end(), exact.get());
    LLVMFuzzerTestOneInput(exact.get(), input.size());
}

static std::vector<uint8_t> changed(std::vector<uint8_t> input) {
    for (uint64_t k = rng() % 4; k != UINT64_MAX && !input.empty(); --k) {
        const size_t at = rng() % input.size();
        switch (rng() % 4) {
            case 0: input[at] ^= uint8_t(1 << rng() % 8); break;
            case 1: input[at] = uint8_t(rng()); break;
            case 2: input.erase(input.begin() + long(at)); break;
            default: input.insert(input.begin() + long(at), 1 + rng() % 8, uint8_t(rng()));
        }
    }
    return input;
}

int main(int argc, char** argv) {
    const long rounds = argc > 1 ? std::atol(argv[1]) : 0;
    size_t inputs = 0;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const std::vector<uint8_t> input{std::istreambuf_iterator<char>(file), {}};
        run(input);
        for (long k = 0; k < rounds; ++k) run(changed(input));
        inputs += 1 + size_t(rounds);
    }
    std::printf("%zu inputs, nothing out of bounds, both back ends agree\n", inputs);
    return inputs ? 0 : 1;
}
