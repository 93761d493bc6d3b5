// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "plan/plan.h"
#include "plan/runs.h"

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
    float key_clip = 1;
    float value_clip = 1;
};

// Widths of K and V pages under values per token, keys per channel and FP8 parameters.
struct Widths {
    uint8_t boost_sixteenths;  // of the key channels, at twice the bits of the others
    uint8_t value_bits;
    uint8_t key_bits = 2;
};
// Pages of the middle layers, so many sixteenths of all.
struct Band {
    Widths widths;
    uint8_t sixteenths;
};
// A plan whose middle layers are wider. Copying from the context happens there: values of 1 bit in
// the outer layers cost few answers, in a middle one every long repetition. The core is those of
// the middle layers that have no window, since only they see what stands far back.
struct Tapered {
    Band core;
    Band middle;
    Widths outer;
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
// Plans without statistics (docs/choosing-a-plan.md); of those within a limit the one with the most
// bits has the best answers.
constexpr Preset kDefaults[] = {
    {"default", 16, 16, 0, 0, 0, 0, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 8, 8, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 4, 4, 0, 0, 0, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
    {"default", 4, 2, 0, 0, 32, 128, LK_METADATA_F16, false, false, LK_AXIS_CHANNEL, 0, 0},
};
// The narrowest of them that answers as FP16 on all proving models.
constexpr size_t kUnlimited = 1;
constexpr Preset kTaperedBase = {"default",       2, 2, 4, 0, 32, 128, LK_METADATA_F8, false, false,
                                 LK_AXIS_CHANNEL, 0, 0};
// Heads that copy need keys of more than 4 bits: the channels with tokens that stand out have 8.
constexpr Widths kCore = {2, 2, 4};
constexpr uint8_t kCoreSixteenths = 3;
constexpr Tapered same_core(Band middle, Widths outer) { return {middle, middle, outer}; }
constexpr Tapered with_core(Band middle, Widths outer) {
    return {{kCore, kCoreSixteenths}, middle, outer};
}
constexpr Tapered kTapered[] = {
    with_core({{14, 2}, 16}, {14, 2}), with_core({{12, 2}, 16}, {12, 2}),
    with_core({{10, 2}, 16}, {10, 2}), with_core({{10, 2}, 12}, {10, 1}),
    with_core({{10, 2}, 8}, {10, 1}),  with_core({{8, 2}, 10}, {8, 1}),
    with_core({{8, 2}, 8}, {8, 1}),    with_core({{8, 2}, 6}, {8, 1}),
    with_core({{6, 2}, 8}, {6, 1}),    with_core({{6, 2}, 6}, {6, 1}),
    with_core({{6, 2}, 4}, {6, 1}),    same_core({{6, 2}, 8}, {6, 1}),
    with_core({{6, 2}, 4}, {4, 1}),    with_core({{4, 2}, 4}, {4, 1}),
    with_core({{4, 1}, 4}, {4, 1}),    same_core({{6, 2}, 6}, {6, 1}),
    same_core({{8, 2}, 6}, {4, 1}),    same_core({{6, 2}, 6}, {4, 1}),
    same_core({{6, 2}, 4}, {4, 1}),    same_core({{6, 2}, 4}, {2, 1}),
    same_core({{4, 2}, 4}, {2, 1}),    same_core({{4, 2}, 6}, {0, 1}),
    same_core({{4, 2}, 4}, {0, 1}),    same_core({{2, 2}, 4}, {0, 1}),
    same_core({{0, 1}, 16}, {0, 1}),
};
// Shares of their range that groups of 2-bit codes of these plans keep. Where few channels are
// boosted, channels with tokens that stand out are at 2 bits and keep their range.
constexpr uint8_t kLeastClippedBoost = 4;
constexpr float kTaperedKeyClip = 0.9f;
constexpr float kTaperedValueClip = 0.7f;

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
    rule.ranges.clip = preset.key_clip;
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

// What all layers share.
void set_common(const Preset &preset, Plan *plan) {
    set_name(plan, preset.name);
    set_pages(plan, kPageTokens);
    if (preset.has_chunks)
        set_chunks(plan, default_chunk_rule());
    set_recent(plan, preset.sink_tokens, preset.recent_tokens);
    (void)set_metadata(plan, LK_ALL, preset.metadata);
    if (preset.has_ladder)
        (void)set_ladder(plan, LK_ALL, kRungs, sizeof kRungs, kRungs[0]);
}

lk_status set_layer_rules(const Preset &preset, Range layers, Plan *plan) {
    ValueRule value;
    value.bits = preset.value_bits;
    value.ranges.clip = preset.value_clip;
    for (uint32_t l = layers.begin, end; l < layers.end; l = end) {
        const lk_layer &geometry = plan->layers[l].geometry;
        const KeyRule key = key_rule(preset, geometry.head_dim);
        value.group = group_within(preset.value_group, stored_value_dim(geometry));
        LK_TRY(set_rules(plan, l, key, is_latent(geometry) ? ValueRule() : value));
        for (end = l + 1; end < layers.end && same_pages(plan->layers[end].geometry, geometry);)
            ++end;
        share_runs(plan, l, end - l);
    }
    return LK_OK;
}

uint32_t layer_count(const Plan &plan) { return static_cast<uint32_t>(plan.layers.size()); }

lk_status set_rules_of(const Preset &preset, Plan *plan) {
    set_common(preset, plan);
    LK_TRY(set_layer_rules(preset, {0, layer_count(*plan)}, plan));
    follow_kv_layers(plan);
    return LK_OK;
}

// The middle layers; an odd number of outer ones leaves more of them before.
Range middle_layers(uint32_t n_layers, uint32_t sixteenths) {
    const uint32_t n = std::max((n_layers * sixteenths + 8) / 16, 1u);
    const uint32_t first = (n_layers - n + 1) / 2;
    return {first, first + n};
}

Preset preset_of(const Widths &widths) {
    Preset preset = kTaperedBase;
    preset.key_bits = widths.key_bits;
    preset.boost_bits = static_cast<uint8_t>(2 * widths.key_bits);
    preset.boost_sixteenths = widths.boost_sixteenths;
    preset.value_bits = widths.value_bits;
    if (widths.key_bits == 2 && widths.boost_sixteenths >= kLeastClippedBoost)
        preset.key_clip = kTaperedKeyClip;
    if (widths.value_bits == 2)
        preset.value_clip = kTaperedValueClip;
    return preset;
}

bool is_within(const Range &range, uint32_t layer) {
    return layer >= range.begin && layer < range.end;
}

lk_status set_tapered(const Tapered &tapered, Plan *plan) {
    set_common(kTaperedBase, plan);
    const uint32_t n_layers = layer_count(*plan);
    const Range core = middle_layers(n_layers, tapered.core.sixteenths);
    const Range middle = middle_layers(n_layers, tapered.middle.sixteenths);
    const auto widths_of = [&](uint32_t layer) -> const Widths & {
        if (is_within(core, layer) && !plan->layers[layer].geometry.window_tokens)
            return tapered.core.widths;
        return is_within(middle, layer) ? tapered.middle.widths : tapered.outer;
    };
    for (uint32_t l = 0, end; l < n_layers; l = end) {
        const Widths &widths = widths_of(l);
        for (end = l + 1; end < n_layers && &widths_of(end) == &widths;)
            ++end;
        LK_TRY(set_layer_rules(preset_of(widths), {l, end}, plan));
    }
    follow_kv_layers(plan);
    return LK_OK;
}

constexpr size_t kDefaultPlans = sizeof kDefaults / sizeof *kDefaults;
constexpr size_t kTaperedPlans = sizeof kTapered / sizeof *kTapered;

lk_status set_numbered_default(size_t index, Plan *plan) {
    return index < kDefaultPlans ? set_rules_of(kDefaults[index], plan)
                                 : set_tapered(kTapered[index - kDefaultPlans], plan);
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
    double least = 0, most = 0;
    size_t best = 0;
    for (size_t i = 0; i < kDefaultPlans + kTaperedPlans; ++i) {
        LK_TRY(set_numbered_default(i, plan));
        lk_plan_size size = {};
        LK_TRY(plan_bytes(*plan, 1, 1, 1, &size));
        const double bits = size.bits_per_value;
        least = i == 0 ? bits : std::min(least, bits);
        if (bits <= bits_per_value && bits > most) {
            most = bits;
            best = i;
        }
    }
    if (most > 0)
        return set_numbered_default(best, plan);
    return fail(LK_E_BUDGET, "bits_per_value is %g, must be at least %g without statistics",
                bits_per_value, least);
}

}  // namespace lk
