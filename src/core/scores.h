// Sums of |Q| that rank the key channels of a page (LK_SCORE_QUERY_RANGE).
//
// A page is ranked by the queries of all tokens up to its own last one. So a sequence keeps one sum
// for all that packed rows have seen (the base) and a list of increments in token order: one for
// each row that is not packed yet, and one for the rows between them that a step wrote packed.
// Forks share them until one of them has new tokens or packs a row.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SCORES_H
#define LK_CORE_SCORES_H

#include "base/memory.h"

namespace lk {

class Scores {
  public:
    explicit Scores(const Allocator &allocator) : sums_(allocator), items_(allocator) {}

    // Room for a base and n_slots increments of n_channels channels; false without memory.
    bool open(uint32_t n_channels, uint64_t n_slots);
    // Be as another that was opened for the same numbers.
    void copy(const Scores &from);

    uint32_t n_holders = 1;

    size_t n_items() const { return items_.size(); }
    uint64_t item_row(size_t i) const { return items_[i].row; }
    const uint64_t *item_sums(size_t i) const { return array(items_[i].slot); }
    bool item_is_gap(size_t i) const { return items_[i].is_gap; }
    bool has_folded() const { return has_folded_; }
    // What a snapshot had, of an opened object without increments: the base, then increments in
    // ascending rows. false when there are more than slots.
    void restore_base(const void *sums, bool has_folded);
    bool restore_item(uint64_t row, bool is_gap, const void *sums);
    const uint64_t *base() const { return array(0); }

    // Add to what a row has seen. Rows of sinks go to the base.
    void add(uint64_t row, bool is_gap, const uint64_t *sums);
    void add_to_base(const uint64_t *sums);

    // Move the increments up to `row` of channels [first, first + n) into the base.
    const uint64_t *fold(uint64_t row, uint32_t first, uint32_t n);
    // Forget the increments up to `row`. Of channels whose pages came packed from a snapshot they
    // are not empty, and go to the base.
    void drop_folded(uint64_t row);

    // Rows from n_rows on are gone: what unpacked ones had seen goes with them.
    void truncate(uint64_t n_rows);
    // Everything is gone. Sums that packed pages folded in stay.
    void clear();

  private:
    struct Item {
        uint64_t row;
        uint32_t slot;
        bool is_gap;
    };
    uint64_t *array(uint32_t slot) { return sums_.data() + uint64_t{slot} * n_channels_; }
    const uint64_t *array(uint32_t slot) const {
        return sums_.data() + uint64_t{slot} * n_channels_;
    }
    uint32_t free_slot() const;
    void remove(size_t i);

    Array<uint64_t> sums_;  // [1 + n_slots][n_channels]
    Array<Item> items_;     // ascending rows
    uint32_t n_channels_ = 0;
    uint32_t n_slots_ = 0;
    bool has_folded_ = false;
};

}  // namespace lk

#endif
