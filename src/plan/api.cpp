// The C interface of plans: null checks and struct import around the model.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/float_mode.h"
#include "plan/check.h"
#include "plan/plan.h"

namespace lk {

namespace {

struct Handle {
    lk_plan *plan = create<lk_plan>(default_allocator());
    ~Handle() { destroy(default_allocator(), plan); }
    Handle() = default;
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    lk_plan *release() {
        lk_plan *own = plan;
        plan = nullptr;
        return own;
    }
};

lk_status no_memory_for_plan() { return fail(LK_E_NOMEM, "no memory for a plan"); }

lk_status import_layers(const lk_geometry *geometry, Plan *plan) {
    Array<lk_layer> layers;
    LK_TRY(import_geometry(geometry, &layers));
    return set_layers(plan, layers);
}

lk_status check_index(const Plan &plan, uint32_t layer, uint32_t kv_head) {
    if (layer >= plan.layers.size())
        return fail(LK_E_NOT_FOUND, "layer is %u, the plan has %zu layers", layer,
                    plan.layers.size());
    const uint32_t n_heads = plan.layers[layer].geometry.n_kv_heads;
    if (kv_head >= n_heads)
        return fail(LK_E_NOT_FOUND, "kv_head is %u, layer %u has %u KV heads", kv_head, layer,
                    n_heads);
    return LK_OK;
}

lk_key_rule default_key_rule() {
    lk_key_rule rule = {};
    rule.size = sizeof rule;
    rule.bits = 16;
    rule.axis = LK_AXIS_CHANNEL;
    rule.one_bit = LK_ONE_BIT_DEVIATION;
    rule.clip = 1;
    return rule;
}

lk_value_rule default_value_rule() {
    lk_value_rule rule = {};
    rule.size = sizeof rule;
    rule.bits = 16;
    rule.one_bit = LK_ONE_BIT_DEVIATION;
    rule.clip = 1;
    return rule;
}

// Change the rules of a layer, which has its own, or of all; reading layers follow.
template <class Set>
lk_status change_layers(lk_plan *plan, uint32_t layer, const Set &set) {
    Plan &model = plan->model;
    if (layer < model.layers.size() && !model.owns_kv(layer))
        return fail(LK_E_ARGUMENT,
                    "layer is %u, which reads the keys and values of layer %u: set that layer's",
                    layer, model.kv_layer(layer));
    LK_TRY(set(&model));
    follow_kv_layers(&model);
    return LK_OK;
}

// Hand out a new plan that fill(model) made of a source, the call's first argument.
template <class Fill>
lk_status make_plan(const void *source, const char *name, lk_plan **out, Fill fill) {
    if (!out)
        return null_argument("out");
    *out = nullptr;
    if (!source)
        return null_argument(name);
    Handle handle;
    if (!handle.plan)
        return no_memory_for_plan();
    LK_TRY(fill(&handle.plan->model));
    *out = handle.release();
    return LK_OK;
}

void key_widths(const Plan &plan, uint32_t layer, uint32_t kv_head, uint32_t channel, uint32_t cap,
                uint32_t *bits, uint32_t *boost_bits) {
    const uint8_t *channel_bits = plan.channel_bits(layer, kv_head);
    const KeyRule &rule = plan.key(layer, kv_head);
    *bits = channel_width(channel_bits ? channel_bits[channel] : rule.bits, cap);
    *boost_bits = channel_bits ? *bits : boost_width(rule, cap);
}

// What caps a page: rung 0 is the layer's own.
lk_status find_cap(const Plan &plan, uint32_t layer, uint32_t rung, lk_chunk_class chunk_class,
                   uint32_t *cap) {
    const LayerPlan &own = plan.layers[layer];
    bool has_rung = !rung;
    for (uint32_t r = 0; r < own.n_rungs; ++r)
        has_rung |= own.rungs[r] == rung;
    if (!has_rung)
        return fail(LK_E_NOT_FOUND, "rung is %u, which the ladder of layer %u has not", rung,
                    layer);
    if (chunk_class > LK_CHUNK_HIGH)
        return fail(LK_E_ARGUMENT, "chunk_class is %u, must be at most 3", chunk_class);
    if (chunk_class && !plan.chunks.tokens)
        return fail(LK_E_NOT_FOUND, "chunk_class is %u, the plan has no chunks", chunk_class);
    *cap = width_cap(rung ? rung : own.rung, plan.chunks.cap(chunk_class));
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_layer_init(lk_layer *layer, size_t struct_bytes) {
    return lk::init_with(layer, struct_bytes, lk::kLeastLayerBytes, lk::default_layer(), "layer");
}

lk_status lk_geometry_init(lk_geometry *geometry, size_t struct_bytes) {
    return lk::init_struct(geometry, struct_bytes, sizeof *geometry, "geometry");
}

lk_status lk_key_rule_init(lk_key_rule *rule, size_t struct_bytes) {
    return lk::init_with(rule, struct_bytes, sizeof *rule, lk::default_key_rule(), "rule");
}

lk_status lk_value_rule_init(lk_value_rule *rule, size_t struct_bytes) {
    return lk::init_with(rule, struct_bytes, sizeof *rule, lk::default_value_rule(), "rule");
}

lk_status lk_chunk_rule_init(lk_chunk_rule *rule, size_t struct_bytes) {
    return lk::init_with(rule, struct_bytes, sizeof *rule, lk::default_chunk_rule(), "rule");
}

const char *lk_plan_preset_name(uint32_t index) { return lk::preset_name(index); }

lk_status lk_plan_preset(const char *name, const lk_geometry *geometry, lk_plan **out) {
    return lk::make_plan(name, "name", out, [&](lk::Plan *model) {
        LK_TRY(lk::import_layers(geometry, model));
        return lk::set_preset(model, name);
    });
}

lk_status lk_plan_default(const lk_geometry *geometry, double bits_per_value, lk_plan **out) {
    const lk::FloatMode mode;
    return lk::make_plan(geometry, "geometry", out, [&](lk::Plan *model) {
        if (!(bits_per_value >= 0 && bits_per_value <= 16))
            return lk::fail(LK_E_ARGUMENT, "bits_per_value is %g, must be from 0 to 16",
                            bits_per_value);
        LK_TRY(lk::import_layers(geometry, model));
        return lk::set_default(model, bits_per_value);
    });
}

lk_status lk_plan_copy(const lk_plan *plan, lk_plan **out) {
    return lk::make_plan(plan, "plan", out, [&](lk::Plan *model) {
        return lk::copy_plan(plan->model, model) ? LK_OK : lk::no_memory_for_plan();
    });
}

void lk_plan_destroy(lk_plan **plan) {
    if (!plan)
        return;
    lk::destroy(lk::default_allocator(), *plan);
    *plan = nullptr;
}

lk_status lk_plan_set_name(lk_plan *plan, const char *name) {
    if (!plan)
        return lk::null_argument("plan");
    if (!name)
        return lk::null_argument("name");
    LK_TRY(lk::check_name(name, lk::kArgument));
    lk::set_name(&plan->model, name);
    return LK_OK;
}

lk_status lk_plan_set_key(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                          const lk_key_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    lk_key_rule own = lk::default_key_rule();
    LK_TRY(lk::import_struct(&own, sizeof own, sizeof own, rule, "rule"));
    LK_TRY(lk::check_key_rule(own, lk::kRuleArgument));
    return lk::change_layers(
        plan, layer, [&](lk::Plan *model) { return lk::set_key(model, layer, kv_head, own); });
}

lk_status lk_plan_set_value(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                            const lk_value_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    lk_value_rule own = lk::default_value_rule();
    LK_TRY(lk::import_struct(&own, sizeof own, sizeof own, rule, "rule"));
    LK_TRY(lk::check_value_rule(own, lk::kRuleArgument));
    return lk::change_layers(
        plan, layer, [&](lk::Plan *model) { return lk::set_value(model, layer, kv_head, own); });
}

lk_status lk_plan_set_key_centers(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                  const float *centers) {
    const lk::FloatMode mode;
    if (!plan)
        return lk::null_argument("plan");
    return lk::change_layers(plan, layer, [&](lk::Plan *model) {
        return lk::set_key_centers(model, layer, kv_head, centers, lk::kArgument);
    });
}

lk_status lk_plan_set_key_scales(lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 const float *scales) {
    const lk::FloatMode mode;
    if (!plan)
        return lk::null_argument("plan");
    return lk::change_layers(plan, layer, [&](lk::Plan *model) {
        return lk::set_key_scales(model, layer, kv_head, scales, lk::kArgument);
    });
}

lk_status lk_plan_set_metadata(lk_plan *plan, uint32_t layer, lk_metadata metadata) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_metadata(metadata, lk::kArgument));
    return lk::change_layers(
        plan, layer, [&](lk::Plan *model) { return lk::set_metadata(model, layer, metadata); });
}

lk_status lk_plan_set_key_rotation(lk_plan *plan, uint32_t layer, lk_rotation rotation) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_rotation(rotation, lk::kArgument));
    return lk::change_layers(plan, layer, [&](lk::Plan *model) {
        return lk::set_key_rotation(model, layer, rotation, lk::kArgument);
    });
}

lk_status lk_plan_set_pages(lk_plan *plan, uint32_t page_tokens) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_pages(page_tokens, lk::kArgument));
    lk::set_pages(&plan->model, page_tokens);
    return LK_OK;
}

lk_status lk_plan_set_chunks(lk_plan *plan, const lk_chunk_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    lk_chunk_rule own = lk::default_chunk_rule();
    LK_TRY(lk::import_struct(&own, sizeof own, sizeof own, rule, "rule"));
    LK_TRY(lk::check_chunk_rule(own, lk::kRuleArgument));
    lk::set_chunks(&plan->model, own);
    return LK_OK;
}

lk_status lk_plan_set_recent(lk_plan *plan, uint32_t sink_tokens, uint32_t recent_tokens) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_recent(sink_tokens, recent_tokens, lk::kArgument));
    lk::set_recent(&plan->model, sink_tokens, recent_tokens);
    return LK_OK;
}

lk_status lk_plan_set_ladder(lk_plan *plan, uint32_t layer, const uint8_t *rungs, uint32_t n_rungs,
                             uint32_t rung) {
    if (!plan)
        return lk::null_argument("plan");
    if (n_rungs && !rungs)
        return lk::null_argument("rungs");
    LK_TRY(lk::check_ladder(rungs, n_rungs, rung, lk::kArgument));
    return lk::change_layers(plan, layer, [&](lk::Plan *model) {
        return lk::set_ladder(model, layer, rungs, n_rungs, rung);
    });
}

lk_status lk_plan_set_shrink_order(lk_plan *plan, uint32_t layer, uint32_t order) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_shrink_order(order, lk::kArgument));
    return lk::change_layers(
        plan, layer, [&](lk::Plan *model) { return lk::set_shrink_order(model, layer, order); });
}

lk_status lk_plan_set_layer_budget(lk_plan *plan, uint32_t layer, uint64_t budget_bytes) {
    if (!plan)
        return lk::null_argument("plan");
    if (budget_bytes)
        LK_TRY(lk::check_layer_budget(budget_bytes, lk::kArgument));
    return lk::change_layers(plan, layer, [&](lk::Plan *model) {
        return lk::set_layer_budget(model, layer, budget_bytes);
    });
}

lk_status lk_plan_get_key(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                          lk_key_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    if (!rule)
        return lk::null_argument("rule");
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    lk_key_rule own;
    lk::key_rule_of(plan->model, layer, kv_head, &own);
    return lk::export_struct(rule, &own, sizeof own, sizeof own, "rule");
}

lk_status lk_plan_get_value(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                            lk_value_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    if (!rule)
        return lk::null_argument("rule");
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    LK_TRY(lk::check_has_values(plan->model, layer, LK_E_NOT_FOUND));
    lk_value_rule own;
    lk::value_rule_of(plan->model, layer, kv_head, &own);
    return lk::export_struct(rule, &own, sizeof own, sizeof own, "rule");
}

lk_status lk_plan_get_key_centers(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                  const float **centers) {
    if (!plan)
        return lk::null_argument("plan");
    if (!centers)
        return lk::null_argument("centers");
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    *centers = plan->model.key_centers(layer, kv_head);
    return LK_OK;
}

lk_status lk_plan_get_key_scales(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 const float **scales) {
    if (!plan)
        return lk::null_argument("plan");
    if (!scales)
        return lk::null_argument("scales");
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    *scales = plan->model.key_scales(layer, kv_head);
    return LK_OK;
}

lk_status lk_plan_get_key_rotation(const lk_plan *plan, uint32_t layer, lk_rotation *rotation) {
    if (!plan)
        return lk::null_argument("plan");
    if (!rotation)
        return lk::null_argument("rotation");
    LK_TRY(lk::check_index(plan->model, layer, 0));
    *rotation = plan->model.layers[layer].key_rotation;
    return LK_OK;
}

lk_status lk_plan_get_layer(const lk_plan *plan, uint32_t layer, lk_layer *out) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_index(plan->model, layer, 0));
    return lk::export_struct(out, &plan->model.layers[layer].geometry, sizeof *out,
                             lk::kLeastLayerBytes, "out");
}

lk_status lk_plan_get_ladder(const lk_plan *plan, uint32_t layer, uint8_t *rungs, uint32_t *n_rungs,
                             uint32_t *rung, uint32_t *shrink_order) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::check_index(plan->model, layer, 0));
    const lk::LayerPlan &own = plan->model.layers[layer];
    for (uint32_t r = 0; rungs && r < own.n_rungs; ++r)
        rungs[r] = own.rungs[r];
    if (n_rungs)
        *n_rungs = own.n_rungs;
    if (rung)
        *rung = own.rung;
    if (shrink_order)
        *shrink_order = own.shrink_order;
    return LK_OK;
}

lk_status lk_plan_get_layer_budget(const lk_plan *plan, uint32_t layer, uint64_t *budget_bytes) {
    if (!plan)
        return lk::null_argument("plan");
    if (!budget_bytes)
        return lk::null_argument("budget_bytes");
    LK_TRY(lk::check_index(plan->model, layer, 0));
    *budget_bytes = plan->model.layers[layer].budget_bytes;
    return LK_OK;
}

const char *lk_plan_name(const lk_plan *plan) { return plan ? plan->model.name : nullptr; }

lk_status lk_plan_get_pages(const lk_plan *plan, uint32_t *page_tokens, uint32_t *sink_tokens,
                            uint32_t *recent_tokens) {
    if (!plan)
        return lk::null_argument("plan");
    if (page_tokens)
        *page_tokens = plan->model.page_tokens;
    if (sink_tokens)
        *sink_tokens = plan->model.sink_tokens;
    if (recent_tokens)
        *recent_tokens = plan->model.recent_tokens;
    return LK_OK;
}

lk_status lk_plan_get_chunks(const lk_plan *plan, lk_chunk_rule *rule) {
    if (!plan)
        return lk::null_argument("plan");
    if (!rule)
        return lk::null_argument("rule");
    lk_chunk_rule own;
    lk::chunk_rule_of(plan->model, &own);
    return lk::export_struct(rule, &own, sizeof own, sizeof own, "rule");
}

lk_status lk_plan_width(const lk_plan *plan, uint32_t layer, uint32_t kv_head, uint32_t is_value,
                        uint32_t channel, uint32_t rung, lk_chunk_class chunk_class, uint32_t *bits,
                        uint32_t *boost_bits) {
    if (!plan)
        return lk::null_argument("plan");
    if (!bits || !boost_bits)
        return lk::null_argument(bits ? "boost_bits" : "bits");
    if (is_value > 1)
        return lk::fail(LK_E_ARGUMENT, "is_value is %u, must be 0 or 1", is_value);
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    LK_TRY(lk::check_channel(plan->model, layer, is_value != 0, channel));
    uint32_t cap = 0;
    LK_TRY(lk::find_cap(plan->model, layer, rung, chunk_class, &cap));
    if (is_value && !lk::is_latent(plan->model.layers[layer].geometry))
        *bits = *boost_bits = lk::channel_width(plan->model.value(layer, kv_head).bits, cap);
    else
        lk::key_widths(plan->model, layer, kv_head, channel, cap, bits, boost_bits);
    return LK_OK;
}

lk_status lk_chanmix_layout_init(lk_chanmix_layout *layout, size_t struct_bytes) {
    return lk::init_struct(layout, struct_bytes, sizeof *layout, "layout");
}

lk_status lk_plan_chanmix_layout(const lk_plan *plan, uint32_t layer, uint32_t kv_head,
                                 lk_chanmix_layout *out) {
    if (!plan)
        return lk::null_argument("plan");
    if (!out)
        return lk::null_argument("out");
    LK_TRY(lk::check_index(plan->model, layer, kv_head));
    lk_chanmix_layout own;
    LK_TRY(lk::chanmix_layout(plan->model, layer, kv_head, &own));
    return lk::export_struct(out, &own, sizeof own, sizeof own, "out");
}

lk_status lk_plan_validate(const lk_plan *plan, const lk_geometry *geometry) {
    if (!plan)
        return lk::null_argument("plan");
    LK_TRY(lk::validate_plan(plan->model));
    if (!geometry)
        return LK_OK;
    lk::Array<lk_layer> layers;
    LK_TRY(lk::import_geometry(geometry, &layers));
    return lk::compare_geometry(plan->model, layers);
}

lk_status lk_plan_rung(const lk_plan *plan, uint32_t layer, uint64_t n_tokens, uint32_t n_sequences,
                       uint32_t step_tokens, uint32_t *rung) {
    if (!plan)
        return lk::null_argument("plan");
    if (!rung)
        return lk::null_argument("rung");
    LK_TRY(lk::check_index(plan->model, layer, 0));
    LK_TRY(lk::validate_plan(plan->model));
    return lk::plan_rung(plan->model, layer, n_tokens, n_sequences, step_tokens, rung);
}

lk_status lk_plan_to_json(const lk_plan *plan, char *buffer, size_t capacity_bytes,
                          size_t *needed_bytes) {
    const lk::FloatMode mode;
    if (!plan)
        return lk::null_argument("plan");
    if (!buffer && capacity_bytes)
        return lk::null_argument("buffer");
    return lk::plan_to_json(plan->model, buffer, capacity_bytes, needed_bytes);
}

lk_status lk_plan_from_json(const char *text, size_t text_bytes, lk_plan **out) {
    const lk::FloatMode mode;
    return lk::make_plan(text, "text", out, [&](lk::Plan *model) {
        return lk::plan_from_json(text, text_bytes, model);
    });
}

}  // extern "C"
