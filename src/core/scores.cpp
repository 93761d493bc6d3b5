// SPDX-License-Identifier: Apache-2.0
#include "core/scores.h"

namespace lk {

namespace {

void add_all(uint64_t *to, const uint64_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        to[i] += from[i];
}

}  // namespace

bool Scores::open(uint32_t n_channels, uint64_t n_slots) {
    n_channels_ = n_channels;
    n_slots_ = static_cast<uint32_t>(n_slots);
    return sums_.resize((1 + n_slots) * n_channels) && items_.reserve(n_slots);
}

void Scores::copy(const Scores &from) {
    (void)sums_.assign(from.sums_.data(), from.sums_.size());
    (void)items_.assign(from.items_.data(), from.items_.size());
    has_folded_ = from.has_folded_;
}

// 0, the base, when all are taken.
uint32_t Scores::free_slot() const {
    for (uint32_t slot = 1; slot <= n_slots_; ++slot) {
        bool is_free = true;
        for (const Item &item : items_)
            is_free = is_free && item.slot != slot;
        if (is_free)
            return slot;
    }
    return 0;
}

void Scores::add_to_base(const uint64_t *sums) { add_all(array(0), sums, n_channels_); }

void Scores::add(uint64_t row, bool is_gap, const uint64_t *sums) {
    size_t place = items_.size();
    while (place && items_[place - 1].row > row)
        --place;
    if (place && items_[place - 1].row == row) {
        add_all(array(items_[place - 1].slot), sums, n_channels_);
        return;
    }
    const uint32_t slot = free_slot();
    if (!slot) {
        add_all(array(place ? items_[place - 1].slot : 0), sums, n_channels_);
        return;
    }
    std::memcpy(array(slot), sums, n_channels_ * sizeof *sums);
    items_.push({row, slot, is_gap});
    for (size_t i = items_.size() - 1; i > place; --i)
        items_[i] = items_[i - 1];
    items_[place] = {row, slot, is_gap};
}

const uint64_t *Scores::fold(uint64_t row, uint32_t first, uint32_t n) {
    has_folded_ = true;
    for (const Item &item : items_) {
        if (item.row > row)
            break;
        uint64_t *sums = array(item.slot) + first;
        add_all(array(0) + first, sums, n);
        std::memset(sums, 0, n * sizeof *sums);
    }
    return array(0) + first;
}

void Scores::drop_folded(uint64_t row) {
    size_t n = 0;
    for (; n < items_.size() && items_[n].row <= row; ++n)
        add_all(array(0), array(items_[n].slot), n_channels_);
    for (; n; --n)
        remove(0);
}

void Scores::restore_base(const void *sums, bool has_folded) {
    std::memcpy(array(0), sums, n_channels_ * sizeof(uint64_t));
    has_folded_ = has_folded;
}

bool Scores::restore_item(uint64_t row, bool is_gap, const void *sums) {
    const uint32_t slot = free_slot();
    if (!slot)
        return false;
    std::memcpy(array(slot), sums, n_channels_ * sizeof(uint64_t));
    return items_.push({row, slot, is_gap});
}

void Scores::remove(size_t i) {
    for (++i; i < items_.size(); ++i)
        items_[i - 1] = items_[i];
    items_.pop();
}

void Scores::truncate(uint64_t n_rows) {
    for (size_t i = items_.size(); i; --i)
        if (items_[i - 1].row >= n_rows && !items_[i - 1].is_gap)
            remove(i - 1);
}

void Scores::clear() {
    truncate(0);
    if (!has_folded_ && n_channels_)
        std::memset(static_cast<void *>(sums_.data()), 0, n_channels_ * sizeof(uint64_t));
}

}  // namespace lk
