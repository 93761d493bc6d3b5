// make-snapshots FOLDER           the corpus of snapshots, which the second reader reads as golden
// files make-snapshots --check FOLDER   is it what is saved today? And what older versions are
// loaded as?
//
// SPDX-License-Identifier: Apache-2.0
#include "snapshot_cases.h"

#include <cstdio>
#include <cstring>
#include <string>

namespace {

constexpr uint32_t kVersion1Cases = 2;

std::string path_of(const char *folder, const char *prefix, uint32_t i) {
    return std::string(folder) + "/" + prefix + "case-" + std::to_string(i) + ".lksnap";
}

bool write(const std::string &path, const std::vector<uint8_t> &bytes) {
    std::FILE *file = std::fopen(path.c_str(), "wb");
    return file && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size() &&
           std::fclose(file) == 0;
}

std::vector<uint8_t> read(const std::string &path) {
    std::vector<uint8_t> bytes(1 << 18);
    std::FILE *file = std::fopen(path.c_str(), "rb");
    bytes.resize(file ? std::fread(bytes.data(), 1, bytes.size(), file) : 0);
    if (file)
        (void)std::fclose(file);
    return bytes;
}

// A file as what it is saved again as.
std::vector<uint8_t> renewed(lk_context *context, uint32_t which, const std::string &path) {
    SnapshotCase own(context, which);
    lk_sequence ids[kCaseSequences];
    if (lk_snapshot_load_file(own.cache(), nullptr, path.c_str(), kCaseSequences, ids, nullptr) !=
        LK_OK)
        return {};
    return own.save();
}

bool check(lk_context *context, const char *folder, uint32_t i, const std::vector<uint8_t> &bytes) {
    const std::string path = path_of(folder, "", i);
    const std::string old = path_of(folder, "v1-", i);
    const bool is_same = read(path) == bytes && renewed(context, i, path) == bytes;
    const bool is_renewed = i >= kVersion1Cases || renewed(context, i, old) == bytes;
    if (!is_same || !is_renewed)
        std::fprintf(stderr, "%s differs\n", (is_same ? old : path).c_str());
    return is_same && is_renewed;
}

}  // namespace

int main(int argc, char **argv) {
    const bool checks = argc == 3 && !std::strcmp(argv[1], "--check");
    lk_context *context = nullptr;
    if (argc != 2 + checks || lk_context_open(nullptr, LK_ABI_VERSION, &context) != LK_OK)
        return 2;
    bool is_right = true;
    for (uint32_t i = 0; i < kSnapshotCases; ++i) {
        SnapshotCase own(context, i);
        own.fill();
        const std::vector<uint8_t> bytes = own.save();
        is_right =
            (checks ? check(context, argv[2], i, bytes) : write(path_of(argv[1], "", i), bytes)) &&
            is_right;
    }
    return lk_context_close(&context) == LK_OK && is_right ? 0 : 1;
}
