// Sequences and their rows of pages.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_H
#define LK_CORE_SEQUENCE_H

#include "core/chunks.h"
#include "core/scores.h"
#include "format/page.h"
#include "plan/footprint.h"

#include <lowkey/chunks.h>

namespace lk {

// A row of pages with its entries behind it. Entries [0, n_packed) have their packed class; the
// others are at 16 bits. Only the packing of a full row moves n_packed, and a budget that ends in
// the middle leaves it there. The packed class is the one that the row's chunk_class asks for.
//
// Forks share rows. What a holder sees of a row never changes: new tokens go behind those that any
// holder has, else into a copy (tail.cpp), and a shared row is packed into another, its twin
// (pack.cpp), which the holders take as their windows leave it.
struct Row : Block {
    uint32_t n_packed;
    uint32_t n_holders;  // sequences that list it, and steps that keep it for a discard
    uint32_t n_written;  // tokens that a holder has committed; of a row with several holders
    lk_chunk_class chunk_class;  // of its chunks; LK_CHUNK_NONE = packed as the plan has it
    uint64_t writer;             // lk_cache::next_mark of the step that may write behind them
    uint64_t walk;               // lk_cache::next_walk of the last walk over all rows
    uint64_t shrinker;           // likewise of the shrinking that has its halves queued
    Row *packed_twin;            // the same tokens packed, null when no sequence has them
    Row *recent_twin;  // of a twin: the row that it was packed from, null when that is gone
    uint64_t sums;     // of a twin: digest of the sums of |Q| that ranked its channels
};
static_assert(sizeof(Row) <= kBlockBytes, "rows are counted in the budget");

struct Watch;

struct Originals;
struct Sequence {
    explicit Sequence(const Allocator &allocator) : rows(allocator) {}

    lk_sequence id = 0;
    uint64_t length = 0;                // committed tokens
    uint64_t first_open = 0;            // rows before it are packed, sinks aside
    uint64_t first_windowed = 0;        // rows before it have nothing more for windows to leave
    uint64_t mark = 0;                  // the step_begin() that named it last
    Array<Block *> rows;                // all are Row
    Scores *scores = nullptr;           // null when no channels are ranked by queries
    uint64_t scores_rows = UINT64_MAX;  // rows that its scores are still to be cut to
    Watch *watch = nullptr;             // of lk_chunks_score_attention()
    lk_defer deferral = LK_DEFER_OFF;
    uint64_t retain_bytes = 0;       // of originals in host memory, at most
    Originals *originals = nullptr;  // null without
    uint32_t n_retained = 0;         // chunks that they are of
    Chunks *chunks = nullptr;        // null until classes are assigned

    Row *row(uint64_t i) { return static_cast<Row *>(rows[i]); }
};
static_assert(sizeof(Sequence) <= kSequenceBytes, "sequences are counted in the budget");

// A row's slots when it is created. kLow, kMiddle and kHigh: as packed rows of chunks have them.
enum class RowKind { kSink, kRecent, kDirect, kLow, kMiddle, kHigh };

lk_chunk_class chunk_class_of(RowKind kind);

// The sequence of an id, null when there is none.
Sequence *find_sequence(const lk_cache *cache, lk_sequence id);

// Of a row that a step of n_new tokens adds.
RowKind row_kind(const lk_cache *cache, const Sequence &sequence, uint64_t row, uint64_t n_new);

// A row with all its slots, of one holder. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE with nothing
// changed.
lk_status create_row(lk_cache *cache, uint64_t index, RowKind kind, Row **out);
// One holder more, one less; the last one frees it. The budget counts a link for each but one.
constexpr uint64_t kLinkBytes = sizeof(Block *);
void hold_row(lk_cache *cache, Row *row);
void release_row(lk_cache *cache, Row *row);
// The row's tokens are about to change: it is no one's twin any more.
void part_twins(Row *row);
// Are all its halves at 16 bits?
bool is_raw_row(const lk_cache *cache, const Row &row);
// Bytes of the statistics that the row's halves count for.
uint64_t content_bytes(const lk_cache *cache, const Row &row);

// Add the next row to a sequence, whose list of rows has room. As create_row().
lk_status add_row(lk_cache *cache, Sequence *sequence, RowKind kind);
// A row of a sequence's list without slots; end it with free_row(), which gives back those of its
// first n_entries. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status make_row(lk_cache *cache, uint64_t index, Row **out);
void free_row(lk_cache *cache, Row *row, uint32_t n_entries);
// Let go of the rows behind the first n_rows.
void drop_rows(lk_cache *cache, Sequence *sequence, uint64_t n_rows);

// Keep its first n_tokens tokens, as lk_sequence_truncate(); no step is open and the queue is not
// captured.
lk_status cut_sequence(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);

// Enter it into the cache's list with a fresh id. LK_E_BUDGET, LK_E_NOMEM: it is the caller's.
lk_status enter_sequence(lk_cache *cache, Sequence *sequence);
void free_sequence(lk_cache *cache, Sequence *sequence);
// Take it out of the cache's list and free it.
void leave_sequence(lk_cache *cache, Sequence *sequence);

// Scores (scores.h) are shared by forks as well. Fresh ones, which are to be started, copied or
// restored. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status make_scores(lk_cache *cache, Scores **out);
void release_scores(lk_cache *cache, Scores *scores);
// Forget what rows from n_rows on had seen, now or when the sequence has scores of its own.
lk_status cut_scores(lk_cache *cache, Sequence *sequence, uint64_t n_rows);
// Give the sequence scores of its own. The shared ones go to *borrowed, which holds them, or are
// let go of when it is null. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE with nothing changed.
lk_status own_scores(lk_cache *cache, Sequence *sequence, Scores **borrowed);

// What a half of some class takes.
struct HalfNeed {
    uint16_t page_format;
    uint64_t payload;  // slot sizes, 0 = none
    uint64_t metadata;
};
struct HalfInfo;
struct EntryInfo;
HalfNeed need_of(const HalfInfo &half, bool is_direct);
// Of a half that may be at 16 bits too and is of this packed class.
HalfNeed packed_need_of(const lk_cache *cache, const HalfInfo &half, uint16_t packed);
// Of a packed row: of chunks, or with LK_CHUNK_NONE as the plan has it.
HalfNeed packed_need(const lk_cache *cache, const EntryInfo &info, bool is_value,
                     lk_chunk_class chunk_class);
HalfNeed sink_need(const lk_cache *cache, uint16_t page_format);
// Slots for both halves of an entry. On failure nothing is taken.
lk_status take_halves(lk_cache *cache, const HalfNeed &key, const HalfNeed &value, PageEntry *out);
// Give back the slots of an entry.
void give_entry(lk_cache *cache, const PageEntry &entry);
// Sliding windows (window.cpp). Give back the entries that later queries do not see, of packed rows
// that no other sequence has.
void free_hidden_pages(lk_cache *cache, Sequence *sequence);
// Has a window taken some of them? Such a row is packed in full, and stays as it is.
bool lacks_pages(const Row &row);
// May it take another class where it is: is it of one sequence, and does it lack no pages?
bool may_remake(const Row &row);
// Are the entries there that queries behind n_tokens tokens see? LK_E_UNSUPPORTED.
lk_status check_pages(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);

// The 16-bit or packed slots of one entry. On failure nothing is taken.
lk_status take_entry(lk_cache *cache, uint32_t entry, RowKind kind, bool is_last_sink,
                     PageEntry *out);

}  // namespace lk

#endif
