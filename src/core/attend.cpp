// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/watch.h"

namespace lk {

namespace {

// One KV head of one sequence of the step, on its way through the rows.
struct ScoreWalk {
    const StepSequence *part;
    const EntryInfo *entry;
    uint32_t head_dim;
    uint32_t group_size;
    TensorView q;
    const float *key_scales;  // [head_dim] of the KV head, or null
    size_t next_item;         // of the sequence's increments not yet in seen
    uint64_t *seen;           // [head_dim] all |Q| up to the row
};

uint64_t *scratch_sums(lk_cache *cache, uint32_t i) {
    return cache->scratch.data() + uint64_t{i} * LK_MAX_HEAD_DIM;
}

lk_status flush_sums(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->query_sums.empty())
        status = cache->device->sum_queries(cache->query_sums.data(),
                                            static_cast<uint32_t>(cache->query_sums.size()));
    cache->query_sums.clear();
    return status;
}

lk_status sum_tokens(lk_cache *cache, const ScoreWalk &walk) {
    for (uint32_t t = 0; t < walk.part->n_new; ++t) {
        uint64_t *sums =
            walk.part->sums + uint64_t{t} * cache->n_ranked_channels + walk.entry->score_offset;
        std::memset(sums, 0, walk.head_dim * sizeof *sums);
        cache->query_sums.push({walk.q, walk.key_scales, walk.entry->kv_head, walk.group_size,
                                walk.head_dim, walk.part->first_new + t, 1, sums});
        if (cache->query_sums.size() < kScoreBatch)
            continue;
        const lk_status status = flush_sums(cache);
        if (status)
            return status;
    }
    return flush_sums(cache);
}

// |Q| of the new tokens in rows [first, first + n), each into its scratch.
lk_status sum_rows(lk_cache *cache, const ScoreWalk &walk, uint64_t first, uint32_t n) {
    const Plan &plan = cache->plan.model;
    const uint64_t length = walk.part->sequence->length;
    for (uint32_t i = 0; i < n; ++i) {
        const uint64_t row_begin = row_first(plan, first + i);
        const uint64_t row_end = row_first(plan, first + i + 1);
        const uint64_t begin = row_begin > length ? row_begin : length;
        const uint64_t limit = length + walk.part->n_new;
        const uint64_t end = row_end < limit ? row_end : limit;
        uint64_t *sums = scratch_sums(cache, i);
        std::memset(sums, 0, walk.head_dim * sizeof *sums);
        cache->query_sums.push({walk.q, walk.key_scales, walk.entry->kv_head, walk.group_size,
                                walk.head_dim,
                                walk.part->first_new + static_cast<uint32_t>(begin - length),
                                static_cast<uint32_t>(end - begin), sums});
    }
    return flush_sums(cache);
}

void add_sums(uint64_t *to, const uint64_t *from, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i)
        to[i] += from[i];
}

void queue_direct_key(lk_cache *cache, const ScoreWalk &walk, const Row &row,
                      const uint64_t *sums) {
    const LayerInfo &layer = cache->layers[walk.entry->layer];
    const Staging staging = staging_of(cache, walk.entry->layer);
    const PageEntry &entry = row.entries[layer.first_entry + walk.entry->kv_head];
    const uint64_t token = walk.part->first_new + (row.first_token - walk.part->sequence->length);
    const uint64_t at = (uint64_t{walk.entry->kv_head} * staging.n_tokens + token) * walk.head_dim;
    cache->packs.push({&cache->classes[entry.key_class], entry.key_payload, entry.key_metadata,
                       nullptr, 0, staging.keys + at, sums});
}

void score_row(lk_cache *cache, ScoreWalk *walk, uint64_t index, uint32_t place) {
    const Scores &scores = *walk->part->sequence->scores;
    for (; walk->next_item < scores.n_items() && scores.item_row(walk->next_item) <= index;
         ++walk->next_item)
        add_sums(walk->seen, scores.item_sums(walk->next_item) + walk->entry->score_offset,
                 walk->head_dim);
    const uint64_t *own = scratch_sums(cache, place);
    add_sums(walk->seen, own, walk->head_dim);
    bool is_gap;
    uint64_t *kept = row_sums(cache, *walk->part, index, &is_gap) + walk->entry->score_offset;
    add_sums(kept, own, walk->head_dim);
    if (!is_gap)
        return;
    uint64_t *rank = scratch_sums(cache, kScoreBatch + place);
    std::memcpy(rank, walk->seen, walk->head_dim * sizeof *rank);
    queue_direct_key(cache, *walk, *walk->part->sequence->row(index), rank);
}

lk_status sum_long(lk_cache *cache, ScoreWalk *walk) {
    const Plan &plan = cache->plan.model;
    const StepSequence &part = *walk->part;
    const uint64_t length = part.sequence->length;
    for (uint64_t s = 0; s < part.n_sums; ++s)
        std::memset(part.sums + s * cache->n_ranked_channels + walk->entry->score_offset, 0,
                    walk->head_dim * sizeof(uint64_t));
    uint64_t seen[LK_MAX_HEAD_DIM];
    std::memcpy(seen, part.sequence->scores->base() + walk->entry->score_offset,
                walk->head_dim * sizeof *seen);
    walk->seen = seen;
    const uint64_t end = row_count(plan, length + part.n_new);
    for (uint64_t first = row_of_token(plan, length); first < end; first += kScoreBatch) {
        const auto n = static_cast<uint32_t>(end - first < kScoreBatch ? end - first : kScoreBatch);
        lk_status status = sum_rows(cache, *walk, first, n);
        if (status)
            return status;
        for (uint32_t i = 0; i < n; ++i)
            score_row(cache, walk, first + i, i);
        if (!cache->packs.empty())
            status = cache->device->pack(cache->packs.data(),
                                         static_cast<uint32_t>(cache->packs.size()));
        cache->packs.clear();
        if (status)
            return status;
    }
    return LK_OK;
}

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

lk_status sum_layer(lk_cache *cache, uint32_t layer, const TensorView &q) {
    const LayerInfo &info = cache->layers[layer];
    for (const StepSequence &part : cache->step.sequences)
        for (uint32_t head = 0; head < info.view.n_kv_heads; ++head) {
            const EntryInfo &entry = cache->entries[info.first_entry + head];
            if (!entry.ranks_by_queries)
                continue;
            ScoreWalk walk = {
                &part,
                &entry,
                info.view.head_dim,
                info.view.n_query_heads / info.view.n_kv_heads,
                q,
                info.view.key_scales
                    ? info.view.key_scales + uint64_t{entry.kv_head} * info.view.head_dim
                    : nullptr,
                0,
                nullptr};
            const lk_status status =
                part.is_draft() ? sum_tokens(cache, walk) : sum_long(cache, &walk);
            if (status)
                return status;
        }
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_attend(lk_cache *cache, uint32_t layer, const lk_tensor *q,
                               const lk_tensor *out, const lk_tensor *lse) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::logged(cache->context, lk::attend(cache, layer, q, out, lse));
}
