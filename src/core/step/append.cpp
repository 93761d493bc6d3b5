// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/pages/pack.h"
#include "core/step/faults.h"

namespace lk {

namespace {

lk_status append(lk_cache *cache, uint32_t layer, const lk_tensor *k, const lk_tensor *v) {
    LK_TRY(check_step(cache, layer));
    Step &step = cache->step;
    if (!cache->formats.layers[layer].owns_kv)
        return fail(LK_E_ARGUMENT,
                    "layer %u reads the keys and values of layer %u: append to that layer alone",
                    layer, cache->formats.layers[layer].kv_layer);
    if (step.layers[layer] != kNoKeys)
        return fail(LK_E_STATE, "layer %u has its keys in this step already", layer);
    const LayerView &view = cache->formats.layers[layer].view;
    if (view.is_latent && v)
        return fail(LK_E_ARGUMENT,
                    "v is not NULL, and layer %u is latent: its values are channels of its keys",
                    layer);
    TensorShape shape = {step.n_tokens, view.n_kv_heads, view.head_dim};
    AppendArgs args{};
    TensorRange k_range;
    TensorRange v_range{};
    LK_TRY(take_tensor(*cache->context, step.queue, k, "k", shape, false, &args.k, &k_range));
    shape.n_channels = view.value_dim;
    if (!view.is_latent)
        LK_TRY(take_tensor(*cache->context, step.queue, v, "v", shape, false, &args.v, &v_range));
    uint8_t *captured_calls;
    LK_TRY(note_capture(cache, layer, &captured_calls));
    args.layer = view;
    args.layer_index = layer;
    args.first_entry = cache->formats.layers[layer].first_entry;
    args.staging = staging_of(cache, layer);
    step.last_layer = kNoLayer;  // its staged tokens are overwritten from here on
    LK_TRY(cache->device->append(args));
    LK_TRY(find_fault(cache));
    count_packed_on_append(cache, layer);
    if (captured_calls)
        *captured_calls |= kCapturedAppend;
    step.layers[layer] = kHasKeys;
    step.last_layer = layer;
    step.k = k_range;
    step.v = v_range;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_append(lk_cache *cache, uint32_t layer, const lk_tensor *k,
                               const lk_tensor *v) {
    return lk::on_cache(cache, [&] { return lk::append(cache, layer, k, v); });
}
