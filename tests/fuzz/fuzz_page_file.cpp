// Page files from untrusted bytes: no crash; what is accepted can be unpacked whole, and is written
// again to the same bytes. Since hashes keep random bytes out, each input is tried a second time
// with its hashes made to fit.
//
// SPDX-License-Identifier: Apache-2.0
#include "format/codec.h"
#include "format/pagefile.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <vector>

using namespace lk;

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

void seal(std::vector<uint8_t> *bytes) {
    uint8_t *header = bytes->data();
    const uint64_t body =
        XXH3_64bits(header + kPageFileHeaderBytes, bytes->size() - kPageFileHeaderBytes);
    std::memcpy(header + 56, &body, sizeof body);
    std::memset(header + 64, 0, 8);
    const uint64_t whole = XXH3_64bits(header, kPageFileHeaderBytes);
    std::memcpy(header + 64, &whole, sizeof whole);
}

void unpack_whole(const PageFile &file) {
    const PageLayout &layout = file.layout;
    std::vector<uint16_t> values(size_t{layout.page_tokens} * layout.head_dim);
    unpack_page(layout, file.payload, file.metadata, file.fixed_permutation, layout.page_tokens,
                values.data(), layout.head_dim);
    for (const uint16_t value : values)
        require(half_is_finite(value));
}

void check(const uint8_t *data, size_t size) {
    PageFile file;
    const lk_status status = page_file_decode(data, size, &file);
    if (status != LK_OK) {
        require((status == LK_E_CORRUPT || status == LK_E_MISMATCH) && last_sentence()[0]);
        return;
    }
    require(page_file_bytes(file) == size);
    std::vector<uint8_t> again(size);
    page_file_encode(file, again.data());
    require(std::memcmp(again.data(), data, size) == 0);
    unpack_whole(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check(data, size);
    if (size < kPageFileHeaderBytes)
        return 0;
    std::vector<uint8_t> sealed(data, data + size);
    seal(&sealed);
    check(sealed.data(), sealed.size());
    return 0;
}
