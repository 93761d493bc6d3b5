// SPDX-License-Identifier: Apache-2.0
#include "core/step.h"

#include "core/cache.h"
#include "core/watch.h"

namespace lk {

namespace {

lk_status check_parents(const int32_t *parent, uint32_t n, lk_sequence id) {
    if (n > LK_DRAFT_TOKENS)
        return fail(LK_E_ARGUMENT, "sequence %llu has %u new tokens, at most %d with parents",
                    ull{id}, n, LK_DRAFT_TOKENS);
    for (uint32_t i = 0; i < n; ++i)
        if (parent[i] < -1 || parent[i] >= static_cast<int64_t>(i))
            return fail(LK_E_ARGUMENT, "parent %d of token %u of sequence %llu is not -1 to %d",
                        parent[i], i, ull{id}, static_cast<int>(i) - 1);
    return LK_OK;
}

struct BeginArgs {
    uint32_t n_sequences;
    const lk_sequence *ids;
    const uint32_t *n_tokens;
    const int32_t *parent;
};

lk_status check_part(lk_cache *cache, const BeginArgs &args, uint32_t i, uint64_t first,
                     StepSequence *part) {
    Sequence *sequence = find_sequence(cache, args.ids[i]);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{args.ids[i]});
    if (sequence->mark == cache->next_mark)
        return fail(LK_E_ARGUMENT, "sequence %llu is named twice", ull{args.ids[i]});
    sequence->mark = cache->next_mark;
    const uint32_t n = args.n_tokens[i];
    if (!n)
        return fail(LK_E_ARGUMENT, "sequence %llu has 0 new tokens, at least 1", ull{args.ids[i]});
    if (first + n > cache->desc.max_step_tokens)
        return fail(LK_E_ARGUMENT, "the step has %llu new tokens or more, max_step_tokens is %u",
                    ull{first + n}, cache->desc.max_step_tokens);
    if (args.parent) {
        const lk_status status = check_parents(args.parent + first, n, args.ids[i]);
        if (status)
            return status;
    }
    *part = {};
    part->sequence = sequence;
    part->n_new = n;
    part->first_new = static_cast<uint32_t>(first);
    part->n_rows_before = sequence->rows.size();
    return check_watch(cache, *part, args.parent != nullptr);
}

lk_status check_counts(const lk_cache *cache, const BeginArgs &args) {
    if (args.n_sequences < 1 || args.n_sequences > cache->desc.max_sequences)
        return fail(LK_E_ARGUMENT, "n_sequences is %u, not 1 to max_sequences, %u",
                    args.n_sequences, cache->desc.max_sequences);
    if (!args.ids || !args.n_tokens)
        return fail(LK_E_ARGUMENT, "%s is NULL", args.ids ? "n_tokens" : "ids");
    return LK_OK;
}

lk_status no_step_memory(uint64_t bytes) {
    return fail(LK_E_NOMEM, "no memory for the step's lists of %llu bytes", ull{bytes});
}

// Check the arguments and note who takes part.
lk_status plan_step(lk_cache *cache, const BeginArgs &args) {
    Step &step = cache->step;
    lk_status status = check_counts(cache, args);
    if (status)
        return status;
    if (!step.sequences.resize(args.n_sequences) || !step.views.resize(args.n_sequences))
        return no_step_memory(args.n_sequences * (sizeof(StepSequence) + sizeof(BatchSequence)));
    ++cache->next_mark;
    uint64_t first = 0;
    for (uint32_t i = 0; i < args.n_sequences; ++i) {
        status = check_part(cache, args, i, first, &step.sequences[i]);
        if (status)
            return status;
        first += args.n_tokens[i];
    }
    step.n_tokens = static_cast<uint32_t>(first);
    if (args.parent && !step.parents.assign(args.parent, first))
        return no_step_memory(first * sizeof *args.parent);
    if (args.parent)
        for (StepSequence &part : step.sequences)
            part.parent = step.parents.data() + part.first_new;
    return LK_OK;
}

lk_status add_rows(lk_cache *cache, const StepSequence &part) {
    Sequence *sequence = part.sequence;
    const uint64_t n_rows = block_count(cache->plan.model, sequence->length + part.n_new);
    if (n_rows > sequence->rows.capacity()) {
        const uint64_t grown = sequence->rows.capacity() * 2;
        if (!sequence->rows.reserve(n_rows > grown ? n_rows : grown))
            return no_step_memory(n_rows * sizeof(Block *));
    }
    while (sequence->rows.size() < n_rows) {
        const RowKind kind = row_kind(cache, *sequence, sequence->rows.size(), part.n_new);
        const lk_status status = add_row(cache, sequence, kind);
        if (status)
            return status;
    }
    return LK_OK;
}

lk_status reserve_rows(lk_cache *cache) {
    choose_tails(cache);
    lk_status status = make_room(cache);
    for (StepSequence &part : cache->step.sequences) {
        if (!status)
            status = own_tail(cache, &part);
        if (!status)
            status = add_rows(cache, part);
    }
    if (status)
        drop_step(cache);
    cache->slots.trim();
    return status;
}

void view_sequences(lk_cache *cache) {
    Step &step = cache->step;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
        const StepSequence &part = step.sequences[i];
        const Sequence &sequence = *part.sequence;
        const uint64_t n_attended = part.is_draft()
                                        ? sequence.rows.size()
                                        : block_count(cache->plan.model, sequence.length);
        step.views[i] = {sequence.rows.data(),
                         static_cast<uint32_t>(sequence.rows.size()),
                         static_cast<uint32_t>(n_attended),
                         sequence.id,
                         sequence.length,
                         part.n_new,
                         part.first_new,
                         part.is_draft() ? 1 : 0,
                         part.parent};
    }
}

// Hand the device the step's tables.
lk_status begin_batch(lk_cache *cache) {
    const Step &step = cache->step;
    view_sequences(cache);
    const lk_status status =
        cache->device->begin({step.views.data(), static_cast<uint32_t>(step.views.size()),
                              step.n_tokens, step.query_stat_bytes});
    if (status)
        drop_step(cache);
    return status;
}

lk_status begin_step(lk_cache *cache, const lk_queue *from, const BeginArgs &args) {
    Step &step = cache->step;
    if (step.is_open)
        return fail(LK_E_STATE, "a step is open: commit or discard it first");
    lk_status status = take_late_fault(cache);
    lk_queue queue{};
    if (!status)
        status = import_queue(*cache->context, from, &queue);
    if (!status)
        status = plan_step(cache, args);
    if (!status)
        status = place_sums(cache);
    if (!status)
        status = reserve_watches(cache);
    if (!status)
        status = cache->device->set_queue(from ? &queue : nullptr);
    if (!status)
        status = cache->sums.flush();
    if (status)
        return status;
    for (const StepSequence &part : step.sequences) {
        status = pack_with_room(cache, part.sequence);
        if (status)
            return status;
    }
    for (const StepSequence &part : step.sequences)
        free_hidden_pages(cache, part.sequence);
    status = reserve_rows(cache);
    if (!status)
        status = begin_batch(cache);
    if (status)
        return status;
    std::memset(step.layers.data(), kNoKeys, step.layers.size());
    step.is_poisoned = false;
    step.queue = queue.kind;
    step.last_layer = kNoLayer;
    step.is_open = true;
    begin_watches(cache);
    return LK_OK;
}

lk_status discard_step(lk_cache *cache) {
    if (!cache->step.is_open)
        return fail(LK_E_STATE, "no step is open");
    drop_step(cache);
    drop_fault(cache);
    return LK_OK;
}

}  // namespace

void drop_tokens(lk_cache *cache, StepSequence *part) {
    drop_rows(cache, part->sequence, part->n_rows_before);
    return_tail(cache, part);
    return_watch(part);
}

void drop_step(lk_cache *cache) {
    for (StepSequence &part : cache->step.sequences)
        drop_tokens(cache, &part);
    cache->step.is_open = false;
}

lk_status leave_recording(lk_cache *cache) {
    if (cache->step.queue != LK_QUEUE_VULKAN_RECORD)
        return LK_OK;
    cache->step.queue = 0;
    return cache->device->set_queue(nullptr);
}

Staging staging_of(const lk_cache *cache, uint32_t layer) {
    const LayerView &view = cache->layers[layer].view;
    auto *keys = reinterpret_cast<uint16_t *>(cache->workspace.address);
    const uint64_t n = uint64_t{view.n_kv_heads} * cache->step.n_tokens * view.head_dim;
    return {keys, keys + n, cache->step.n_tokens};
}

}  // namespace lk

extern "C" lk_status lk_step_begin(lk_cache *cache, const lk_queue *queue, uint32_t n_sequences,
                                   const lk_sequence *ids, const uint32_t *n_tokens,
                                   const int32_t *parent) {
    return lk::on_cache(cache, [&] {
        return lk::begin_step(cache, queue, {n_sequences, ids, n_tokens, parent});
    });
}

extern "C" lk_status lk_step_discard(lk_cache *cache) {
    return lk::on_cache(cache, [&] { return lk::discard_step(cache); });
}
