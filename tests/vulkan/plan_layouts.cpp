// SPDX-License-Identifier: Apache-2.0
#include "plan_layouts.h"

#include "base/status.h"
#include "format/layout.h"

#include <lowkey/plan.h>

namespace {

using auto_layers::Head;

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;

// Widths of a head's key channels, the widest first and the pairs last.
std::vector<uint8_t> channel_bits(const Head &head) {
    std::vector<uint8_t> bits(kHeadDim, 2);
    for (uint32_t i = 0; i < head.n8; ++i)
        bits[i] = 8;
    for (uint32_t i = 0; i < head.n4; ++i)
        bits[head.n8 + i] = 4;
    for (uint32_t i = 0; i < head.n_shared; ++i) {
        bits[kHeadDim - 1 - i] = 3;
        bits[kHeadDim - 1 - head.n_shared - i] = 1;
    }
    return bits;
}

lk_status set_head(lk_plan *plan, uint32_t layer, uint32_t kv_head, const Head &head) {
    lk_key_rule key;
    lk_value_rule value;
    LK_TRY(lk_key_rule_init(&key, sizeof key));
    LK_TRY(lk_value_rule_init(&value, sizeof value));
    const std::vector<uint8_t> bits = channel_bits(head);
    key.bits = 2;
    key.group = head.key_group;
    if (head.n8 + head.n4 + head.n_shared)
        key.channel_bits = bits.data();
    value.bits = head.value_bits;
    value.group = head.value_group;
    LK_TRY(lk_plan_set_key(plan, layer, kv_head, &key));
    return lk_plan_set_value(plan, layer, kv_head, &value);
}

lk_status set_layers(lk_plan *plan, const std::vector<auto_layers::Layer> &layers) {
    LK_TRY(lk_plan_set_metadata(plan, LK_ALL, LK_METADATA_F8));
    for (uint32_t l = 0; l < layers.size(); ++l)
        for (uint32_t head = 0; head < kHeads; ++head)
            LK_TRY(set_head(plan, l, head, layers[l][head]));
    return LK_OK;
}

auto_layers::Layer uniform_layer(const Head &head) { return auto_layers::Layer(kHeads, head); }

constexpr const char *kAutoNames[] = {"auto 1.74", "auto 2.76", "auto 2.05", "auto 3.53"};

}  // namespace

std::vector<NamedPlan> measured_plans() {
    std::vector<NamedPlan> plans;
    for (const char *preset : {"fp16", "int8", "kivi4", "kivi2", "kitty-pro"})
        plans.push_back({preset, preset, {}});
    plans.push_back({"FP8 by 32", nullptr, {uniform_layer({32, 0, 0, 0, 2, 32})}});
    plans.push_back({"ChanMix", nullptr, {uniform_layer({32, 0, 0, 13, 2, 32})}});
    for (size_t i = 0; i < auto_layers::kAutoLayers.size(); ++i)
        plans.push_back({kAutoNames[i], nullptr, {auto_layers::kAutoLayers[i]}});
    return plans;
}

std::vector<NamedPlan> auto_plans(uint32_t n_layers) {
    const std::vector<auto_layers::Layer> &recorded = auto_layers::kAutoLayers;
    std::vector<NamedPlan> plans;
    for (size_t i = 0; i < recorded.size(); ++i)
        plans.push_back({kAutoNames[i], nullptr, {n_layers, recorded[i]}});
    plans.push_back({"auto, all in turn", nullptr, {}});
    for (uint32_t l = 0; l < n_layers; ++l)
        plans.back().layers.push_back(recorded[l % recorded.size()]);
    return plans;
}

PlanLayout::PlanLayout(const NamedPlan &plan) : context_(lk::default_allocator()) {
    context_.backend = &backend_;
    if (open(plan))
        failure_ = lk::last_sentence();
}

PlanLayout::~PlanLayout() {
    lk_cache_destroy(&cache_);
    lk_plan_destroy(&plan_);
}

lk_status PlanLayout::open(const NamedPlan &plan) {
    lk_geometry geometry;
    lk_layer layer;
    LK_TRY(lk_layer_init(&layer, sizeof layer));
    layer.n_query_heads = 4 * kHeads;
    layer.n_kv_heads = kHeads;
    layer.head_dim = kHeadDim;
    const std::vector<lk_layer> layers(plan.preset ? 1 : plan.layers.size(), layer);
    LK_TRY(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = static_cast<uint32_t>(layers.size());
    geometry.layers = layers.data();
    LK_TRY(lk_plan_preset(plan.preset ? plan.preset : "kivi2", &geometry, &plan_));
    if (!plan.preset)
        LK_TRY(set_layers(plan_, plan.layers));
    lk_cache_desc desc;
    LK_TRY(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_sequences = 1;
    desc.budget_bytes = uint64_t{1} << 30;
    return lk_cache_create(&context_, &geometry, plan_, &desc, &cache_);
}

uint64_t PlanLayout::packed_bytes(uint32_t layer) const {
    const lk::CacheLayout &of = layout();
    uint64_t bytes = 0;
    for (uint32_t head = 0; head < of.layers[layer].n_kv_heads; ++head) {
        const lk::EntryFormats &entry = of.entry_formats[of.first_entries[layer] + head];
        for (const uint16_t format : {entry.packed_key, entry.packed_value})
            bytes += lk::payload_bytes(of.formats[format].layout) +
                     lk::metadata_bytes(of.formats[format].layout);
    }
    return bytes;
}
