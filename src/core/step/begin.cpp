// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/chunks/pending.h"
#include "core/memory/reclaim.h"
#include "core/memory/reserve.h"
#include "core/pages/pack.h"
#include "core/sequence/copy_on_write.h"
#include "core/sequence/windows.h"
#include "core/step/faults.h"
#include "core/step/sum_queries.h"

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
    const uint32_t *spans = nullptr;  // [n_spans][3]
    uint32_t n_spans = 0;
    uint32_t span_flags = 0;
};

lk_status check_member(lk_cache *cache, const BeginArgs &args, uint32_t i, uint64_t first,
                       StepSequence *member) {
    Sequence *sequence = cache->sequences.find(args.ids[i]);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{args.ids[i]});
    if (sequence->mark == cache->sequences.next_mark)
        return fail(LK_E_ARGUMENT, "sequence %llu is named twice", ull{args.ids[i]});
    sequence->mark = cache->sequences.next_mark;
    const uint32_t n = args.n_tokens[i];
    if (!n)
        return fail(LK_E_ARGUMENT, "sequence %llu has 0 new tokens, at least 1", ull{args.ids[i]});
    if (first + n > cache->desc.max_step_tokens)
        return fail(LK_E_ARGUMENT, "the step has %llu new tokens or more, max_step_tokens is %u",
                    ull{first + n}, cache->desc.max_step_tokens);
    if (args.parent)
        LK_TRY(check_parents(args.parent + first, n, args.ids[i]));
    *member = {};
    member->sequence = sequence;
    member->n_new = n;
    member->first_new = static_cast<uint32_t>(first);
    member->n_blocks_before = sequence->block_table.size();
    return check_attention_scores(cache, *member, args.parent != nullptr);
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

// Each token of a sequence reaches to itself, until its spans are known.
void start_reach(lk_cache *cache, StepSequence *member) {
    uint32_t *reach = cache->step.reaches.data() + member->first_new;
    for (uint32_t i = 0; i < member->n_new; ++i)
        reach[i] = i;
    member->reach = reach;
}

lk_status plan_spans(lk_cache *cache, const BeginArgs &args) {
    Step &step = cache->step;
    if (args.span_flags & ~LK_SPANS_WINDOWED)
        return fail(LK_E_ARGUMENT, "flags is 0x%x, known bits are 0x%x", args.span_flags,
                    LK_SPANS_WINDOWED);
    step.spans_are_windowed = args.span_flags & LK_SPANS_WINDOWED;
    if (args.n_spans && !args.spans)
        return fail(LK_E_ARGUMENT, "spans is NULL, n_spans is %u", args.n_spans);
    uint32_t sequence = 0;  // of the span before, and its end
    uint32_t end = 0;
    for (uint32_t i = 0; i < args.n_spans; ++i) {
        const uint32_t *span = args.spans + size_t{3} * i;
        end = span[0] == sequence ? end : 0;
        if (span[0] < sequence || span[0] >= args.n_sequences || span[1] < end ||
            span[2] <= span[1] || span[2] > step.sequences[span[0]].n_new)
            return fail(LK_E_ARGUMENT,
                        "span %u has tokens %u to %u of sequence %u of %u, after token %u of %u", i,
                        span[1], span[2], span[0], args.n_sequences, end, sequence);
        sequence = span[0];
        end = span[2];
        StepSequence &member = step.sequences[sequence];
        if (!member.reach)
            start_reach(cache, &member);
        for (uint32_t t = span[1]; t < end; ++t)
            step.reaches.data()[member.first_new + t] = end - 1;
    }
    return LK_OK;
}

// Check the arguments and note who takes part.
lk_status plan_step(lk_cache *cache, const BeginArgs &args) {
    Step &step = cache->step;
    LK_TRY(check_counts(cache, args));
    if (!step.sequences.resize(args.n_sequences) || !step.views.resize(args.n_sequences))
        return no_step_memory(args.n_sequences * (sizeof(StepSequence) + sizeof(BatchSequence)));
    ++cache->sequences.next_mark;
    uint64_t first = 0;
    for (uint32_t i = 0; i < args.n_sequences; ++i) {
        LK_TRY(check_member(cache, args, i, first, &step.sequences[i]));
        first += args.n_tokens[i];
    }
    step.n_tokens = static_cast<uint32_t>(first);
    if (args.parent && !step.parents.assign(args.parent, first))
        return no_step_memory(first * sizeof *args.parent);
    if (args.parent)
        for (StepSequence &member : step.sequences)
            member.parent = step.parents.data() + member.first_new;
    return plan_spans(cache, args);
}

lk_status add_blocks(lk_cache *cache, const StepSequence &member) {
    Sequence *sequence = member.sequence;
    const uint64_t n_blocks = block_count(cache->plan.model, sequence->length + member.n_new);
    while (sequence->block_table.size() < n_blocks) {
        const BlockKind kind =
            block_kind(cache, *sequence, sequence->block_table.size(), member.n_new);
        LK_TRY(add_block(cache, sequence, kind));
    }
    return LK_OK;
}

lk_status reserve_blocks(lk_cache *cache) {
    choose_tails(cache);
    lk_status status = reserve_step(cache);
    for (const StepSequence &member : cache->step.sequences)
        if (!status && table_growth(*cache, member))
            status = reserve_table(cache, member.sequence, blocks_in_table(*cache, member));
    for (StepSequence &member : cache->step.sequences) {
        if (!status)
            status = own_tail(cache, &member);
        if (!status)
            status = add_blocks(cache, member);
    }
    if (!status)
        status = reserve_states(cache);
    if (status)
        drop_step(cache);
    cache->slots.trim();
    return status;
}

void view_sequences(lk_cache *cache) {
    Step &step = cache->step;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
        const StepSequence &member = step.sequences[i];
        const Sequence &sequence = *member.sequence;
        const uint64_t n_attended = member.is_draft()
                                        ? sequence.block_table.size()
                                        : block_count(cache->plan.model, sequence.length);
        step.views[i] = {sequence.block_table.data(),
                         static_cast<uint32_t>(sequence.block_table.size()),
                         static_cast<uint32_t>(n_attended),
                         sequence.id,
                         sequence.length,
                         member.n_new,
                         member.first_new,
                         member.is_draft() ? 1 : 0,
                         member.parent,
                         member.reach,
                         step.spans_are_windowed};
    }
}

// Hand the device the step's tables.
lk_status begin_batch(lk_cache *cache) {
    const Step &step = cache->step;
    view_sequences(cache);
    lk_status status =
        cache->device->begin({step.views.data(), static_cast<uint32_t>(step.views.size()),
                              step.n_tokens, step.query_stat_bytes});
    if (!status)
        status = load_states(cache);
    if (status)
        drop_step(cache);
    return status;
}

lk_status begin_step(lk_cache *cache, const lk_queue *from, const BeginArgs &args) {
    Step &step = cache->step;
    if (step.is_open)
        return fail(LK_E_STATE, "a step is open: commit or discard it first");
    LK_TRY(take_late_fault(cache));
    lk_queue queue{};
    LK_TRY(import_queue(*cache->context, from, &queue));
    LK_TRY(plan_step(cache, args));
    LK_TRY(reserve_query_stats(cache));
    LK_TRY(reserve_attention_scores(cache));
    // Chunks are laid out outside of the host's commands, before the step has its queue.
    for (const StepSequence &member : step.sequences)
        LK_TRY(pack_with_reclaim(cache, member.sequence, lay_pending));
    LK_TRY(cache->device->set_queue(from ? &queue : nullptr));
    LK_TRY(cache->stat_queue.flush());
    for (const StepSequence &member : step.sequences)
        LK_TRY(pack_with_reclaim(cache, member.sequence, pack_due_blocks));
    for (const StepSequence &member : step.sequences)
        free_hidden_pages(cache, member.sequence);
    LK_TRY(reserve_blocks(cache));
    LK_TRY(begin_batch(cache));
    std::memset(step.layers.data(), kNoKeys, step.layers.size());
    step.is_poisoned = false;
    step.queue = queue.kind;
    step.last_layer = kNoLayer;
    step.is_open = true;
    begin_attention_scores(cache);
    return LK_OK;
}

// The order of a step's work is that of the calls, on whatever queues: each queue has to wait for
// the one before, which CacheDevice::set_queue() and the host see to.
lk_status change_queue(lk_cache *cache, const lk_queue *from) {
    const BackendTraits &traits = cache->context->backend->traits();
    if (!traits.changes_queues)
        return fail(LK_E_UNSUPPORTED, "a step on %s keeps the queue that it began with",
                    traits.name);
    LK_TRY(check_open(cache));
    lk_queue queue{};
    LK_TRY(import_queue(*cache->context, from, &queue));
    LK_TRY(cache->device->set_queue(from ? &queue : nullptr));
    cache->step.queue = queue.kind;
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

void drop_tokens(lk_cache *cache, StepSequence *member) {
    drop_blocks(cache, member->sequence, member->n_blocks_before);
    shorten_table(cache, member->sequence);
    return_tail(cache, member);
    drop_states(cache, member);
    return_attention_scores(member);
}

void drop_step(lk_cache *cache) {
    for (StepSequence &member : cache->step.sequences)
        drop_tokens(cache, &member);
    cache->step.is_open = false;
}

lk_status leave_recording(lk_cache *cache) {
    if (!is_recorded(*cache->context, cache->step.queue))
        return LK_OK;
    cache->step.queue = 0;
    return cache->device->set_queue(nullptr);
}

Staging staging_of(const lk_cache *cache, uint32_t layer) {
    const LayerInfo &info = cache->formats.layers[layer];
    const LayerView &view = info.view;
    auto *keys = reinterpret_cast<uint16_t *>(cache->step.workspace.address +
                                              info.staging * cache->desc.max_step_tokens);
    const uint64_t n = uint64_t{view.n_kv_heads} * cache->step.n_tokens * view.head_dim;
    return {keys, view.is_latent ? nullptr : keys + n, cache->step.n_tokens};
}

}  // namespace lk

extern "C" lk_status lk_step_begin(lk_cache *cache, const lk_queue *queue, uint32_t n_sequences,
                                   const lk_sequence *ids, const uint32_t *n_tokens,
                                   const int32_t *parent) {
    return lk::on_cache(cache, [&] {
        return lk::begin_step(cache, queue, {n_sequences, ids, n_tokens, parent});
    });
}

extern "C" lk_status lk_step_begin_spans(lk_cache *cache, const lk_queue *queue,
                                         uint32_t n_sequences, const lk_sequence *ids,
                                         const uint32_t *n_tokens, const uint32_t *spans,
                                         uint32_t n_spans, uint32_t flags) {
    return lk::on_cache(cache, [&] {
        return lk::begin_step(cache, queue,
                              {n_sequences, ids, n_tokens, nullptr, spans, n_spans, flags});
    });
}

extern "C" lk_status lk_step_set_queue(lk_cache *cache, const lk_queue *queue) {
    return lk::use_cache(cache, [&] { return lk::change_queue(cache, queue); });
}

extern "C" lk_status lk_step_discard(lk_cache *cache) {
    return lk::on_cache(cache, [&] { return lk::discard_step(cache); });
}
