// Values within their plan.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstring>

#include "plan/check.h"

namespace lk {

namespace {

// Fits a path of a hundred characters and the longest sentence.
constexpr size_t kSentence = 384;

lk_status check_one_bit_plane(const Plan &plan, uint32_t bits, const char *name, const Subject &s) {
    if (plan.page_tokens >= least_page_tokens(bits))
        return LK_OK;
    return fail(s.status,
                "%s%s is %u, must be another width or page_tokens 64 or 128: a 1-bit plane does "
                "not fit pages of %u tokens",
                s.prefix, name, bits, plan.page_tokens);
}

lk_status check_group(uint32_t group, uint32_t limit, const char *limit_name, const Subject &s) {
    if (group <= limit)
        return LK_OK;
    return fail(s.status, "%sgroup is %u, must be at most %s %u", s.prefix, group, limit_name,
                limit);
}

struct Counts {
    uint32_t of[17];  // channels by width
};

Counts count_widths(const uint8_t *channel_bits, uint32_t head_dim, uint32_t cap) {
    Counts counts = {};
    for (uint32_t c = 0; c < head_dim; ++c)
        ++counts.of[channel_width(channel_bits[c], cap)];
    return counts;
}

lk_status refuse_count(const Plan &plan, uint32_t n, const char *at, uint32_t rung,
                       const Subject &s) {
    char where[32] = "";
    if (rung != kNoRung)
        std::snprintf(where, sizeof where, " at rung %u", rung);
    return fail(s.status,
                "%sclasses puts %u channels at %s bits%s, must be a multiple of 16 "
                "(as many 1 as 3 share the 2-bit slots; page_tokens is %u)",
                s.prefix, n, at, where, plan.page_tokens);
}

// At one rung below 16.
lk_status check_planes(const Plan &plan, const Counts &counts, uint32_t rung, const Subject &s) {
    for (const uint32_t bits : {16u, 8u, 4u})
        if (counts.of[bits] % LK_STRIP_CHANNELS)
            return refuse_count(plan, counts.of[bits],
                                bits == 16  ? "16"
                                : bits == 8 ? "8"
                                            : "4",
                                rung, s);
    const uint32_t ones = counts.of[1];
    if (ones && ones == counts.of[3]) {
        const uint32_t slots = 2 * ones + counts.of[2];
        return slots % LK_STRIP_CHANNELS ? refuse_count(plan, slots, "1, 2 and 3", rung, s) : LK_OK;
    }
    for (const uint32_t bits : {3u, 2u, 1u}) {
        if (counts.of[bits] % LK_STRIP_CHANNELS)
            return refuse_count(plan, counts.of[bits],
                                bits == 3   ? "3"
                                : bits == 2 ? "2"
                                            : "1",
                                rung, s);
        const lk_status status =
            counts.of[bits] ? check_one_bit_plane(plan, bits, "classes", s) : LK_OK;
        if (status != LK_OK)
            return status;
    }
    return LK_OK;
}

// Calls check(cap) for what the layer's pages may be packed under.
template <class Check>
lk_status for_each_cap(const Plan &plan, uint32_t layer, const Check &check) {
    const WidthCaps of_layer = width_caps(plan, layer);
    for (uint32_t i = 0; i < of_layer.n; ++i) {
        const lk_status status = of_layer.caps[i] == 16 ? LK_OK : check(of_layer.caps[i]);
        if (status != LK_OK)
            return status;
    }
    return LK_OK;
}

bool has_rung(const LayerPlan &layer, uint32_t bits) {
    for (uint32_t r = 0; r < layer.n_rungs; ++r)
        if (layer.rungs[r] == bits)
            return true;
    return false;
}

// Path of the ladder of the layer whose head's key has the subject.
struct LadderPath {
    char text[96];
    explicit LadderPath(const Subject &s) {
        const char *heads = std::strstr(s.prefix, "heads/");
        std::snprintf(text, sizeof text, "%.*sladder",
                      heads ? static_cast<int>(heads - s.prefix) : 0, s.prefix);
    }
};

// 3-bit stored channels are final: wider ones would pass them on the way to 2 bits.
lk_status check_three_bits(const Plan &plan, uint32_t layer, uint32_t widest, bool has_three,
                           const char *name, const Subject &s) {
    const LayerPlan &own = plan.layers[layer];
    const WidthCaps of_layer = width_caps(plan, layer);
    if (!has_three || widest < 4 || !has_rung(own, 2) || (!of_layer.has(8) && !of_layer.has(4)))
        return LK_OK;
    const bool by_chunks = !has_rung(own, 8) && !has_rung(own, 4);
    return fail(s.status,
                "%s%s has channels of %u bits next to 3 bits, must not with rung 2 in %s%s: they "
                "would shrink below the others",
                s.prefix, name, widest, LadderPath(s).text, by_chunks ? " and /chunks" : "");
}

lk_status check_class_ladder(const Plan &plan, uint32_t layer, const uint8_t *channel_bits,
                             const Subject &s) {
    uint32_t widest = 0;
    bool has_three = false;
    for (uint32_t c = 0; c < plan.layers[layer].geometry.head_dim; ++c) {
        widest = channel_bits[c] > widest ? channel_bits[c] : widest;
        has_three = has_three || channel_bits[c] == 3;
    }
    return check_three_bits(plan, layer, widest, has_three, "classes", s);
}

// A page that stays at 16 bits for long would need the sums of |Q| of its time.
lk_status check_boost_ladder(const Plan &plan, uint32_t layer, const KeyRule &rule,
                             const Subject &s) {
    const lk_status status =
        check_three_bits(plan, layer, rule.boost_bits, rule.bits == 3, "boost/bits", s);
    const bool waits = plan.layers[layer].rung == 16;
    if (status != LK_OK || rule.boost_ranking != LK_RANKING_QUERY_RANGE ||
        (!waits && !plan.chunks.tokens))
        return status;
    return fail(s.status,
                "%sboost/score is \"query-range\", must be \"key\" with %s%s: the sums "
                "of queries are kept for the recent window alone",
                s.prefix, waits ? "rung 16 in " : "", waits ? LadderPath(s).text : "/chunks");
}

lk_status check_class_counts(const Plan &plan, uint32_t layer, uint32_t head, const Subject &s) {
    const LayerPlan &own = plan.layers[layer];
    const uint8_t *channel_bits = plan.channel_bits(layer, head);
    return for_each_cap(plan, layer, [&](uint32_t cap) {
        return check_planes(plan, count_widths(channel_bits, own.geometry.head_dim, cap), cap, s);
    });
}

lk_status check_boost_counts(const Plan &plan, uint32_t layer, const KeyRule &rule,
                             const Subject &s) {
    const uint32_t head_dim = plan.layers[layer].geometry.head_dim;
    if (boost_count(rule) >= head_dim)
        return fail(s.status, "%sboost/channels is %u, must leave a strip of 16 of head_dim %u",
                    s.prefix, rule.boost_channels, head_dim);
    return check_one_bit_plane(plan, rule.boost_bits, "boost/bits", s);
}

struct Path {
    uint32_t layer_element;
    uint32_t head_element;
};

lk_status check_entry(const Plan &plan, uint32_t layer, uint32_t head, const Path &path) {
    char prefix[96];
    std::snprintf(prefix, sizeof prefix, "/layers/%u/heads/%u/key/", path.layer_element,
                  path.head_element);
    lk_status status = check_key(plan, layer, head, {prefix, true, LK_E_ARGUMENT});
    if (status == LK_OK) {
        std::snprintf(prefix, sizeof prefix, "/layers/%u/heads/%u/value/", path.layer_element,
                      path.head_element);
        status = check_value(plan, layer, head, {prefix, true, LK_E_ARGUMENT});
    }
    if (status == LK_OK)
        return LK_OK;
    // Elements of the JSON stand for runs of equal layers and heads.
    char sentence[kSentence];
    std::snprintf(sentence, sizeof sentence, "%s", last_sentence());
    return fail(status, "%s (layer %u, KV head %u)", sentence, layer, head);
}

lk_status check_layer_entries(const Plan &plan, uint32_t layer, uint32_t layer_element) {
    Path path = {layer_element, 0};
    for (uint32_t h = 0; h < plan.layers[layer].geometry.n_kv_heads; h = plan.run(layer, h).end) {
        const lk_status status = check_entry(plan, layer, h, path);
        if (status != LK_OK)
            return status;
        ++path.head_element;
    }
    return LK_OK;
}

lk_status refuse_number(uint32_t layer, const char *member, uint32_t given, uint32_t planned) {
    return fail(LK_E_MISMATCH, "geometry.layers[%u].%s is %u, the plan is made for %u", layer,
                member, given, planned);
}

lk_status refuse_real(uint32_t layer, const char *member, float given, float planned) {
    return fail(LK_E_MISMATCH, "geometry.layers[%u].%s is %.9g, the plan is made for %.9g", layer,
                member, static_cast<double>(given), static_cast<double>(planned));
}

lk_status compare_layer(uint32_t layer, const lk_layer &given, const lk_layer &planned) {
    if (given.n_query_heads != planned.n_query_heads)
        return refuse_number(layer, "n_query_heads", given.n_query_heads, planned.n_query_heads);
    if (given.n_kv_heads != planned.n_kv_heads)
        return refuse_number(layer, "n_kv_heads", given.n_kv_heads, planned.n_kv_heads);
    if (given.head_dim != planned.head_dim)
        return refuse_number(layer, "head_dim", given.head_dim, planned.head_dim);
    if (value_dim_of(given) != value_dim_of(planned))
        return refuse_number(layer, "value_dim", value_dim_of(given), value_dim_of(planned));
    if (given.flags != planned.flags)
        return refuse_number(layer, "flags", given.flags, planned.flags);
    if (given.window_tokens != planned.window_tokens)
        return refuse_number(layer, "window_tokens", given.window_tokens, planned.window_tokens);
    if (given.window_sink_tokens != planned.window_sink_tokens)
        return refuse_number(layer, "window_sink_tokens", given.window_sink_tokens,
                             planned.window_sink_tokens);
    if (given.scale != planned.scale)
        return refuse_real(layer, "scale", given.scale, planned.scale);
    if (given.soft_cap != planned.soft_cap)
        return refuse_real(layer, "soft_cap", given.soft_cap, planned.soft_cap);
    if (given.kv_layer != planned.kv_layer)
        return fail(LK_E_MISMATCH,
                    "geometry.layers[%u] attends to the keys and values of layer %u, the plan is "
                    "made for those of layer %u",
                    layer, owns_kv(given) ? layer : given.kv_layer,
                    owns_kv(planned) ? layer : planned.kv_layer);
    return LK_OK;
}

}  // namespace

lk_status check_key(const Plan &plan, uint32_t layer, uint32_t head, const Subject &s) {
    const LayerPlan &own = plan.layers[layer];
    const KeyRule &rule = plan.key(layer, head);
    lk_status status = rule.axis == LK_AXIS_CHANNEL
                           ? check_group(rule.group, plan.page_tokens, "page_tokens", s)
                           : check_group(rule.group, own.geometry.head_dim, "head_dim", s);
    if (status == LK_OK && rule.classes != kNoIndex) {
        status = check_class_ladder(plan, layer, plan.channel_bits(layer, head), s);
        return status == LK_OK ? check_class_counts(plan, layer, head, s) : status;
    }
    if (status == LK_OK)
        status = check_one_bit_plane(plan, rule.bits, "bits", s);
    if (status == LK_OK && rule.boost_channels)
        status = check_boost_counts(plan, layer, rule, s);
    if (status == LK_OK && rule.boost_channels)
        status = check_boost_ladder(plan, layer, rule, s);
    return status;
}

lk_status check_has_values(const Plan &plan, uint32_t layer, lk_status status) {
    if (!is_latent(plan.layers[layer].geometry))
        return LK_OK;
    return fail(status,
                "layer is %u, a latent one: its values are channels of its keys and have no rule",
                layer);
}

lk_status check_channel(const Plan &plan, uint32_t layer, bool is_value, uint32_t channel) {
    const lk_layer &geometry = plan.layers[layer].geometry;
    const uint32_t n_channels = is_value ? value_dim_of(geometry) : geometry.head_dim;
    if (channel < n_channels)
        return LK_OK;
    return fail(LK_E_NOT_FOUND, "channel is %u, layer %u has %s %u", channel, layer,
                is_value && geometry.value_dim ? "value_dim" : "head_dim", n_channels);
}

lk_status check_value(const Plan &plan, uint32_t layer, uint32_t head, const Subject &s) {
    const ValueRule &rule = plan.value(layer, head);
    const lk_layer &geometry = plan.layers[layer].geometry;
    const lk_status status = check_group(rule.group, value_dim_of(geometry),
                                         geometry.value_dim ? "value_dim" : "head_dim", s);
    return status == LK_OK ? check_one_bit_plane(plan, rule.bits, "bits", s) : status;
}

lk_status check_chunks(const Plan &plan, const Subject &s) {
    const ChunkRule &chunks = plan.chunks;
    if (!chunks.tokens)
        return LK_OK;
    if (!chunks.reorder && chunks.tokens != plan.page_tokens)
        return fail(s.status,
                    "%stokens is %u, must be /page_tokens %u with %sreorder false: a page has one "
                    "class",
                    s.prefix, chunks.tokens, plan.page_tokens, s.prefix);
    if (plan.page_tokens % chunks.tokens && chunks.tokens % plan.page_tokens)
        return fail(s.status, "%stokens is %u, must be a divisor or a multiple of /page_tokens %u",
                    s.prefix, chunks.tokens, plan.page_tokens);
    uint32_t element = 0;
    for (uint32_t l = 0; chunks.reorder && l < plan.layers.size(); ++l) {
        const lk_layer &geometry = plan.layers[l].geometry;
        element += l && !same_geometry(plan.layers[l - 1].geometry, geometry);
        if (geometry.window_tokens)
            return fail(s.status,
                        "%sreorder is true, must be false with /geometry/layers/%u/window %u "
                        "(layer %u): a window needs tokens in their order",
                        s.prefix, element, geometry.window_tokens, l);
    }
    return LK_OK;
}

lk_status check_budget(const Plan &plan, uint32_t layer, const Subject &s) {
    if (!plan.layers[layer].budget_bytes || !plan.chunks.tokens)
        return LK_OK;
    return fail(s.status,
                "%sbudget_bytes is %llu, must not be there with /chunks: pages that wait for a "
                "class stay at 16 bits",
                s.prefix, static_cast<unsigned long long>(plan.layers[layer].budget_bytes));
}

lk_status validate_plan(const Plan &plan) {
    const lk_status checked = check_chunks(plan, {"/chunks/", true, LK_E_ARGUMENT});
    if (checked != LK_OK)
        return checked;
    uint32_t element = 0;
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        if (l && same_layer(plan, l - 1, l))
            continue;
        element += l != 0;
        char path[32];
        std::snprintf(path, sizeof path, "/layers/%u/", element);
        LK_TRY(check_budget(plan, l, {path, true, LK_E_ARGUMENT}));
        LK_TRY(check_layer_entries(plan, l, element));
    }
    return LK_OK;
}

lk_status compare_geometry(const Plan &plan, const Array<lk_layer> &layers) {
    if (layers.size() != plan.layers.size())
        return fail(LK_E_MISMATCH, "geometry.n_layers is %zu, the plan is made for %zu",
                    layers.size(), plan.layers.size());
    for (uint32_t l = 0; l < layers.size(); ++l) {
        const lk_status status = compare_layer(l, layers[l], plan.layers[l].geometry);
        if (status != LK_OK)
            return status;
    }
    return LK_OK;
}

}  // namespace lk
