// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "core/context/call.h"
#include "core/context/tensor.h"

#include <lowkey/merge.h>

namespace lk {

static_assert(kMergeSplits == LK_MERGE_SPLITS, "backends merge as many as the interface");

namespace {

// The tensors of a call, as the backend takes them, and the bytes that the inputs touch.
struct MergeCall {
    const lk_context *context;
    lk_queue_kind queue;
    MergeView view;
    TensorView parts[LK_MERGE_SPLITS];
    TensorView lses[LK_MERGE_SPLITS];
    TensorRange part_ranges[LK_MERGE_SPLITS];
    TensorRange lse_ranges[LK_MERGE_SPLITS];
};

lk_status take(const MergeCall &call, const lk_tensor *tensor, const char *name, bool is_lse,
               bool is_output, TensorView *view, TensorRange *range) {
    const TensorShape shape = {call.view.n_tokens, call.view.n_heads,
                               is_lse ? 1 : call.view.head_dim};
    const lk_status status =
        take_tensor(*call.context, call.queue, tensor, name, shape, is_output, view, range);
    return !status && is_lse && view->dtype != LK_F32
               ? fail(LK_E_ARGUMENT, "%s.dtype is %u, not LK_F32", name, view->dtype)
               : status;
}

lk_status take_parts(MergeCall *call, const lk_tensor *const *outs, const lk_tensor *const *lses) {
    for (uint32_t i = 0; i < call->view.n_splits; ++i) {
        char name[24];
        std::snprintf(name, sizeof name, "outs[%u]", i);
        lk_status status =
            take(*call, outs[i], name, false, false, &call->parts[i], &call->part_ranges[i]);
        if (status)
            return status;
        std::snprintf(name, sizeof name, "lses[%u]", i);
        LK_TRY(take(*call, lses[i], name, true, false, &call->lses[i], &call->lse_ranges[i]));
    }
    return LK_OK;
}

lk_status check_apart(const MergeCall &call, const char *name, const TensorRange &range) {
    for (uint32_t i = 0; i < call.view.n_splits; ++i) {
        if (overlaps(range, call.part_ranges[i]))
            return fail(LK_E_ARGUMENT, "%s overlaps outs[%u]", name, i);
        if (overlaps(range, call.lse_ranges[i]))
            return fail(LK_E_ARGUMENT, "%s overlaps lses[%u]", name, i);
    }
    return LK_OK;
}

lk_status take_results(MergeCall *call, const lk_tensor *out, const lk_tensor *lse) {
    TensorRange out_range;
    lk_status status = take(*call, out, "out", false, true, &call->view.out, &out_range);
    if (!status)
        status = check_apart(*call, "out", out_range);
    if (status || !lse)
        return status;
    TensorRange lse_range;
    status = take(*call, lse, "lse", true, true, &call->view.lse, &lse_range);
    if (!status)
        status = check_apart(*call, "lse", lse_range);
    if (!status && overlaps(lse_range, out_range))
        status = fail(LK_E_ARGUMENT, "lse overlaps out");
    return status;
}

lk_status check_counts(const MergeView &view, const void *outs, const void *lses) {
    if (view.n_splits < 1 || view.n_splits > LK_MERGE_SPLITS)
        return fail(LK_E_ARGUMENT, "n_splits is %u, not 1 to %d", view.n_splits, LK_MERGE_SPLITS);
    if (!view.n_tokens || !view.n_heads || !view.head_dim)
        return fail(LK_E_ARGUMENT, "%s is 0",
                    !view.n_tokens  ? "n_tokens"
                    : !view.n_heads ? "n_heads"
                                    : "head_dim");
    if (!outs || !lses)
        return fail(LK_E_ARGUMENT, "%s is NULL", outs ? "lses" : "outs");
    return LK_OK;
}

lk_status merge(MergeCall *call, const lk_queue *queue, const lk_tensor *const *outs,
                const lk_tensor *const *lses, const lk_tensor *out, const lk_tensor *lse) {
    lk_queue taken{};
    LK_TRY(check_counts(call->view, outs, lses));
    LK_TRY(import_queue(*call->context, queue, &taken));
    call->queue = taken.kind;
    LK_TRY(take_parts(call, outs, lses));
    LK_TRY(take_results(call, out, lse));
    call->view.queue = queue ? &taken : nullptr;
    return call->context->backend->merge(call->view);
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_merge(const lk_context *context, const lk_queue *queue, uint32_t n_tokens,
                              uint32_t n_heads, uint32_t head_dim, uint32_t n_splits,
                              const lk_tensor *const *outs, const lk_tensor *const *lses,
                              const lk_tensor *out, const lk_tensor *lse) {
    const lk_status status = lk::on_context(context, [&] {
        lk::MergeCall call{};
        call.context = context;
        call.view.parts = call.parts;
        call.view.lses = call.lses;
        call.view.n_splits = n_splits;
        call.view.n_tokens = n_tokens;
        call.view.n_heads = n_heads;
        call.view.head_dim = head_dim;
        return lk::merge(&call, queue, outs, lses, out, lse);
    });
    return lk::logged(context, status);
}
