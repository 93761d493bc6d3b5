// SPDX-License-Identifier: Apache-2.0
#include "core/context/call.h"
#include "core/context/tensor.h"

#include <lowkey/chunks.h>

namespace lk {

namespace {

struct CosineTensors {
    const lk_tensor *embeddings;
    const lk_tensor *query;
    const lk_tensor *scores;
};

lk_status take_tensors(const lk_context &context, lk_queue_kind queue, const CosineTensors &from,
                       CosineView *view) {
    const uint32_t n = view->n_chunks;
    TensorRange embeddings;
    TensorRange query;
    TensorRange scores;
    LK_TRY(take_tensor(context, queue, from.embeddings, "embeddings", {n, 1, view->n_channels},
                       false, &view->embeddings, &embeddings));
    LK_TRY(take_tensor(context, queue, from.query, "query", {1, 1, view->n_channels}, false,
                       &view->query, &query));
    LK_TRY(take_tensor(context, queue, from.scores, "scores", {n, 1, 1}, true, &view->scores,
                       &scores));
    if (view->scores.dtype != LK_F32)
        return fail(LK_E_ARGUMENT, "scores.dtype is %u, not LK_F32", view->scores.dtype);
    if (overlaps(scores, embeddings) || overlaps(scores, query))
        return fail(LK_E_ARGUMENT, "scores overlaps %s",
                    overlaps(scores, query) ? "query" : "embeddings");
    return LK_OK;
}

lk_status score_cosine(const lk_context &context, const lk_queue *queue, const CosineTensors &from,
                       CosineView *view) {
    if (!view->n_chunks || !view->n_channels)
        return fail(LK_E_ARGUMENT, "%s is 0", view->n_chunks ? "n_channels" : "n_chunks");
    lk_queue taken{};
    LK_TRY(import_queue(context, queue, &taken));
    LK_TRY(take_tensors(context, taken.kind, from, view));
    view->queue = queue ? &taken : nullptr;
    return context.backend->cosine(*view);
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_chunks_score_cosine(const lk_context *context, const lk_queue *queue,
                                            const lk_tensor *embeddings, const lk_tensor *query,
                                            uint32_t n_chunks, uint32_t n_channels,
                                            const lk_tensor *scores) {
    const lk_status status = lk::on_context(context, [&] {
        lk::CosineView view{};
        view.n_chunks = n_chunks;
        view.n_channels = n_channels;
        return lk::score_cosine(*context, queue, {embeddings, query, scores}, &view);
    });
    return lk::logged(context, status);
}
