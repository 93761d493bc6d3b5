// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/prefill_slots.h"

#include <algorithm>

#include "base/memory.h"
#include "base/status.h"
#include "format/tables.h"
#include "shaders/prefill/limits.h"

namespace lk {
namespace vulkan {

namespace {

// Of all slots: on a device of 128 cores a KV head of 131072 tokens of 128 channels, and in
// proportion to the longest step.
constexpr uint64_t kBytesOfCore = uint64_t{512} << 10;
constexpr uint64_t kBytesOfStepToken = uint64_t{64} << 10;
// Fewer columns of a KV head are not worth the way through memory.
constexpr uint32_t kFewestColumns = 256;

uint64_t row_bytes(const LayerView &layer) { return uint64_t{4} * layer.head_dim; }

}  // namespace

lk_status PrefillSlots::open(const CacheLayout &layout, const Traits &traits, uint32_t n_workgroups,
                             gpu::TableMemory *memory) {
    traits_ = &traits;
    n_workgroups_ = n_workgroups;
    if (!sequences_.reserve(layout.max_sequences))
        return fail(LK_E_NOMEM, "no memory for the record of %u sequences", layout.max_sequences);
    uint64_t most = 0;  // of a token in all KV heads
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        if (has_slot_pipelines(traits, layout.layers[l]))
            most = std::max(most, row_bytes(layout.layers[l]) * layout.layers[l].n_kv_heads);
    if (layout.max_step_tokens <= kDraftTokens)
        most = 0;
    const uint64_t usual =
        std::min(kBytesOfCore * traits.n_cores, kBytesOfStepToken * layout.max_step_tokens);
    uint64_t n_tokens = 0;
    uint64_t needed = 0;
    if (!checked_mul(layout.max_blocks, uint64_t{layout.page_tokens}, &n_tokens) ||
        !checked_add(n_tokens, uint64_t{layout.max_step_tokens} + LK_SLOT_STAGE_TOKENS,
                     &n_tokens) ||
        !checked_mul(n_tokens, most, &needed))
        needed = usual;
    return slots_.open(memory, std::min({usual, needed, traits.max_allocation_bytes}),
                       "keys and values of long steps");
}

void PrefillSlots::begin(const Batch &batch) {
    sequences_.clear();
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &of = batch.sequences[s];
        (void)sequences_.push(
            {of.n_history + of.n_new, of.n_new, of.n_attended, of.parent != nullptr});
    }
}

uint64_t PrefillSlots::head_bytes(const Sequence &sequence, const LayerView &layer) const {
    return round_up(sequence.n_tokens, uint64_t{LK_SLOT_STAGE_TOKENS}) * row_bytes(layer);
}

// Workgroups that unpack a head: blocks, and runs of staged tokens.
uint64_t PrefillSlots::n_runs(const Sequence &sequence) {
    return sequence.n_attended + ceil_div(sequence.n_new, LK_MAX_PAGE_TOKENS);
}

bool PrefillSlots::takes(const gpu::StepShape &shape, const LayerView &layer) const {
    if (!slots_.bytes() || !shape.is_staged || layer.window_tokens ||
        !has_slot_pipelines(*traits_, layer))
        return false;
    const uint64_t group = layer.n_query_heads / layer.n_kv_heads;
    for (const Sequence &sequence : sequences_) {
        const uint64_t n_columns = sequence.n_new * group;
        if (sequence.has_tree || n_columns < kFewestColumns ||
            n_columns > traits_->max_workgroup_count ||
            n_runs(sequence) > traits_->max_workgroup_count ||
            head_bytes(sequence, layer) > slots_.bytes())
            return false;
    }
    return true;
}

void PrefillSlots::record_pass(const Recorder &recorder, const SlotPipelines &pipelines,
                               uint32_t n_columns, const Sequence &sequence, uint32_t n_heads,
                               SlotPush *push) const {
    push->n_tiles = static_cast<uint32_t>(ceil_div(n_columns, LK_SLOT_COLUMNS));
    push->n_splits =
        slot_splits(uint64_t{push->n_tiles} * n_heads, n_workgroups_, traits_->n_cores);
    const auto dispatch = [&](VkPipeline pipeline, uint32_t x, uint32_t z) {
        recorder.dispatch_barrier();
        recorder.bind(pipeline);
        recorder.push(*push);
        recorder.dispatch(x, n_heads, z);
    };
    dispatch(pipelines.unpack, static_cast<uint32_t>(n_runs(sequence)), 2);
    dispatch(pipelines.attend, push->n_tiles, push->n_splits);
    if (push->n_splits > 1)
        dispatch(pipelines.merge, n_columns, 1);
}

void PrefillSlots::record(const Recorder &recorder, const SlotPipelines &pipelines,
                          const LayerView &layer, SlotPush push) const {
    push.slots = slots_.address();
    for (uint32_t s = 0; s < sequences_.size(); ++s) {
        const Sequence &sequence = sequences_[s];
        const uint32_t n_columns = sequence.n_new * (layer.n_query_heads / layer.n_kv_heads);
        const auto n_fitting = static_cast<uint32_t>(
            std::min<uint64_t>(layer.n_kv_heads, slots_.bytes() / head_bytes(sequence, layer)));
        push.sequence = s;
        for (uint32_t head = 0; head < layer.n_kv_heads; head += n_fitting) {
            push.first_head = head;
            record_pass(recorder, pipelines, n_columns, sequence,
                        std::min(n_fitting, layer.n_kv_heads - head), &push);
        }
    }
}

}  // namespace vulkan
}  // namespace lk
