// SPDX-License-Identifier: Apache-2.0
#include "core/step/query_stats.h"

#include "base/status.h"

namespace lk {

namespace {

// Bijective and without structure: the finalizer of SplitMix64.
uint64_t scrambled(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

}  // namespace

lk_status StatQueue::add(const StatItem &item) {
    const lk_status status = items_.size() == items_.capacity() ? flush() : LK_OK;
    if (!status)
        items_.push(item);
    return status;
}

lk_status StatQueue::add_neighbour(const StatItem &item) {
    if (items_.size()) {
        StatItem &last = items_.back();
        const uint64_t n_bytes = last.n_channels * sizeof(uint64_t);
        if (last.target + n_bytes == item.target && last.source + n_bytes == item.source &&
            last.mask == item.mask && last.stride_bytes == item.stride_bytes &&
            last.flags == item.flags) {
            last.n_channels += item.n_channels;
            return LK_OK;
        }
    }
    return add(item);
}

lk_status StatQueue::flush() {
    if (!items_.size())
        return LK_OK;
    const lk_status status =
        device_->add_stats(items_.data(), static_cast<uint32_t>(items_.size()));
    items_.clear();
    return status;
}

void StatQueue::forget(uint64_t address, uint64_t n_bytes) {
    size_t n = 0;
    bool lost_first = false;
    for (size_t i = 0; i < items_.size(); ++i) {
        StatItem item = items_[i];
        const bool follows = item.flags & kStatFollows;
        lost_first = lost_first && follows;
        if (item.target - address < n_bytes) {
            lost_first = lost_first || !follows;
            continue;
        }
        if (lost_first)
            item.flags &= ~uint32_t{kStatFollows};
        lost_first = false;
        items_[n++] = item;
    }
    (void)items_.resize(n);
}

bool QueryStats::open(uint32_t n_channels, uint64_t n_slots) {
    n_channels_ = n_channels;
    n_slots_ = static_cast<uint32_t>(n_slots);
    return digests_.resize(1 + n_slots) && items_.reserve(n_slots);
}

lk_status QueryStats::start(StatQueue *queue) {
    return queue->add({base(), 0, 0, 0, n_channels_, kStatReplaces});
}

lk_status QueryStats::copy(const QueryStats &from, StatQueue *queue) {
    (void)digests_.assign(from.digests_.data(), from.digests_.size());
    (void)items_.assign(from.items_.data(), from.items_.size());
    has_folded_ = from.has_folded_;
    LK_TRY(queue->add({base(), from.base(), 1, 0, n_channels_, kStatReplaces}));
    for (const Item &item : items_)
        LK_TRY(queue->add(
            {array(item.slot), from.array(item.slot), 1, 0, n_channels_, kStatReplaces}));
    return LK_OK;
}

uint64_t QueryStats::digest(uint64_t block) const {
    uint64_t sum = digests_[0];
    for (const Item &item : items_)
        sum += item.block <= block ? digests_[item.slot] : 0;
    return sum;
}

// Linear in the sums, so that increments that were folded before or after they were saved are the
// same.
uint64_t QueryStats::digest_of(const uint8_t *stats) const {
    uint64_t digest = 0;
    for (uint32_t c = 0; c < n_channels_; ++c) {
        uint64_t sum;
        std::memcpy(&sum, stats + c * sizeof sum, sizeof sum);
        digest += sum * (scrambled(c + 1) | 1u);
    }
    return digest;
}

// 0, the base, when all are taken.
uint32_t QueryStats::free_slot() const {
    for (uint32_t slot = 1; slot <= n_slots_; ++slot) {
        bool is_free = true;
        for (const Item &item : items_)
            is_free = is_free && item.slot != slot;
        if (is_free)
            return slot;
    }
    return 0;
}

lk_status QueryStats::add_to(uint32_t slot, bool replaces, const Increment &increment,
                             StatQueue *queue) {
    const uint64_t digest = scrambled(increment.serial);
    digests_[slot] = replaces ? digest : digests_[slot] + digest;
    return queue->add({array(slot), increment.source, increment.mask, increment.stride_bytes,
                       n_channels_,
                       (replaces ? kStatReplaces : 0u) | (increment.follows ? kStatFollows : 0u)});
}

lk_status QueryStats::add_to_base(const Increment &increment, StatQueue *queue) {
    return add_to(0, false, increment, queue);
}

lk_status QueryStats::add(uint64_t block, bool is_gap, const Increment &increment,
                          StatQueue *queue) {
    size_t index = items_.size();
    while (index && items_[index - 1].block > block)
        --index;
    if (index && items_[index - 1].block == block)
        return add_to(items_[index - 1].slot, false, increment, queue);
    const uint32_t slot = free_slot();
    if (!slot)
        return add_to(index ? items_[index - 1].slot : 0, false, increment, queue);
    items_.push({block, slot, is_gap});
    for (size_t i = items_.size() - 1; i > index; --i)
        items_[i] = items_[i - 1];
    items_[index] = {block, slot, is_gap};
    return add_to(slot, true, increment, queue);
}

lk_status QueryStats::fold(uint64_t block, uint32_t first, uint32_t n, StatQueue *queue) {
    has_folded_ = true;
    const uint64_t offset = first * sizeof(uint64_t);
    lk_status status = LK_OK;
    uint32_t follows = 0;
    for (uint32_t first_slot = 1; !status && first_slot <= n_slots_; first_slot += 64) {
        uint64_t mask = 0;
        for (const Item &item : items_)
            if (item.block <= block && item.slot - first_slot < 64)
                mask |= uint64_t{1} << (item.slot - first_slot);
        if (!mask)
            continue;
        status = queue->add_neighbour({base() + offset, array(first_slot) + offset, mask,
                                       array_bytes(), n, kStatClears | follows});
        follows = kStatFollows;
    }
    return status;
}

lk_status QueryStats::drop_folded(uint64_t block, StatQueue *queue) {
    lk_status status = LK_OK;
    bool follows = false;
    while (!status && items_.size() && items_[0].block <= block) {
        const uint32_t slot = items_[0].slot;
        digests_[0] += digests_[slot];
        status = queue->add(
            {base(), array(slot), 1, 0, n_channels_, follows ? uint32_t{kStatFollows} : 0u});
        follows = true;
        remove(0);
    }
    return status;
}

void QueryStats::restore_base(const uint8_t *stats, bool has_folded) {
    digests_[0] = digest_of(stats);
    has_folded_ = has_folded;
}

bool QueryStats::restore_item(uint64_t block, bool is_gap, const uint8_t *stats) {
    const uint32_t slot = free_slot();
    if (!slot)
        return false;
    digests_[slot] = digest_of(stats);
    return items_.push({block, slot, is_gap});
}

void QueryStats::remove(size_t i) {
    for (++i; i < items_.size(); ++i)
        items_[i - 1] = items_[i];
    items_.pop();
}

void QueryStats::truncate(uint64_t n_blocks) {
    for (size_t i = items_.size(); i; --i)
        if (!keeps(i - 1, n_blocks))
            remove(i - 1);
}

lk_status QueryStats::clear(StatQueue *queue) {
    truncate(0);
    if (has_folded_)
        return LK_OK;
    digests_[0] = 0;
    queue->forget(base(), array_bytes());
    return start(queue);
}

}  // namespace lk
