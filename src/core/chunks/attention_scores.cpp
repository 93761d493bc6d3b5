// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/attention_scores.h"

#include <algorithm>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/pending.h"
#include "core/memory/table_space.h"

#include <lowkey/chunks.h>

namespace lk {

namespace {

constexpr uint64_t kWantedBytes = 16u
                                  << 20;  // of partial results, where one unit does not take more
constexpr uint32_t kLeastChunk = 8;
constexpr uint32_t kMostChunk = 256;

lk_chunk_attention default_chunk_attention() {
    lk_chunk_attention attention = {};
    attention.size = sizeof attention;
    attention.chunk_tokens = 32;
    return attention;
}

lk_status check_numbers(const lk_cache *cache, const lk_chunk_attention &from) {
    if (!from.n_query_tokens || from.n_query_tokens > cache->desc.max_step_tokens)
        return fail(LK_E_ARGUMENT,
                    "chunk_attention.n_query_tokens is %u, must be from 1 to max_step_tokens, %u",
                    from.n_query_tokens, cache->desc.max_step_tokens);
    if (from.chunk_tokens < kLeastChunk || from.chunk_tokens > kMostChunk)
        return fail(LK_E_ARGUMENT, "chunk_attention.chunk_tokens is %u, must be from %u to %u",
                    from.chunk_tokens, kLeastChunk, kMostChunk);
    if (!from.n_chunks || uint64_t{from.n_chunks} * from.chunk_tokens > UINT32_MAX)
        return fail(LK_E_ARGUMENT,
                    "chunk_attention.n_chunks is %u of %u tokens, must be at least 1 and within "
                    "2^32 tokens",
                    from.n_chunks, from.chunk_tokens);
    if (from.reserved)
        return fail(LK_E_ARGUMENT, "chunk_attention.reserved is %u, not 0", from.reserved);
    if (from.n_layers && !from.layers)
        return fail(LK_E_ARGUMENT, "chunk_attention.layers is NULL");
    return LK_OK;
}

lk_status mark_named_layers(const lk_cache *cache, const lk_chunk_attention &from,
                            AttentionScores *attention) {
    for (uint32_t i = 0; i < from.n_layers; ++i) {
        const uint32_t layer = from.layers[i];
        if (layer >= cache->formats.layers.size())
            return fail(LK_E_NOT_FOUND,
                        "chunk_attention.layers[%u] is %u, the model has %zu layers", i, layer,
                        cache->formats.layers.size());
        if (i && from.layers[i - 1] >= layer)
            return fail(LK_E_ARGUMENT, "chunk_attention.layers[%u] is %u after %u, must ascend", i,
                        layer, from.layers[i - 1]);
        if (cache->formats.layers[layer].view.window_tokens)
            return fail(
                LK_E_UNSUPPORTED,
                "chunk_attention.layers[%u] is %u, whose sliding window hides the context: score "
                "layers without one",
                i, layer);
        attention->layers[layer] = 1;
    }
    return LK_OK;
}

lk_status mark_layers(const lk_cache *cache, const lk_chunk_attention &from,
                      AttentionScores *attention) {
    if (!attention->layers.resize(cache->formats.layers.size()))
        return fail(LK_E_NOMEM, "no memory to score %zu layers", cache->formats.layers.size());
    if (from.n_layers)
        return mark_named_layers(cache, from, attention);
    bool has_any = false;
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        attention->layers[l] = !cache->formats.layers[l].view.window_tokens;
        has_any |= attention->layers[l] != 0;
    }
    return has_any ? LK_OK
                   : fail(LK_E_UNSUPPORTED,
                          "every layer has a sliding window, which hides the context: score its "
                          "chunks in another way");
}

uint64_t score_area_bytes(const AttentionScores &attention) {
    return round_up(uint64_t{attention.n_chunks} * 4, 256);
}

// Devices read and write its memory, so that the budget counts it like the workspace.
lk_status take_memory(lk_cache *cache, AttentionScores *attention) {
    uint64_t n_units = 0;
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l) {
        const LayerView &view = cache->formats.layers[l].view;
        const uint64_t n =
            uint64_t{view.n_kv_heads} * attention_score_tiles(view, attention->n_query_tokens);
        n_units = attention->layers[l] ? std::max(n_units, n) : n_units;
    }
    const uint64_t each = attention_score_tile_bytes(attention->n_chunks);
    attention->max_tiles =
        static_cast<uint32_t>(std::min(n_units, std::max<uint64_t>(kWantedBytes / each, 1)));
    const uint64_t bytes = score_area_bytes(*attention) + attention->max_tiles * each;
    const uint64_t counted = bytes + sizeof *attention + attention->layers.capacity();
    if (counted > cache->ledger.left_bytes())
        return fail(LK_E_BUDGET,
                    "the budget of %llu bytes is short of %llu bytes: scoring %u chunks needs %llu",
                    ull{cache->ledger.limit_bytes}, ull{counted - cache->ledger.left_bytes()},
                    attention->n_chunks, ull{counted});
    LK_TRY(make_table_space(cache, counted, "the scores of chunks"));
    const lk_status status = cache->context->backend->slab_create(bytes, &attention->memory);
    if (status) {
        attention->memory = {};
        return status;
    }
    attention->counted_bytes = counted;
    cache->ledger.table_bytes += counted;
    return LK_OK;
}

void free_attention_scores(lk_cache *cache, AttentionScores *attention) {
    if (attention->memory.address) {
        cache->ledger.table_bytes -= attention->counted_bytes;
        cache->context->backend->slab_destroy(attention->memory);
    }
    destroy(cache->context->allocator, attention);
}

lk_status fill_attention_scores(lk_cache *cache, const lk_chunk_attention &from,
                                AttentionScores *attention) {
    attention->n_query_tokens = from.n_query_tokens;
    attention->chunk_tokens = from.chunk_tokens;
    attention->n_chunks = from.n_chunks;
    LK_TRY(mark_layers(cache, from, attention));
    return take_memory(cache, attention);
}

// The sequence, of a cache that is between steps.
lk_status find_idle(const lk_cache *cache, lk_sequence id, Sequence **out) {
    *out = cache->sequences.find(id);
    if (!*out)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    if (cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: score chunks after");
    return LK_OK;
}

lk_status score_attention(lk_cache *cache, lk_sequence id, const lk_chunk_attention *from) {
    Sequence *sequence;
    LK_TRY(find_idle(cache, id, &sequence));
    if (!from) {
        drop_attention_scores(cache, sequence);
        return LK_OK;
    }
    lk_chunk_attention own = default_chunk_attention();
    LK_TRY(import_struct(&own, sizeof own, sizeof own, from, "chunk_attention"));
    LK_TRY(check_numbers(cache, own));
    auto *attention = create<AttentionScores>(cache->context->allocator, cache->context->allocator);
    if (!attention)
        return fail(LK_E_NOMEM, "no memory for attention scores");
    lk_status status = fill_attention_scores(cache, own, attention);
    if (status) {
        free_attention_scores(cache, attention);
        return status;
    }
    drop_attention_scores(cache, sequence);
    sequence->attention_scores = attention;
    return LK_OK;
}

lk_status download_scores(lk_cache *cache, const AttentionScores &attention, Array<float> *sums) {
    const uint64_t bytes = score_area_bytes(attention);
    if (!sums->resize(bytes / sizeof(float)))
        return fail(LK_E_NOMEM, "no memory for the scores of %u chunks", attention.n_chunks);
    LK_TRY(leave_recording(cache));
    const SlotCopy copy = {attention.memory.address, reinterpret_cast<uint8_t *>(sums->data()),
                           bytes};
    return cache->device->download(&copy, 1);
}

lk_status read_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks, float *scores) {
    Sequence *sequence;
    LK_TRY(find_idle(cache, id, &sequence));
    const AttentionScores *attention = sequence->attention_scores;
    if (!attention || !attention->n_scored)
        return fail(LK_E_STATE,
                    "sequence %llu has no scores: no step was committed that scored its chunks",
                    ull{id});
    if (!scores || n_chunks != attention->n_chunks)
        return fail(LK_E_ARGUMENT, "scores is NULL, or n_chunks is %u and not %u, as requested",
                    n_chunks, attention->n_chunks);
    Array<float> sums(cache->context->allocator);
    lk_status status = download_scores(cache, *attention, &sums);
    for (uint32_t i = 0; !status && i < n_chunks; ++i)
        if (!float_is_finite(sums[i]))
            status = fail(LK_E_DATA, "the score of chunk %u is not finite, nor was a query", i);
    // The device's sums are by index.
    const ChunkList *chunks = sequence->chunks;
    for (uint32_t i = 0; !status && i < n_chunks; ++i) {
        const uint32_t chunk = chunks && i < chunks->size() ? chunks->order[i] : i;
        scores[chunk] = sums[i] / static_cast<float>(attention->n_scored);
    }
    return status;
}

}  // namespace

lk_status check_attention_scores(const lk_cache *cache, const StepSequence &member,
                                 bool has_parents) {
    const AttentionScores *attention = member.sequence->attention_scores;
    if (!attention || attention->n_scored)
        return LK_OK;
    const ull id = member.sequence->id;
    if (has_parents)
        return fail(LK_E_ARGUMENT, "the chunks of sequence %llu are scored: no draft tree", id);
    if (member.n_new < attention->n_query_tokens)
        return fail(LK_E_ARGUMENT, "sequence %llu has %u new tokens, the query that scores has %u",
                    id, member.n_new, attention->n_query_tokens);
    const uint64_t query = member.sequence->length + member.n_new - attention->n_query_tokens;
    const uint64_t end = cache->plan.model.sink_tokens + attention->context_tokens();
    if (query < end)
        return fail(LK_E_ARGUMENT,
                    "the query of sequence %llu begins at token %llu, before the end of the "
                    "scored context at %llu",
                    id, ull{query}, ull{end});
    const uint32_t n_ordered = chunks_of_next_step(cache, *member.sequence);
    const ChunkRule &rule = cache->plan.model.chunks;
    if (n_ordered && rule.reorder &&
        (attention->chunk_tokens != rule.tokens || attention->n_chunks < n_ordered))
        return fail(LK_E_ARGUMENT,
                    "%u chunks of %u tokens of sequence %llu are scored, but %u of %u tokens were "
                    "reordered: score all of these",
                    attention->n_chunks, attention->chunk_tokens, id, n_ordered, rule.tokens);
    return LK_OK;
}

lk_status reserve_attention_scores(lk_cache *cache) {
    Step &step = cache->step;
    size_t n = 0;
    for (const StepSequence &member : step.sequences)
        n += member.sequence->attention_scores != nullptr;
    return step.attention_scores.reserve(n)
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for %zu requests of attention scores", n);
}

void begin_attention_scores(lk_cache *cache) {
    for (const StepSequence &member : cache->step.sequences) {
        AttentionScores *attention = member.sequence->attention_scores;
        if (!attention || attention->n_scored)
            continue;
        attention->is_open = true;
        attention->first_query = member.n_new - attention->n_query_tokens;
        attention->n_attended = 0;
    }
}

lk_status list_attention_scores(lk_cache *cache, AttendArgs *args) {
    Step &step = cache->step;
    step.attention_scores.clear();
    for (uint32_t i = 0; i < step.sequences.size(); ++i) {
        const StepSequence &member = step.sequences[i];
        if (!has_open_scores(member))
            continue;
        const AttentionScores &attention = *member.sequence->attention_scores;
        if (!attention.layers[args->layer_index])
            continue;
        const uint32_t n_blocks = args->layer.n_query_heads * attention.n_query_tokens;
        step.attention_scores.push(
            {i, member.first_new + attention.first_query, attention.n_query_tokens,
             static_cast<uint32_t>(sink_blocks(cache->plan.model)), attention.chunk_tokens,
             attention.n_chunks, attention.max_tiles, 1.0f / static_cast<float>(n_blocks),
             attention.memory.address, attention.memory.address + score_area_bytes(attention),
             attention.n_attended == 0});
    }
    if (!step.attention_scores.empty() && cache->device->is_capturing())
        return fail(LK_E_STATE,
                    "the chunks of a sequence of the step are scored, which no graph does");
    args->chunk_attentions = step.attention_scores.data();
    args->n_chunk_attentions = static_cast<uint32_t>(step.attention_scores.size());
    return LK_OK;
}

void count_attention_scores(lk_cache *cache, uint32_t layer) {
    for (const StepSequence &member : cache->step.sequences)
        if (has_open_scores(member))
            member.sequence->attention_scores->n_attended +=
                member.sequence->attention_scores->layers[layer];
}

void keep_attention_scores(StepSequence *member) {
    if (!has_open_scores(*member))
        return;
    AttentionScores *attention = member->sequence->attention_scores;
    attention->is_open = false;
    attention->n_scored = attention->n_attended;
}

void return_attention_scores(StepSequence *member) {
    if (member->sequence->attention_scores)
        member->sequence->attention_scores->is_open = false;
}

void cut_attention_scores(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    const AttentionScores *attention = sequence->attention_scores;
    if (attention && attention->n_scored &&
        n_tokens < cache->plan.model.sink_tokens + attention->context_tokens())
        drop_attention_scores(cache, sequence);
}

void drop_attention_scores(lk_cache *cache, Sequence *sequence) {
    if (sequence->attention_scores)
        free_attention_scores(cache, sequence->attention_scores);
    sequence->attention_scores = nullptr;
}

}  // namespace lk

extern "C" {

lk_status lk_chunk_attention_init(lk_chunk_attention *attention, size_t struct_bytes) {
    return lk::init_with(attention, struct_bytes, sizeof *attention, lk::default_chunk_attention(),
                         "chunk_attention");
}

lk_status lk_chunks_score_attention(lk_cache *cache, lk_sequence id,
                                    const lk_chunk_attention *attention) {
    return lk::on_cache(cache, [&] { return lk::score_attention(cache, id, attention); });
}

lk_status lk_chunks_attention_scores(lk_cache *cache, lk_sequence id, uint32_t n_chunks,
                                     float *scores) {
    return lk::use_cache(cache, [&] { return lk::read_scores(cache, id, n_chunks, scores); });
}

}  // extern "C"
