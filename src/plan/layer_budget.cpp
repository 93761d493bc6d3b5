// SPDX-License-Identifier: Apache-2.0
#include "plan/layer_budget.h"

#include <algorithm>

#include "base/status.h"

namespace lk {

namespace {

uint64_t page_bytes_of(const PageSlots &slots) {
    return slots.packed_payload ? slots.packed_payload + slots.packed_metadata
                                : slots.recent_payload + slots.recent_metadata;
}

// One run of equal heads.
void add_heads(const Plan &plan, uint32_t layer, uint32_t head, uint64_t count,
               LayerBlockBytes *out) {
    const LayerPlan &own = plan.layers[layer];
    for (uint32_t r = 0; r < own.n_rungs; ++r) {
        const PageSlots key = key_slots_at(plan, layer, head, own.rungs[r]);
        const PageSlots value = value_slots_at(plan, layer, head, own.rungs[r]);
        out->at[r][kPackedBlock] += count * (page_bytes_of(key) + page_bytes_of(value));
        out->at[r][kRecentBlock] += count * (key.recent_payload + key.recent_metadata +
                                             value.recent_payload + value.recent_metadata);
    }
}

// One layer of a replay.
class LayerReplay {
  public:
    LayerReplay(const Plan &plan, bool keeps_windowed, uint32_t layer, const Replay &replay)
        : plan_(plan),
          layer_(plan.layers[layer]),
          keeps_windowed_(keeps_windowed),
          replay_(replay),
          period_(replay.period(plan)),
          bytes_(layer_block_bytes(plan, layer)) {}

    uint64_t bytes_at(uint32_t rung, uint64_t step) const {
        return tally_bytes(bytes_.at[rung], tally_after(step));
    }
    uint64_t most_bytes(uint32_t rung) const;
    // The first step from `step` on at which the layer is beyond its budget; n_steps() for none.
    uint64_t first_beyond(uint32_t rung, uint64_t step) const;
    uint32_t rung_at(uint32_t rung, uint64_t step) const {
        return rung_within(layer_.budget_bytes, bytes_, tally_after(step), rung, layer_.n_rungs);
    }

  private:
    BlockTally tally_after(uint64_t step) const;
    uint64_t first_beyond_in(uint32_t rung, const Span &span) const;

    const Plan &plan_;
    const LayerPlan &layer_;
    const bool keeps_windowed_;
    const Replay &replay_;
    const uint64_t period_;
    const LayerBlockBytes bytes_;
};

BlockTally LayerReplay::tally_after(uint64_t step) const {
    const ReplayBlocks blocks = blocks_after(plan_, replay_.step(step));
    const uint64_t n_sinks = sink_blocks(plan_);
    const uint64_t sinks = std::min(blocks.total, n_sinks);
    const uint64_t last = n_sinks && sinks == n_sinks;
    const uint64_t dropped = keeps_windowed_ ? 0 : dropped_blocks(plan_, layer_.geometry, blocks);
    BlockTally tally = {};
    tally.n[kSinkBlock] = (sinks - last) * replay_.n_sequences;
    tally.n[kLastSinkBlock] = last * replay_.n_sequences;
    tally.n[kRecentBlock] = (blocks.total - sinks - blocks.packed()) * replay_.n_sequences;
    tally.n[kPackedBlock] = (blocks.packed() - dropped) * replay_.n_sequences;
    return tally;
}

uint64_t LayerReplay::most_bytes(uint32_t rung) const {
    const uint64_t n_steps = replay_.n_steps();
    uint64_t most = 0;
    for (uint64_t k = n_steps > period_ + 1 ? n_steps - period_ - 1 : 0; k < n_steps; ++k)
        most = std::max(most, bytes_at(rung, k));
    return most;
}

uint64_t LayerReplay::first_beyond_in(uint32_t rung, const Span &span) const {
    uint64_t k = span.begin;
    while (k < span.end && bytes_at(rung, k) <= layer_.budget_bytes)
        ++k;
    return k;
}

// A period later every block is a whole number of blocks further and no byte is fewer, so of whole
// periods those beyond the budget follow those within. The last step may be shorter.
uint64_t LayerReplay::first_beyond(uint32_t rung, uint64_t step) const {
    const uint64_t n_steps = replay_.n_steps();
    const uint64_t n_periods = (std::max(n_steps - 1, step) - step) / period_;
    uint64_t low = 0;
    for (uint64_t high = n_periods; low < high;) {
        const uint64_t middle = low + (high - low) / 2;
        const Span span = {step + middle * period_, step + (middle + 1) * period_};
        if (first_beyond_in(rung, span) < span.end)
            high = middle;
        else
            low = middle + 1;
    }
    return first_beyond_in(rung, {step + low * period_, n_steps});
}

}  // namespace

LayerBlockBytes layer_block_bytes(const Plan &plan, uint32_t layer) {
    const LayerPlan &own = plan.layers[layer];
    LayerBlockBytes out = {};
    for (uint32_t h = 0, end; h < own.geometry.n_kv_heads; h = end) {
        end = plan.run(layer, h).end;
        add_heads(plan, layer, h, end - h, &out);
    }
    const uint64_t n_sinks = sink_blocks(plan);
    const auto sink_bytes = [&](uint64_t block) {
        const SinkSlots slots = sink_slots(plan, layer, block);
        return own.geometry.n_kv_heads * (slots.key + slots.value);
    };
    for (uint32_t r = 0; n_sinks && r < own.n_rungs; ++r) {
        out.at[r][kSinkBlock] = sink_bytes(0);
        out.at[r][kLastSinkBlock] = sink_bytes(n_sinks - 1);
    }
    return out;
}

uint64_t tally_bytes(const uint64_t (&block_bytes)[kBlockStates], const BlockTally &tally) {
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < kBlockStates; ++s)
        bytes += tally.n[s] * block_bytes[s];
    return bytes;
}

uint32_t rung_within(uint64_t budget_bytes, const LayerBlockBytes &bytes, const BlockTally &tally,
                     uint32_t rung, uint32_t n_rungs) {
    while (rung + 1 < n_rungs && tally_bytes(bytes.at[rung], tally) > budget_bytes)
        ++rung;
    return rung;
}

lk_status list_rung_changes(const Plan &plan, bool keeps_windowed, const Replay &replay,
                            Array<RungChange> *out) {
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        const LayerPlan &own = plan.layers[l];
        if (!own.budget_bytes || !plan.owns_kv(l))
            continue;
        const LayerReplay layer(plan, keeps_windowed, l, replay);
        uint32_t rung = first_rung(own);
        for (uint64_t k = 0; rung + 1 < own.n_rungs;) {
            k = layer.first_beyond(rung, k);
            if (k == replay.n_steps())
                break;
            rung = layer.rung_at(rung, k);
            if (!out->push({k, l, rung}))
                return fail(LK_E_NOMEM, "no memory to list the rungs of %zu layers",
                            plan.layers.size());
        }
    }
    std::sort(out->begin(), out->end(), [](const RungChange &a, const RungChange &b) {
        return a.step != b.step ? a.step < b.step : a.layer < b.layer;
    });
    return LK_OK;
}

uint64_t most_layer_bytes(const Plan &plan, uint32_t layer, uint32_t rung, const Replay &replay) {
    return LayerReplay(plan, false, layer, replay).most_bytes(rung);
}

lk_status plan_rung(const Plan &plan, uint32_t layer, uint64_t n_tokens, uint32_t n_sequences,
                    uint32_t step_tokens, uint32_t *rung) {
    const LayerPlan &own = plan.layers[layer];
    if (!own.n_rungs)
        return fail(LK_E_ARGUMENT, "layer is %u, which has no ladder", layer);
    LK_TRY(check_sizes(plan, n_tokens, n_sequences, step_tokens));
    const Replay replay = {n_tokens, n_sequences, step_tokens};
    Array<RungChange> changes(default_allocator());
    LK_TRY(list_rung_changes(plan, false, replay, &changes));
    *rung = own.rung;
    for (const RungChange &change : changes)
        if (change.layer == plan.kv_layer(layer))
            *rung = own.rungs[change.rung];
    return LK_OK;
}

}  // namespace lk
