// One page with its layout, as bytes: golden files, `lowkey inspect`, snapshots.
// docs/FORMAT.md, section 12.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_PAGEFILE_H
#define LK_FORMAT_PAGEFILE_H

#include "base/status.h"
#include "format/layout.h"

namespace lk {

constexpr uint64_t kPageFileHeaderBytes = 72;

// A page whose arrays have another owner.
struct PageFile {
    PageLayout layout;
    const uint8_t *payload;            // [payload_bytes(layout)]
    const uint8_t *metadata;           // [metadata_bytes(layout)], null when raw
    const uint8_t *fixed_permutation;  // permutation_bytes(), null for none
};

uint64_t page_file_bytes(const PageFile &file);

// Write page_file_bytes() bytes. The layout is valid.
void page_file_encode(const PageFile &file, uint8_t *bytes);

// Check untrusted bytes as a whole; then the arrays of *out point into them.
// LK_E_CORRUPT, or LK_E_MISMATCH for another format version; *out is not written on failure.
lk_status page_file_decode(const uint8_t *bytes, uint64_t n_bytes, PageFile *out);

// Check the permutation, ranges, minima and 16-bit values of a page, whatever its frame.
// LK_E_CORRUPT.
lk_status check_page_contents(const PageFile &half);
// Does it hold every channel once?
bool is_permutation(const uint8_t *permutation, uint32_t head_dim);

}  // namespace lk

#endif
