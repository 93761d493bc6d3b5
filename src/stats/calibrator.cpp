// The model: geometry, and memory for layers.
//
// SPDX-License-Identifier: Apache-2.0

#include "stats/calibrator.h"

namespace lk {

namespace {

uint64_t count_sink_logits(const Array<lk_layer> &layers) {
    uint64_t n = 0;
    for (const lk_layer &layer : layers)
        n += layer.sink_logits ? layer.n_query_heads : 0;
    return n;
}

}  // namespace

lk_status set_geometry(Calibrator *calibrator, const Array<lk_layer> &layers) {
    const uint64_t n_logits = count_sink_logits(layers);
    if (!calibrator->geometry.assign(layers.data(), layers.size()) ||
        !calibrator->layers.resize(layers.size()) || !calibrator->sink_logits.resize(n_logits))
        return fail(LK_E_NOMEM, "no memory for a calibrator of %zu layers", layers.size());
    float *next = calibrator->sink_logits.data();
    for (lk_layer &layer : calibrator->geometry) {
        layer.scale += 0.0f;  // negative zero becomes zero
        layer.soft_cap += 0.0f;
        if (!layer.sink_logits)
            continue;
        std::memcpy(next, layer.sink_logits, layer.n_query_heads * sizeof *next);
        layer.sink_logits = next;
        next += layer.n_query_heads;
    }
    return LK_OK;
}

LayerSamples *samples_of(Calibrator *calibrator, uint32_t layer) {
    LayerSamples *&own = calibrator->layers[layer];
    if (!own)
        own = create<LayerSamples>(*calibrator->allocator, *calibrator->allocator);
    return own;
}

double retrieval_score(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head) {
    const LayerSamples &own = *calibrator.layers[layer];
    const lk_layer &shape = calibrator.geometry[layer];
    const uint32_t group = shape.n_query_heads / shape.n_kv_heads;
    double most = 0;
    for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; ++h)
        most = own.retrieval[h] > most ? own.retrieval[h] : most;
    return most / static_cast<double>(own.n_probe_queries);
}

}  // namespace lk
