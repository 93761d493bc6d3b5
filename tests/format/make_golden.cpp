// Writes the golden files: make-golden FOLDER. Run by hand, after a new format version or case;
// a change of an existing file without a new version is a defect.
//
// SPDX-License-Identifier: Apache-2.0
#include "cases.h"

#include <cstdio>
#include <string>

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: make-golden FOLDER\n");
        return 2;
    }
    const std::string folder = argv[1];
    std::FILE *index = std::fopen((folder + "/index.txt").c_str(), "w");
    if (!index)
        return 1;
    std::fprintf(index, "name input seed ranking one_bit clip\n");
    size_t total = 0;
    for (const lk_test::Case &c : lk_test::cases()) {
        if (const char *error = lk::layout_error(c.layout)) {
            std::fprintf(stderr, "%s: %s\n", c.name, error);
            return 1;
        }
        const std::vector<uint8_t> bytes = lk_test::pack_case(c, c.seed).file();
        std::FILE *file = std::fopen((folder + "/" + c.name + ".lkpage").c_str(), "wb");
        if (!file || std::fwrite(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
            std::fclose(file) != 0)
            return 1;
        std::fprintf(index, "%s %d %u %d %d %g\n", c.name, static_cast<int>(c.input), c.seed,
                     static_cast<int>(c.ranking), static_cast<int>(c.ranges.one_bit),
                     static_cast<double>(c.ranges.clip));
        total += bytes.size();
    }
    std::printf("%zu files, %zu bytes\n", lk_test::cases().size(), total);
    return std::fclose(index) != 0;
}
