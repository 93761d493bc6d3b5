// lk_plan_bytes() and lk_cache_bytes(): what a plan costs, by replaying what footprint.h says a
// cache does.
//
// n_blocks, payload_bytes, metadata_bytes, recent_bytes and table_bytes describe the state after
// the last step: what its begin packed is packed, its tokens are committed, and a page that its
// tokens made due waits for the next begin. They count the bytes of page layouts; slots may round
// up to 64. Pages that stay at 16 bits count as recent.
//
// cache_bytes is the worst moment. The replay need not start at the first step: P tokens make a
// page, so the steps repeat after lcm(step, P) tokens with every block moved on by that much and no
// slot fewer in use. The worst moment is thus in the last such period.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "plan/footprint.h"
#include "plan/layer_budget.h"
#include "plan/replay.h"
#include "plan/size_model.h"

namespace lk {

namespace {

using ModelOnHeap = Created<SizeModel>;

uint64_t lesser(uint64_t a, uint64_t b) { return a < b ? a : b; }

void count_slots(const SizeModel &model, const ReplayBlocks &blocks, SlotCounts *out) {
    const uint64_t n_sinks = sink_blocks(*model.plan);
    const uint64_t sinks = lesser(blocks.total, n_sinks);
    const uint64_t last = n_sinks && sinks == n_sinks;
    SlotCounts &slots = *out;
    slots.clear();
    slots.add(model.sink_block, (sinks - last) * model.n_sequences);
    slots.add(model.last_sink_block, last * model.n_sequences);
    slots.add(model.packed_block, blocks.packed() * model.n_sequences);
    slots.add(model.recent_block, (blocks.total - sinks - blocks.packed()) * model.n_sequences);
    for (const Window &window : model.windows)
        slots.remove(window.packed_block,
                     dropped_blocks(*model.plan, *window.layer, blocks) * model.n_sequences);
}

// Extents at the worst moment of packing one block of one sequence, from model->cycle on.
uint64_t cycle_peak(SizeModel *model) {
    RunningSlots &slots = model->running;
    slots.start(model->cycle);
    uint64_t peak = slots.extents();
    for (const Packing &packing : model->packings)
        for (uint32_t i = 0; i < packing.count; ++i) {
            for (const uint32_t size : packing.taken)
                slots.take(size);
            peak = slots.extents() > peak ? slots.extents() : peak;
            for (const uint32_t size : packing.given)
                slots.give(size);
        }
    return peak;
}

// Bounds on the extents of packing, as real numbers: used / slots per extent summed over the
// sizes is less than the extents by at most one per size.
struct Bounds {
    double rise;   // of the sum within a cycle, at most
    double drift;  // of the sum over a cycle
    double slack;
    uint64_t period;  // cycles after which extents repeat when drift is 0
};

// Of an extent, that a slot takes.
double share(const SizeFamilies &families, uint32_t size) {
    return size == kNoSlot
               ? 0
               : families.units(size) / static_cast<double>(families.extent_units(size));
}

Bounds bounds_of(const SizeModel &model) {
    Bounds bounds = {0, 0, 2, 1};
    for (uint32_t s = 1; s < kSlotSizes; ++s) {
        if (!model.recent_block.used[s] && !model.packed_block.used[s] &&
            !model.sink_block.used[s] && !model.last_sink_block.used[s])
            continue;
        bounds.slack += 1;
        const uint64_t units = model.families.extent_units(s);
        const uint64_t period = bounds.period / gcd(bounds.period, units);
        if (!checked_mul(period, units, &bounds.period))
            bounds.period = UINT64_MAX;
    }
    for (const Packing &packing : model.packings)
        for (uint32_t i = 0; i < packing.count; ++i) {
            for (const uint32_t size : packing.taken)
                bounds.drift += share(model.families, size);
            bounds.rise = bounds.drift > bounds.rise ? bounds.drift : bounds.rise;
            for (const uint32_t size : packing.given)
                bounds.drift -= share(model.families, size);
        }
    return bounds;
}

double real_extents(const SizeFamilies &families, const SlotCounts &slots) {
    double sum = 0;
    for (uint32_t s = 1; s < kSlotSizes; ++s)
        if (slots.used[s])
            sum += static_cast<double>(slots.used[s]) * share(families, s);
    return sum;
}

bool any_packing(const SizeModel &model) {
    for (const Packing &packing : model.packings)
        if (packing.taken[0] != kNoSlot || packing.taken[2] != kNoSlot)
            return true;
    return false;
}

// Extents at the worst moment of packing n_cycles blocks one after another from model->state on, or
// `least` when that is more. Cycles are taken from the worse end on until none can reach what is
// known.
uint64_t packing_peak(SizeModel *model, const Bounds &bounds, uint64_t n_cycles, uint64_t least) {
    constexpr double kNoDrift = 1e-9;
    const bool rising = bounds.drift > kNoDrift;
    const bool level = std::fabs(bounds.drift) <= kNoDrift;
    const double base = real_extents(model->families, model->state);
    const uint64_t n = level ? lesser(n_cycles, bounds.period) : n_cycles;
    uint64_t peak = least;
    for (uint64_t i = 0; i < n; ++i) {
        const uint64_t cycle = rising ? n - 1 - i : i;
        const double most = base + static_cast<double>(cycle) * bounds.drift + bounds.rise;
        if (!level && most + bounds.slack < static_cast<double>(peak))
            break;
        model->cycle = model->state;
        model->cycle.add(model->packed_block, cycle);
        model->cycle.remove(model->recent_block, cycle);
        const uint64_t found = cycle_peak(model);
        peak = found > peak ? found : peak;
    }
    return peak;
}

uint64_t block_tables(const SizeModel &model, uint64_t blocks) {
    return model.n_sequences *
           (blocks * block_bytes(*model.plan) + table_capacity(blocks) * kLinkBytes);
}

// The old block table of a sequence, while the longer one of a step takes its place.
uint64_t replaced_table(uint64_t blocks_before, uint64_t blocks) {
    const uint64_t before = table_capacity(blocks_before);
    return blocks > before ? before * kLinkBytes : 0;
}

// Tables of blocks and extents of a step once its blocks are there.
uint64_t step_bytes(SizeModel *model, const ReplayStep &step) {
    const Plan &plan = *model->plan;
    const ReplayBlocks after = blocks_after(plan, step);
    count_slots(*model, after, &model->state);
    return block_tables(*model, after.total) +
           replaced_table(block_count(plan, step.length), after.total) +
           model->state.extents(model->families) * LK_EXTENT_BYTES + model->spare_bytes;
}

// The worst of the steps that lengthen block tables.
uint64_t growing_peak(SizeModel *model, const Replay &replay, const Span &span) {
    const Plan &plan = *model->plan;
    const uint64_t n_blocks = block_count(plan, replay.n_tokens);
    uint64_t peak = 0;
    for (uint64_t capacity = table_capacity(1); capacity < n_blocks;
         capacity = table_capacity(capacity + 1)) {
        const uint64_t k = block_first_token(plan, capacity) / replay.step_tokens;
        if (k >= span.begin && k < span.end)
            peak = std::max(peak, step_bytes(model, replay.step(k)));
    }
    return peak;
}

// While a step packs what is due.
uint64_t packing_bytes(SizeModel *model, const Bounds &bounds, const ReplayStep &step,
                       uint64_t least) {
    const Plan &plan = *model->plan;
    const ReplayBlocks before = blocks_before(plan, step);
    const uint64_t due = due_blocks(plan, step.length) - sink_blocks(plan) - before.packed();
    if (!due)
        return 0;
    const uint64_t tables = block_tables(*model, before.total);
    const uint64_t known = least > tables ? (least - tables) / LK_EXTENT_BYTES : 0;
    count_slots(*model, before, &model->state);
    return tables + packing_peak(model, bounds, due * model->n_sequences, known) * LK_EXTENT_BYTES;
}

// Tables of blocks and extents at the worst moment of a span of steps. A step packs what is due
// before budgets of layers change rungs, so the step after the span packs at the rungs of the span.
uint64_t peak_bytes(SizeModel *model, const Replay &replay, const Span &span) {
    const Bounds bounds = bounds_of(*model);
    const bool packs = any_packing(*model);
    const uint64_t last_steps = replay.period(*model->plan) + 2;
    const uint64_t first = span.end > last_steps ? span.end - last_steps : 0;
    uint64_t peak = 0;
    for (uint64_t k = std::max(first, span.begin); k <= span.end && k < replay.n_steps(); ++k) {
        const ReplayStep step = replay.step(k);
        if (packs && (k > span.begin || !k))
            peak = std::max(peak, packing_bytes(model, bounds, step, peak));
        if (k < span.end)
            peak = std::max(peak, step_bytes(model, step));
    }
    return std::max(peak, growing_peak(model, replay, span));
}

uint64_t fp16_token_bytes(const Plan &plan) {
    uint64_t bytes = 0;
    for (const LayerPlan &layer : plan.layers)
        bytes += owns_kv(layer.geometry) ? staged_token_bytes(layer.geometry) : 0;
    return bytes;
}

lk_status no_memory_for_sizes() { return fail(LK_E_NOMEM, "no memory for the sizes of a plan"); }

lk_status too_large(const char *name, uint64_t value) {
    return fail(LK_E_ARGUMENT, "%s is %llu, the bytes of the cache do not fit 64 bits", name,
                static_cast<unsigned long long>(value));
}

// Nothing below can pass 64 bits: each sum that cache_bytes() makes is at most a few of these.
bool fits(const SizeModel &model, uint64_t n_tokens, uint64_t step_tokens) {
    constexpr uint64_t kLimit = uint64_t{1} << 60;
    const Plan &plan = *model.plan;
    uint64_t bytes;
    if (n_tokens > kLimit || !checked_mul(n_tokens, model.n_sequences, &bytes) ||
        !checked_mul(bytes, fp16_token_bytes(plan), &bytes) || bytes > kLimit)
        return false;
    // An extent of slots above 32 KiB may waste almost half of itself.
    const uint64_t block =
        block_bytes(plan) +
        2 * (model.recent_block.bytes() + model.packed_block.bytes() + model.sink_block.bytes());
    if (!checked_mul(block_count(plan, n_tokens), model.n_sequences, &bytes) ||
        !checked_mul(bytes, block, &bytes) || bytes > kLimit)
        return false;
    if (!checked_mul(step_tokens * model.n_sequences, staging_bytes(plan), &bytes) ||
        bytes > kLimit)
        return false;
    return checked_mul(kSequenceBytes + sequence_stat_bytes(plan), model.n_sequences, &bytes) &&
           bytes <= kLimit;
}

// Layout bytes of the pages of a 16-bit block, and of all sink blocks of a sequence.
uint64_t recent_block_bytes(const Plan &plan) { return fp16_token_bytes(plan) * plan.page_tokens; }
uint64_t sink_bytes(const Plan &plan, uint64_t blocks) {
    const uint64_t tokens = lesser(block_first_token(plan, blocks), plan.sink_tokens);
    return fp16_token_bytes(plan) * tokens;
}

void fill_rates(const SizeModel &model, lk_plan_size *out) {
    const Sums &page = model.page;
    const auto bytes = static_cast<double>(page.payload + page.metadata + page.raw);
    out->bits_per_value = bytes * 8 / static_cast<double>(page.values);
    out->bytes_per_token = bytes / model.plan->page_tokens;
}

// The blocks are those of the last step, committed.
void fill_state(const SizeModel &model, ReplayBlocks blocks, uint64_t n_tokens, lk_plan_size *out) {
    const Plan &plan = *model.plan;
    blocks.length = n_tokens;
    blocks.drops_appended = true;
    const uint64_t sinks = lesser(blocks.total, sink_blocks(plan));
    const uint64_t recent = blocks.total - sinks - blocks.packed();
    out->n_blocks = static_cast<uint32_t>(lesser(blocks.packed(), UINT32_MAX));
    out->payload_bytes = model.n_sequences * blocks.packed() * model.page.payload;
    out->metadata_bytes = model.n_sequences * blocks.packed() * model.page.metadata;
    out->recent_bytes =
        model.n_sequences * (sink_bytes(plan, sinks) + recent * recent_block_bytes(plan) +
                             blocks.packed() * model.page.raw);
    for (const Window &window : model.windows) {
        const uint64_t n = dropped_blocks(plan, *window.layer, blocks) * model.n_sequences;
        out->payload_bytes -= n * window.page.payload;
        out->metadata_bytes -= n * window.page.metadata;
        out->recent_bytes -= n * window.page.raw;
    }
}

lk_status check_counts(uint64_t n_tokens, uint32_t n_sequences, uint32_t step_tokens) {
    if (n_tokens && n_sequences && step_tokens)
        return LK_OK;
    return fail(LK_E_ARGUMENT, "%s is 0",
                !n_tokens      ? "n_tokens"
                : !n_sequences ? "n_sequences"
                               : "step_tokens");
}

uint64_t fixed_and_scores(const Plan &plan, uint64_t n_sequences, uint32_t step_tokens) {
    return fixed_bytes(plan, n_sequences, n_sequences * step_tokens) +
           n_sequences * sequence_stat_bytes(plan);
}

// Blocks of each chunk class, by lk_chunk_class - LK_CHUNK_LOW. Without reorder a chunk is one or
// several blocks; with it, chunks that do not fill a block are kept one class wider, at last at 16
// bits.
struct ChunkBlocks {
    uint64_t n[kChunkClasses];
};

ChunkBlocks chunk_blocks(const Plan &plan, const lk_chunk_mix &mix) {
    const uint64_t counts[] = {mix.n_low, mix.n_middle, mix.n_high};
    const uint32_t tokens = plan.chunks.tokens;
    const uint32_t block_chunks = tokens < plan.page_tokens ? plan.page_tokens / tokens : 1;
    const uint32_t blocks = tokens > plan.page_tokens ? tokens / plan.page_tokens : 1;
    ChunkBlocks out = {};
    uint64_t wider = 0;
    for (uint32_t c = 0; c < kChunkClasses; ++c) {
        const uint64_t n = counts[c] + wider;
        wider = n % block_chunks;
        out.n[c] = n / block_chunks * blocks;
    }
    return out;
}

// Adds the blocks of a chunk class of all sequences to what their cache holds.
void add_class(const SizeModel &model, uint64_t n_blocks, SlotCounts *slots, Sums *sums,
               lk_plan_size *out) {
    const uint64_t n = n_blocks * model.n_sequences;
    slots->add(model.packed_block, n);
    sums->values += n * model.page.values;
    sums->payload += n * model.page.payload;
    sums->metadata += n * model.page.metadata;
    sums->raw += n * model.page.raw;
    if (model.page.payload)
        out->n_blocks += static_cast<uint32_t>(lesser(n_blocks, UINT32_MAX));
}

uint64_t chunk_tokens(const Plan &plan, const lk_chunk_mix &mix) {
    return (uint64_t{mix.n_low} + mix.n_middle + mix.n_high) * plan.chunks.tokens;
}

lk_status check_mix(const Plan &plan, uint64_t n_tokens, const lk_chunk_mix &mix) {
    if (!plan.chunks.tokens)
        return fail(LK_E_ARGUMENT, "the plan has no chunks that a mix could be of");
    const uint64_t tokens = chunk_tokens(plan, mix);
    if (tokens && tokens + plan.sink_tokens > n_tokens)
        return fail(LK_E_ARGUMENT, "mix has %llu tokens of chunks after %u sinks, n_tokens is %llu",
                    static_cast<unsigned long long>(tokens), plan.sink_tokens,
                    static_cast<unsigned long long>(n_tokens));
    return LK_OK;
}

// What a budget counts, for sequences of n_tokens that were made by steps of step_tokens.
lk_status build_model(uint64_t n_tokens, uint32_t n_sequences, uint32_t step_tokens,
                      SizeModel *model) {
    const lk_status status = check_counts(n_tokens, n_sequences, step_tokens);
    if (status != LK_OK)
        return status;
    model->n_sequences = n_sequences;
    model->spare_bytes = spare_bytes(*model->plan);
    if (!build_size_model(*model->plan, model))
        return no_memory_for_sizes();
    return fits(*model, n_tokens, step_tokens) ? LK_OK : too_large("n_tokens", n_tokens);
}

// What sequences with a mix of classes hold: their sinks and blocks of classes, in model->classed.
struct ClassedState {
    uint64_t n_blocks;  // with a class, of one sequence
    uint64_t n_sinks;   // blocks of them, of one sequence
    uint64_t n_chunks;  // of one sequence
    Sums sums;          // of all blocks with a class
};

lk_status count_classed(const Plan &plan, uint64_t n_tokens, const lk_chunk_mix &mix,
                        SizeModel *model, ClassedState *state, lk_plan_size *out) {
    LK_TRY(check_mix(plan, n_tokens, mix));
    *state = {};
    state->n_sinks = lesser(block_count(plan, n_tokens), sink_blocks(plan));
    state->n_chunks = chunk_tokens(plan, mix) / plan.chunks.tokens;
    count_slots(*model, {state->n_sinks, 0, {}, n_tokens, false}, &model->classed);
    const ChunkBlocks classed = chunk_blocks(plan, mix);
    for (uint32_t c = 0; c < kChunkClasses; ++c) {
        const ModelOnHeap one(default_allocator(), plan, LK_CHUNK_LOW + c);
        if (!one.get())
            return no_memory_for_sizes();
        one.get()->n_sequences = model->n_sequences;
        if (!build_size_model(plan, one.get()))
            return no_memory_for_sizes();
        add_class(*one.get(), classed.n[c], &model->classed, &state->sums, out);
        state->n_blocks += classed.n[c];
    }
    return LK_OK;
}

// Blocks at 16 bits of a sequence whose classes are pending, while its context comes.
struct PendingBlocks {
    uint64_t n_held;  // while a step appends: chunks that wait, recent tokens and the step's own
    uint64_t n_laid;  // one more sequence's while its chunks are laid out next to the old blocks
};

// With reorder up to block_chunks - 1 chunks of each class, and of those that stay at 16 bits, wait
// for others; the last of them, with the tokens that share their block, are laid out anew, next to
// a block where tokens are collected.
PendingBlocks pending_blocks(const Plan &plan, uint32_t step_tokens) {
    const uint64_t chunk = plan.chunks.tokens;
    const uint64_t page = plan.page_tokens;
    const bool waits = plan.chunks.reorder && chunk < page;
    const uint64_t waiting = waits ? (kChunkClasses + 1) * (page - chunk) : 0;
    const uint64_t rest = waiting + plan.recent_tokens + std::max(chunk, page) - 1;
    return {ceil_div(rest + step_tokens, page), waits ? ceil_div(waiting, page) + 1 : 0};
}

}  // namespace

lk_status plan_chunk_bytes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                           uint32_t step_tokens, const lk_chunk_mix &mix, lk_plan_size *out) {
    const ModelOnHeap handle(default_allocator(), plan);
    if (!handle.get())
        return no_memory_for_sizes();
    SizeModel &model = *handle.get();
    ClassedState classed;
    LK_TRY(build_model(n_tokens, n_sequences, step_tokens, &model));
    LK_TRY(count_classed(plan, n_tokens, mix, &model, &classed, out));
    const uint64_t total = block_count(plan, n_tokens);
    const uint64_t sequences = n_sequences;
    const uint64_t n_raw = total - classed.n_sinks - classed.n_blocks;
    const Sums &sums = classed.sums;
    model.classed.add(model.recent_block, n_raw * sequences);
    out->payload_bytes = sums.payload;
    out->metadata_bytes = sums.metadata;
    out->recent_bytes = sums.raw + sequences * (sink_bytes(plan, classed.n_sinks) +
                                                n_raw * recent_block_bytes(plan));
    if (sums.values) {
        const auto bytes = static_cast<double>(sums.payload + sums.metadata + sums.raw);
        out->bits_per_value = bytes * 8 / static_cast<double>(sums.values);
        out->bytes_per_token =
            bytes / static_cast<double>(classed.n_blocks * sequences * plan.page_tokens);
    }
    out->fp16_bytes = n_tokens * sequences * fp16_token_bytes(plan);
    out->table_bytes = fixed_and_scores(plan, sequences, step_tokens) + block_tables(model, total) +
                       (classed.n_chunks ? sequences * chunks_bytes(classed.n_chunks) : 0);
    out->cache_bytes = out->table_bytes + model.classed.extents(model.families) * LK_EXTENT_BYTES +
                       spare_bytes(plan);
    return LK_OK;
}

lk_status plan_chunk_prefill_bytes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                                   uint32_t step_tokens, const lk_chunk_mix &mix, uint64_t *out) {
    const ModelOnHeap handle(default_allocator(), plan);
    if (!handle.get())
        return no_memory_for_sizes();
    SizeModel &model = *handle.get();
    ClassedState classed;
    lk_plan_size unused = {};
    LK_TRY(build_model(n_tokens, n_sequences, step_tokens, &model));
    LK_TRY(count_classed(plan, n_tokens, mix, &model, &classed, &unused));
    const uint64_t sequences = n_sequences;
    const uint64_t total = block_count(plan, n_tokens);
    const PendingBlocks pending = pending_blocks(plan, step_tokens);
    const uint64_t n_raw = std::max(pending.n_held, total - classed.n_sinks - classed.n_blocks);
    const uint64_t n_blocks = classed.n_sinks + classed.n_blocks + n_raw;
    model.classed.add(model.recent_block, n_raw * sequences + pending.n_laid);
    const uint64_t lists = (sequences + 1) * chunks_bytes(classed.n_chunks) +
                           sequences * pending_bytes(classed.n_chunks);
    const uint64_t tables = block_tables(model, n_blocks) + pending.n_laid * block_bytes(plan) +
                            table_capacity(n_blocks) * kLinkBytes;
    *out = fixed_and_scores(plan, sequences, step_tokens) + lists + tables +
           model.classed.extents(model.families) * LK_EXTENT_BYTES + spare_bytes(plan);
    return LK_OK;
}

namespace {

// The least budget without the fixed part: the worst of the spans between changes of rungs. *now is
// a copy of the plan, which the model refers to from then on; both end at the last rungs.
lk_status peak_over_rungs(const Replay &replay, const Array<RungChange> &changes, Plan *now,
                          SizeModel *model, uint64_t *peak) {
    uint64_t begin = 0;
    *peak = 0;
    for (size_t c = 0; c < changes.size();) {
        const uint64_t end = changes[c].step;
        if (end > begin)
            *peak = std::max(*peak, peak_bytes(model, replay, {begin, end}));
        for (; c < changes.size() && changes[c].step == end; ++c) {
            LayerPlan &layer = now->layers[changes[c].layer];
            layer.rung = layer.rungs[changes[c].rung];
        }
        model->plan = now;
        if (!build_size_model(*now, model))
            return no_memory_for_sizes();
        begin = end;
    }
    *peak = std::max(*peak, peak_bytes(model, replay, {begin, replay.n_steps()}));
    return LK_OK;
}

}  // namespace

lk_status check_sizes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                      uint32_t step_tokens) {
    const ModelOnHeap handle(default_allocator(), plan);
    return handle.get() ? build_model(n_tokens, n_sequences, step_tokens, handle.get())
                        : no_memory_for_sizes();
}

lk_status cache_bytes(const Plan &plan, uint32_t flags, uint64_t n_tokens, uint32_t n_sequences,
                      uint32_t step_tokens, lk_plan_size *out) {
    const bool keeps_windowed = flags & LK_CACHE_KEEP_WINDOWED;
    const ModelOnHeap handle(default_allocator(), plan, lk_chunk_class{LK_CHUNK_NONE},
                             keeps_windowed);
    if (!handle.get())
        return no_memory_for_sizes();
    SizeModel &model = *handle.get();
    const Replay replay = {n_tokens, n_sequences, step_tokens};
    LK_TRY(build_model(n_tokens, n_sequences, step_tokens, &model));
    Array<RungChange> changes(default_allocator());
    LK_TRY(list_rung_changes(plan, keeps_windowed, replay, &changes));
    Plan now;
    if (!changes.empty() && !copy_plan(plan, &now))
        return no_memory_for_sizes();
    uint64_t peak = 0;
    LK_TRY(peak_over_rungs(replay, changes, &now, &model, &peak));
    const uint64_t fixed = fixed_and_scores(plan, n_sequences, step_tokens);
    const ReplayBlocks last = blocks_after(plan, replay.step(replay.n_steps() - 1));
    fill_rates(model, out);
    fill_state(model, last, n_tokens, out);
    out->fp16_bytes = n_tokens * n_sequences * fp16_token_bytes(plan);
    out->table_bytes = fixed + block_tables(model, last.total);
    out->cache_bytes = fixed + peak;
    return LK_OK;
}

}  // namespace lk
