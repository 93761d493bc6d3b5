// The model: layers, rules and their setters.
//
// SPDX-License-Identifier: Apache-2.0
#include "plan/plan.h"

#include <cmath>
#include <cstdio>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "plan/check.h"
#include "plan/runs.h"

namespace lk {

namespace {

lk_status find_layers(const Plan &plan, uint32_t layer, Range *out) {
    const auto n = static_cast<uint32_t>(plan.layers.size());
    if (layer == LK_ALL) {
        *out = {0, n};
        return LK_OK;
    }
    if (layer >= n)
        return fail(LK_E_NOT_FOUND, "layer is %u, the plan has %u layers", layer, n);
    *out = {layer, layer + 1};
    return LK_OK;
}

lk_status find_heads(const Plan &plan, Range layers, uint32_t kv_head) {
    if (kv_head == LK_ALL)
        return LK_OK;
    for (uint32_t l = layers.begin; l < layers.end; ++l)
        if (kv_head >= plan.layers[l].geometry.n_kv_heads)
            return fail(LK_E_NOT_FOUND, "kv_head is %u, layer %u has %u KV heads", kv_head, l,
                        plan.layers[l].geometry.n_kv_heads);
    return LK_OK;
}

lk_status find(const Plan &plan, uint32_t layer, uint32_t kv_head, Range *layers) {
    const lk_status status = find_layers(plan, layer, layers);
    return status == LK_OK ? find_heads(plan, *layers, kv_head) : status;
}

// One array of channels has one length.
lk_status check_same_head_dim(const Plan &plan, Range layers, const char *name) {
    for (uint32_t l = layers.begin + 1; l < layers.end; ++l)
        if (plan.layers[l].geometry.head_dim != plan.layers[layers.begin].geometry.head_dim)
            return fail(LK_E_ARGUMENT,
                        "%s is set for layers of head_dim %u and %u at once: set them one by one",
                        name, plan.layers[layers.begin].geometry.head_dim,
                        plan.layers[l].geometry.head_dim);
    return LK_OK;
}

lk_status refuse_latent_numbers(const char *name, uint32_t layer, const Subject &s) {
    return fail(
        s.status,
        "%s%s are for the keys of layer %u, a latent one: its values are channels of its keys "
        "and would change with them",
        s.prefix, name, layer);
}

lk_status check_key_rotation(const Plan &plan, uint32_t layer, const Subject &s) {
    if (!is_latent(plan.layers[layer].geometry))
        return LK_OK;
    return fail(s.status,
                s.json ? "%skey_rotation is there, must not be in a latent layer: the values of "
                         "layer %u are channels of its keys and would turn with them"
                       : "%srotation is for the keys of layer %u, a latent one: its values are "
                         "channels of its keys and would turn with them",
                s.prefix, layer);
}

lk_status set_key_numbers(Plan *plan, uint32_t layer, uint32_t kv_head, const float *numbers,
                          const KeyNumbers &kind, const Subject &subject) {
    Range layers;
    lk_status status = find(*plan, layer, kv_head, &layers);
    if (status != LK_OK)
        return status;
    float own[LK_MAX_HEAD_DIM];  // the caller's may be this plan's
    const uint32_t head_dim = plan->layers[layers.begin].geometry.head_dim;
    for (uint32_t l = layers.begin; numbers && l < layers.end; ++l)
        if (is_latent(plan->layers[l].geometry))
            return refuse_latent_numbers(kind.name, l, subject);
    if (numbers) {
        status = check_same_head_dim(*plan, layers, kind.name);
        if (status == LK_OK)
            status = kind.check(numbers, head_dim, subject);
        if (status != LK_OK)
            return status;
        clear_small(numbers, head_dim, kind, own);
    }
    status = reserve_change(plan, layers, 0, numbers ? head_dim : 0);
    if (status != LK_OK)
        return status;
    uint32_t index = kNoIndex;
    if (numbers)
        index = push_numbers(own, head_dim, &plan->key_parameters);
    change_heads(plan, layers, kv_head, [&](HeadRun *run) { run->key.*kind.index = index; });
    return LK_OK;
}

void put_u32(uint8_t *bytes, uint32_t value) {
    for (uint32_t i = 0; i < 4; ++i)
        bytes[i] = static_cast<uint8_t>(value >> (8 * i));
}

void put_f32(uint8_t *bytes, float value) {
    uint32_t word;
    std::memcpy(&word, &value, sizeof word);
    put_u32(bytes, word);
}

}  // namespace

lk_layer default_layer() {
    lk_layer layer = {};
    layer.size = sizeof layer;
    layer.kv_layer = LK_OWN_KV;
    return layer;
}

lk_status import_geometry(const lk_geometry *geometry, Array<lk_layer> *layers) {
    lk_geometry own = {};
    const lk_status status = import_struct(&own, sizeof own, sizeof own, geometry, "geometry");
    if (status != LK_OK)
        return status;
    if (!own.n_layers || own.n_layers > kMaxLayers)
        return fail(LK_E_ARGUMENT, "geometry.n_layers is %u, must be from 1 to %u", own.n_layers,
                    kMaxLayers);
    if (!own.layers)
        return fail(LK_E_ARGUMENT, "geometry.layers is NULL");
    if (!layers->resize(own.n_layers))
        return fail(LK_E_NOMEM, "no memory for %u layers", own.n_layers);
    const auto *bytes = reinterpret_cast<const unsigned char *>(own.layers);
    const size_t stride = own.layers->size;
    for (uint32_t l = 0; l < own.n_layers; ++l) {
        char prefix[64];
        std::snprintf(prefix, sizeof prefix, "geometry.layers[%u]", l);
        uint32_t size;
        std::memcpy(&size, bytes + l * stride, sizeof size);
        if (size != stride)
            return fail(LK_E_ARGUMENT, "%s.size is %u, that of layers[0] is %zu", prefix, size,
                        stride);
        lk_layer &layer = (*layers)[l];
        layer = default_layer();
        LK_TRY(import_struct(&layer, sizeof layer, kLeastLayerBytes, bytes + l * stride, prefix));
        std::snprintf(prefix, sizeof prefix, "geometry.layers[%u].", l);
        const Subject subject = {prefix, false, LK_E_ARGUMENT};
        LK_TRY(check_layer(layer, subject));
        LK_TRY(take_kv_layer(layers->data(), l, subject));
    }
    return LK_OK;
}

lk_status set_layers(Plan *plan, const Array<lk_layer> &layers) {
    plan->n_heads = 0;
    if (!plan->layers.reserve(layers.size()) || !plan->runs.reserve(layers.size()))
        return fail(LK_E_NOMEM, "no memory for a plan of %zu layers", layers.size());
    for (const lk_layer &layer : layers) {
        LayerPlan own = {};
        own.geometry = layer;
        own.geometry.sink_logits = nullptr;
        // Negative zero becomes zero, so that equal numbers have equal bytes.
        own.geometry.scale = layer.scale + 0.0f;
        own.geometry.soft_cap = layer.soft_cap + 0.0f;
        own.geometry.reserved = 0;
        own.geometry.value_dim = value_dim_of(layer) == layer.head_dim ? 0 : layer.value_dim;
        own.first_head = owns_kv(layer) ? plan->n_heads : plan->layers[layer.kv_layer].first_head;
        own.metadata = Metadata::kF16;
        own.rung = kNoRung;
        // Values are set for all layers but latent ones, so these share no run with others.
        if (plan->runs.empty() || plan->runs.back().end != layer.n_kv_heads ||
            is_latent(plan->layers[plan->layers.size() - 1].geometry) != is_latent(layer)) {
            HeadRun all;
            all.end = layer.n_kv_heads;
            (void)plan->runs.push(all);
        }
        own.first_run = static_cast<uint32_t>(plan->runs.size()) - 1;
        own.n_runs = 1;
        (void)plan->layers.push(own);
        plan->n_heads += own_kv_heads(layer);
    }
    return LK_OK;
}

void follow_kv_layers(Plan *plan) {
    for (LayerPlan &own : plan->layers) {
        if (owns_kv(own.geometry))
            continue;
        const lk_layer geometry = own.geometry;
        own = plan->layers[geometry.kv_layer];
        own.geometry = geometry;
    }
}

bool copy_plan(const Plan &from, Plan *to) {
    if (!to->layers.assign(from.layers.data(), from.layers.size()) ||
        !to->runs.assign(from.runs.data(), from.runs.size()) ||
        !to->classes.assign(from.classes.data(), from.classes.size()) ||
        !to->key_parameters.assign(from.key_parameters.data(), from.key_parameters.size()))
        return false;
    std::memcpy(to->name, from.name, sizeof to->name);
    to->page_tokens = from.page_tokens;
    to->sink_tokens = from.sink_tokens;
    to->recent_tokens = from.recent_tokens;
    to->chunks = from.chunks;
    to->n_heads = from.n_heads;
    return true;
}

lk_status set_key(Plan *plan, uint32_t layer, uint32_t kv_head, const lk_key_rule &rule) {
    Range layers;
    lk_status status = find(*plan, layer, kv_head, &layers);
    if (status != LK_OK)
        return status;
    uint8_t channel_bits[LK_MAX_HEAD_DIM];  // the caller's may be this plan's
    const uint32_t head_dim = plan->layers[layers.begin].geometry.head_dim;
    if (rule.channel_bits) {
        status = check_same_head_dim(*plan, layers, "rule.channel_bits");
        if (status == LK_OK)
            status = check_classes(rule.channel_bits, head_dim, kRuleArgument);
        if (status != LK_OK)
            return status;
        std::memcpy(channel_bits, rule.channel_bits, head_dim);
    }
    status = reserve_change(plan, layers, rule.channel_bits ? head_dim : 0, 0);
    if (status != LK_OK)
        return status;
    KeyRule own = packed_key(rule);
    if (rule.channel_bits)
        own.classes = push_numbers(channel_bits, head_dim, &plan->classes);
    change_heads(plan, layers, kv_head, [&](HeadRun *run) {
        const KeyRule before = run->key;
        run->key = own;
        run->key.centers = before.centers;
        run->key.scales = before.scales;
    });
    return LK_OK;
}

lk_status set_key_centers(Plan *plan, uint32_t layer, uint32_t kv_head, const float *centers,
                          const Subject &subject) {
    return set_key_numbers(plan, layer, kv_head, centers, kCenters, subject);
}

lk_status set_key_scales(Plan *plan, uint32_t layer, uint32_t kv_head, const float *scales,
                         const Subject &subject) {
    return set_key_numbers(plan, layer, kv_head, scales, kScales, subject);
}

lk_status set_value(Plan *plan, uint32_t layer, uint32_t kv_head, const lk_value_rule &rule) {
    Range layers;
    LK_TRY(find(*plan, layer, kv_head, &layers));
    if (layer != LK_ALL)
        LK_TRY(check_has_values(*plan, layer, LK_E_ARGUMENT));
    LK_TRY(reserve_change(plan, layers, 0, 0));
    const ValueRule own = packed_value(rule);
    for (uint32_t l = layers.begin, end; l < layers.end; l = end) {
        const auto latent = [&](uint32_t i) { return is_latent(plan->layers[i].geometry); };
        for (end = l + 1; end < layers.end && latent(end) == latent(l);)
            ++end;
        if (!latent(l))
            change_heads(plan, {l, end}, kv_head, [&](HeadRun *run) { run->value = own; });
    }
    return LK_OK;
}

lk_status set_metadata(Plan *plan, uint32_t layer, lk_metadata metadata) {
    Range layers;
    const lk_status status = find_layers(*plan, layer, &layers);
    if (status != LK_OK)
        return status;
    for (uint32_t l = layers.begin; l < layers.end; ++l)
        plan->layers[l].metadata = static_cast<Metadata>(metadata);
    return LK_OK;
}

lk_status set_key_rotation(Plan *plan, uint32_t layer, lk_rotation rotation,
                           const Subject &subject) {
    Range layers;
    LK_TRY(find_layers(*plan, layer, &layers));
    for (uint32_t l = layers.begin; rotation && l < layers.end; ++l)
        LK_TRY(check_key_rotation(*plan, l, subject));
    for (uint32_t l = layers.begin; l < layers.end; ++l)
        plan->layers[l].key_rotation = rotation;
    return LK_OK;
}

lk_status set_ladder(Plan *plan, uint32_t layer, const uint8_t *rungs, uint32_t n_rungs,
                     uint32_t rung) {
    Range layers;
    const lk_status status = find_layers(*plan, layer, &layers);
    if (status != LK_OK)
        return status;
    for (uint32_t l = layers.begin; l < layers.end; ++l) {
        LayerPlan &own = plan->layers[l];
        std::memset(own.rungs, 0, sizeof own.rungs);
        if (n_rungs)
            std::memcpy(own.rungs, rungs, n_rungs);
        own.n_rungs = static_cast<uint8_t>(n_rungs);
        own.rung = static_cast<uint8_t>(n_rungs ? rung : kNoRung);
        own.shrink_order = n_rungs ? own.shrink_order : uint16_t{0};
        own.budget_bytes = n_rungs ? own.budget_bytes : 0;
    }
    return LK_OK;
}

lk_status set_shrink_order(Plan *plan, uint32_t layer, uint32_t order) {
    Range layers;
    const lk_status status = find_layers(*plan, layer, &layers);
    if (status != LK_OK)
        return status;
    for (uint32_t l = layers.begin; l < layers.end; ++l)
        plan->layers[l].shrink_order = static_cast<uint16_t>(plan->layers[l].n_rungs ? order : 0);
    return LK_OK;
}

lk_status set_layer_budget(Plan *plan, uint32_t layer, uint64_t budget_bytes) {
    Range layers;
    const lk_status status = find_layers(*plan, layer, &layers);
    if (status != LK_OK)
        return status;
    if (layer != LK_ALL && budget_bytes && !plan->layers[layer].n_rungs)
        return fail(LK_E_ARGUMENT, "budget_bytes is %llu, layer %u has no ladder",
                    static_cast<unsigned long long>(budget_bytes), layer);
    for (uint32_t l = layers.begin; l < layers.end; ++l)
        plan->layers[l].budget_bytes = plan->layers[l].n_rungs ? budget_bytes : 0;
    return LK_OK;
}

void set_pages(Plan *plan, uint32_t page_tokens) { plan->page_tokens = page_tokens; }

void set_chunks(Plan *plan, const lk_chunk_rule &rule) {
    plan->chunks = ChunkRule();
    if (!rule.chunk_tokens)
        return;
    ChunkRule &own = plan->chunks;
    own.tokens = rule.chunk_tokens;
    own.bits[LK_CHUNK_LOW - LK_CHUNK_LOW] = static_cast<uint8_t>(rule.low_bits);
    own.bits[LK_CHUNK_MIDDLE - LK_CHUNK_LOW] = static_cast<uint8_t>(rule.middle_bits);
    own.bits[LK_CHUNK_HIGH - LK_CHUNK_LOW] = static_cast<uint8_t>(rule.high_bits);
    own.reorder = rule.reorder != 0;
    own.hold = rule.hold != 0;
    // Negative zero becomes zero, so that equal numbers have equal text.
    own.alpha = rule.alpha + 0.0f;
    own.beta = rule.beta + 0.0f;
}

void set_recent(Plan *plan, uint32_t sink_tokens, uint32_t recent_tokens) {
    plan->sink_tokens = sink_tokens;
    plan->recent_tokens = recent_tokens;
}

void set_name(Plan *plan, const char *name) {
    std::memset(plan->name, 0, sizeof plan->name);
    std::memcpy(plan->name, name, std::strlen(name));
}

void key_rule_of(const Plan &plan, uint32_t layer, uint32_t kv_head, lk_key_rule *out) {
    const KeyRule &rule = plan.key(layer, kv_head);
    *out = {};
    out->size = sizeof *out;
    out->bits = rule.bits;
    out->axis = rule.axis;
    out->group = rule.group;
    out->boost_channels = rule.boost_channels;
    out->boost_bits = rule.boost_bits;
    out->boost_ranking = rule.boost_ranking;
    out->channel_bits = plan.channel_bits(layer, kv_head);
    out->one_bit = static_cast<lk_one_bit>(rule.ranges.one_bit);
    out->clip = rule.ranges.clip;
}

void value_rule_of(const Plan &plan, uint32_t layer, uint32_t kv_head, lk_value_rule *out) {
    const ValueRule &rule = plan.value(layer, kv_head);
    *out = {};
    out->size = sizeof *out;
    out->bits = rule.bits;
    out->group = rule.group;
    out->one_bit = static_cast<lk_one_bit>(rule.ranges.one_bit);
    out->clip = rule.ranges.clip;
}

lk_chunk_rule default_chunk_rule() {
    lk_chunk_rule rule = {};
    rule.size = sizeof rule;
    rule.chunk_tokens = 32;
    rule.low_bits = 2;
    rule.middle_bits = 4;
    rule.high_bits = 16;
    rule.alpha = 0.6f;
    rule.beta = 0.1f;
    rule.reorder = 1;
    rule.hold = 1;
    return rule;
}

void chunk_rule_of(const Plan &plan, lk_chunk_rule *out) {
    const ChunkRule &rule = plan.chunks;
    *out = {};
    out->size = sizeof *out;
    out->chunk_tokens = rule.tokens;
    out->low_bits = rule.bits[LK_CHUNK_LOW - LK_CHUNK_LOW];
    out->middle_bits = rule.bits[LK_CHUNK_MIDDLE - LK_CHUNK_LOW];
    out->high_bits = rule.bits[LK_CHUNK_HIGH - LK_CHUNK_LOW];
    out->alpha = rule.alpha;
    out->beta = rule.beta;
    out->reorder = rule.reorder;
    out->hold = rule.hold;
}

bool same_geometry(const lk_layer &a, const lk_layer &b) {
    return a.n_query_heads == b.n_query_heads && a.n_kv_heads == b.n_kv_heads &&
           a.head_dim == b.head_dim && a.window_tokens == b.window_tokens &&
           a.window_sink_tokens == b.window_sink_tokens && a.scale == b.scale &&
           a.soft_cap == b.soft_cap && a.kv_layer == b.kv_layer &&
           value_dim_of(a) == value_dim_of(b) && a.flags == b.flags;
}

bool same_layer(const Plan &plan, uint32_t a, uint32_t b) {
    const LayerPlan &x = plan.layers[a];
    const LayerPlan &y = plan.layers[b];
    if (!same_pages(x.geometry, y.geometry) || x.metadata != y.metadata ||
        x.key_rotation != y.key_rotation || x.rung != y.rung || x.n_rungs != y.n_rungs ||
        x.n_runs != y.n_runs || x.shrink_order != y.shrink_order ||
        x.budget_bytes != y.budget_bytes || std::memcmp(x.rungs, y.rungs, sizeof x.rungs) != 0)
        return false;
    if (x.first_run == y.first_run)
        return true;
    for (uint32_t r = 0; r < x.n_runs; ++r) {
        const HeadRun &of_x = plan.runs[x.first_run + r];
        const HeadRun &of_y = plan.runs[y.first_run + r];
        if (of_x.end != of_y.end || !same_rules(plan, of_x, of_y, x.geometry.head_dim))
            return false;
    }
    return true;
}

uint64_t geometry_hash(const Plan &plan) {
    constexpr size_t kLayerBytes = 28;
    uint8_t bytes[kLayerBytes];
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    put_u32(bytes, static_cast<uint32_t>(plan.layers.size()));
    XXH3_64bits_update(&state, bytes, 4);
    for (const LayerPlan &layer : plan.layers) {
        const lk_layer &g = layer.geometry;
        put_u32(bytes, g.n_query_heads);
        put_u32(bytes + 4, g.n_kv_heads);
        put_u32(bytes + 8, g.head_dim);
        put_u32(bytes + 12, g.window_tokens);
        put_u32(bytes + 16, g.window_sink_tokens);
        put_f32(bytes + 20, g.scale);
        put_f32(bytes + 24, g.soft_cap);
        XXH3_64bits_update(&state, bytes, kLayerBytes);
    }
    // After all layers, so that a model without reading layers keeps its hash.
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        if (plan.owns_kv(l))
            continue;
        put_u32(bytes, l);
        put_u32(bytes + 4, plan.kv_layer(l));
        XXH3_64bits_update(&state, bytes, 8);
    }
    // Likewise. The first number is that of no layer.
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        const lk_layer &g = plan.layers[l].geometry;
        if (!g.value_dim && !g.flags)
            continue;
        put_u32(bytes, UINT32_MAX);
        put_u32(bytes + 4, l);
        put_u32(bytes + 8, value_dim_of(g));
        put_u32(bytes + 12, g.flags);
        XXH3_64bits_update(&state, bytes, 16);
    }
    return XXH3_64bits_digest(&state);
}

}  // namespace lk
