// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_facts.h"

namespace cli {

namespace {

bool exists(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
            std::uint32_t channel) {
    std::uint32_t bits = 0, boost_bits = 0;
    return lk_plan_width(plan, layer, kv_head, 0, channel, 0, LK_CHUNK_NONE, &bits, &boost_bits) ==
           LK_OK;
}

}  // namespace

PlanShape plan_shape(const lk_plan *plan) {
    PlanShape shape;
    while (exists(plan, shape.n_layers, 0, 0)) {
        const std::uint32_t layer = shape.n_layers++;
        std::uint32_t n_heads = 0, head_dim = 0;
        while (exists(plan, layer, n_heads, 0))
            ++n_heads;
        while (exists(plan, layer, 0, head_dim))
            ++head_dim;
        shape.n_kv_heads.push_back(n_heads);
        shape.head_dim.push_back(head_dim);
        lk_layer own = llama::initialised(lk_layer_init);
        llama::check(lk_plan_get_layer(plan, layer, &own));
        shape.value_dim.push_back(own.value_dim == 0 ? head_dim : own.value_dim);
        shape.is_latent.push_back((own.flags & LK_LAYER_LATENT) != 0);
    }
    return shape;
}

lk_chunk_rule chunk_rule_of(const lk_plan *plan) {
    lk_chunk_rule rule = llama::initialised(lk_chunk_rule_init);
    llama::check(lk_plan_get_chunks(plan, &rule));
    return rule;
}

std::uint32_t kv_layer_of(const lk_plan *plan, std::uint32_t layer) {
    lk_layer own = llama::initialised(lk_layer_init);
    llama::check(lk_plan_get_layer(plan, layer, &own));
    return own.kv_layer == LK_OWN_KV ? layer : own.kv_layer;
}

Ladder ladder_of(const lk_plan *plan, std::uint32_t layer) {
    Ladder out;
    if (kv_layer_of(plan, layer) != layer)
        return out;
    llama::check(lk_plan_get_ladder(plan, layer, out.rungs, &out.n_rungs, &out.rung, &out.order));
    return out;
}

llama::PlanHandle at_last_rungs(const lk_plan *plan) {
    llama::PlanHandle out = llama::copy_plan(plan);
    const std::uint32_t n_layers = plan_shape(plan).n_layers;
    for (std::uint32_t l = 0; l < n_layers; ++l) {
        const Ladder own = ladder_of(plan, l);
        if (own.n_rungs != 0)
            llama::check(lk_plan_set_ladder(out.get(), l, own.rungs, own.n_rungs,
                                            own.rungs[own.n_rungs - 1]));
    }
    return out;
}

}  // namespace cli
