// SPDX-License-Identifier: Apache-2.0
#include "handles.h"

namespace llama {

std::string last_sentence() {
    char sentence[1024] = "";
    if (lk_last_error(sentence, sizeof sentence, nullptr) != LK_OK)
        return "unknown error";
    return sentence;
}

void check(lk_status status) {
    if (status == LK_OK)
        return;
    throw Error(last_sentence() + " (" + lk_status_name(status) + ")");
}

void check_bytes_of(const std::string &file, lk_status status) {
    if (status == LK_OK)
        return;
    throw Error(file + ": " + last_sentence() + " (" + lk_status_name(status) + ")");
}

Geometry::Geometry(std::uint32_t n_layers, std::uint32_t n_query_heads, std::uint32_t n_kv_heads,
                   std::uint32_t head_dim) {
    lk_layer layer = initialised(lk_layer_init);
    layer.n_query_heads = n_query_heads;
    layer.n_kv_heads = n_kv_heads;
    layer.head_dim = head_dim;
    layers_.assign(n_layers == 0 ? 1 : n_layers, layer);
}

Geometry::Geometry(const Config &config, const float *sink_logits)
    : Geometry(config.n_layers, config.n_query_heads, config.n_kv_heads, config.head_dim) {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layers_[i].window_tokens = config.windows[i];
        layers_[i].scale = static_cast<float>(config.attention_scale);
        layers_[i].soft_cap = static_cast<float>(config.soft_cap);
        if (config.has_learned_sinks)
            layers_[i].sink_logits = sink_logits + i * config.n_query_heads;
    }
}

lk_geometry Geometry::view() const {
    lk_geometry geometry = initialised(lk_geometry_init);
    geometry.n_layers = n_layers();
    geometry.layers = layers_.data();
    return geometry;
}

ContextHandle open_context(lk_backend backend, std::uint32_t device_index, std::uint32_t n_threads,
                           std::uint32_t cpu_mask) {
    lk_context_desc desc = initialised(lk_context_desc_init);
    desc.backend = backend;
    desc.device_index = device_index;
    desc.n_threads = n_threads;
    desc.cpu_mask = cpu_mask;
    lk_context *context = nullptr;
    check(lk_context_open(&desc, LK_ABI_VERSION, &context));
    return ContextHandle(context);
}

PlanHandle make_preset(const std::string &name, const Geometry &geometry) {
    const lk_geometry view = geometry.view();
    lk_plan *plan = nullptr;
    check(lk_plan_preset(name.c_str(), &view, &plan));
    return PlanHandle(plan);
}

PlanHandle copy_plan(const lk_plan *plan) {
    lk_plan *copy = nullptr;
    check(lk_plan_copy(plan, &copy));
    return PlanHandle(copy);
}

void keep_all(lk_plan *plan) {
    const lk_key_rule key = initialised(lk_key_rule_init);
    const lk_value_rule value = initialised(lk_value_rule_init);
    check(lk_plan_set_key(plan, LK_ALL, LK_ALL, &key));
    check(lk_plan_set_value(plan, LK_ALL, LK_ALL, &value));
    check(lk_plan_set_ladder(plan, LK_ALL, nullptr, 0, 0));
    check(lk_plan_set_recent(plan, 0, 0));
    lk_chunk_rule none = initialised(lk_chunk_rule_init);
    none.chunk_tokens = 0;
    check(lk_plan_set_chunks(plan, &none));
}

bool ranks_by_queries(const lk_plan *plan) {
    lk_key_rule rule = initialised(lk_key_rule_init);
    for (std::uint32_t layer = 0; lk_plan_get_key(plan, layer, 0, &rule) == LK_OK; ++layer) {
        for (std::uint32_t head = 0; lk_plan_get_key(plan, layer, head, &rule) == LK_OK; ++head) {
            if (rule.boost_channels != 0 && rule.boost_ranking == LK_RANKING_QUERY_RANGE) {
                return true;
            }
        }
    }
    return false;
}

}  // namespace llama
