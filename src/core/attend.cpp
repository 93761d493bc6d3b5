// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/watch.h"

namespace lk {

namespace {

lk_status import_lse(const lk_cache *cache, const lk_tensor *lse, const TensorShape &shape,
                     AttendArgs *args, TensorRange *range) {
    TensorView view{};
    const lk_status status = take_tensor(*cache->context, cache->step.queue, lse, "lse",
                                         {shape.n_tokens, shape.n_heads, 1}, true, &view, range);
    if (status)
        return status;
    if (view.dtype != LK_F32)
        return fail(LK_E_ARGUMENT, "lse.dtype is %u, not LK_F32", view.dtype);
    args->lse = static_cast<float *>(view.data);
    args->lse_token_stride = view.token_stride;
    args->lse_head_stride = view.head_stride;
    args->lse_is_host = view.is_host;
    return LK_OK;
}

lk_status check_apart(const char *name, const TensorRange &out, const Step &step,
                      const TensorRange &q) {
    const char *other = overlaps(out, q)        ? "q"
                        : overlaps(out, step.k) ? "k"
                        : overlaps(out, step.v) ? "v"
                                                : nullptr;
    return other ? fail(LK_E_ARGUMENT, "%s overlaps %s", name, other) : LK_OK;
}

lk_status import_tensors(const lk_cache *cache, const lk_tensor *q, const lk_tensor *out,
                         const lk_tensor *lse, AttendArgs *args) {
    const TensorShape shape = {cache->step.n_tokens, args->layer.n_query_heads,
                               args->layer.head_dim};
    TensorRange q_range;
    TensorRange out_range;
    lk_status status =
        take_tensor(*cache->context, cache->step.queue, q, "q", shape, false, &args->q, &q_range);
    if (!status)
        status = take_tensor(*cache->context, cache->step.queue, out, "out", shape, true,
                             &args->out, &out_range);
    if (!status)
        status = check_apart("out", out_range, cache->step, q_range);
    if (status || !lse)
        return status;
    TensorRange lse_range;
    status = import_lse(cache, lse, shape, args, &lse_range);
    if (!status)
        status = check_apart("lse", lse_range, cache->step, q_range);
    if (!status && overlaps(lse_range, out_range))
        status = fail(LK_E_ARGUMENT, "lse overlaps out");
    return status;
}

lk_status check_order(const lk_cache *cache, uint32_t layer) {
    const Step &step = cache->step;
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
    lk_status status = check_step(cache, layer);
    if (!status)
        status = check_order(cache, layer);
    if (status)
        return status;
    Step &step = cache->step;
    AttendArgs args{};
    args.layer = cache->layers[layer].view;
    args.layer_index = layer;
    args.first_entry = cache->layers[layer].first_entry;
    args.staging = staging_of(cache, layer);
    status = import_tensors(cache, q, out, lse, &args);
    if (!status)
        status = list_watches(cache, &args);
    if (!status && cache->layers[layer].ranks_by_queries)
        status = sum_layer(cache, layer, args.q);
    if (!status)
        status = cache->device->attend(args);
    if (status)
        return status;
    count_watches(cache, layer);
    step.layers[layer] = kAttended;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                               const lk_tensor *out, const lk_tensor *lse) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::logged(cache->context, lk::attend(cache, layer, q, out, lse));
}
