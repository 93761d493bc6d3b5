// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/step/faults.h"
#include "core/step/sum_queries.h"

namespace lk {

namespace {

lk_status import_lse(const lk_cache *cache, const lk_tensor *lse, const TensorShape &shape,
                     AttendArgs *args, TensorRange *range) {
    TensorView view{};
    LK_TRY(take_tensor(*cache->context, cache->step.queue, lse, "lse",
                       {shape.n_tokens, shape.n_heads, 1}, true, &view, range));
    if (view.dtype != LK_F32)
        return fail(LK_E_ARGUMENT, "lse.dtype is %u, not LK_F32", view.dtype);
    args->lse = static_cast<float *>(view.data);
    args->lse_token_stride = view.token_stride;
    args->lse_head_stride = view.head_stride;
    args->lse_is_host = view.is_host;
    return LK_OK;
}

// k and v are the host's again once their layer has been attended.
lk_status check_apart(const char *name, const TensorRange &out, const Step &step,
                      const TensorRange &q) {
    const bool has_kv = step.last_layer != kNoLayer && step.layers[step.last_layer] == kHasKeys;
    const char *other = overlaps(out, q)                  ? "q"
                        : has_kv && overlaps(out, step.k) ? "k"
                        : has_kv && overlaps(out, step.v) ? "v"
                                                          : nullptr;
    return other ? fail(LK_E_ARGUMENT, "%s overlaps %s", name, other) : LK_OK;
}

lk_status import_tensors(const lk_cache *cache, const lk_tensor *q, const lk_tensor *out,
                         const lk_tensor *lse, AttendArgs *args) {
    TensorShape shape = {cache->step.n_tokens, args->layer.n_query_heads, args->layer.head_dim};
    TensorRange q_range;
    TensorRange out_range;
    const lk_context &context = *cache->context;
    const lk_queue_kind queue = cache->step.queue;
    LK_TRY(take_tensor(context, queue, q, "q", shape, false, &args->q, &q_range));
    shape.n_channels = args->layer.value_dim;
    LK_TRY(take_tensor(context, queue, out, "out", shape, true, &args->out, &out_range));
    LK_TRY(check_apart("out", out_range, cache->step, q_range));
    if (!lse)
        return LK_OK;
    TensorRange lse_range;
    LK_TRY(import_lse(cache, lse, shape, args, &lse_range));
    LK_TRY(check_apart("lse", lse_range, cache->step, q_range));
    return overlaps(lse_range, out_range) ? fail(LK_E_ARGUMENT, "lse overlaps out") : LK_OK;
}

lk_status check_order(const lk_cache *cache, uint32_t layer) {
    const Step &step = cache->step;
    const LayerInfo &info = cache->formats.layers[layer];
    if (!info.owns_kv && step.layers[info.kv_layer] == kNoKeys)
        return fail(LK_E_STATE,
                    "layer %u reads the keys and values of layer %u, which has none in this step: "
                    "append them first",
                    layer, info.kv_layer);
    if (!info.owns_kv && step.layers[layer] == kNoKeys)
        return LK_OK;
    if (step.layers[layer] == kNoKeys)
        return fail(LK_E_STATE, "layer %u has no keys in this step: append them first", layer);
    if (step.layers[layer] == kAttended)
        return fail(LK_E_STATE, "layer %u was attended in this step already", layer);
    if (step.last_layer == kNoLayer)
        return fail(LK_E_STATE, "an append after that of layer %u failed: append it again", layer);
    if (step.last_layer != layer)
        return fail(LK_E_STATE, "layer %u was not appended last, layer %u was", layer,
                    step.last_layer);
    return LK_OK;
}

lk_status attend(lk_cache *cache, uint32_t layer, const lk_tensor *q, const lk_tensor *out,
                 const lk_tensor *lse) {
    LK_TRY(check_step(cache, layer));
    LK_TRY(check_order(cache, layer));
    Step &step = cache->step;
    AttendArgs args{};
    args.layer = cache->formats.layers[layer].view;
    args.layer_index = layer;
    args.first_entry = cache->formats.layers[layer].first_entry;
    args.staging = staging_of(cache, layer);
    LK_TRY(import_tensors(cache, q, out, lse, &args));
    LK_TRY(list_attention_scores(cache, &args));
    uint8_t *captured_calls;
    LK_TRY(note_capture(cache, layer, &captured_calls));
    if (cache->formats.layers[layer].ranks_by_queries)
        LK_TRY(sum_layer(cache, layer, args.q));
    LK_TRY(cache->device->attend(args));
    count_attention_scores(cache, layer);
    if (captured_calls)
        *captured_calls |= kCapturedAttend;
    step.layers[layer] = kAttended;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                               const lk_tensor *out, const lk_tensor *lse) {
    return lk::use_cache(cache, [&] { return lk::attend(cache, layer, q, out, lse); });
}
