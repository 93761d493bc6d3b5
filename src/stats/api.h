// What the files of calibration's C interface share: checks of indices and options, new handles.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_API_H
#define LK_STATS_API_H

#include "stats/calibrator.h"

namespace lk {

// Hand out a new handle that fill(model) made.
template <class Handle, class Fill>
lk_status make(Handle **out, const char *what, Fill fill) {
    *out = nullptr;
    auto *own = create<Handle>(default_allocator());
    if (!own)
        return fail(LK_E_NOMEM, "no memory for %s", what);
    const lk_status status = fill(&own->model);
    if (status == LK_OK)
        *out = own;
    else
        destroy(default_allocator(), own);
    return status;
}

inline lk_status check_layer_index(const lk_calibrator *calibrator, uint32_t layer) {
    if (!calibrator)
        return null_argument("calibrator");
    const size_t n = calibrator->model.geometry.size();
    if (layer >= n)
        return fail(LK_E_NOT_FOUND, "layer is %u, the model has %zu layers", layer, n);
    const lk_layer &shape = calibrator->model.geometry[layer];
    return shape.kv_layer == LK_OWN_KV
               ? LK_OK
               : fail(LK_E_ARGUMENT,
                      "layer is %u, which reads the keys and values of layer %u: statistics are of "
                      "that layer",
                      layer, shape.kv_layer);
}

inline lk_status check_head_index(const lk_calibrator *calibrator, uint32_t layer,
                                  uint32_t kv_head) {
    const lk_status status = check_layer_index(calibrator, layer);
    if (status != LK_OK)
        return status;
    const uint32_t n = calibrator->model.geometry[layer].n_kv_heads;
    return kv_head < n
               ? LK_OK
               : fail(LK_E_NOT_FOUND, "kv_head is %u, layer %u has %u KV heads", kv_head, layer, n);
}

inline lk_status check_scope(lk_scope scope, const char *name) {
    return scope == LK_SCOPE_HEAD || scope == LK_SCOPE_LAYER
               ? LK_OK
               : fail(LK_E_ARGUMENT, "%s is %u, must be 1 (head) or 2 (layer)", name, scope);
}

inline lk_status check_flag(uint32_t value, const char *name) {
    return value <= 1 ? LK_OK
                      : fail(LK_E_ARGUMENT, "options.%s is %u, must be 0 or 1", name, value);
}

inline lk_status check_samples(const LayerSamples *own, uint64_t LayerSamples::*count,
                               const char *what, uint32_t layer) {
    return own && own->*count ? LK_OK : fail(LK_E_STATE, "layer %u has had no %s", layer, what);
}

}  // namespace lk

#endif
