// SPDX-License-Identifier: Apache-2.0
#include "core/watch.h"

#include <algorithm>

#include "core/cache.h"

#include <lowkey/chunks.h>

namespace lk {

namespace {

constexpr uint64_t kWantedBytes = 16u
                                  << 20;  // of partial results, where one unit does not take more
constexpr uint32_t kLeastChunk = 8;
constexpr uint32_t kMostChunk = 256;

lk_chunk_attention default_watch() {
    lk_chunk_attention watch = {};
    watch.size = sizeof watch;
    watch.chunk_tokens = 32;
    return watch;
}

lk_status check_numbers(const lk_cache *cache, const lk_chunk_attention &from) {
    if (!from.n_query_tokens || from.n_query_tokens > cache->desc.max_step_tokens)
        return fail(LK_E_ARGUMENT,
                    "watch.n_query_tokens is %u, must be from 1 to max_step_tokens, %u",
                    from.n_query_tokens, cache->desc.max_step_tokens);
    if (from.chunk_tokens < kLeastChunk || from.chunk_tokens > kMostChunk)
        return fail(LK_E_ARGUMENT, "watch.chunk_tokens is %u, must be from %u to %u",
                    from.chunk_tokens, kLeastChunk, kMostChunk);
    if (!from.n_chunks || uint64_t{from.n_chunks} * from.chunk_tokens > UINT32_MAX)
        return fail(LK_E_ARGUMENT,
                    "watch.n_chunks is %u of %u tokens, must be at least 1 and within 2^32 tokens",
                    from.n_chunks, from.chunk_tokens);
    if (from.reserved)
        return fail(LK_E_ARGUMENT, "watch.reserved is %u, not 0", from.reserved);
    if (from.n_layers && !from.layers)
        return fail(LK_E_ARGUMENT, "watch.layers is NULL");
    return LK_OK;
}

lk_status mark_named_layers(const lk_cache *cache, const lk_chunk_attention &from, Watch *watch) {
    for (uint32_t i = 0; i < from.n_layers; ++i) {
        const uint32_t layer = from.layers[i];
        if (layer >= cache->layers.size())
            return fail(LK_E_NOT_FOUND, "watch.layers[%u] is %u, the model has %zu layers", i,
                        layer, cache->layers.size());
        if (i && from.layers[i - 1] >= layer)
            return fail(LK_E_ARGUMENT, "watch.layers[%u] is %u behind %u, must ascend", i, layer,
                        from.layers[i - 1]);
        if (cache->layers[layer].view.window_tokens)
            return fail(LK_E_UNSUPPORTED,
                        "watch.layers[%u] is %u, whose sliding window hides the context: watch "
                        "layers without one",
                        i, layer);
        watch->layers[layer] = 1;
    }
    return LK_OK;
}

lk_status mark_layers(const lk_cache *cache, const lk_chunk_attention &from, Watch *watch) {
    if (!watch->layers.resize(cache->layers.size()))
        return fail(LK_E_NOMEM, "no memory to watch %zu layers", cache->layers.size());
    if (from.n_layers)
        return mark_named_layers(cache, from, watch);
    bool has_any = false;
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        watch->layers[l] = !cache->layers[l].view.window_tokens;
        has_any |= watch->layers[l] != 0;
    }
    return has_any ? LK_OK
                   : fail(LK_E_UNSUPPORTED,
                          "every layer has a sliding window, which hides the context: score its "
                          "chunks in another way");
}

uint64_t masses_bytes(const Watch &watch) { return round_up(uint64_t{watch.n_chunks} * 4, 256); }

// Devices read and write its memory, so that the budget counts it like the workspace.
lk_status take_memory(lk_cache *cache, Watch *watch) {
    uint64_t n_units = 0;
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        const LayerView &view = cache->layers[l].view;
        const uint64_t n =
            uint64_t{view.n_kv_heads} * attention_score_tiles(view, watch->n_query_tokens);
        n_units = watch->layers[l] ? std::max(n_units, n) : n_units;
    }
    const uint64_t each = attention_score_tile_bytes(watch->n_chunks);
    watch->max_units =
        static_cast<uint32_t>(std::min(n_units, std::max<uint64_t>(kWantedBytes / each, 1)));
    const uint64_t bytes = masses_bytes(*watch) + watch->max_units * each;
    if (bytes > cache->ledger.left_bytes())
        return fail(LK_E_BUDGET,
                    "the budget of %llu bytes lacks %llu bytes: watching %u chunks needs %llu",
                    ull{cache->ledger.limit_bytes}, ull{bytes - cache->ledger.left_bytes()},
                    watch->n_chunks, ull{bytes});
    const lk_status status = cache->context->backend->slab_create(bytes, &watch->memory);
    if (status) {
        watch->memory = {};
        return status;
    }
    cache->ledger.table_bytes += bytes;
    return LK_OK;
}

void free_watch(lk_cache *cache, Watch *watch) {
    if (watch->memory.address) {
        cache->ledger.table_bytes -= watch->memory.bytes;
        cache->context->backend->slab_destroy(watch->memory);
    }
    destroy(cache->context->allocator, watch);
}

lk_status fill_watch(lk_cache *cache, const lk_chunk_attention &from, Watch *watch) {
    watch->n_query_tokens = from.n_query_tokens;
    watch->chunk_tokens = from.chunk_tokens;
    watch->n_chunks = from.n_chunks;
    const lk_status status = mark_layers(cache, from, watch);
    return status ? status : take_memory(cache, watch);
}

// The sequence, of a cache that is between steps.
lk_status find_idle(const lk_cache *cache, lk_sequence id, Sequence **out) {
    *out = find_sequence(cache, id);
    if (!*out)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: watch chunks after");
    return LK_OK;
}

lk_status watch_sequence(lk_cache *cache, lk_sequence id, const lk_chunk_attention *from) {
    Sequence *sequence;
    lk_status status = find_idle(cache, id, &sequence);
    if (status)
        return status;
    if (!from) {
        drop_watch(cache, sequence);
        return LK_OK;
    }
    lk_chunk_attention own = default_watch();
    status = import_struct(&own, sizeof own, sizeof own, from, "watch");
    if (!status)
        status = check_numbers(cache, own);
    if (status)
        return status;
    auto *watch = create<Watch>(cache->context->allocator, cache->context->allocator);
    if (!watch)
        return fail(LK_E_NOMEM, "no memory for a watch");
    status = fill_watch(cache, own, watch);
    if (status) {
        free_watch(cache, watch);
        return status;
    }
    drop_watch(cache, sequence);
    sequence->watch = watch;
    return LK_OK;
}

lk_status read_masses(lk_cache *cache, const Watch &watch, Array<float> *masses) {
    const uint64_t bytes = masses_bytes(watch);
    if (!masses->resize(bytes / sizeof(float)))
        return fail(LK_E_NOMEM, "no memory for the scores of %u chunks", watch.n_chunks);
    const lk_status status = leave_recording(cache);
    if (status)
        return status;
    const SlotCopy copy = {watch.memory.address, reinterpret_cast<uint8_t *>(masses->data()),
                           bytes};
    return cache->device->download(&copy, 1);
}

lk_status read_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks, float *scores) {
    Sequence *sequence;
    lk_status status = find_idle(cache, id, &sequence);
    if (status)
        return status;
    const Watch *watch = sequence->watch;
    if (!watch || !watch->n_scored)
        return fail(LK_E_STATE,
                    "sequence %llu has no scores: no step was committed that watched its chunks",
                    ull{id});
    if (!scores || n_chunks != watch->n_chunks)
        return fail(LK_E_ARGUMENT, "scores is NULL, or n_chunks is %u and not %u, as watched",
                    n_chunks, watch->n_chunks);
    Array<float> masses(cache->context->allocator);
    status = read_masses(cache, *watch, &masses);
    for (uint32_t i = 0; !status && i < n_chunks; ++i)
        if (!float_is_finite(masses[i]))
            status = fail(LK_E_DATA, "the score of chunk %u is not finite, nor was a query", i);
    // Masses are by place.
    const Chunks *chunks = sequence->chunks;
    for (uint32_t i = 0; !status && i < n_chunks; ++i) {
        const uint32_t chunk = chunks && i < chunks->size() ? chunks->order[i] : i;
        scores[chunk] = masses[i] / static_cast<float>(watch->n_scored);
    }
    return status;
}

}  // namespace

lk_status check_watch(const lk_cache *cache, const StepSequence &part, bool has_parents) {
    const Watch *watch = part.sequence->watch;
    if (!watch || watch->n_scored)
        return LK_OK;
    const ull id = part.sequence->id;
    if (has_parents)
        return fail(LK_E_ARGUMENT, "the chunks of sequence %llu are watched: no draft tree", id);
    if (part.n_new < watch->n_query_tokens)
        return fail(LK_E_ARGUMENT,
                    "sequence %llu has %u new tokens, the query that is watched has %u", id,
                    part.n_new, watch->n_query_tokens);
    const uint64_t query = part.sequence->length + part.n_new - watch->n_query_tokens;
    const uint64_t end = cache->plan.model.sink_tokens + watch->context_tokens();
    if (query < end)
        return fail(LK_E_ARGUMENT,
                    "the query of sequence %llu begins at token %llu, before the end of the "
                    "watched context at %llu",
                    id, ull{query}, ull{end});
    const uint32_t n_placed = part.sequence->chunks ? part.sequence->chunks->size() : 0;
    const ChunkRule &rule = cache->plan.model.chunks;
    if (n_placed && rule.reorder &&
        (watch->chunk_tokens != rule.tokens || watch->n_chunks < n_placed))
        return fail(LK_E_ARGUMENT,
                    "%u chunks of %u tokens of sequence %llu are watched, but %u of %u tokens were "
                    "reordered: watch all of these",
                    watch->n_chunks, watch->chunk_tokens, id, n_placed, rule.tokens);
    return LK_OK;
}

lk_status reserve_watches(lk_cache *cache) {
    Step &step = cache->step;
    size_t n = 0;
    for (const StepSequence &part : step.sequences)
        n += part.sequence->watch != nullptr;
    return step.watches.reserve(n) ? LK_OK : fail(LK_E_NOMEM, "no memory for %zu watches", n);
}

void begin_watches(lk_cache *cache) {
    for (const StepSequence &part : cache->step.sequences) {
        Watch *watch = part.sequence->watch;
        if (!watch || watch->n_scored)
            continue;
        watch->is_open = true;
        watch->first_query = part.n_new - watch->n_query_tokens;
        watch->n_attended = 0;
    }
}

lk_status list_watches(lk_cache *cache, AttendArgs *args) {
    Step &step = cache->step;
    step.watches.clear();
    for (uint32_t i = 0; i < step.sequences.size(); ++i) {
        const StepSequence &part = step.sequences[i];
        if (!is_watched(part))
            continue;
        const Watch &watch = *part.sequence->watch;
        if (!watch.layers[args->layer_index])
            continue;
        const uint32_t n_rows = args->layer.n_query_heads * watch.n_query_tokens;
        step.watches.push({i, part.first_new + watch.first_query, watch.n_query_tokens,
                           static_cast<uint32_t>(sink_blocks(cache->plan.model)),
                           watch.chunk_tokens, watch.n_chunks, watch.max_units,
                           1.0f / static_cast<float>(n_rows), watch.memory.address,
                           watch.memory.address + masses_bytes(watch), watch.n_attended == 0});
    }
    if (!step.watches.empty() && cache->device->is_capturing())
        return fail(LK_E_STATE,
                    "the chunks of a sequence of the step are watched, which no graph does");
    args->chunk_attentions = step.watches.data();
    args->n_chunk_attentions = static_cast<uint32_t>(step.watches.size());
    return LK_OK;
}

void count_watches(lk_cache *cache, uint32_t layer) {
    for (const StepSequence &part : cache->step.sequences)
        if (is_watched(part))
            part.sequence->watch->n_attended += part.sequence->watch->layers[layer];
}

void keep_watch(StepSequence *part) {
    if (!is_watched(*part))
        return;
    Watch *watch = part->sequence->watch;
    watch->is_open = false;
    watch->n_scored = watch->n_attended;
}

void return_watch(StepSequence *part) {
    if (part->sequence->watch)
        part->sequence->watch->is_open = false;
}

void cut_watch(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const Watch *watch = sequence->watch;
    if (watch && watch->n_scored &&
        n_tokens < cache->plan.model.sink_tokens + watch->context_tokens())
        drop_watch(cache, sequence);
}

void drop_watch(lk_cache *cache, Sequence *sequence) {
    if (sequence->watch)
        free_watch(cache, sequence->watch);
    sequence->watch = nullptr;
}

}  // namespace lk

extern "C" {

lk_status lk_chunk_attention_init(lk_chunk_attention *watch, size_t struct_bytes) {
    return lk::init_with(watch, struct_bytes, sizeof *watch, lk::default_watch(), "watch");
}

lk_status lk_chunks_score_attention(lk_cache *cache, lk_sequence id,
                                    const lk_chunk_attention *watch) {
    return lk::on_cache(cache, [&] { return lk::watch_sequence(cache, id, watch); });
}

lk_status lk_chunks_attention_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks,
                                     float *scores) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::logged(cache->context, lk::read_scores(cache, id, n_chunks, scores));
}

}  // extern "C"
