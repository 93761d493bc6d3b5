// The C interface of calibration: null checks, struct import and ranges around the model.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>

#include "base/float_mode.h"
#include "format/fp16.h"
#include "plan/check.h"
#include "plan/plan.h"
#include "stats/api.h"
#include "stats/clusters.h"
#include "stats/file.h"
#include "stats/probe.h"
#include "stats/sensitivity.h"
#include "stats/sums.h"

namespace lk {

namespace {

// The first layouts that programs may have been compiled against.
constexpr size_t kOldestProbe = sizeof(lk_probe);

constexpr uint32_t kProbeSinks = 16;
constexpr uint32_t kProbeLocal = 64;

lk_probe default_probe() {
    lk_probe probe = {};
    probe.size = sizeof probe;
    probe.sink_tokens = kProbeSinks;
    probe.local_tokens = kProbeLocal;
    return probe;
}

lk_status import_model(const lk_geometry *geometry, Calibrator *model) {
    Array<lk_layer> layers;
    const lk_status status = import_geometry(geometry, &layers);
    if (status != LK_OK)
        return status;
    for (uint32_t l = 0; l < layers.size(); ++l)
        if (is_latent(layers[l]) || value_dim_of(layers[l]) != layers[l].head_dim)
            return fail(LK_E_UNSUPPORTED,
                        "geometry.layers[%u] %s: statistics of such a layer are not gathered", l,
                        is_latent(layers[l]) ? "is latent" : "has a value_dim of its own");
    for (uint32_t l = 0; l < layers.size(); ++l)
        for (uint32_t h = 0; layers[l].sink_logits && h < layers[l].n_query_heads; ++h)
            if (!float_is_finite(layers[l].sink_logits[h]))
                return fail(LK_E_ARGUMENT, "geometry.layers[%u].sink_logits[%u] is not finite", l,
                            h);
    return set_geometry(model, layers);
}

lk_status check_probe(const lk_probe &probe) {
    if (probe.period_tokens < 2)
        return fail(LK_E_ARGUMENT, "probe.period_tokens is %u, must be at least 2",
                    probe.period_tokens);
    if (!probe.local_tokens || probe.local_tokens >= probe.period_tokens)
        return fail(LK_E_ARGUMENT,
                    "probe.local_tokens is %u, must be from 1 to %u: the nearest copy of a token's "
                    "successor is period_tokens - 1 back",
                    probe.local_tokens, probe.period_tokens - 1);
    return LK_OK;
}

// Tokens of a probe, false beyond 32 bits.
bool probe_tokens(const lk_probe &probe, uint64_t n_repeats, uint64_t *out) {
    uint64_t n;
    return checked_mul(probe.period_tokens, n_repeats, &n) &&
           checked_add(n, probe.prefix_tokens, out) && *out <= UINT32_MAX;
}

float value_of(lk_statistic statistic, const LayerSamples &own, size_t at, double n_queries) {
    switch (statistic) {
        case LK_STATISTIC_KEY_MIN: return channel_low(own.keys[at]);
        case LK_STATISTIC_KEY_MAX: return channel_high(own.keys[at]);
        case LK_STATISTIC_KEY_RANGE: return channel_range(own.keys[at]);
        case LK_STATISTIC_KEY_MEAN: return channel_mean(own.keys[at], own.n_keys);
        case LK_STATISTIC_KEY_MAGNITUDE:
            return static_cast<float>(own.keys[at].magnitude / static_cast<double>(own.n_keys));
        default: return static_cast<float>(own.queries[at] / n_queries);
    }
}

// Costs of a layer from the host: n_clips for the keys and n_clips for the values of each KV head.
lk_status take_costs(lk_calibrator *calibrator, uint32_t layer, Array<double> LayerSamples::*kind,
                     const double *costs, uint32_t n_clips) {
    const lk_status status = check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    if (!costs)
        return null_argument("costs");
    const uint32_t n = 2 * n_clips * calibrator->model.geometry[layer].n_kv_heads;
    for (uint32_t i = 0; i < n; ++i)
        if (!(costs[i] >= 0 && costs[i] <= kMaxCost))
            return fail(LK_E_DATA, "layer %u, KV head %u: the cost of %s is %g, must be 0 to %g",
                        layer, i / n_clips / 2, i / n_clips % 2 ? "values" : "keys", costs[i],
                        kMaxCost);
    return set_costs(&calibrator->model, layer, kind, costs, n);
}

lk_status give_costs(const lk_calibrator *calibrator, uint32_t layer,
                     Array<double> LayerSamples::*kind, const char *name, double *costs) {
    const lk_status status = check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    if (!costs)
        return null_argument("costs");
    const LayerSamples *own = calibrator->model.layers[layer];
    if (!own || !(own->*kind).size())
        return fail(LK_E_STATE, "layer %u has had no %s", layer, name);
    std::memcpy(costs, (own->*kind).data(), (own->*kind).size() * sizeof *costs);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_calibrator_create(const lk_geometry *geometry, lk_calibrator **out) {
    if (!out)
        return lk::null_argument("out");
    return lk::make(out, "a calibrator",
                    [&](lk::Calibrator *model) { return lk::import_model(geometry, model); });
}

void lk_calibrator_destroy(lk_calibrator **calibrator) {
    if (!calibrator)
        return;
    lk::destroy(lk::default_allocator(), *calibrator);
    *calibrator = nullptr;
}

lk_status lk_calibrator_add_keys(lk_calibrator *calibrator, uint32_t layer, const lk_tensor *keys,
                                 uint32_t n_tokens) {
    const lk::FloatMode mode;
    lk_status status = lk::check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::Samples samples;
    status = lk::import_samples(keys, "keys", n_tokens, shape.n_kv_heads, shape.head_dim, &samples);
    return status == LK_OK ? lk::add_keys(&calibrator->model, layer, samples) : status;
}

lk_status lk_calibrator_add_queries(lk_calibrator *calibrator, uint32_t layer,
                                    const lk_tensor *queries, uint32_t n_tokens) {
    const lk::FloatMode mode;
    lk_status status = lk::check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::Samples samples;
    status = lk::import_samples(queries, "queries", n_tokens, shape.n_query_heads, shape.head_dim,
                                &samples);
    return status == LK_OK ? lk::add_queries(&calibrator->model, layer, samples) : status;
}

lk_status lk_probe_init(lk_probe *probe, size_t struct_bytes) {
    return lk::init_with(probe, struct_bytes, lk::kOldestProbe, lk::default_probe(), "probe");
}

lk_status lk_probe_tokens(const lk_probe *probe, const uint32_t *prefix, const uint32_t *sentence,
                          uint32_t n_repeats, uint32_t *tokens, uint64_t capacity,
                          uint64_t *n_tokens) {
    lk_probe own = lk::default_probe();
    lk_status status = lk::import_struct(&own, sizeof own, lk::kOldestProbe, probe, "probe");
    if (status == LK_OK)
        status = lk::check_probe(own);
    if (status != LK_OK)
        return status;
    if (!sentence || !n_tokens || (own.prefix_tokens && !prefix) || (capacity && !tokens))
        return lk::fail(LK_E_ARGUMENT, "sentence, n_tokens, the prefix or tokens is NULL");
    uint64_t needed;
    if (n_repeats < 2 || !lk::probe_tokens(own, n_repeats, &needed))
        return lk::fail(LK_E_ARGUMENT,
                        "n_repeats is %u, must be at least 2 and give 32-bit lengths", n_repeats);
    *n_tokens = needed;
    if (!capacity)
        return LK_OK;
    if (capacity < needed)
        return lk::fail(LK_E_ARGUMENT, "capacity is %llu, the probe has %llu tokens",
                        static_cast<unsigned long long>(capacity),
                        static_cast<unsigned long long>(needed));
    for (uint32_t i = 0; i < own.prefix_tokens; ++i)
        *tokens++ = prefix[i];
    for (uint32_t r = 0; r < n_repeats; ++r)
        for (uint32_t i = 0; i < own.period_tokens; ++i)
            *tokens++ = sentence[i];
    return LK_OK;
}

lk_status lk_calibrator_add_probe(lk_calibrator *calibrator, uint32_t layer, const lk_probe *probe,
                                  const lk_tensor *queries, const lk_tensor *keys,
                                  uint32_t n_tokens) {
    const lk::FloatMode mode;
    lk_status status = lk::check_layer_index(calibrator, layer);
    lk_probe own = lk::default_probe();
    if (status == LK_OK)
        status = lk::import_struct(&own, sizeof own, lk::kOldestProbe, probe, "probe");
    if (status == LK_OK)
        status = lk::check_probe(own);
    if (status != LK_OK)
        return status;
    uint64_t least;
    if (!lk::probe_tokens(own, 2, &least) || n_tokens < least)
        return lk::fail(LK_E_ARGUMENT,
                        "n_tokens is %u, a probe has a prefix of %u and two sentences of %u",
                        n_tokens, own.prefix_tokens, own.period_tokens);
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::Samples q;
    lk::Samples k;
    status =
        lk::import_samples(queries, "queries", n_tokens, shape.n_query_heads, shape.head_dim, &q);
    if (status == LK_OK)
        status = lk::import_samples(keys, "keys", n_tokens, shape.n_kv_heads, shape.head_dim, &k);
    return status == LK_OK ? lk::add_probe(&calibrator->model, layer, own, q, k) : status;
}

lk_status lk_calibrator_get_channels(const lk_calibrator *calibrator, uint32_t layer,
                                     uint32_t kv_head, lk_statistic statistic, float *values) {
    const lk::FloatMode mode;
    lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status != LK_OK)
        return status;
    if (!values)
        return lk::null_argument("values");
    if (statistic < LK_STATISTIC_KEY_MIN || statistic > LK_STATISTIC_QUERY_MAGNITUDE)
        return lk::fail(LK_E_NOT_FOUND, "statistic is %u, must be from 1 to 6", statistic);
    const lk::LayerSamples *own = calibrator->model.layers[layer];
    status = statistic == LK_STATISTIC_QUERY_MAGNITUDE
                 ? lk::check_samples(own, &lk::LayerSamples::n_queries, "queries", layer)
                 : lk::check_samples(own, &lk::LayerSamples::n_keys, "keys", layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    const double n_queries =
        static_cast<double>(own->n_queries) * (shape.n_query_heads / shape.n_kv_heads);
    for (uint32_t c = 0; c < shape.head_dim; ++c)
        values[c] = lk::value_of(statistic, *own, static_cast<size_t>(kv_head) * shape.head_dim + c,
                                 n_queries);
    return LK_OK;
}

lk_status lk_calibrator_get_counts(const lk_calibrator *calibrator, uint32_t layer,
                                   uint64_t *n_keys, uint64_t *n_queries,
                                   uint64_t *n_probe_queries) {
    const lk_status status = lk::check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk::LayerSamples *own = calibrator->model.layers[layer];
    if (n_keys)
        *n_keys = own ? own->n_keys : 0;
    if (n_queries)
        *n_queries = own ? own->n_queries : 0;
    if (n_probe_queries)
        *n_probe_queries = own ? own->n_probe_queries : 0;
    return LK_OK;
}

lk_status lk_calibrator_get_geometry(const lk_calibrator *calibrator, lk_layer *layers,
                                     uint32_t capacity, uint32_t *n_layers) {
    if (!calibrator)
        return lk::null_argument("calibrator");
    if (!n_layers || (capacity && !layers))
        return lk::null_argument(n_layers ? "layers" : "n_layers");
    const auto n = static_cast<uint32_t>(calibrator->model.geometry.size());
    *n_layers = n;
    if (!capacity)
        return LK_OK;
    if (capacity < n)
        return lk::fail(LK_E_ARGUMENT, "capacity is %u, the model has %u layers", capacity, n);
    const size_t stride = layers[0].size;
    auto *bytes = reinterpret_cast<unsigned char *>(layers);
    for (uint32_t l = 0; l < n; ++l) {
        lk_layer own = calibrator->model.geometry[l];
        own.size = sizeof own;
        own.sink_logits = nullptr;
        const auto size = static_cast<uint32_t>(stride);
        std::memcpy(bytes + l * stride, &size, sizeof size);
        const lk_status status =
            lk::export_struct(bytes + l * stride, &own, sizeof own, lk::kLeastLayerBytes, "layers");
        if (status != LK_OK)
            return status;
    }
    return LK_OK;
}

lk_status lk_calibrator_get_classes(const lk_calibrator *calibrator, uint32_t layer,
                                    uint32_t kv_head, lk_scope scope, uint8_t *classes,
                                    float *centroids) {
    const lk::FloatMode mode;
    lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status == LK_OK)
        status = lk::check_scope(scope, "scope");
    if (status == LK_OK)
        status = lk::check_samples(calibrator->model.layers[layer], &lk::LayerSamples::n_keys,
                                   "keys", layer);
    if (status != LK_OK)
        return status;
    uint8_t own[LK_MAX_HEAD_DIM];
    lk::Clusters clusters;
    status = lk::classify_head(calibrator->model, layer, kv_head, scope, own, &clusters);
    if (status != LK_OK)
        return status;
    if (classes)
        std::memcpy(classes, own, calibrator->model.geometry[layer].head_dim);
    for (int i = 0; centroids && i < 3; ++i)
        centroids[i] = static_cast<float>(clusters.centroids[i]);
    return LK_OK;
}

lk_status lk_calibrator_get_retrieval(const lk_calibrator *calibrator, uint32_t layer,
                                      uint32_t kv_head, float *score) {
    const lk::FloatMode mode;
    lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status != LK_OK)
        return status;
    if (!score)
        return lk::null_argument("score");
    status = lk::check_samples(calibrator->model.layers[layer], &lk::LayerSamples::n_probe_queries,
                               "probe", layer);
    if (status == LK_OK)
        *score = static_cast<float>(lk::retrieval_score(calibrator->model, layer, kv_head));
    return status;
}

lk_status lk_calibrator_add_gradients(lk_calibrator *calibrator, uint32_t layer, uint32_t is_value,
                                      const lk_tensor *samples, const lk_tensor *gradients,
                                      uint32_t n_tokens) {
    const lk::FloatMode mode;
    lk_status status = lk::check_layer_index(calibrator, layer);
    if (status == LK_OK && is_value > 1)
        status = lk::fail(LK_E_ARGUMENT, "is_value is %u, must be 0 or 1", is_value);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::Samples x;
    lk::Samples g;
    status = lk::import_samples(samples, "samples", n_tokens, shape.n_kv_heads, shape.head_dim, &x);
    if (status == LK_OK)
        status = lk::import_samples(gradients, "gradients", n_tokens, shape.n_kv_heads,
                                    shape.head_dim, &g);
    return status == LK_OK ? lk::add_gradients(&calibrator->model, layer, is_value == 1, x, g)
                           : status;
}

lk_status lk_calibrator_add_attention(lk_calibrator *calibrator, uint32_t layer,
                                      const lk_tensor *queries, const lk_tensor *keys,
                                      const lk_tensor *values, uint32_t n_tokens) {
    const lk::FloatMode mode;
    lk_status status = lk::check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::Samples q;
    lk::Samples k;
    lk::Samples v;
    status =
        lk::import_samples(queries, "queries", n_tokens, shape.n_query_heads, shape.head_dim, &q);
    if (status == LK_OK)
        status = lk::import_samples(keys, "keys", n_tokens, shape.n_kv_heads, shape.head_dim, &k);
    if (status == LK_OK)
        status =
            lk::import_samples(values, "values", n_tokens, shape.n_kv_heads, shape.head_dim, &v);
    return status == LK_OK ? lk::add_attention(&calibrator->model, layer, q, k, v) : status;
}

lk_status lk_calibrator_set_costs(lk_calibrator *calibrator, uint32_t layer, const double *costs) {
    return lk::take_costs(calibrator, layer, &lk::LayerSamples::costs, costs, 1);
}

lk_status lk_calibrator_get_costs(const lk_calibrator *calibrator, uint32_t layer, double *costs) {
    return lk::give_costs(calibrator, layer, &lk::LayerSamples::costs, "costs", costs);
}

lk_status lk_calibrator_set_clip_costs(lk_calibrator *calibrator, uint32_t layer,
                                       const double *costs) {
    return lk::take_costs(calibrator, layer, &lk::LayerSamples::clip_costs, costs, LK_COST_CLIPS);
}

lk_status lk_calibrator_get_clip_costs(const lk_calibrator *calibrator, uint32_t layer,
                                       double *costs) {
    return lk::give_costs(calibrator, layer, &lk::LayerSamples::clip_costs, "clip costs", costs);
}

lk_status lk_calibrator_get_sensitivity(const lk_calibrator *calibrator, uint32_t layer,
                                        uint32_t kv_head, uint32_t is_value, lk_sensitivity kind,
                                        uint32_t bits, double *sensitivity) {
    const lk::FloatMode mode;
    const lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status != LK_OK)
        return status;
    if (!sensitivity)
        return lk::null_argument("sensitivity");
    if (is_value > 1)
        return lk::fail(LK_E_ARGUMENT, "is_value is %u, must be 0 or 1", is_value);
    if (kind != LK_SENSITIVITY_GRADIENT && kind != LK_SENSITIVITY_OUTPUT)
        return lk::fail(LK_E_NOT_FOUND, "kind is %u, must be 1 (gradient) or 2 (output)", kind);
    if (bits != 16 && bits != 8 && bits != 4 && bits != 2)
        return lk::fail(LK_E_ARGUMENT, "bits is %u, must be 16, 8, 4 or 2", bits);
    const lk::Calibrator &model = calibrator->model;
    const lk_status known = lk::check_sensitivity(model, layer, is_value == 1, kind);
    if (known == LK_OK)
        *sensitivity = lk::sensitivity_of(model, layer, kv_head, is_value == 1, kind, bits);
    return known;
}

lk_status lk_calibrator_to_bytes(const lk_calibrator *calibrator, void *buffer,
                                 size_t capacity_bytes, size_t *needed_bytes) {
    const lk::FloatMode mode;
    if (!calibrator)
        return lk::null_argument("calibrator");
    if (!needed_bytes || (capacity_bytes && !buffer))
        return lk::null_argument(needed_bytes ? "buffer" : "needed_bytes");
    return lk::stats_to_bytes(calibrator->model, buffer, capacity_bytes, needed_bytes);
}

lk_status lk_calibrator_from_bytes(const void *bytes, size_t n_bytes, lk_calibrator **out) {
    const lk::FloatMode mode;
    if (!out)
        return lk::null_argument("out");
    *out = nullptr;
    if (!bytes)
        return lk::null_argument("bytes");
    return lk::make(out, "a calibrator", [&](lk::Calibrator *model) {
        return lk::stats_from_bytes(static_cast<const uint8_t *>(bytes), n_bytes, model);
    });
}

}  // extern "C"
