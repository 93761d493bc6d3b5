// Statistics of a model as the library holds them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_CALIBRATOR_H
#define LK_STATS_CALIBRATOR_H

#include <lowkey/pmkvq.h>

#include "base/memory.h"
#include "base/status.h"

namespace lk {

// Statistics of one key channel. Minima and maxima are FP16 in the order of half_order(): they are
// exact and compare as integers; an empty channel has low > high. Sums of FP16 values in double are
// exact below 2^29.
struct ChannelSums {
    int16_t low;
    int16_t high;
    double sum;
    double magnitude;  // sum of |x|
};
constexpr ChannelSums kEmptyChannel = {INT16_MAX, INT16_MIN, 0, 0};

// Widths with a sensitivity; 16 bits cost nothing.
constexpr uint32_t kWidths = 3;
constexpr uint32_t kWidthBits[kWidths] = {8, 4, 2};

constexpr double kMaxCost = 1e15;  // of the keys, or the values, of one KV head
constexpr float kCostClips[LK_COST_CLIPS] = {0.85f, 0.7f};

// Exponents of key scales that a search tries, each 1/20 below the one before.
constexpr uint32_t kExponents = LK_SCALE_EXPONENTS;
constexpr double exponent_of(uint32_t index) {
    return static_cast<double>(kExponents - 1 - index) / (kExponents - 1);
}

// Options that all passes of a layer's search share, as in lk_scale_search.
struct ScaleRule {
    uint32_t pairing;
    uint32_t channels;
    uint32_t key_bits;
    uint32_t value_bits;
};

// Statistics of one layer. An array is empty until the layer has samples for it.
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
    uint64_t n_probe_queries = 0;      // queries after the first sentence
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
    Array<float> pair_maxima;          // [n_kv_heads][head_dim] of the first pass
    Array<double> scale_errors;        // [kExponents] sums of squared errors
    Array<double> costs;               // [n_kv_heads][keys, values] at 2 bits, measured by a host
    Array<double> clip_costs;          // [n_kv_heads][keys, values][LK_COST_CLIPS]
};

// Statistics of a model. All memory comes from the allocator of its constructor. Not copied.
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
    Array<LayerSamples *> layers;  // [n_layers]; null before the layer's first samples
};

// The layers have passed import_geometry() or check_layer(). LK_E_NOMEM.
lk_status set_geometry(Calibrator *calibrator, const Array<lk_layer> &layers);
// The layer's statistics, created at first. Null when memory is exhausted.
LayerSamples *samples_of(Calibrator *calibrator, uint32_t layer);

// The layer has had a probe.
double retrieval_score(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head);

}  // namespace lk

// The public handle.
struct lk_calibrator {
    lk::Calibrator model;
};

#endif
