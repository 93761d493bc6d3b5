// Sums of |Q| that rank the key channels of a page (LK_RANKING_QUERY_RANGE).
//
// A page is ranked by the queries of all tokens up to its own last one. So a sequence keeps one sum
// for the tokens of packed blocks (the base) and a list of increments in token order: one for
// each block that is not packed yet, and one for the blocks between them that a step wrote packed.
// Forks share them until one of them has new tokens or packs a block.
//
// The sums lie in the device's memory. Which blocks they are of is known here, and what is done
// with them is queued and runs in the order of the queue, so nothing waits for them. For the same
// reason sums are compared by digests of what was added to them and not of their values: digests
// add up as sums do, so they do not depend on how increments were folded.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_QUERY_STATS_H
#define LK_CORE_STEP_QUERY_STATS_H

#include "backend/backend.h"
#include "base/memory.h"

namespace lk {

// Arithmetic on sums on its way to the device. What was queued by one call of Scores touches
// nothing that another one's items touch, unless the queue was flushed between them.
class StatQueue {
  public:
    explicit StatQueue(const Allocator &allocator) : items_(allocator) {}

    // Reserves space for n items more, so that as many calls of add() hand over nothing.
    bool reserve(size_t n) { return items_.reserve(items_.size() + n); }
    void use(CacheDevice *device) { device_ = device; }
    // Hands over what is queued when the queue is full. LK_E_DEVICE.
    lk_status add(const StatItem &item);
    // The same; neighbouring channels of the item before become one with it.
    lk_status add_neighbour(const StatItem &item);
    lk_status flush();
    // Of the next increment: no other one has it.
    uint64_t next_serial() { return next_serial_++; }
    // Drop what would write to these bytes.
    void forget(uint64_t address, uint64_t n_bytes);

  private:
    CacheDevice *device_ = nullptr;
    uint64_t next_serial_ = 1;
    Array<StatItem> items_;
};

// What is added: the sum of arrays of a step.
struct Increment {
    uint64_t source;  // as of StatItem
    uint64_t mask;
    uint64_t stride_bytes;
    uint64_t serial;  // no other one has it
    bool follows;     // one before it that the same scores take from the same step
};

class QueryStats {
  public:
    explicit QueryStats(const Allocator &allocator) : digests_(allocator), items_(allocator) {}

    static constexpr uint64_t bytes(uint32_t n_channels, uint64_t n_slots) {
        return (1 + n_slots) * n_channels * sizeof(uint64_t);
    }
    // A base, which is not set, and n_slots increments of n_channels channels; false without memory
    // for the list of them.
    bool open(uint32_t n_channels, uint64_t n_slots);
    // Where they lie, of bytes(); the caller's.
    void use(const SlabMemory &memory) { memory_ = memory; }
    const SlabMemory &memory() const { return memory_; }
    // Begin with a base of zeros.
    lk_status start(StatQueue *queue);
    // Become a copy of another that was opened with the same counts.
    lk_status copy(const QueryStats &from, StatQueue *queue);

    uint32_t n_holders = 1;

    // Addresses of u64 [n_channels].
    uint64_t base() const { return array(0); }
    size_t n_items() const { return items_.size(); }
    uint64_t item_block(size_t i) const { return items_[i].block; }
    uint64_t item_stats(size_t i) const { return array(items_[i].slot); }
    bool item_is_gap(size_t i) const { return items_[i].is_gap; }
    bool has_folded() const { return has_folded_; }
    // Will increment i be there when blocks from n_blocks on are gone?
    bool keeps(size_t i, uint64_t n_blocks) const {
        return items_[i].block < n_blocks || items_[i].is_gap;
    }
    // Of all up to a block: equal sums of forks have equal ones.
    uint64_t digest(uint64_t block) const;

    // What a snapshot had, of an opened object without increments: the base, then increments in
    // ascending blocks; the caller fills base() and item_sums(). false when there are more than
    // slots.
    void restore_base(const uint8_t *stats, bool has_folded);
    bool restore_item(uint64_t block, bool is_gap, const uint8_t *stats);

    // Add to the increment of a block. Blocks of sinks go to the base.
    lk_status add(uint64_t block, bool is_gap, const Increment &increment, StatQueue *queue);
    lk_status add_to_base(const Increment &increment, StatQueue *queue);

    // Move the increments up to `block` of channels [first, first + n) into the base.
    lk_status fold(uint64_t block, uint32_t first, uint32_t n, StatQueue *queue);
    // Forget the increments up to `block`. Of channels whose pages came packed from a snapshot they
    // are not empty, and go to the base.
    lk_status drop_folded(uint64_t block, StatQueue *queue);

    // Blocks from n_blocks on are gone: the increments of unpacked ones go with them.
    void truncate(uint64_t n_blocks);
    // Everything is gone. Sums that packed pages folded in stay.
    lk_status clear(StatQueue *queue);

  private:
    struct Item {
        uint64_t block;
        uint32_t slot;
        bool is_gap;
    };
    uint64_t array_bytes() const { return n_channels_ * sizeof(uint64_t); }
    uint64_t array(uint32_t slot) const { return memory_.address + slot * array_bytes(); }
    lk_status add_to(uint32_t slot, bool replaces, const Increment &increment, StatQueue *queue);
    uint64_t digest_of(const uint8_t *stats) const;
    uint32_t free_slot() const;
    void remove(size_t i);

    SlabMemory memory_{};      // u64 [1 + n_slots][n_channels]
    Array<uint64_t> digests_;  // [1 + n_slots]
    Array<Item> items_;        // ascending blocks
    static_assert(sizeof(Item) + sizeof(uint64_t) <= 32, "counted in the budget for each slot");
    uint32_t n_channels_ = 0;
    uint32_t n_slots_ = 0;
    bool has_folded_ = false;
};
static_assert(sizeof(QueryStats) <= 128, "query statistics are counted in the budget");

}  // namespace lk

#endif
