// The library's side of comparisons with the readers in tests/second_opinion:
//   page-tool values FILE       FP32 bits of the values, then codes, u32 [page_tokens][head_dim]
//   each, by
//                               channel
//   page-tool pack CASE SEED    the page file of a golden case with another seed
//   page-tool shrink FILE       the page file after its only plane has gone one step down; 16 bits
//                               are taken as integer codes, and ranges and minima are then zero
// on standard output.
//
// SPDX-License-Identifier: Apache-2.0
#include "cases.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace lk;

namespace {

bool write(const void *data, size_t bytes) { return std::fwrite(data, 1, bytes, stdout) == bytes; }

int print_values(const char *path) {
    const std::vector<uint8_t> bytes = lk_test::read_file(path);
    PageFile file;
    if (page_file_decode(bytes.data(), bytes.size(), &file) != LK_OK) {
        std::fprintf(stderr, "%s: %s\n", path, last_sentence());
        return 1;
    }
    const PageLayout &layout = file.layout;
    const size_t n = size_t{layout.page_tokens} * layout.head_dim;
    std::vector<uint32_t> out(2 * n);
    for (uint32_t slot = 0; slot < layout.head_dim; ++slot)
        for (uint32_t token = 0; token < layout.page_tokens; ++token) {
            const size_t i = size_t{token} * layout.head_dim +
                             channel_of(layout, file.metadata, file.fixed_permutation, slot);
            out[i] = float_to_bits(unpack_value(layout, file.payload, file.metadata, slot, token));
            out[n + i] = read_code(layout, file.payload, slot, token);
        }
    return !write(out.data(), out.size() * sizeof out[0]);
}

int print_packed(const char *name, const char *seed) {
    const lk_test::Case *c = lk_test::find_case(name);
    if (!c) {
        std::fprintf(stderr, "no case %s\n", name);
        return 1;
    }
    const std::vector<uint8_t> bytes =
        lk_test::pack_case(*c, static_cast<uint32_t>(std::strtoul(seed, nullptr, 10))).file();
    return !write(bytes.data(), bytes.size());
}

// 16 -> 8 -> 4 -> 2; kPlaneCount when the layout has no single plane that shrinks.
Plane next_plane(const PageLayout &layout, Plane *from) {
    const uint32_t whole = layout.head_dim / LK_STRIP_CHANNELS;
    for (const Plane plane : {kPlane16, kPlane8, kPlane4})
        if (layout.strips[plane] == whole) {
            *from = plane;
            return plane == kPlane4 ? kPlane2 : static_cast<Plane>(plane + 1);
        }
    return kPlaneCount;
}

int print_shrunk(const char *path) {
    const std::vector<uint8_t> bytes = lk_test::read_file(path);
    PageFile file;
    Plane from = kPlaneCount;
    if (page_file_decode(bytes.data(), bytes.size(), &file) != LK_OK ||
        next_plane(file.layout, &from) == kPlaneCount) {
        std::fprintf(stderr, "%s: no page that shrinks\n", path);
        return 1;
    }
    const Plane to = next_plane(file.layout, &from);
    const PageLayout wide = file.layout;
    lk_test::Packed page;
    page.layout = wide;
    page.layout.strips[to] = wide.strips[from];
    page.layout.strips[from] = 0;
    const uint32_t wide_bytes = strip_bytes(wide.page_tokens, kPlaneBits[from]);
    const uint32_t narrow_bytes = strip_bytes(wide.page_tokens, kPlaneBits[to]);
    for (uint32_t strip = 0; strip < wide.strips[from]; ++strip) {
        std::vector<uint32_t> words(wide_bytes / 4);
        std::memcpy(words.data(), file.payload + find_strip(wide, strip).offset, wide_bytes);
        shrink_strip(words.data(), wide.page_tokens, kPlaneBits[to]);
        const auto *merged = reinterpret_cast<const uint8_t *>(words.data());
        page.payload.insert(page.payload.end(), merged, merged + narrow_bytes);
    }
    page.metadata.resize(metadata_bytes(page.layout));
    if (file.metadata)
        page.metadata.assign(file.metadata, file.metadata + metadata_bytes(wide));
    if (file.fixed_permutation)
        page.permutation.assign(file.fixed_permutation,
                                file.fixed_permutation + permutation_bytes(wide.head_dim));
    const std::vector<uint8_t> out = page.file();
    return !write(out.data(), out.size());
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 3 && std::strcmp(argv[1], "values") == 0)
        return print_values(argv[2]);
    if (argc == 4 && std::strcmp(argv[1], "pack") == 0)
        return print_packed(argv[2], argv[3]);
    if (argc == 3 && std::strcmp(argv[1], "shrink") == 0)
        return print_shrunk(argv[2]);
    std::fprintf(stderr, "usage: page-tool values FILE | pack CASE SEED | shrink FILE\n");
    return 2;
}
