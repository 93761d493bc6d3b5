// Scales of keys (PM-KVQ's representation scales): the largest |K| of each RoPE pair, and the
// exponent that makes the least error in the output of attention.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "format/fp16.h"
#include "plan/plan.h"
#include "stats/attention.h"
#include "stats/scales.h"
#include "stats/sums.h"

namespace lk {

namespace {

// One KV head in the search: what does not depend on the exponent.
struct SearchHead {
    Array<float> keys;     // [n_tokens][head_dim] as given
    Array<float> blocks;   // the same in blocks, then at one exponent after the other
    Array<float> values;   // [n_tokens][head_dim], exact and then quantized
    Array<float> exact;    // outputs of the attended rows, [rows][head_dim]
    Array<float> weights;  // [n_tokens]

    bool resize(uint32_t n_tokens, uint32_t head_dim, uint64_t n_rows) {
        const uint64_t n = uint64_t{n_tokens} * head_dim;
        return keys.resize(n) && blocks.resize(block_elements(n_tokens, head_dim)) &&
               values.resize(n) && exact.resize(n_rows * head_dim) && weights.resize(n_tokens);
    }
};

class Search {
  public:
    Search(const lk_layer &shape, const ScaleRule &rule, uint32_t query_step,
           const Samples &queries)
        : shape_(shape),
          logits_(shape),
          rule_(rule),
          query_step_(query_step),
          queries_(queries),
          first_row_((queries.n_tokens - 1) % query_step) {}

    // Adds the errors of a KV head to [kExponents]. False without memory.
    bool add_head(const Samples &keys, const Samples &values, uint32_t head, const float *maxima,
                  double *errors);

  private:
    void read(const Samples &keys, const Samples &values, uint32_t head);
    void quantize_values();
    void scale_keys(const float *scales);
    // Calls use(row, output) for each attended query of the group.
    template <class Use>
    void attend(uint32_t head, Use use);

    const lk_layer &shape_;
    const LogitRule logits_;
    const ScaleRule &rule_;
    const uint32_t query_step_;
    const Samples &queries_;
    const uint32_t first_row_;
    SearchHead own_;
};

void Search::read(const Samples &keys, const Samples &values, uint32_t head) {
    const uint32_t d = shape_.head_dim;
    for (uint32_t t = 0; t < keys.n_tokens; ++t) {
        float *key = own_.keys.data() + uint64_t{t} * d;
        read_floats(keys, t, head, key);
        put_key(key, t, d, own_.blocks.data());
        read_floats(values, t, head, own_.values.data() + uint64_t{t} * d);
    }
}

void Search::quantize_values() {
    float row[LK_MAX_HEAD_DIM];
    for (uint32_t t = 0; t < queries_.n_tokens && rule_.value_bits < 16; ++t) {
        float *value = own_.values.data() + uint64_t{t} * shape_.head_dim;
        quantize_vector(value, shape_.head_dim, rule_.value_bits, row);
        std::memcpy(value, row, shape_.head_dim * sizeof *row);
    }
}

// Keys as a cache with these scales gives them back.
void Search::scale_keys(const float *scales) {
    float row[LK_MAX_HEAD_DIM];
    float rounded[LK_MAX_HEAD_DIM];
    const uint32_t d = shape_.head_dim;
    for (uint32_t t = 0; t < queries_.n_tokens; ++t) {
        const float *key = own_.keys.data() + uint64_t{t} * d;
        for (uint32_t c = 0; c < d; ++c)
            row[c] = half_nearest(key[c] / scales[c]);
        if (rule_.key_bits < 16)
            quantize_vector(row, d, rule_.key_bits, rounded);
        else
            std::memcpy(rounded, row, d * sizeof *row);
        for (uint32_t c = 0; c < d; ++c)
            rounded[c] *= scales[c];
        put_key(rounded, t, d, own_.blocks.data());
    }
}

template <class Use>
void Search::attend(uint32_t head, Use use) {
    const uint32_t group = shape_.n_query_heads / shape_.n_kv_heads;
    float query[LK_MAX_HEAD_DIM];
    float output[LK_MAX_HEAD_DIM];
    uint64_t row = 0;
    for (uint32_t q = head * group; q < (head + 1) * group; ++q)
        for (uint32_t i = first_row_; i < queries_.n_tokens; i += query_step_, ++row) {
            read_floats(queries_, i, q, query);
            attend_query(logits_, query, q, i, shape_.head_dim, own_.blocks.data(),
                         own_.weights.data());
            weigh_values(own_.weights.data(), i + 1, own_.values.data(), shape_.head_dim, output);
            use(own_.exact.data() + row * shape_.head_dim, output);
        }
}

bool Search::add_head(const Samples &keys, const Samples &values, uint32_t head,
                      const float *maxima, double *errors) {
    const uint32_t d = shape_.head_dim;
    const uint32_t group = shape_.n_query_heads / shape_.n_kv_heads;
    if (!own_.resize(keys.n_tokens, d, ceil_div(keys.n_tokens, query_step_) * group))
        return false;
    read(keys, values, head);
    attend(head, [d](float *exact, const float *output) {
        std::memcpy(exact, output, d * sizeof *exact);
    });
    quantize_values();
    float scales[LK_MAX_HEAD_DIM];
    for (uint32_t e = 0; e < kExponents; ++e) {
        key_scales(maxima, d, exponent_of(e), scales);
        scale_keys(scales);
        attend(head, [d, e, errors](const float *exact, const float *output) {
            errors[e] += square_distance(exact, output, d);
        });
    }
    return true;
}

lk_status check_rule(const LayerSamples &own, const ScaleRule &rule, uint32_t layer) {
    const ScaleRule &first = own.scale_rule;
    if (!own.n_searched || (rule.pairing == first.pairing && rule.channels == first.channels &&
                            rule.key_bits == first.key_bits && rule.value_bits == first.value_bits))
        return LK_OK;
    return fail(LK_E_MISMATCH,
                "layer %u was searched with pairing %u, channels %u, key_bits %u and "
                "value_bits %u; now %u, %u, %u and %u",
                layer, first.pairing, first.channels, first.key_bits, first.value_bits,
                rule.pairing, rule.channels, rule.key_bits, rule.value_bits);
}

float magnitude(const ChannelSums &sums) {
    return std::max(std::fabs(channel_low(sums)), std::fabs(channel_high(sums)));
}

}  // namespace

void find_pair_maxima(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                      const RopePairs &pairs, float *maxima) {
    const uint32_t d = calibrator.geometry[layer].head_dim;
    const ChannelSums *sums = calibrator.layers[layer]->keys.data() + size_t{kv_head} * d;
    for (uint32_t c = 0; c < d; ++c)
        maxima[c] = magnitude(sums[c]);
    for (uint32_t i = 0; i < pairs.channels / 2; ++i) {
        float &a = maxima[pairs.first(i)];
        float &b = maxima[pairs.second(i)];
        a = b = std::max(a, b);
    }
}

void key_scales(const float *maxima, uint32_t head_dim, double exponent, float *scales) {
    for (uint32_t c = 0; c < head_dim; ++c) {
        const double scale = maxima[c] > 0 ? std::pow(double{maxima[c]}, exponent) : 1;
        scales[c] = std::clamp(static_cast<float>(scale), kLeastScale, kMostScale);
    }
}

lk_status add_scale_search(Calibrator *calibrator, uint32_t layer, const ScaleRule &rule,
                           uint32_t query_step, const Samples &queries, const Samples &keys,
                           const Samples &values) {
    const lk_layer &shape = calibrator->geometry[layer];
    LayerSamples *own = calibrator->layers[layer];
    if (!own || !own->n_keys)
        return fail(LK_E_STATE, "layer %u has had no keys, whose maxima make its scales", layer);
    lk_status status = check_rule(*own, rule, layer);
    if (status == LK_OK)
        status = find_fault(queries, "Q", layer);
    if (status == LK_OK)
        status = find_fault(keys, "K", layer);
    if (status == LK_OK)
        status = find_fault(values, "V", layer);
    if (status != LK_OK)
        return status;
    const size_t n_maxima = size_t{shape.n_kv_heads} * shape.head_dim;
    double errors[kExponents] = {};
    Array<float> maxima(*calibrator->allocator);
    bool has_memory = own->scale_errors.resize(kExponents) && maxima.resize(n_maxima);
    Search search(shape, rule, query_step, queries);
    for (uint32_t h = 0; h < shape.n_kv_heads && has_memory; ++h) {
        float *heads = maxima.data() + size_t{h} * shape.head_dim;
        if (own->n_searched)
            std::memcpy(heads, own->pair_maxima.data() + size_t{h} * shape.head_dim,
                        shape.head_dim * sizeof *heads);
        else
            find_pair_maxima(*calibrator, layer, h, {rule.pairing, rule.channels}, heads);
        has_memory = search.add_head(keys, values, h, heads, errors);
    }
    for (uint32_t e = 0; e < kExponents && has_memory; ++e)
        if (!std::isfinite(errors[e]))
            return fail(LK_E_DATA, "attention of layer %u is not finite at exponent %g", layer,
                        exponent_of(e));
    if (!has_memory || !own->pair_maxima.assign(maxima.data(), n_maxima))
        return fail(LK_E_NOMEM, "no memory to search for the scales of layer %u", layer);
    for (uint32_t e = 0; e < kExponents; ++e)
        own->scale_errors[e] += errors[e];
    own->scale_rule = rule;
    own->n_searched += queries.n_tokens;
    return LK_OK;
}

uint32_t best_exponent(const LayerSamples &samples) {
    uint32_t best = kExponents - 1;
    for (uint32_t e = kExponents; e-- > 0;)
        if (samples.scale_errors[e] < samples.scale_errors[best])
            best = e;
    return best;
}

}  // namespace lk
