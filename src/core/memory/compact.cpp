// With pages coming, shrinking and going, extents may each be used in part. When the budget ends,
// their slots are moved together, until a family of sizes has at most one free slot of every size
// but the largest, and holds no more extents than its slots fill.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/compact.h"

#include <algorithm>

#include "core/cache.h"

namespace lk {

namespace {

// A slot, the entry that has its address, and its new address.
struct Move {
    Block *block;
    uint64_t *address;
    uint64_t target;
    size_t order;  // in which it was found; addresses differ from run to run
};

class Compaction {
  public:
    explicit Compaction(lk_cache *cache)
        : cache_(cache),
          merges_(cache->context->allocator),
          spans_(cache->context->allocator),
          moves_(cache->context->allocator),
          copies_(cache->context->allocator) {}

    bool merge(uint32_t family, uint32_t level);
    void empty(uint32_t family);
    bool vacate();
    bool has_moved() const { return has_moved_; }

  private:
    bool find();
    void find_address(Block *block, uint64_t *address);
    void put_in_order();
    bool carry_out();

    lk_cache *cache_;
    Array<SlotMerge> merges_;
    Array<SlotSpan> spans_;  // ascending, that are to be emptied
    Array<Move> moves_;
    Array<ShrinkItem> copies_;
    bool fits_ = true;
    bool has_moved_ = false;
};

void Compaction::find_address(Block *block, uint64_t *address) {
    const SlotSpan *span =
        std::upper_bound(spans_.begin(), spans_.end(), *address,
                         [](uint64_t a, const SlotSpan &s) { return a < s.first; });
    if (span != spans_.begin() && *address < span[-1].first + span[-1].bytes)
        fits_ = moves_.push({block, address, 0, moves_.size()}) && fits_;
}

// The slots in spans_, ascending.
bool Compaction::find() {
    moves_.clear();
    cache_->sequences.for_each_block([this](CacheBlock *block) {
        for (uint32_t e = 0; e < block->n_entries; ++e) {
            PageEntry &entry = block->entries[e];
            for (uint64_t *address : {&entry.key_payload, &entry.key_metadata, &entry.value_payload,
                                      &entry.value_metadata})
                find_address(block, address);
        }
    });
    const auto is_lower = [](const Move &a, const Move &b) { return *a.address < *b.address; };
    std::sort(moves_.begin(), moves_.end(), is_lower);
    return fits_;
}

void Compaction::put_in_order() {
    std::sort(moves_.begin(), moves_.end(),
              [](const Move &a, const Move &b) { return a.order < b.order; });
}

// Copy what has a target, and let its blocks know.
bool Compaction::carry_out() {
    copies_.clear();
    bool is_done = true;
    for (const Move &move : moves_)
        if (move.target)
            is_done = copies_.push(copy_item(*move.address, move.target,
                                             cache_->slots.bytes_at(*move.address))) &&
                      is_done;
    is_done = is_done && cache_->device->shrink(copies_.data(),
                                                static_cast<uint32_t>(copies_.size())) == LK_OK;
    for (const Move &move : moves_) {
        if (!move.target)
            continue;
        cache_->slots.give(is_done ? *move.address : move.target);
        if (!is_done)
            continue;
        *move.address = move.target;
        has_moved_ = true;
        (void)cache_->device->entries_changed(move.block);
    }
    return is_done;
}

// Make free slots of the level before out of pairs of this one. False when there is none.
bool Compaction::merge(uint32_t family, uint32_t level) {
    merges_.clear();
    if (!cache_->slots.find_merges(family, level, &merges_) || merges_.empty())
        return false;
    std::sort(merges_.begin(), merges_.end(),
              [](const SlotMerge &a, const SlotMerge &b) { return a.from.first < b.from.first; });
    spans_.clear();
    for (const SlotMerge &merge : merges_)
        fits_ = spans_.push(merge.from) && fits_;
    if (!fits_ || !find())
        return false;
    size_t at = 0;
    bool has_targets = false;
    for (const SlotMerge &merge : merges_) {
        const size_t first = at;
        while (at < moves_.size() && *moves_[at].address < merge.from.first + merge.from.bytes)
            ++at;
        if (at - first != merge.from.n_used)  // some are about to be given to a block
            continue;
        for (size_t i = first; i < at; ++i) {
            const uint64_t address = *moves_[i].address;
            moves_[i].target = merge.to + (address - merge.from.first);
            has_targets = true;
        }
    }
    put_in_order();
    for (const Move &move : moves_)
        if (move.target)
            cache_->slots.claim(move.target, cache_->slots.bytes_at(*move.address));
    return has_targets && carry_out();
}

void Compaction::empty(uint32_t family) {
    SlotSpan span;
    while (cache_->slots.hide_sparsest(family, &span)) {
        spans_.clear();
        if (!spans_.push(span) || !find() || moves_.size() != span.n_used)
            continue;
        put_in_order();
        for (Move &move : moves_)
            if (!cache_->slots.take_existing(cache_->slots.bytes_at(*move.address), &move.target))
                break;
        if (!carry_out())
            break;
    }
    cache_->slots.show_hidden(family);
}

// All slots of a slab go to other ones, or none.
bool Compaction::vacate() {
    SlotSpan span;
    if (!cache_->slots.close_slab(&span))
        return false;
    const SpareScope spends(&cache_->ledger);
    spans_.clear();
    bool is_done = spans_.push(span) && find() && moves_.size() == span.n_used;
    put_in_order();
    for (Move &move : moves_)
        is_done =
            is_done && !cache_->slots.take(cache_->slots.bytes_at(*move.address), &move.target);
    if (is_done)
        is_done = carry_out();
    else
        for (const Move &move : moves_)
            cache_->slots.give(move.target);
    cache_->slots.open_slab();
    return is_done;
}

}  // namespace

bool vacate_slab(lk_cache *cache) { return Compaction(cache).vacate(); }

bool compact(lk_cache *cache) {
    Compaction compaction(cache);
    for (uint32_t family = 0; family < cache->slots.n_families(); ++family) {
        for (uint32_t level = cache->slots.n_levels(family) - 1; level; --level)
            while (compaction.merge(family, level)) {}
        compaction.empty(family);
    }
    return compaction.has_moved();
}

}  // namespace lk
