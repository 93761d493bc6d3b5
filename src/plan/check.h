// What a value of a plan must be, said in one place for the C interface, for validation and for
// the JSON reader: they differ in how a sentence names the value and in its status.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_CHECK_H
#define LK_PLAN_CHECK_H

#include "plan/plan.h"

namespace lk {

// How to name a member: "rule." + its C name, or a JSON path + its JSON name.
struct Subject {
    const char *prefix;
    bool json;
    lk_status status;

    const char *name(const char *c_name, const char *json_name) const {
        return json ? json_name : c_name;
    }
};
constexpr Subject kArgument = {"", false, LK_E_ARGUMENT};
constexpr Subject kRuleArgument = {"rule.", false, LK_E_ARGUMENT};

constexpr bool is_power_of_two(uint32_t n) { return n && !(n & (n - 1)); }

// Alone, without regard to the rest of the plan.
lk_status check_layer(const lk_layer &layer, const Subject &subject);
// The KV layer of layers[layer], all layers before which are checked; its own number becomes
// LK_OWN_KV.
lk_status take_kv_layer(lk_layer *layers, uint32_t layer, const Subject &subject);
lk_status check_key_rule(const lk_key_rule &rule, const Subject &subject);
lk_status check_classes(const uint8_t *channel_bits, uint32_t head_dim, const Subject &subject);
lk_status check_centers(const float *centers, uint32_t head_dim, const Subject &subject);
lk_status check_scales(const float *scales, uint32_t head_dim, const Subject &subject);
lk_status check_value_rule(const lk_value_rule &rule, const Subject &subject);
lk_status check_metadata(lk_metadata metadata, const Subject &subject);
lk_status check_rotation(lk_rotation rotation, const Subject &subject);
lk_status check_pages(uint32_t page_tokens, const Subject &subject);
lk_status check_chunk_rule(const lk_chunk_rule &rule, const Subject &subject);
lk_status check_recent(uint32_t sink_tokens, uint32_t recent_tokens, const Subject &subject);
lk_status check_ladder(const uint8_t *rungs, uint32_t n_rungs, uint32_t rung,
                       const Subject &subject);
lk_status check_shrink_order(uint32_t order, const Subject &subject);
// The budget of a layer, which is not 0.
lk_status check_layer_budget(uint64_t budget_bytes, const Subject &subject);
lk_status check_name(const char *name, const Subject &subject);

// The chunks within the plan: its pages and its layers. The prefix is that of the chunks.
lk_status check_chunks(const Plan &plan, const Subject &subject);
// A layer's budget within the plan. The prefix is that of the layer.
lk_status check_budget(const Plan &plan, uint32_t layer, const Subject &subject);
// `status` for a latent layer, whose values have no rule.
lk_status check_has_values(const Plan &plan, uint32_t layer, lk_status status);
// LK_E_NOT_FOUND for a channel that keys or values of the layer have not.
lk_status check_channel(const Plan &plan, uint32_t layer, bool is_value, uint32_t channel);
// A head's rules within the plan, under every width cap of its layer's pages. The prefixes are the
// head's path with "key/" and "value/" after it.
lk_status check_key(const Plan &plan, uint32_t layer, uint32_t head, const Subject &subject);
lk_status check_value(const Plan &plan, uint32_t layer, uint32_t head, const Subject &subject);

}  // namespace lk

#endif
