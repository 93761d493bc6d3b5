// What a width costs a head: by the gradients of a loss, by the error of its attention's output, or
// as a host has measured it. The first two quantize as PM-KVQ does, keys and values per token.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "plan/plan.h"
#include "stats/attention.h"
#include "stats/sensitivity.h"

namespace lk {

namespace {

lk_status no_memory_for_heads(uint32_t layer) {
    return fail(LK_E_NOMEM, "no memory for the sensitivities of layer %u", layer);
}

// One KV head: exact values and keys, and both at each width.
struct HeadCopies {
    Array<float> keys[1 + kWidths];    // in blocks
    Array<float> values[1 + kWidths];  // [n_tokens][head_dim]

    bool fill(const Samples &k, const Samples &v, uint32_t head);
};

bool HeadCopies::fill(const Samples &k, const Samples &v, uint32_t head) {
    float row[LK_MAX_HEAD_DIM];
    float rounded[LK_MAX_HEAD_DIM];
    const uint32_t head_dim = k.head_dim;
    for (uint32_t w = 0; w <= kWidths; ++w)
        if (!keys[w].resize(block_elements(k.n_tokens, head_dim)) ||
            !values[w].resize(static_cast<size_t>(k.n_tokens) * head_dim))
            return false;
    for (uint32_t t = 0; t < k.n_tokens; ++t)
        for (uint32_t w = 0; w <= kWidths; ++w) {
            read_floats(k, t, head, row);
            if (w)
                quantize_vector(row, head_dim, kWidthBits[w - 1], rounded);
            put_key(w ? rounded : row, t, head_dim, keys[w].data());
            read_floats(v, t, head, row);
            if (w)
                quantize_vector(row, head_dim, kWidthBits[w - 1], rounded);
            std::memcpy(values[w].data() + static_cast<size_t>(t) * head_dim, w ? rounded : row,
                        head_dim * sizeof *row);
        }
    return true;
}

// Adds a query row's errors with keys, then with values at each width, and its output's square.
void add_row(const LogitRule &rule, const HeadCopies &head, const float *query, uint32_t query_head,
             uint32_t i, uint32_t head_dim, float *weights, double *errors, double *square) {
    float exact[LK_MAX_HEAD_DIM];
    float other[LK_MAX_HEAD_DIM];
    const float zero[LK_MAX_HEAD_DIM] = {};
    attend_query(rule, query, query_head, i, head_dim, head.keys[0].data(), weights);
    weigh_values(weights, i + 1, head.values[0].data(), head_dim, exact);
    *square += square_distance(exact, zero, head_dim);
    for (uint32_t w = 0; w < kWidths; ++w) {
        weigh_values(weights, i + 1, head.values[1 + w].data(), head_dim, other);
        errors[kWidths + w] += square_distance(exact, other, head_dim);
    }
    for (uint32_t w = 0; w < kWidths; ++w) {
        attend_query(rule, query, query_head, i, head_dim, head.keys[1 + w].data(), weights);
        weigh_values(weights, i + 1, head.values[0].data(), head_dim, other);
        errors[w] += square_distance(exact, other, head_dim);
    }
}

}  // namespace

lk_status add_gradients(Calibrator *calibrator, uint32_t layer, bool is_value,
                        const Samples &samples, const Samples &gradients) {
    lk_status status = find_fault(samples, is_value ? "V" : "K", layer);
    if (status == LK_OK)
        status = find_fault(gradients, is_value ? "the gradient of V" : "the gradient of K", layer);
    if (status != LK_OK)
        return status;
    const size_t n = static_cast<size_t>(samples.n_heads) * kWidths;
    Array<double> fresh(*calibrator->allocator);
    LayerSamples *own = samples_of(calibrator, layer);
    if (!own || !fresh.resize(n) || !own->gradients(is_value).resize(n))
        return no_memory_for_heads(layer);
    float values[LK_MAX_HEAD_DIM];
    float slopes[LK_MAX_HEAD_DIM];
    float rounded[LK_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < samples.n_tokens; ++t)
        for (uint32_t h = 0; h < samples.n_heads; ++h) {
            read_floats(samples, t, h, values);
            read_exact(gradients, t, h, slopes);
            for (uint32_t w = 0; w < kWidths; ++w) {
                quantize_vector(values, samples.head_dim, kWidthBits[w], rounded);
                double sum = 0;
                for (uint32_t c = 0; c < samples.head_dim; ++c)
                    sum += std::fabs(double{slopes[c]} * (double{values[c]} - double{rounded[c]}));
                fresh[h * kWidths + w] += sum;
            }
        }
    own->n_gradients[is_value] += samples.n_tokens;
    for (size_t i = 0; i < n; ++i)
        own->gradients(is_value)[i] += fresh[i];
    return LK_OK;
}

lk_status add_attention(Calibrator *calibrator, uint32_t layer, const Samples &queries,
                        const Samples &keys, const Samples &values) {
    lk_status status = find_fault(queries, "Q", layer);
    if (status == LK_OK)
        status = find_fault(keys, "K", layer);
    if (status == LK_OK)
        status = find_fault(values, "V", layer);
    if (status != LK_OK)
        return status;
    const lk_layer &shape = calibrator->geometry[layer];
    const LogitRule rule(shape);
    const uint32_t group = shape.n_query_heads / shape.n_kv_heads;
    const size_t n_errors = static_cast<size_t>(shape.n_kv_heads) * 2 * kWidths;
    Array<double> errors(*calibrator->allocator);
    Array<double> squares(*calibrator->allocator);
    Array<float> weights(*calibrator->allocator);
    LayerSamples *own = samples_of(calibrator, layer);
    if (!own || !errors.resize(n_errors) || !squares.resize(shape.n_kv_heads) ||
        !weights.resize(keys.n_tokens) || !own->output_errors.resize(n_errors) ||
        !own->output_squares.resize(shape.n_kv_heads))
        return no_memory_for_heads(layer);
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h) {
        HeadCopies copies;
        if (!copies.fill(keys, values, h))
            return no_memory_for_heads(layer);
        float query[LK_MAX_HEAD_DIM];
        for (uint32_t q = h * group; q < (h + 1) * group; ++q)
            for (uint32_t i = 0; i < queries.n_tokens; ++i) {
                read_floats(queries, i, q, query);
                add_row(rule, copies, query, q, i, shape.head_dim, weights.data(),
                        errors.data() + static_cast<size_t>(h) * 2 * kWidths, &squares[h]);
            }
        if (!std::isfinite(squares[h]))
            return fail(LK_E_DATA, "attention of layer %u, KV head %u is not finite", layer, h);
    }
    own->n_outputs += queries.n_tokens;
    for (size_t i = 0; i < n_errors; ++i)
        own->output_errors[i] += errors[i];
    for (uint32_t h = 0; h < shape.n_kv_heads; ++h)
        own->output_squares[h] += squares[h];
    return LK_OK;
}

lk_status set_costs(Calibrator *calibrator, uint32_t layer, Array<double> LayerSamples::*costs,
                    const double *from, size_t n) {
    LayerSamples *own = samples_of(calibrator, layer);
    if (!own || !(own->*costs).resize(n))
        return no_memory_for_heads(layer);
    std::memcpy((own->*costs).data(), from, n * sizeof *from);
    return LK_OK;
}

lk_status check_sensitivity(const Calibrator &calibrator, uint32_t layer, bool is_value,
                            lk_sensitivity kind) {
    const LayerSamples *own = calibrator.layers[layer];
    const bool is_gradient = kind == LK_SENSITIVITY_GRADIENT;
    if (own && (is_gradient ? own->n_gradients[is_value] : own->n_outputs))
        return LK_OK;
    return fail(LK_E_STATE, "layer %u has had no %s", layer,
                !is_gradient ? "attention"
                : is_value   ? "gradients of V"
                             : "gradients of K");
}

lk_sensitivity known_sensitivity(const Calibrator &calibrator) {
    for (uint32_t l = 0; l < calibrator.layers.size(); ++l) {
        const LayerSamples *own = calibrator.layers[l];
        const bool is_known = own && own->n_gradients[0] && own->n_gradients[1];
        if (!is_known && owns_kv(calibrator.geometry[l]))
            return LK_SENSITIVITY_OUTPUT;
    }
    return LK_SENSITIVITY_GRADIENT;
}

double sensitivity_of(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head, bool is_value,
                      lk_sensitivity kind, uint32_t bits) {
    const LayerSamples &own = *calibrator.layers[layer];
    if (bits == 16)
        return 0;
    uint32_t width = 0;
    while (kWidthBits[width] != bits)
        ++width;
    if (kind == LK_SENSITIVITY_GRADIENT)
        return own.gradients(is_value)[size_t{kv_head} * kWidths + width] /
               static_cast<double>(own.n_gradients[is_value]);
    const double square = own.output_squares[kv_head];
    const double error = own.output_errors[(size_t{kv_head} * 2 + is_value) * kWidths + width];
    return square > 0 ? error / square : 0;
}

}  // namespace lk
