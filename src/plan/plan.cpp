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

namespace lk {

namespace {

struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
};

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

Range head_range(const LayerPlan &layer, uint32_t kv_head) {
    if (kv_head == LK_ALL)
        return {layer.first_head, layer.first_head + layer.geometry.n_kv_heads};
    return {layer.first_head + kv_head, layer.first_head + kv_head + 1};
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

// Reserves space for [head_dim] of each of these heads that has no index in `numbers` yet, so that
// store_channels() does not fail.
template <class Number>
lk_status reserve_channels(const Plan &plan, Range layers, uint32_t kv_head,
                           uint32_t KeyRule::*index, Array<Number> *numbers) {
    uint64_t n = numbers->size();
    for (uint32_t l = layers.begin; l < layers.end; ++l) {
        const Range heads = head_range(plan.layers[l], kv_head);
        for (uint32_t h = heads.begin; h < heads.end; ++h)
            if (plan.keys[h].*index == kNoIndex)
                n += plan.layers[l].geometry.head_dim;
    }
    if (n > numbers->capacity() && !numbers->reserve(n + numbers->capacity() / 2))
        return fail(LK_E_NOMEM, "no memory for %llu numbers of channels",
                    static_cast<unsigned long long>(n));
    return LK_OK;
}

template <class Number>
void store_channels(const Number *from, uint32_t head_dim, uint32_t *index,
                    Array<Number> *numbers) {
    if (*index == kNoIndex) {
        *index = static_cast<uint32_t>(numbers->size());
        (void)numbers->resize(numbers->size() + head_dim);
    }
    std::memcpy(numbers->data() + *index, from, head_dim * sizeof *from);
}

KeyRule packed_rule(const lk_key_rule &rule, const KeyRule &before) {
    KeyRule out = before;
    out.bits = static_cast<uint8_t>(rule.bits);
    out.boost_bits = static_cast<uint8_t>(rule.boost_bits);
    out.axis = static_cast<uint8_t>(rule.axis);
    out.boost_ranking = static_cast<uint8_t>(rule.boost_ranking);
    out.group = static_cast<uint16_t>(rule.group);
    out.boost_channels = static_cast<uint16_t>(rule.boost_channels);
    out.has_classes = rule.channel_bits != nullptr;
    out.ranges = {static_cast<OneBit>(rule.one_bit), rule.clip};
    return out;
}

// Places in Plan::keys and Plan::values.
bool same_rule(const Plan &plan, uint32_t a, uint32_t b, uint32_t head_dim) {
    const KeyRule &x = plan.keys[a];
    const KeyRule &y = plan.keys[b];
    if (x.bits != y.bits || x.boost_bits != y.boost_bits || x.axis != y.axis ||
        x.boost_ranking != y.boost_ranking || x.group != y.group ||
        x.boost_channels != y.boost_channels || x.has_classes != y.has_classes ||
        x.has_centers != y.has_centers || x.has_scales != y.has_scales || x.ranges != y.ranges ||
        plan.values[a].ranges != plan.values[b].ranges ||
        plan.values[a].bits != plan.values[b].bits || plan.values[a].group != plan.values[b].group)
        return false;
    const bool same_classes =
        !x.has_classes ||
        !std::memcmp(plan.classes.data() + x.classes, plan.classes.data() + y.classes, head_dim);
    const auto same_numbers = [&](uint32_t of_x, uint32_t of_y) {
        return !std::memcmp(plan.key_parameters.data() + of_x, plan.key_parameters.data() + of_y,
                            head_dim * sizeof(float));
    };
    return same_classes && (!x.has_centers || same_numbers(x.centers, y.centers)) &&
           (!x.has_scales || same_numbers(x.scales, y.scales));
}

// Constants of a head's key channels: where a rule has them, and what they must be.
struct KeyNumbers {
    const char *name;
    uint8_t KeyRule::*is_set;
    uint32_t KeyRule::*index;  // in Plan::key_parameters
    lk_status (*check)(const float *numbers, uint32_t head_dim, const Subject &subject);
    float least;  // lower magnitudes become 0
};
// k - c is then no subnormal number, which devices may flush, and k - 0 is k.
constexpr KeyNumbers kCenters = {"centers", &KeyRule::has_centers, &KeyRule::centers, check_centers,
                                 0x1p-24f};
constexpr KeyNumbers kScales = {"scales", &KeyRule::has_scales, &KeyRule::scales, check_scales, 0};

lk_status set_key_numbers(Plan *plan, uint32_t layer, uint32_t kv_head, const float *numbers,
                          const KeyNumbers &kind, const Subject &subject) {
    Range layers;
    lk_status status = find(*plan, layer, kv_head, &layers);
    if (status != LK_OK)
        return status;
    float own[LK_MAX_HEAD_DIM];  // the caller's may be this plan's
    if (numbers) {
        const uint32_t head_dim = plan->layers[layers.begin].geometry.head_dim;
        status = check_same_head_dim(*plan, layers, kind.name);
        if (status == LK_OK)
            status = kind.check(numbers, head_dim, subject);
        if (status != LK_OK)
            return status;
        for (uint32_t c = 0; c < head_dim; ++c)
            own[c] = std::fabs(numbers[c]) < kind.least ? 0.0f : numbers[c];
        status = reserve_channels(*plan, layers, kv_head, kind.index, &plan->key_parameters);
        if (status != LK_OK)
            return status;
    }
    for (uint32_t l = layers.begin; l < layers.end; ++l) {
        const Range heads = head_range(plan->layers[l], kv_head);
        for (uint32_t h = heads.begin; h < heads.end; ++h) {
            KeyRule &rule = plan->keys[h];
            if (numbers)
                store_channels(own, plan->layers[l].geometry.head_dim, &(rule.*kind.index),
                               &plan->key_parameters);
            rule.*kind.is_set = numbers != nullptr;
        }
    }
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
        lk_layer layer = {};
        const lk_status imported =
            import_struct(&layer, sizeof layer, sizeof layer, bytes + l * stride, prefix);
        if (imported != LK_OK)
            return imported;
        std::snprintf(prefix, sizeof prefix, "geometry.layers[%u].", l);
        const lk_status checked = check_layer(layer, {prefix, false, LK_E_ARGUMENT});
        if (checked != LK_OK)
            return checked;
        (*layers)[l] = layer;
    }
    return LK_OK;
}

lk_status set_layers(Plan *plan, const Array<lk_layer> &layers) {
    uint32_t n_heads = 0;
    for (const lk_layer &layer : layers)
        n_heads += layer.n_kv_heads;
    if (!plan->layers.reserve(layers.size()) || !plan->keys.reserve(n_heads) ||
        !plan->values.reserve(n_heads))
        return fail(LK_E_NOMEM, "no memory for a plan of %zu layers and %u KV heads", layers.size(),
                    n_heads);
    for (const lk_layer &layer : layers) {
        LayerPlan own = {};
        own.geometry = layer;
        own.geometry.sink_logits = nullptr;
        // Negative zero becomes zero, so that equal numbers have equal bytes.
        own.geometry.scale = layer.scale + 0.0f;
        own.geometry.soft_cap = layer.soft_cap + 0.0f;
        own.first_head = static_cast<uint32_t>(plan->keys.size());
        own.metadata = Metadata::kF16;
        own.rung = kNoRung;
        (void)plan->layers.push(own);
        for (uint32_t h = 0; h < layer.n_kv_heads; ++h) {
            (void)plan->keys.push(KeyRule());
            (void)plan->values.push(ValueRule());
        }
    }
    return LK_OK;
}

bool copy_plan(const Plan &from, Plan *to) {
    if (!to->layers.assign(from.layers.data(), from.layers.size()) ||
        !to->keys.assign(from.keys.data(), from.keys.size()) ||
        !to->values.assign(from.values.data(), from.values.size()) ||
        !to->classes.assign(from.classes.data(), from.classes.size()) ||
        !to->key_parameters.assign(from.key_parameters.data(), from.key_parameters.size()))
        return false;
    std::memcpy(to->name, from.name, sizeof to->name);
    to->page_tokens = from.page_tokens;
    to->sink_tokens = from.sink_tokens;
    to->recent_tokens = from.recent_tokens;
    to->chunks = from.chunks;
    return true;
}

lk_status set_key(Plan *plan, uint32_t layer, uint32_t kv_head, const lk_key_rule &rule) {
    Range layers;
    lk_status status = find(*plan, layer, kv_head, &layers);
    if (status != LK_OK)
        return status;
    // The caller's classes may be this plan's own bytes, which reserve_channels() may move.
    uint8_t channel_bits[LK_MAX_HEAD_DIM];
    if (rule.channel_bits) {
        const uint32_t head_dim = plan->layers[layers.begin].geometry.head_dim;
        status = check_same_head_dim(*plan, layers, "rule.channel_bits");
        if (status == LK_OK)
            status = check_classes(rule.channel_bits, head_dim, kRuleArgument);
        if (status != LK_OK)
            return status;
        std::memcpy(channel_bits, rule.channel_bits, head_dim);
        status = reserve_channels(*plan, layers, kv_head, &KeyRule::classes, &plan->classes);
        if (status != LK_OK)
            return status;
    }
    for (uint32_t l = layers.begin; l < layers.end; ++l) {
        const Range heads = head_range(plan->layers[l], kv_head);
        for (uint32_t h = heads.begin; h < heads.end; ++h) {
            KeyRule &own = plan->keys[h];
            if (rule.channel_bits)
                store_channels(channel_bits, plan->layers[l].geometry.head_dim, &own.classes,
                               &plan->classes);
            own = packed_rule(rule, own);
        }
    }
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
    const lk_status status = find(*plan, layer, kv_head, &layers);
    if (status != LK_OK)
        return status;
    ValueRule own;
    own.bits = static_cast<uint8_t>(rule.bits);
    own.group = static_cast<uint16_t>(rule.group);
    own.ranges = {static_cast<OneBit>(rule.one_bit), rule.clip};
    for (uint32_t l = layers.begin; l < layers.end; ++l) {
        const Range heads = head_range(plan->layers[l], kv_head);
        for (uint32_t h = heads.begin; h < heads.end; ++h)
            plan->values[h] = own;
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

bool same_head(const Plan &plan, uint32_t layer, uint32_t a, uint32_t b) {
    const LayerPlan &own = plan.layers[layer];
    return same_rule(plan, own.first_head + a, own.first_head + b, own.geometry.head_dim);
}

bool same_geometry(const lk_layer &a, const lk_layer &b) {
    return a.n_query_heads == b.n_query_heads && a.n_kv_heads == b.n_kv_heads &&
           a.head_dim == b.head_dim && a.window_tokens == b.window_tokens &&
           a.window_sink_tokens == b.window_sink_tokens && a.scale == b.scale &&
           a.soft_cap == b.soft_cap;
}

bool same_layer(const Plan &plan, uint32_t a, uint32_t b) {
    const LayerPlan &x = plan.layers[a];
    const LayerPlan &y = plan.layers[b];
    if (x.geometry.n_kv_heads != y.geometry.n_kv_heads ||
        x.geometry.head_dim != y.geometry.head_dim || x.metadata != y.metadata ||
        x.rung != y.rung || x.n_rungs != y.n_rungs || x.shrink_order != y.shrink_order ||
        std::memcmp(x.rungs, y.rungs, sizeof x.rungs) != 0)
        return false;
    for (uint32_t h = 0; h < x.geometry.n_kv_heads; ++h)
        if (!same_rule(plan, x.first_head + h, y.first_head + h, x.geometry.head_dim))
            return false;
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
    return XXH3_64bits_digest(&state);
}

}  // namespace lk
