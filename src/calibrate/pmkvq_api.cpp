// The C interface of PM-KVQ's calibration: maxima, key scales, the plan.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "calibrate/api.h"
#include "format/fp16.h"
#include "plan/check.h"

namespace lk {

namespace {

constexpr size_t kOldestSearch = sizeof(lk_scale_search);
constexpr size_t kOldestPmkvq = sizeof(lk_pmkvq);

lk_scale_search default_search() {
    lk_scale_search search = {};
    search.size = sizeof search;
    search.pairing = LK_ROPE_HALVES;
    search.key_bits = 4;
    search.value_bits = 4;
    search.query_step = 1;
    return search;
}

lk_pmkvq default_pmkvq() {
    lk_pmkvq options = {};
    options.size = sizeof options;
    options.n_widths = 2;
    options.widths[0] = 4;
    options.widths[1] = 2;
    options.scope = LK_SCOPE_LAYER;
    options.key_axis = LK_AXIS_CHANNEL;
    options.sink_tokens = 32;
    options.recent_tokens = 128;
    options.budget_tokens = 32768;
    options.budget_sequences = 1;
    options.budget_step_tokens = 512;
    return options;
}

bool is_rung(uint32_t bits) { return bits == 16 || bits == 8 || bits == 4 || bits == 2; }

lk_status check_search(const lk_scale_search &search, uint32_t head_dim, ScaleRule *out) {
    RopePairs pairs = {};
    const lk_status status =
        check_pairs(search.pairing, search.channels, head_dim, "search.", &pairs);
    if (status != LK_OK)
        return status;
    if (!is_rung(search.key_bits) || !is_rung(search.value_bits))
        return fail(LK_E_ARGUMENT,
                    "search.key_bits is %u and value_bits %u, must be 16, 8, 4 or 2 each",
                    search.key_bits, search.value_bits);
    if (!search.query_step)
        return fail(LK_E_ARGUMENT, "search.query_step is 0");
    *out = {pairs.pairing, pairs.channels, search.key_bits, search.value_bits};
    return LK_OK;
}

lk_status check_widths(const lk_pmkvq &options) {
    if (!options.n_widths || options.n_widths > kMaxRungs)
        return fail(LK_E_ARGUMENT, "options.n_widths is %u: a ladder ends at one of 1 to 4 widths",
                    options.n_widths);
    for (uint32_t i = 0; i < options.n_widths; ++i)
        if (!is_rung(options.widths[i]) || (i && options.widths[i] >= options.widths[i - 1]))
            return fail(LK_E_ARGUMENT,
                        "options.widths[%u] is %u, widths descend and are out of 16, 8, 4, 2", i,
                        options.widths[i]);
    return LK_OK;
}

lk_status check_pmkvq(const lk_pmkvq &options) {
    lk_status status = check_widths(options);
    if (status == LK_OK && options.sensitivity > LK_SENSITIVITY_OUTPUT)
        status =
            fail(LK_E_ARGUMENT, "options.sensitivity is %u, must be 0, 1 (gradient) or 2 (output)",
                 options.sensitivity);
    if (status == LK_OK)
        status = check_scope(options.scope, "options.scope");
    if (status == LK_OK)
        status = check_flag(options.split, "split");
    if (status == LK_OK)
        status = check_flag(options.key_scales, "key_scales");
    if (status == LK_OK && options.key_axis != LK_AXIS_CHANNEL && options.key_axis != LK_AXIS_TOKEN)
        status = fail(LK_E_ARGUMENT, "options.key_axis is %u, must be 1 (channel) or 2 (token)",
                      options.key_axis);
    if (status == LK_OK && (options.group % 16 || options.group > LK_MAX_HEAD_DIM))
        status = fail(LK_E_ARGUMENT, "options.group is %u, must be a multiple of 16 up to %u",
                      options.group, static_cast<uint32_t>(LK_MAX_HEAD_DIM));
    if (status == LK_OK)
        status = check_recent(options.sink_tokens, options.recent_tokens,
                              {"options.", false, LK_E_ARGUMENT});
    if (status != LK_OK)
        return status;
    if (!options.budget_bytes || !options.budget_tokens || !options.budget_sequences ||
        !options.budget_step_tokens)
        return fail(LK_E_ARGUMENT,
                    "options.budget_bytes is %llu with %llu tokens, %u sequences and %u step "
                    "tokens, none may be 0",
                    static_cast<unsigned long long>(options.budget_bytes),
                    static_cast<unsigned long long>(options.budget_tokens),
                    options.budget_sequences, options.budget_step_tokens);
    return LK_OK;
}

lk_status check_searched(const lk_calibrator *calibrator, uint32_t layer) {
    return check_samples(calibrator->model.layers[layer], &LayerSamples::n_searched,
                         "search for key scales", layer);
}

}  // namespace

}  // namespace lk

extern "C" {

lk_status lk_calibrator_get_pair_maxima(const lk_calibrator *calibrator, uint32_t layer,
                                        uint32_t kv_head, lk_rope_pairing pairing,
                                        uint32_t channels, float *maxima) {
    lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status != LK_OK)
        return status;
    if (!maxima)
        return lk::null_argument("maxima");
    const lk::Calibrator &model = calibrator->model;
    lk::RopePairs pairs = {};
    status = lk::check_pairs(pairing, channels, model.geometry[layer].head_dim, "", &pairs);
    if (status == LK_OK)
        status = lk::check_samples(model.layers[layer], &lk::LayerSamples::n_keys, "keys", layer);
    if (status == LK_OK)
        lk::find_pair_maxima(model, layer, kv_head, pairs, maxima);
    return status;
}

lk_status lk_key_scales(const float *maxima, uint32_t head_dim, double exponent, float *scales) {
    if (!maxima || !scales)
        return lk::null_argument(maxima ? "scales" : "maxima");
    if (!(exponent >= 0 && exponent <= 1))
        return lk::fail(LK_E_ARGUMENT, "exponent is %g, must be from 0 to 1", exponent);
    for (uint32_t c = 0; c < head_dim; ++c)
        if (!(maxima[c] >= 0) || !lk::float_is_finite(maxima[c]))
            return lk::fail(LK_E_ARGUMENT, "maxima[%u] is %g, must be finite and at least 0", c,
                            static_cast<double>(maxima[c]));
    lk::key_scales(maxima, head_dim, exponent, scales);
    return LK_OK;
}

lk_status lk_scale_search_init(lk_scale_search *search, size_t struct_bytes) {
    return lk::init_with(search, struct_bytes, lk::kOldestSearch, lk::default_search(), "search");
}

lk_status lk_calibrator_add_scale_search(lk_calibrator *calibrator, uint32_t layer,
                                         const lk_scale_search *search, const lk_tensor *queries,
                                         const lk_tensor *keys, const lk_tensor *values,
                                         uint32_t n_tokens) {
    lk_status status = lk::check_layer_index(calibrator, layer);
    lk_scale_search own = lk::default_search();
    if (status == LK_OK && search)
        status = lk::import_struct(&own, sizeof own, lk::kOldestSearch, search, "search");
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->model.geometry[layer];
    lk::ScaleRule rule = {};
    lk::Samples q;
    lk::Samples k;
    lk::Samples v;
    status = lk::check_search(own, shape.head_dim, &rule);
    if (status == LK_OK)
        status = lk::import_samples(queries, "queries", n_tokens, shape.n_query_heads,
                                    shape.head_dim, &q);
    if (status == LK_OK)
        status = lk::import_samples(keys, "keys", n_tokens, shape.n_kv_heads, shape.head_dim, &k);
    if (status == LK_OK)
        status =
            lk::import_samples(values, "values", n_tokens, shape.n_kv_heads, shape.head_dim, &v);
    return status == LK_OK
               ? lk::add_scale_search(&calibrator->model, layer, rule, own.query_step, q, k, v)
               : status;
}

lk_status lk_calibrator_get_scale_error(const lk_calibrator *calibrator, uint32_t layer,
                                        uint32_t index, double *exponent, double *error) {
    lk_status status = lk::check_layer_index(calibrator, layer);
    if (status == LK_OK && index >= lk::kExponents)
        status = lk::fail(LK_E_NOT_FOUND, "index is %u, a search tries %u exponents", index,
                          lk::kExponents);
    if (status == LK_OK)
        status = lk::check_searched(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk::Array<double> &errors = calibrator->model.layers[layer]->scale_errors;
    const double plain = errors[lk::kExponents - 1];
    if (exponent)
        *exponent = lk::exponent_of(index);
    if (error)
        *error = plain > 0 ? errors[index] / plain : errors[index] > 0 ? INFINITY : 1;
    return LK_OK;
}

lk_status lk_calibrator_get_key_scales(const lk_calibrator *calibrator, uint32_t layer,
                                       uint32_t kv_head, float *scales, double *exponent) {
    lk_status status = lk::check_head_index(calibrator, layer, kv_head);
    if (status == LK_OK)
        status = lk::check_searched(calibrator, layer);
    if (status != LK_OK)
        return status;
    const lk::LayerSamples &own = *calibrator->model.layers[layer];
    const uint32_t head_dim = calibrator->model.geometry[layer].head_dim;
    const double best = lk::exponent_of(lk::best_exponent(own));
    if (scales)
        lk::key_scales(own.pair_maxima.data() + size_t{kv_head} * head_dim, head_dim, best, scales);
    if (exponent)
        *exponent = best;
    return LK_OK;
}

lk_status lk_pmkvq_init(lk_pmkvq *options, size_t struct_bytes) {
    return lk::init_with(options, struct_bytes, lk::kOldestPmkvq, lk::default_pmkvq(), "options");
}

lk_status lk_calibrator_pmkvq(const lk_calibrator *calibrator, const lk_pmkvq *options,
                              lk_plan **out) {
    if (!out)
        return lk::null_argument("out");
    *out = nullptr;
    if (!calibrator)
        return lk::null_argument("calibrator");
    lk_pmkvq own = lk::default_pmkvq();
    lk_status status = lk::import_struct(&own, sizeof own, lk::kOldestPmkvq, options, "options");
    if (status == LK_OK)
        status = lk::check_pmkvq(own);
    if (status != LK_OK)
        return status;
    if (!own.sensitivity)
        own.sensitivity = lk::known_sensitivity(calibrator->model);
    return lk::make(out, "a plan",
                    [&](lk::Plan *plan) { return lk::make_pmkvq(calibrator->model, own, plan); });
}

}  // extern "C"
