// Runs a fuzz target over the files of a folder, over their prefixes and, if the target has a
// mutation of its own, over chains of mutations with fixed seeds, so that every build replays the
// corpus.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size,
                                                                size_t max_size, unsigned seed);
// In place of libFuzzer's.
extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
extern "C" size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t) {
    if (size)
        data[size / 2] = static_cast<uint8_t>(data[size / 2] + 1);
    return size;
}

namespace {

// The input lies in a block of its own length, so that a sanitizer sees a read past its end.
bool run(const uint8_t *bytes, size_t size) {
    auto *exact = static_cast<uint8_t *>(std::malloc(size ? size : 1));
    if (!exact)
        return false;
    std::memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    std::free(exact);
    return true;
}

constexpr unsigned kChains = 12;
constexpr unsigned kChainLength = 8;

bool mutate(const uint8_t *bytes, size_t size) {
    if (!LLVMFuzzerCustomMutator)
        return true;
    std::vector<uint8_t> data(1 << 18);
    for (unsigned chain = 0; chain < kChains; ++chain) {
        std::memcpy(data.data(), bytes, size);
        size_t n = size;
        for (unsigned i = 0; i < kChainLength; ++i) {
            n = LLVMFuzzerCustomMutator(data.data(), n, data.size(), chain * kChainLength + i);
            if (!run(data.data(), n))
                return false;
        }
    }
    return true;
}

bool replay(const char *path) {
    std::FILE *file = std::fopen(path, "rb");
    if (!file)
        return false;
    static uint8_t bytes[1 << 18];
    const size_t size = std::fread(bytes, 1, sizeof bytes, file);
    const bool whole = std::fclose(file) == 0 && size < sizeof bytes;
    for (size_t n = 0; n < size; n += n < 256 ? 1 : 61)
        if (!run(bytes, n))
            return false;
    return whole && run(bytes, size) && mutate(bytes, size);
}

}  // namespace

int main(int argc, char **argv) {
    unsigned inputs = 0;
    for (const auto &entry : std::filesystem::directory_iterator(argc > 1 ? argv[1] : ".")) {
        if (!replay(entry.path().c_str())) {
            std::fprintf(stderr, "%s: cannot be replayed\n", entry.path().c_str());
            return 1;
        }
        ++inputs;
    }
    std::printf("%u inputs\n", inputs);
    return inputs == 0;
}
