// Page formats, entries and blocks, as core builds them and backends read them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_PAGE_H
#define LK_FORMAT_PAGE_H

#include "format/quantize.h"

namespace lk {

enum class Ranking : uint8_t { kNone, kKey, kQueryRange };

// Everything about a page but its bytes. A cache has a table of these.
struct PageFormat {
    PageLayout layout;
    const uint8_t *permutation;  // permutation_bytes(), fixed; null = identity, or the page's
    Ranking ranking;             // how the page's own permutation is chosen
    uint16_t n_ranked;           // channels that it boosts
    RangeRule ranges = {};
};

// The K page and the V page of one layer and KV head of a block. Addresses are the device's.
struct PageEntry {
    uint64_t key_payload;
    uint64_t key_metadata;
    uint64_t value_payload;
    uint64_t value_metadata;
    uint16_t key_format;  // index into the cache's table of formats
    uint16_t value_format;
    uint32_t is_absent;  // freed: not visible to any query. Addresses are 0, formats as before
};
static_assert(sizeof(PageEntry) == 40, "blocks are counted in the budget");

// Tokens [first_token, first_token + capacity_tokens) of a sequence, for all layers and heads.
struct Block {
    uint64_t first_token;
    uint32_t capacity_tokens;
    uint32_t n_entries;           // sum over layers of KV heads
    PageEntry *entries;           // [n_entries], layer-major
    uint64_t device_entries;      // the backend's copy of them, 0 on the CPU
    int32_t is_packed_on_append;  // written at its packed format by the open step
    int32_t is_stale;             // the backend's copy is older than the entries
};

}  // namespace lk

#endif
