// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/block_order.h"

#include <algorithm>

#include "backend/gpu/split.h"

namespace lk {
namespace gpu {

bool BlockOrder::suits(const CacheLayout &layout, const SplitRules &rules, uint32_t layer) {
    return layout.layer_formats && layout.layer_formats[layer].n_formats &&
           !layout.layers[layer].window_tokens && rules.n_forms(layer) > 1;
}

bool BlockOrder::open(const CacheLayout &layout, const SplitRules &rules) {
    layout_ = layout;
    for (uint32_t l = 0; l < layout.n_layers && !is_used_; ++l) {
        is_used_ = suits(layout, rules, l);
        entry_ = layout.first_entries[l];
    }
    const uint32_t n = std::min(layout.max_sequences, layout.max_step_tokens);
    return !is_used_ || (sequences_.reserve(n) && first_blocks_.reserve(n));
}

bool BlockOrder::is_same(const Batch &batch) const {
    bool is_same = sequences_.size() == batch.n_sequences;
    for (uint32_t s = 0; is_same && s < batch.n_sequences; ++s)
        is_same = sequences_[s].id == batch.sequences[s].id &&
                  sequences_[s].n_blocks == batch.sequences[s].n_blocks &&
                  sequences_[s].n_attended == batch.sequences[s].n_attended;
    return is_same;
}

bool BlockOrder::is_raw(const Block &block) const {
    const PageEntry &e = block.entries[entry_];
    return layout_.formats[e.key_format].layout.is_raw() &&
           layout_.formats[e.value_format].layout.is_raw();
}

uint32_t BlockOrder::formats_of(const Block &block) const {
    const PageEntry &e = block.entries[entry_];
    return e.key_format | uint32_t{e.value_format} << 16;
}

// Raw blocks, then packed ones by their formats, which come as they first do.
bool BlockOrder::add_formats(const Block *const *blocks, uint32_t begin, uint32_t end) {
    for (uint32_t r = begin; r < end; ++r)
        if (is_raw(*blocks[r]))
            *blocks_.extend(1) = blocks[r];
    done_.clear();
    for (uint32_t first = begin; first < end; ++first) {
        const uint32_t formats = formats_of(*blocks[first]);
        if (is_raw(*blocks[first]) || std::find(done_.begin(), done_.end(), formats) != done_.end())
            continue;
        if (!done_.push(formats))
            return false;
        for (uint32_t r = first; r < end; ++r)
            if (!is_raw(*blocks[r]) && formats_of(*blocks[r]) == formats)
                *blocks_.extend(1) = blocks[r];
    }
    return true;
}

// Sinks and the last raw blocks keep their places. Nothing is added where all blocks do.
bool BlockOrder::add(const BatchSequence &sequence) {
    const Block *const *blocks = sequence.blocks;
    uint32_t begin = 0;
    uint32_t end = sequence.n_attended;
    while (begin < end && is_raw(*blocks[begin]))
        ++begin;
    while (end > begin && is_raw(*blocks[end - 1]))
        --end;
    const size_t first = blocks_.size();
    const size_t n = first + sequence.n_blocks;
    if (n > blocks_.capacity() && !blocks_.reserve(2 * n))
        return false;
    std::copy(blocks, blocks + begin, blocks_.extend(begin));
    if (!add_formats(blocks, begin, end))
        return false;
    if (std::equal(blocks + begin, blocks + end, blocks_.data() + first + begin))
        return blocks_.resize(first);
    const uint32_t n_last = sequence.n_blocks - end;
    std::copy(blocks + end, blocks + end + n_last, blocks_.extend(n_last));
    return true;
}

bool BlockOrder::find(const Batch &batch) {
    blocks_.clear();
    n_own_ = 0;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        n_own_ += batch.sequences[s].n_blocks;
    uint32_t own = 0;
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const size_t n = blocks_.size();
        if (!add(batch.sequences[s]))
            return false;
        first_blocks_[s] = blocks_.size() > n ? n_own_ + static_cast<uint32_t>(n) : own;
        own += batch.sequences[s].n_blocks;
    }
    return true;
}

bool BlockOrder::fill(const Batch &batch, bool blocks_changed) {
    is_new_ = is_used_ && (blocks_changed || !is_same(batch));
    if (!is_used_)
        return true;
    sequences_.clear();
    (void)first_blocks_.resize(batch.n_sequences);
    if (is_new_ && !find(batch))
        return false;
    (void)sequences_.assign(batch.sequences, batch.n_sequences);
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        if (first_blocks_[s] >= n_own_)
            sequences_[s].blocks = blocks_.data() + (first_blocks_[s] - n_own_);
    return true;
}

}  // namespace gpu
}  // namespace lk
