// Chunks of a context that have classes (Cocktail): a class is chosen for each row of pages, so the
// tokens of a row are of chunks of one class, gathered from where they were.
//
// Attention does not depend on the order of committed tokens, so only chunks know that they were
// moved. A *place* is where a chunk lies, counted in chunks from the first row behind the sinks;
// the first rows have a class each, those behind them are at 16 bits, as are all tokens behind the
// chunks, which lie at their positions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_H
#define LK_CORE_CHUNKS_H

#include "base/memory.h"
#include "plan/plan.h"

#include <lowkey/chunks.h>

namespace lk {

struct Sequence;

// How chunks and rows fit. A chunk is a part of a row, a row or several rows.
struct ChunkShape {
    explicit ChunkShape(const Plan &plan);

    uint32_t chunk_tokens;
    uint32_t row_tokens;
    uint32_t block_chunks;  // of a row, at least 1
    uint32_t chunk_rows;    // of a chunk, at least 1

    // Where a place begins: the row behind the sinks, and the token in it.
    uint64_t row_of_place(uint64_t place) const { return place * chunk_tokens / row_tokens; }
    uint32_t token_of_place(uint64_t place) const {
        return static_cast<uint32_t>(place * chunk_tokens % row_tokens);
    }
};

// What a chunk is kept at: lk_chunk_class, or this. Ascending widths.
constexpr uint8_t kAt16Bits = 4;

// Which chunk lies where.
struct Chunks {
    explicit Chunks(const Allocator &allocator) : order(allocator), assigned(allocator) {}

    uint32_t size() const { return static_cast<uint32_t>(order.size()); }

    Array<uint32_t> order;    // by place: the chunk; a permutation
    Array<uint8_t> assigned;  // by chunk: the class that the host gave it
    uint64_t counted_bytes = 0;
};

// Chunks as they lie and what they shall be kept at, and how they lie then. Rows that stay as they
// are come first in their class, then new rows of the chunks that are left. Where these do not
// fill a row, the best of them are kept one class wider; without scores the last ones.
class ChunkLayout {
  public:
    explicit ChunkLayout(const Allocator &allocator)
        : order(allocator), kept_at(allocator), wanted(allocator), row_classes(allocator) {}

    // Make room for n chunks. False without memory.
    bool open(uint32_t n_chunks);
    // LK_E_NOMEM.
    lk_status arrange(const ChunkShape &shape, bool reorders, const float *scores,
                      const Allocator &allocator);

    // In: as they lie.
    Array<uint32_t> order;   // by place: the chunk
    Array<uint8_t> kept_at;  // by chunk
    // In and out: what they shall be kept at, and are, by chunk; 0 = it goes.
    Array<uint8_t> wanted;
    // Out: `order`, and the classes of the first rows.
    Array<uint8_t> row_classes;
};

// The first row that the plan's own packing may take: behind chunks that have classes; none while
// tokens are held at 16 bits.
uint64_t first_to_pack(const lk_cache *cache, const Sequence &sequence);
// Pack the oldest rows of sequences that are deferred and allow it; *n_done is raised.
lk_status pack_deferred(lk_cache *cache, uint32_t *n_done);

// Counted in the budget by chunks_bytes(). LK_E_BUDGET, LK_E_NOMEM.
lk_status make_chunks(lk_cache *cache, uint32_t n_chunks, Chunks **out);
void release_chunks(lk_cache *cache, Chunks *chunks);

// Tokens of a row that a sequence has.
struct TokenRun {
    uint64_t row;
    uint32_t first;
    uint32_t n_tokens;
    bool is_original;  // of the context as it came (retain.h), not as it lies
};
// Lay a sequence's chunks out anew, `tail` behind them, and drop the rows behind n_tokens. `chunks`
// takes the place of the sequence's; its order is filled in. New rows are made beside the old ones,
// which go when all are there: on failure nothing has changed. LK_E_BUDGET, LK_E_NOMEM,
// LK_E_DEVICE.
lk_status lay_chunks(lk_cache *cache, Sequence *sequence, const ChunkLayout &layout,
                     const Array<TokenRun> &tail, Chunks *chunks, uint64_t n_tokens);

// Chunks as they lie, n_chunks of them: those behind the sequence's own are in order and at 16
// bits. LK_E_NOMEM.
lk_status read_chunks(const lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                      ChunkLayout *layout);
// The sequence is cut within chunks that were reordered: its rows and chunks become those of
// n_tokens tokens. As lay_chunks().
bool cuts_chunks(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);
lk_status cut_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
// Chunks in order, or all of them: forget those that are gone with a length of n_tokens.
void trim_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
// What a fork has. LK_E_BUDGET, LK_E_NOMEM.
lk_status copy_chunks(lk_cache *cache, const Sequence &from, Sequence *to);

}  // namespace lk

#endif
