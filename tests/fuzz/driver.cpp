// Runs a fuzz target over the files of a folder and over their prefixes, so that every build
// replays the corpus.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

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
    return whole && run(bytes, size);
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
