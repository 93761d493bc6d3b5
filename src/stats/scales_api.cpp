// The C interface of key scales: maxima of pairs, scales, the search for an exponent.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/float_mode.h"
#include "format/fp16.h"
#include "plan/check.h"
#include "stats/api.h"
#include "stats/scales.h"

namespace lk {

namespace {

constexpr size_t kOldestSearch = sizeof(lk_scale_search);

lk_scale_search default_search() {
    lk_scale_search search = {};
    search.size = sizeof search;
    search.pairing = LK_ROPE_HALVES;
    search.key_bits = 4;
    search.value_bits = 4;
    search.query_step = 1;
    return search;
}

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
    const lk::FloatMode mode;
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
    const lk::FloatMode mode;
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
    const lk::FloatMode mode;
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
    const lk::FloatMode mode;
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

}  // extern "C"
