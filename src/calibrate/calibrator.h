// Statistics of a model as the library holds them, and what follows from them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CALIBRATE_CALIBRATOR_H
#define LK_CALIBRATE_CALIBRATOR_H

#include <lowkey/calibrate.h>

#include "base/memory.h"
#include "base/status.h"
#include "plan/plan.h"

namespace lk {

// Of one channel. Minima and maxima are FP16 in the order of half_order(), so they are exact and
// compare as integers; an empty channel has low > high. Sums of FP16 values in double are exact
// below 2^29.
struct ChannelSums {
    int16_t low;
    int16_t high;
    double sum;
    double magnitude;  // of |x|
};
constexpr ChannelSums kEmptyChannel = {INT16_MAX, INT16_MIN, 0, 0};

// Widths that sensitivities are known for; at 16 bits a page is as it was.
constexpr uint32_t kWidths = 3;
constexpr uint32_t kWidthBits[kWidths] = {8, 4, 2};

constexpr double kMaxCost = 1e15;  // of a half
constexpr float kCostClips[LK_COST_CLIPS] = {0.85f, 0.7f};

// Exponents of key scales that a search tries, each 1/20 below the one before.
constexpr uint32_t kExponents = LK_SCALE_EXPONENTS;
constexpr double exponent_of(uint32_t index) {
    return static_cast<double>(kExponents - 1 - index) / (kExponents - 1);
}

// What the passes of a layer's search have in common, as lk_scale_search.
struct ScaleRule {
    uint32_t pairing;
    uint32_t channels;
    uint32_t key_bits;
    uint32_t value_bits;
};

// Of one layer. Arrays are empty until the layer has such samples.
struct LayerSamples {
    explicit LayerSamples(const Allocator &allocator)
        : keys(allocator),
          queries(allocator),
          retrieval(allocator),
          key_gradients(allocator),
          value_gradients(allocator),
          output_errors(allocator),
          output_squares(allocator),
          pair_maxima(allocator),
          scale_errors(allocator),
          costs(allocator),
          clip_costs(allocator) {}

    Array<double> &gradients(bool is_value) { return is_value ? value_gradients : key_gradients; }
    const Array<double> &gradients(bool is_value) const {
        return is_value ? value_gradients : key_gradients;
    }

    uint64_t n_keys = 0;               // tokens
    uint64_t n_queries = 0;            // tokens
    uint64_t n_probe_rows = 0;         // queries behind the first sentence
    Array<ChannelSums> keys;           // [n_kv_heads][head_dim]
    Array<double> queries;             // [n_kv_heads][head_dim] sums of |Q| over the group's heads
    Array<double> retrieval;           // [n_query_heads] sums of masked attention
    uint64_t n_gradients[2] = {0, 0};  // tokens of keys, of values
    uint64_t n_outputs = 0;            // tokens
    Array<double> key_gradients;       // [n_kv_heads][kWidths] sums of |gradient x error|
    Array<double> value_gradients;     // likewise
    Array<double> output_errors;       // [n_kv_heads][keys, values][kWidths] sums of squared errors
    Array<double> output_squares;      // [n_kv_heads] sums of squares of the exact outputs
    uint64_t n_searched = 0;           // tokens
    ScaleRule scale_rule = {};         // of the first pass
    Array<float> pair_maxima;          // [n_kv_heads][head_dim] as the first pass found them
    Array<double> scale_errors;        // [kExponents] sums of squared errors
    Array<double> costs;               // [n_kv_heads][keys, values] at 2 bits, as a host found them
    Array<double> clip_costs;          // [n_kv_heads][keys, values][LK_COST_CLIPS] likewise
};

// Grows from the allocator it is made with. Not copied.
struct Calibrator {
    explicit Calibrator(const Allocator &from = default_allocator())
        : allocator(&from), geometry(from), sink_logits(from), layers(from) {}
    ~Calibrator() {
        for (LayerSamples *layer : layers)
            destroy(*allocator, layer);
    }
    Calibrator(const Calibrator &) = delete;
    Calibrator &operator=(const Calibrator &) = delete;

    const Allocator *allocator;
    Array<lk_layer> geometry;  // sink_logits points into the array below, or is null
    Array<float> sink_logits;
    Array<LayerSamples *> layers;  // as many; null before the layer's first samples
};

// Checked geometry: import_geometry() or check_layer() has seen it. LK_E_NOMEM.
lk_status set_geometry(Calibrator *calibrator, const Array<lk_layer> &layers);
// The layer's samples, made when there are none. Null when memory is exhausted.
LayerSamples *samples_of(Calibrator *calibrator, uint32_t layer);

// A tensor in host memory of shape [n_tokens][n_heads][head_dim].
struct Samples {
    lk_tensor tensor;
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;

    // First element of a row of head_dim.
    const void *row(uint32_t token, uint32_t head) const;
};
// LK_E_ARGUMENT; name is that of the argument.
lk_status import_samples(const lk_tensor *from, const char *name, uint32_t n_tokens,
                         uint32_t n_heads, uint32_t head_dim, Samples *out);
// A row as FP16: nearest, saturating. What is not finite becomes an infinity.
void read_row(const Samples &samples, uint32_t token, uint32_t head, uint16_t *halfs);
// LK_E_DATA, naming the first element that is not finite; LK_OK when there is none.
lk_status find_fault(const Samples &samples, const char *what, uint32_t layer);

// Verbs. The layer exists, samples have its shape. On failure nothing is changed.
lk_status add_keys(Calibrator *calibrator, uint32_t layer, const Samples &keys);
lk_status add_queries(Calibrator *calibrator, uint32_t layer, const Samples &queries);
lk_status add_probe(Calibrator *calibrator, uint32_t layer, const lk_probe &probe,
                    const Samples &queries, const Samples &keys);

lk_status add_gradients(Calibrator *calibrator, uint32_t layer, bool is_value,
                        const Samples &samples, const Samples &gradients);
lk_status add_attention(Calibrator *calibrator, uint32_t layer, const Samples &queries,
                        const Samples &keys, const Samples &values);

// n numbers into an array of LayerSamples. LK_E_NOMEM.
lk_status set_costs(Calibrator *calibrator, uint32_t layer, Array<double> LayerSamples::*costs,
                    const double *from, size_t n);

// Channels that RoPE turns together.
struct RopePairs {
    lk_rope_pairing pairing;
    uint32_t channels;  // that turn

    uint32_t first(uint32_t pair) const { return pairing == LK_ROPE_HALVES ? pair : 2 * pair; }
    uint32_t second(uint32_t pair) const {
        return pairing == LK_ROPE_HALVES ? pair + channels / 2 : 2 * pair + 1;
    }
};
// channels 0 = all. LK_E_ARGUMENT; the prefix stands before the members' names.
lk_status check_pairs(lk_rope_pairing pairing, uint32_t channels, uint32_t head_dim,
                      const char *prefix, RopePairs *out);

// The largest |K| of each pair of a head, [head_dim]. The layer has keys.
void find_pair_maxima(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                      const RopePairs &pairs, float *maxima);
// Scales of [head_dim] maxima.
void key_scales(const float *maxima, uint32_t head_dim, double exponent, float *scales);
// The rule has the layer's pairs checked, its channels not 0.
lk_status add_scale_search(Calibrator *calibrator, uint32_t layer, const ScaleRule &rule,
                           uint32_t query_step, const Samples &queries, const Samples &keys,
                           const Samples &values);
// The index of the least error of a layer that was searched.
uint32_t best_exponent(const LayerSamples &samples);

// Range of a channel that has samples.
float channel_range(const ChannelSums &sums);
float channel_low(const ChannelSums &sums);
float channel_high(const ChannelSums &sums);
float channel_mean(const ChannelSums &sums, uint64_t n);

// 1-D K-means of ascending values, n > 0: centroids, and the first index of the second and of
// the third cluster.
struct Clusters {
    double centroids[3];
    size_t begin[2];
};
Clusters cluster_ranges(const float *ascending, size_t n);

// Classes LK_CHANNEL_* of the channels of a head, [head_dim], by the ranges of its scope. The
// layer has keys. LK_E_NOMEM.
lk_status classify_head(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                        lk_scope scope, uint8_t *classes, Clusters *clusters);

// The layer has had a probe.
double retrieval_score(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head);

// The channels' means become the centers of a head's keys. The layer has keys.
lk_status set_mean_centers(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                           Plan *plan);

// Of plans that are made here.
constexpr uint32_t kPageTokens = 128;
// An empty plan gets its layers, name, pages and what stays at 16 bits. LK_E_NOMEM.
lk_status begin_plan(const Calibrator &calibrator, const char *name, uint32_t sink_tokens,
                     uint32_t recent_tokens, Plan *plan);

// Plans of checked options into an empty plan.
lk_status make_chanmix(const Calibrator &calibrator, const lk_chanmix &options, Plan *plan);
lk_status make_auto(const Calibrator &calibrator, const lk_auto &options, Plan *plan);

// The kind of lk_sensitivity that options of 0 take.
lk_sensitivity known_sensitivity(const Calibrator &calibrator);
// Has the layer had samples of this kind? LK_E_STATE.
lk_status check_sensitivity(const Calibrator &calibrator, uint32_t layer, bool is_value,
                            lk_sensitivity kind);
// Of a layer that has had them; bits are 16 or of kWidthBits.
double sensitivity_of(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head, bool is_value,
                      lk_sensitivity kind, uint32_t bits);
// A PM-KVQ plan of checked options, sensitivity among them, into an empty plan.
lk_status make_pmkvq(const Calibrator &calibrator, const lk_pmkvq &options, Plan *plan);

// Items with the cost and the bytes of each choice, [n_items][n_choices].
struct AllocationProblem {
    uint32_t n_items;
    uint32_t n_choices;
    const double *costs;
    const uint64_t *bytes;
    uint64_t budget_bytes;
};
// The choices of the least total cost within the budget, [n_items].
lk_status allocate(const AllocationProblem &problem, uint32_t *choices);

// Raises *most, which fits the budget, as far as bytes_of(n, &bytes) allows, to within `step`;
// `above` does not fit.
template <class BytesOf>
lk_status most_within(uint64_t budget_bytes, uint64_t above, uint64_t step, const BytesOf &bytes_of,
                      uint64_t *most) {
    while (*most + step < above) {
        const uint64_t middle = *most + (above - *most) / 2;
        uint64_t bytes;
        const lk_status status = bytes_of(middle, &bytes);
        if (status != LK_OK)
            return status;
        (bytes <= budget_bytes ? *most : above) = middle;
    }
    return LK_OK;
}

// Bytes of a safetensors file (stats_write.cpp, stats_read.cpp).
lk_status stats_to_bytes(const Calibrator &calibrator, void *buffer, size_t capacity_bytes,
                         size_t *needed_bytes);
lk_status stats_from_bytes(const uint8_t *bytes, size_t n_bytes, Calibrator *out);

}  // namespace lk

// The public handle.
struct lk_calibrator {
    lk::Calibrator model;
};

#endif
