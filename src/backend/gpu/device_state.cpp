// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/device_state.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace gpu {

namespace {

StepShape shape_of(const Batch &batch) {
    StepShape shape = {batch.n_sequences, batch.n_tokens, 0, false, 0, 0, false};
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        shape.max_new = std::max(shape.max_new, sequence.n_new);
        shape.is_staged = shape.is_staged || !sequence.new_in_blocks;
        shape.has_spans = shape.has_spans || sequence.reach;
        shape.max_blocks = std::max(shape.max_blocks, sequence.n_attended);
        if (!sequence.new_in_blocks)
            shape.max_staged = std::max(shape.max_staged, sequence.n_new);
    }
    return shape;
}

}  // namespace

lk_status DeviceState::open(const CacheLayout &layout, const SplitRules &rules, TableMemory *memory,
                            ReportMemory *report) {
    blocks_.open(layout.n_entries, memory);
    if (!splits_.open(layout, rules) || !order_.open(layout, rules))
        return fail(LK_E_NOMEM, "no memory for the work items of %u sequences",
                    layout.max_sequences);
    lk_status status = faults_.open(layout.max_sequences, report);
    if (!status)
        status = step_.open(layout, splits_.bytes(), order_.is_used(), memory);
    if (!status)
        status = tables_.open(layout, rules.format_forms(), memory);
    return status;
}

lk_status DeviceState::block_create(Block *block) {
    blocks_changed_ = true;
    return blocks_.add(block);
}

void DeviceState::block_destroy(Block *block) {
    blocks_changed_ = true;
    blocks_.drop(block);
}

void DeviceState::entries_changed(Block *block) {
    blocks_changed_ = true;
    blocks_.mark_stale(block);
}

lk_status DeviceState::begin(const Batch &batch) {
    const uint32_t serial = serial_ + 1;
    if (!order_.fill(batch, blocks_changed_))
        return fail(LK_E_NOMEM, "no memory for the order of a step's blocks");
    LK_TRY(step_.fill(batch, order_, serial, blocks_changed_));
    splits_changed_ = splits_.plan(batch, order_, blocks_changed_) || splits_changed_;
    LK_TRY(new_blocks_.fill(batch));
    LK_TRY(faults_.begin(batch, serial));
    LK_TRY(blocks_.send());
    LK_TRY(step_.send(splits_changed_ ? &splits_ : nullptr));
    serial_ = serial;
    blocks_changed_ = false;
    splits_changed_ = false;
    shape_ = shape_of(batch);
    return LK_OK;
}

}  // namespace gpu
}  // namespace lk
