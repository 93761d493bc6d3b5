// Sequences and their rows of pages.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_H
#define LK_CORE_SEQUENCE_H

#include "core/scores.h"
#include "format/page.h"
#include "plan/footprint.h"

#include <lowkey/cache.h>

namespace lk {

// A row of pages with its entries behind it. Entries [0, n_packed) have their packed class; the
// others are at 16 bits. Only the packing of a full row moves n_packed, and a budget that ends in
// the middle leaves it there.
struct Row : PageRow {
    uint32_t n_packed;
};
static_assert(sizeof(Row) <= kRowBytes, "rows are counted in the budget");

struct Sequence {
    explicit Sequence(const Allocator &allocator) : rows(allocator), scores(allocator) {}

    lk_sequence id = 0;
    uint64_t length = 0;      // committed tokens
    uint64_t first_open = 0;  // rows before it are packed, sinks aside
    uint64_t mark = 0;        // the step_begin() that named it last
    Array<PageRow *> rows;    // all are Row
    Scores scores;

    Row *row(uint64_t i) { return static_cast<Row *>(rows[i]); }
};
static_assert(sizeof(Sequence) <= kSequenceBytes, "sequences are counted in the budget");

enum class RowKind { kSink, kRecent, kDirect };

// The sequence of an id, null when there is none.
Sequence *find_sequence(const lk_cache *cache, lk_sequence id);

RowKind row_kind(const lk_cache *cache, uint64_t row, uint64_t length, uint64_t n_new);

// Add the next row to a sequence, whose list of rows has room. LK_E_BUDGET, LK_E_NOMEM,
// LK_E_DEVICE with nothing changed.
lk_status add_row(lk_cache *cache, Sequence *sequence, RowKind kind);
// Free the rows behind the first n_rows.
void drop_rows(lk_cache *cache, Sequence *sequence, uint64_t n_rows);

void free_sequence(lk_cache *cache, Sequence *sequence);

// The 16-bit or packed slots of one entry. On failure nothing is taken.
lk_status take_entry(lk_cache *cache, uint32_t entry, RowKind kind, bool is_last_sink,
                     PageEntry *out);

}  // namespace lk

#endif
