// Shrinking pages of a layer a step down its ladder: by packing where they are at 16 bits and by
// the equivalent right shift below. A uniform page stays where it is and gives the upper part of
// its slot back; a mixed one and one at 16 bits move, for which the budget keeps an extent.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_SHRINK_H
#define LK_CORE_PAGES_SHRINK_H

#include "core/memory/ledger.h"
#include "core/sequence/block_table.h"

namespace lk {

// A page on its way a step down, into another slot.
struct MovedPage {
    CacheBlock *block;
    PageEntry *entry;
    uint64_t target;
    uint16_t from;  // formats
    uint16_t to;
    bool is_value;

    uint16_t &page_format() const { return is_value ? entry->value_format : entry->key_format; }
    uint64_t &payload() const { return is_value ? entry->value_payload : entry->key_payload; }
    uint64_t metadata() const { return is_value ? entry->value_metadata : entry->key_metadata; }
};

// What a Shrinker has found; the cache keeps the memory.
struct ShrinkLists {
    explicit ShrinkLists(const Allocator &allocator)
        : runs(allocator),
          blocks(allocator),
          moved(allocator),
          left_slots(allocator),
          format_changes(allocator) {}

    // False without memory.
    bool reserve(size_t n_formats);

    Array<ShrinkItem> runs;
    Array<CacheBlock *> blocks;  // that have pages in `runs`
    Array<MovedPage> moved;
    Array<uint64_t> left_slots;     // that they moved from
    Array<int32_t> format_changes;  // [formats] pages more than before; zeros between two uses
};

// Pages of a layer are found first, then shrunk together. Those that stay in their slots are
// processed in runs of neighbours, and per page only the format index changes; those that move are
// listed.
class Shrinker {
  public:
    Shrinker(lk_cache *cache, uint32_t layer);

    // Find the layer's pages of a block that are above its rung. A block is searched once, though
    // forks list it several times: what was found keeps its format until flush(). As flush().
    lk_status add(CacheBlock *block);
    // Shrink what was found by a step. LK_E_BUDGET, LK_E_DEVICE: some of it is not.
    lk_status flush();
    uint32_t n_found() const { return n_found_; }
    uint32_t n_done() const { return n_done_; }
    // Are some of the pages above the rung even so?
    bool has_more() const { return has_more_; }

  private:
    bool shrinks(const PageEntry &entry, bool is_value) const;
    void add_staying(uint64_t payload, const ShrinkStep &step);
    void add_moving(CacheBlock *block, uint32_t index, bool is_value);
    uint64_t target_bytes(const MovedPage &page) const;
    uint32_t take_from_slabs(uint32_t first);
    lk_status take(uint32_t first, uint32_t *end);
    void queue(const MovedPage *first, const MovedPage *end);
    void count(const CacheBlock &block, uint16_t from, uint16_t to, uint32_t n);
    void count_changes();
    lk_status apply_staying();
    void apply_staying(CacheBlock *block);
    lk_status apply(const MovedPage *first, const MovedPage *end);
    lk_status run(const MovedPage *first, const MovedPage *end);
    lk_status flush_staying();
    uint32_t n_moving() const { return static_cast<uint32_t>(lists_.moved.size()); }

    lk_cache *cache_;
    ShrinkLists &lists_;
    const ShrinkStep *steps_;
    const LayerInfo &layer_;
    const uint32_t rung_;
    const uint64_t serial_;
    SpareScope spare_;
    uint32_t n_found_ = 0;
    uint32_t n_done_ = 0;
    bool has_more_ = false;
    uint64_t next_payload_ = 0;  // that would lengthen the last run
    uint16_t run_format_ = 0;    // its ShrinkStep::alike
};

}  // namespace lk

#endif
