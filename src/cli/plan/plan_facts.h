// What a plan says of itself through the public interface.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_PLAN_FACTS_H
#define CLI_PLAN_FACTS_H

#include <lowkey/plan.h>

#include <cstdint>
#include <vector>

#include "llama/handles.h"

namespace cli {

// The geometry of a plan.
struct PlanShape {
    std::uint32_t n_layers = 0;
    std::vector<std::uint32_t> n_kv_heads;  // [n_layers]
    std::vector<std::uint32_t> head_dim;    // [n_layers]
    std::vector<std::uint32_t> value_dim;   // [n_layers]
    std::vector<bool> is_latent;            // [n_layers] values are channels of the keys

    std::uint32_t channels(std::uint32_t layer, bool is_value) const {
        return (is_value ? value_dim : head_dim)[layer];
    }
};
PlanShape plan_shape(const lk_plan *plan);

// The plan's chunks; chunk_tokens 0 without.
lk_chunk_rule chunk_rule_of(const lk_plan *plan);

// The layer whose keys and values a layer attends to: itself, or an earlier one.
std::uint32_t kv_layer_of(const lk_plan *plan, std::uint32_t layer);

// The widths that pages of a layer shrink to; n_rungs 0 without a ladder or pages of its own.
struct Ladder {
    std::uint8_t rungs[4] = {};
    std::uint32_t n_rungs = 0, rung = 0, order = 0;
};
Ladder ladder_of(const lk_plan *plan, std::uint32_t layer);

// The plan with every ladder at its last rung.
llama::PlanHandle at_last_rungs(const lk_plan *plan);

}  // namespace cli

#endif
