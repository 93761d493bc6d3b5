// Blocks of pages, and the list of them that a sequence has: its block table.
//
// A block is the pages of all layers and KV heads of one range of tokens. Forks share blocks, which
// are counted by their holders.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_BLOCK_TABLE_H
#define LK_CORE_SEQUENCE_BLOCK_TABLE_H

#include "core/pages/formats.h"
#include "format/page.h"
#include "plan/footprint.h"

#include <lowkey/chunks.h>

namespace lk {

struct Sequence;

// A block with its entries after it in memory. Entries [0, n_packed) have their packed format; the
// others are at 16 bits. Only the packing of a full block moves n_packed, and a budget that ends in
// the middle leaves it there. The packed format is the one of the block's chunk_class.
//
// What a holder attends to in a block never changes: new tokens are written after those of every
// holder, else into a copy (copy_on_write.h), and a shared block is packed into another one, its
// packed copy (pack.h), which the holders take as their windows leave it.
struct CacheBlock : Block {
    uint32_t n_packed;
    uint32_t n_holders;      // sequences that list it, and steps that keep it for a discard
    uint32_t n_written;      // tokens that a holder has committed; of a block with several holders
    uint32_t counted_state;  // BlockState + 1 as layer_budgets.h counts it; 0 = not counted
    lk_chunk_class chunk_class;  // of its chunks; LK_CHUNK_NONE = packed as the plan has it
    uint64_t writer;             // Sequences::next_mark of the step that may write to its end
    uint64_t walk;               // Sequences::next_walk of the last walk over all blocks
    uint64_t shrinker;           // likewise of the shrinking that has its pages queued
    CacheBlock *packed_copy;     // the same tokens packed, null when no sequence has them
    CacheBlock *packed_from;     // of a packed copy: its source, null when that is gone
    uint64_t stats_digest;       // of a packed copy: of the query statistics that ranked it
};
static_assert(sizeof(CacheBlock) <= kBlockBytes, "blocks are counted in the budget");

// A block's slots when it is created. kLow, kMiddle and kHigh: as packed blocks of chunks have
// them.
enum class BlockKind { kSink, kRecent, kPackedOnAppend, kLow, kMiddle, kHigh };

lk_chunk_class chunk_class_of(BlockKind kind);

// Of the block at `index` that a step of n_new tokens adds.
BlockKind block_kind(const lk_cache *cache, const Sequence &sequence, uint64_t index,
                     uint64_t n_new);

// A block without slots for an index of a block table; end it with free_block(), which gives back
// the slots of its first n_entries. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status make_block(lk_cache *cache, uint64_t index, CacheBlock **out);
void free_block(lk_cache *cache, CacheBlock *block, uint32_t n_entries);

// A block with all its slots, of one holder. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE with nothing
// changed.
lk_status create_block(lk_cache *cache, uint64_t index, BlockKind kind, CacheBlock **out);
// One holder more, one fewer; the last one frees it.
void hold_block(lk_cache *cache, CacheBlock *block);
void release_block(lk_cache *cache, CacheBlock *block);
// The block's tokens are about to change: it is no packed copy and has none any more.
void unlink_packed_copy(CacheBlock *block);

// Are all its pages at 16 bits?
bool is_raw_block(const Formats &formats, const CacheBlock &block);
// Has a window freed some of its pages? Such a block is packed in full, and stays as it is.
bool has_absent_pages(const CacheBlock &block);
// May its formats change in place: is it of one sequence, with all of its pages?
bool may_replace(const CacheBlock &block);
// Bytes of the statistics that the block's pages count for.
uint64_t content_bytes(const Formats &formats, const CacheBlock &block);

static_assert(sizeof(Block *) == kLinkBytes, "block tables are counted in the budget");
// Make space for n_blocks in a sequence's block table, which counts what it has space for.
// LK_E_BUDGET, LK_E_NOMEM with nothing changed.
lk_status reserve_table(lk_cache *cache, Sequence *sequence, uint64_t n_blocks);
// Give back what the table has grown by beyond its blocks, where a shorter one can be had next to
// it.
void shorten_table(lk_cache *cache, Sequence *sequence);
// Add the next block to a sequence's block table, which has capacity for it. As create_block().
lk_status add_block(lk_cache *cache, Sequence *sequence, BlockKind kind);
// Release the blocks after the first n_blocks.
void drop_blocks(lk_cache *cache, Sequence *sequence, uint64_t n_blocks);

}  // namespace lk

#endif
