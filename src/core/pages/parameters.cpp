// SPDX-License-Identifier: Apache-2.0
#include "core/pages/parameters.h"

#include "core/pages/formats.h"
#include "format/fp16.h"
#include "format/rotation.h"

namespace lk {

namespace {

// Beyond these, factors between queries and logits leave FP32.
constexpr float kMostFactor = 0x1p60f;
constexpr float kLeastCap = 0x1p-60f;
// Keys are at most 2^16, key scales below 2^14 and channels at most 256, so that logits in powers
// of two stay below 2^90: backends take 1e30 for more than any logit.
constexpr float kQueryLimit = 0x1p50f;

lk_status set_query_limits(Formats *formats) {
    for (uint32_t l = 0; l < formats->layers.size(); ++l) {
        LayerView &view = formats->layers[l].view;
        if (!(view.scale <= kMostFactor))
            return fail(LK_E_UNSUPPORTED,
                        "geometry.layers[%u].scale is %g, at most %g is supported", l,
                        static_cast<double>(view.scale), static_cast<double>(kMostFactor));
        const bool is_capped = view.soft_cap > 0;
        if (is_capped && !(view.soft_cap >= kLeastCap && view.soft_cap <= kMostFactor))
            return fail(
                LK_E_UNSUPPORTED,
                "geometry.layers[%u].soft_cap is %g, 0 and numbers from %g to %g are supported", l,
                static_cast<double>(view.soft_cap), static_cast<double>(kLeastCap),
                static_cast<double>(kMostFactor));
        view.query_limit = kQueryLimit * (is_capped && view.soft_cap < 1 ? view.soft_cap : 1) /
                           (view.scale > 1 ? view.scale : 1);
    }
    return LK_OK;
}

// The geometry's learned sinks are read during the call only, so the cache keeps its own.
lk_status copy_sink_logits(Formats *formats) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < formats->layers.size(); ++l) {
        const LayerView &view = formats->layers[l].view;
        for (uint32_t h = 0; view.sink_logits && h < view.n_query_heads; ++h)
            if (!float_is_finite(view.sink_logits[h]))
                return fail(LK_E_ARGUMENT, "geometry.layers[%u].sink_logits[%u] is not finite", l,
                            h);
            else if (view.sink_logits[h] > kMostFactor)
                return fail(LK_E_UNSUPPORTED,
                            "geometry.layers[%u].sink_logits[%u] is %g, at most %g is supported", l,
                            h, static_cast<double>(view.sink_logits[h]),
                            static_cast<double>(kMostFactor));
        n += view.sink_logits ? view.n_query_heads : 0;
    }
    if (!formats->sink_logits.reserve(n))
        return fail(LK_E_NOMEM, "no memory for %llu sink logits", ull{n});
    for (LayerInfo &layer : formats->layers) {
        if (!layer.view.sink_logits)
            continue;
        float *own = formats->sink_logits.end();
        for (uint32_t h = 0; h < layer.view.n_query_heads; ++h)
            formats->sink_logits.push(layer.view.sink_logits[h]);
        layer.view.sink_logits = own;
    }
    return LK_OK;
}

// Parameters of key channels that a plan may give to some heads of a layer.
using HeadParameters = const float *(Plan::*)(uint32_t layer, uint32_t head) const;

bool has_parameters(const Plan &plan, uint32_t layer, HeadParameters parameters) {
    for (uint32_t h = 0; h < plan.layers[layer].geometry.n_kv_heads; ++h)
        if ((plan.*parameters)(layer, h))
            return true;
    return false;
}

// Those of all heads, `none` for heads without; null when no head has any.
const float *copy_head_parameters(const Plan &plan, Formats *formats, uint32_t l,
                                  HeadParameters parameters, float none) {
    if (!has_parameters(plan, l, parameters))
        return nullptr;
    const LayerView &view = formats->layers[l].view;
    float *first = formats->key_parameters.end();
    for (uint32_t h = 0; h < view.n_kv_heads; ++h)
        for (uint32_t c = 0; c < view.head_dim; ++c) {
            const float *own = (plan.*parameters)(l, h);
            formats->key_parameters.push(own ? own[c] : none);
        }
    return first;
}

const float *copy_inverses(Formats *formats, const LayerView &view) {
    if (!view.key_scales)
        return nullptr;
    float *first = formats->key_parameters.end();
    for (uint32_t i = 0; i < view.n_kv_heads * view.head_dim; ++i)
        formats->key_parameters.push(1.0f / view.key_scales[i]);
    return first;
}

lk_status copy_key_parameters(const Plan &plan, Formats *formats) {
    const auto n_layers = static_cast<uint32_t>(formats->layers.size());
    uint64_t n = 0;
    for (uint32_t l = 0; l < n_layers; ++l) {
        if (!formats->layers[l].owns_kv)
            continue;
        const uint64_t n_channels =
            uint64_t{formats->layers[l].view.n_kv_heads} * formats->layers[l].view.head_dim;
        n += has_parameters(plan, l, &Plan::key_centers) ? n_channels : 0;
        n += has_parameters(plan, l, &Plan::key_scales) ? 2 * n_channels : 0;
    }
    if (!formats->key_parameters.reserve(n))
        return fail(LK_E_NOMEM, "no memory for %llu centers and scales of keys", ull{n});
    for (uint32_t l = 0; l < n_layers; ++l) {
        LayerView &view = formats->layers[l].view;
        if (plan.layers[l].key_rotation)
            view.key_rotation = rotation_channels(view.head_dim);
        if (!formats->layers[l].owns_kv) {
            const LayerView &read = formats->layers[formats->layers[l].kv_layer].view;
            view.key_centers = read.key_centers;
            view.key_scales = read.key_scales;
            view.key_inverses = read.key_inverses;
            continue;
        }
        view.key_centers = copy_head_parameters(plan, formats, l, &Plan::key_centers, 0);
        view.key_scales = copy_head_parameters(plan, formats, l, &Plan::key_scales, 1);
        view.key_inverses = copy_inverses(formats, view);
    }
    return LK_OK;
}

}  // namespace

lk_status copy_parameters(const Plan &plan, Formats *formats) {
    LK_TRY(set_query_limits(formats));
    LK_TRY(copy_sink_logits(formats));
    return copy_key_parameters(plan, formats);
}

}  // namespace lk
