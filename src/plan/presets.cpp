// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "plan/plan.h"

namespace lk {

namespace {

struct Preset {
    const char *name;
    uint8_t key_bits;
    uint8_t value_bits;  // per token
    uint8_t boost_bits;
    uint8_t boost_sixteenths;  // of the key channels are boosted; 0 = none
    uint8_t sink_tokens;
    uint8_t recent_tokens;
    lk_metadata metadata;
    bool has_ladder;      // of all rungs, beginning at 16
    bool has_chunks;      // as lk_chunk_rule_init()
    uint8_t axis;         // of keys
    uint8_t key_group;    // tokens or channels, by the axis; 0 = page or head
    uint8_t value_group;  // channels; 0 = head
};

constexpr Preset kPresets[] = {
    {"fp16", 16, 16, 0, 0, 0, 0, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"int8", 8, 8, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"kivi4", 4, 4, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"kivi2", 2, 2, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"kitty", 2, 2, 4, 2, 32, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"kitty-pro", 2, 2, 4, 4, 32, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    // FP8 parameters free the bytes of an eighth of the channels. The channels whose minima FP8
    // rounds most are the largest, which are boosted.
    {"wide-keys", 2, 1, 4, 6, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"wide-keys-pro", 2, 2, 4, 6, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    // What has no class stays at 16 bits. No window: classes reach up to the query.
    {"cocktail", 16, 16, 0, 0, 32, 0, LK_METADATA_F16, false, true, LK_AXIS_CHANNEL, 32, 0},
    {"pm-kvq", 16, 16, 0, 0, 32, 128, LK_METADATA_F16, true, false, LK_AXIS_CHANNEL, 0, 0},
    // One sink token, rounded up to a tile; the window of the published code holds what does not
    // fill a page.
    {"pm-kvq-paper", 16, 16, 0, 0, 16, 0, LK_METADATA_F16, true, false, LK_AXIS_TOKEN, 128, 128},
};
// Plans without statistics, the one with the best answers first (docs/choosing-a-plan.md).
constexpr Preset kDefaults[] = {
    {"default", 16, 16, 0, 0, 0, 0, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 8, 8, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 4, 4, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 4, 2, 0, 0, 32, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 14, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 12, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 10, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 8, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 6, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 2, 4, 4, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    // Below, whose values also have 1 bit, lists that are repeated word for word get lost.
    {"default", 2, 1, 4, 10, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 1, 4, 8, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 1, 4, 6, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 1, 4, 4, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 1, 4, 2, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 2, 1, 0, 0, 32, 128, LK_METADATA_F8, false, false, LK_AXIS_CHANNEL, 0, 0},
};
// The narrowest of them that answers as FP16 on all proving models.
constexpr size_t kUnlimited = 1;

constexpr uint8_t kRungs[] = {16, 8, 4, 2};

constexpr uint32_t kPageTokens = 128;

const Preset *find_preset(const char *name) {
    for (const Preset &preset : kPresets)
        if (!std::strcmp(preset.name, name))
            return &preset;
    return nullptr;
}

// A group as long as the page or the head is 0.
uint16_t group_within(uint8_t group, uint32_t whole) { return group < whole ? group : uint16_t{0}; }

KeyRule key_rule(const Preset &preset, uint32_t head_dim) {
    KeyRule rule;
    rule.bits = preset.key_bits;
    rule.axis = preset.axis;
    rule.group =
        group_within(preset.key_group, preset.axis == LK_AXIS_CHANNEL ? kPageTokens : head_dim);
    if (preset.boost_sixteenths) {
        const uint64_t share = ceil_div(uint64_t{head_dim} * preset.boost_sixteenths, 16);
        rule.boost_bits = preset.boost_bits;
        rule.boost_channels = static_cast<uint16_t>(
            std::min(round_up(share, LK_STRIP_CHANNELS), uint64_t{head_dim} - LK_STRIP_CHANNELS));
        rule.boost_ranking = LK_RANKING_KEY;
    }
    return rule;
}

lk_status set_rules_of(const Preset &preset, Plan *plan) {
    set_name(plan, preset.name);
    set_pages(plan, kPageTokens);
    if (preset.has_chunks)
        set_chunks(plan, default_chunk_rule());
    set_recent(plan, preset.sink_tokens, preset.recent_tokens);
    (void)set_metadata(plan, LK_ALL, preset.metadata);
    ValueRule value;
    value.bits = preset.value_bits;
    if (preset.has_ladder)
        (void)set_ladder(plan, LK_ALL, kRungs, sizeof kRungs, kRungs[0]);
    for (uint32_t l = 0, end; l < plan->layers.size(); l = end) {
        const lk_layer &geometry = plan->layers[l].geometry;
        const KeyRule key = key_rule(preset, geometry.head_dim);
        value.group = group_within(preset.value_group, stored_value_dim(geometry));
        LK_TRY(set_rules(plan, l, key, is_latent(geometry) ? ValueRule() : value));
        for (end = l + 1;
             end < plan->layers.size() && same_pages(plan->layers[end].geometry, geometry);)
            ++end;
        share_runs(plan, l, end - l);
    }
    follow_kv_layers(plan);
    return LK_OK;
}

}  // namespace

const char *preset_name(uint32_t index) {
    return index < sizeof kPresets / sizeof *kPresets ? kPresets[index].name : nullptr;
}

lk_status set_preset(Plan *plan, const char *name) {
    if (!std::strcmp(name, kDefaults->name))
        return set_default(plan, 0);
    const Preset *preset = find_preset(name);
    if (preset)
        return set_rules_of(*preset, plan);
    return fail(
        LK_E_NOT_FOUND,
        "preset is \"%.64s\", must be one of fp16, int8, kivi4, kivi2, "
        "kitty, kitty-pro, wide-keys, wide-keys-pro, cocktail, pm-kvq, pm-kvq-paper, default",
        name);
}

lk_status set_default(Plan *plan, double bits_per_value) {
    if (bits_per_value == 0)
        return set_rules_of(kDefaults[kUnlimited], plan);
    double least = 0;
    for (const Preset &preset : kDefaults) {
        LK_TRY(set_rules_of(preset, plan));
        lk_plan_size size = {};
        LK_TRY(plan_bytes(*plan, 1, 1, 1, &size));
        least = size.bits_per_value;
        if (least <= bits_per_value)
            return LK_OK;
    }
    return fail(LK_E_BUDGET, "bits_per_value is %g, must be at least %g without statistics",
                bits_per_value, least);
}

}  // namespace lk
