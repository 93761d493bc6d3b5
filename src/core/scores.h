// Sums of |Q| that rank the key channels of a page (LK_RANKING_QUERY_RANGE).
//
// A page is ranked by the queries of all tokens up to its own last one. So a sequence keeps one sum
// for all that packed rows have seen (the base) and a list of increments in token order: one for
// each row that is not packed yet, and one for the rows between them that a step wrote packed.
// Forks share them until one of them has new tokens or packs a row.
//
// The numbers lie in the device's memory. Which rows they are of is known here, and what is done
// with them is queued and runs in the order of the queue, so nothing waits for them. For the same
// reason sums are told apart by digests of what was added to them and not of what they are: digests
// add up as sums do, so they do not depend on how increments were folded.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SCORES_H
#define LK_CORE_SCORES_H

#include "backend/backend.h"
#include "base/memory.h"

namespace lk {

// Arithmetic on sums on its way to the device. What was queued by one call of Scores touches
// nothing that another one's items touch, unless the queue was flushed between them.
class SumQueue {
  public:
    explicit SumQueue(const Allocator &allocator) : items_(allocator) {}

    // Room for n items more, so that as many calls of add() hand over nothing.
    bool reserve(size_t n) { return items_.reserve(items_.size() + n); }
    void use(CacheDevice *device) { device_ = device; }
    // Hands over what is queued when there is no room. LK_E_DEVICE.
    lk_status add(const StatItem &item);
    // The same; neighbouring channels of the item before become one with it.
    lk_status add_neighbour(const StatItem &item);
    lk_status flush();
    // Drop what would write to these bytes.
    void forget(uint64_t address, uint64_t n_bytes);

  private:
    CacheDevice *device_ = nullptr;
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

class Scores {
  public:
    explicit Scores(const Allocator &allocator) : digests_(allocator), items_(allocator) {}

    static constexpr uint64_t bytes(uint32_t n_channels, uint64_t n_slots) {
        return (1 + n_slots) * n_channels * sizeof(uint64_t);
    }
    // A base, which is not set, and n_slots increments of n_channels channels; false without memory
    // for the list of them.
    bool open(uint32_t n_channels, uint64_t n_slots);
    // Where they lie, of bytes(); the caller's.
    void use(const SlabMemory &memory) { memory_ = memory; }
    const SlabMemory &memory() const { return memory_; }
    // Nothing was seen.
    lk_status start(SumQueue *queue);
    // Be as another that was opened for the same numbers.
    lk_status copy(const Scores &from, SumQueue *queue);

    uint32_t n_holders = 1;

    // Addresses of u64 [n_channels].
    uint64_t base() const { return array(0); }
    size_t n_items() const { return items_.size(); }
    uint64_t item_row(size_t i) const { return items_[i].row; }
    uint64_t item_sums(size_t i) const { return array(items_[i].slot); }
    bool item_is_gap(size_t i) const { return items_[i].is_gap; }
    bool has_folded() const { return has_folded_; }
    // Will increment i be there when rows from n_rows on are gone?
    bool keeps(size_t i, uint64_t n_rows) const {
        return items_[i].row < n_rows || items_[i].is_gap;
    }
    // Of all up to a row: equal sums of forks have equal ones.
    uint64_t digest(uint64_t row) const;

    // What a snapshot had, of an opened object without increments: the base, then increments in
    // ascending rows; the caller fills base() and item_sums(). false when there are more than
    // slots.
    void restore_base(const uint8_t *sums, bool has_folded);
    bool restore_item(uint64_t row, bool is_gap, const uint8_t *sums);

    // Add to what a row has seen. Rows of sinks go to the base.
    lk_status add(uint64_t row, bool is_gap, const Increment &increment, SumQueue *queue);
    lk_status add_to_base(const Increment &increment, SumQueue *queue);

    // Move the increments up to `row` of channels [first, first + n) into the base.
    lk_status fold(uint64_t row, uint32_t first, uint32_t n, SumQueue *queue);
    // Forget the increments up to `row`. Of channels whose pages came packed from a snapshot they
    // are not empty, and go to the base.
    lk_status drop_folded(uint64_t row, SumQueue *queue);

    // Rows from n_rows on are gone: what unpacked ones had seen goes with them.
    void truncate(uint64_t n_rows);
    // Everything is gone. Sums that packed pages folded in stay.
    lk_status clear(SumQueue *queue);

  private:
    struct Item {
        uint64_t row;
        uint32_t slot;
        bool is_gap;
    };
    uint64_t array_bytes() const { return n_channels_ * sizeof(uint64_t); }
    uint64_t array(uint32_t slot) const { return memory_.address + slot * array_bytes(); }
    lk_status add_to(uint32_t slot, bool replaces, const Increment &increment, SumQueue *queue);
    uint64_t digest_of(const uint8_t *sums) const;
    uint32_t free_slot() const;
    void remove(size_t i);

    SlabMemory memory_{};      // u64 [1 + n_slots][n_channels]
    Array<uint64_t> digests_;  // [1 + n_slots]
    Array<Item> items_;        // ascending rows
    uint32_t n_channels_ = 0;
    uint32_t n_slots_ = 0;
    bool has_folded_ = false;
};

}  // namespace lk

#endif
