// make-snapshots FOLDER: the corpus of snapshots, which the second reader reads as golden files.
//
// SPDX-License-Identifier: Apache-2.0
#include "snapshot_cases.h"

#include <cstdio>
#include <string>

int main(int argc, char **argv) {
    lk_context *context = nullptr;
    if (argc < 2 || lk_context_open(nullptr, LK_ABI_VERSION, &context) != LK_OK)
        return 2;
    bool written = true;
    for (uint32_t i = 0; i < kSnapshotCases; ++i) {
        SnapshotCase own(context, i);
        own.fill();
        const std::vector<uint8_t> bytes = own.save();
        const std::string path = std::string(argv[1]) + "/case-" + std::to_string(i) + ".lksnap";
        std::FILE *file = std::fopen(path.c_str(), "wb");
        written = file && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
                  std::fclose(file) == 0 && written;
    }
    return lk_context_close(&context) == LK_OK && written ? 0 : 1;
}
