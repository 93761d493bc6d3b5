// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

#include "base/signals.h"
#include "core/cache_layout.h"
#include "core/context/context.h"
#include "core/memory/block_slots.h"
#include "core/memory/reserve.h"
#include "core/pages/formats.h"
#include "core/pages/parameters.h"
#include "core/pages/work_queues.h"
#include "core/sequence/sequence.h"
#include "core/step/faults.h"
#include "core/step/step.h"

namespace lk {

namespace {

constexpr uint32_t kMaxSequences = 65536;
constexpr uint32_t kMaxStepTokens = 1048576;
constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 40;
constexpr size_t kOldestDesc = offsetof(lk_cache_desc, state_bytes);
constexpr size_t kOldestStats = offsetof(lk_cache_stats, state_bytes);

void set_defaults(lk_cache_desc *desc) {
    desc->max_sequences = 1;
    desc->max_step_tokens = 512;
    desc->state_interval_tokens = 64;
}

lk_status check_desc(const lk_cache_desc &desc) {
    if (desc.max_sequences < 1 || desc.max_sequences > kMaxSequences)
        return fail(LK_E_ARGUMENT, "cache_desc.max_sequences is %u, not 1 to %u",
                    desc.max_sequences, kMaxSequences);
    if (desc.max_step_tokens < 1 || desc.max_step_tokens > kMaxStepTokens)
        return fail(LK_E_ARGUMENT, "cache_desc.max_step_tokens is %u, not 1 to %u",
                    desc.max_step_tokens, kMaxStepTokens);
    if (desc.flags & ~kCacheFlags)
        return fail(LK_E_ARGUMENT, "cache_desc.flags is 0x%x, known bits are 0x%x", desc.flags,
                    kCacheFlags);
    if (desc.max_budget_bytes && desc.max_budget_bytes < desc.budget_bytes)
        return fail(LK_E_ARGUMENT, "cache_desc.max_budget_bytes is %llu, budget_bytes is %llu",
                    ull{desc.max_budget_bytes}, ull{desc.budget_bytes});
    if (desc.slab_bytes % LK_EXTENT_BYTES || desc.slab_bytes > kMaxSlabBytes)
        return fail(LK_E_ARGUMENT, "cache_desc.slab_bytes is %llu, not a multiple of %u up to %llu",
                    ull{desc.slab_bytes}, LK_EXTENT_BYTES, ull{kMaxSlabBytes});
    return LK_OK;
}

bool has_ladder(const Plan &plan) {
    for (const LayerPlan &layer : plan.layers)
        if (layer.n_rungs)
            return true;
    return false;
}

lk_status reserve_work(lk_cache *cache) {
    const bool ranks = cache->formats.n_ranked_channels != 0;
    const uint32_t n_sequences = cache->desc.max_sequences;
    const bool fits =
        cache->sequences.list.reserve(n_sequences) && cache->step.sequences.reserve(n_sequences) &&
        cache->step.views.reserve(n_sequences) &&
        cache->step.parents.reserve(cache->desc.max_step_tokens) &&
        cache->step.reaches.reserve(cache->desc.max_step_tokens) && cache->work.reserve(ranks) &&
        (!has_ladder(cache->plan.model) || cache->shrinking.reserve(cache->formats.table.size())) &&
        (!ranks || cache->stat_queue.reserve(kBatch)) && cache->states.reserve(n_sequences) &&
        cache->step.layers.resize(cache->formats.layers.size());
    return fits ? LK_OK : fail(LK_E_NOMEM, "no memory for the lists of a cache");
}

lk_status take_workspace(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    const uint64_t fixed =
        fixed_bytes(plan, cache->desc.max_sequences, cache->desc.max_step_tokens);
    const uint64_t least = fixed + first_token_bytes(cache);
    if (least > cache->desc.budget_bytes)
        return fail(
            LK_E_BUDGET,
            "the budget of %llu bytes is short of %llu bytes: tables, workspace and a sequence's "
            "first token need %llu",
            ull{cache->desc.budget_bytes}, ull{least - cache->desc.budget_bytes}, ull{least});
    const uint64_t bytes = workspace_bytes(plan, cache->desc.max_step_tokens);
    LK_TRY(cache->context->backend->slab_create(bytes, &cache->step.workspace));
    cache->ledger.limit_bytes = cache->desc.budget_bytes;
    cache->ledger.spare_bytes = spare_bytes(plan);
    cache->ledger.table_bytes = fixed;
    cache->statistics.counts.workspace_bytes = bytes;
    return LK_OK;
}

lk_status fill_cache(lk_cache *cache, const Array<lk_layer> &layers, const Plan &plan) {
    if (!copy_plan(plan, &cache->plan.model))
        return fail(LK_E_NOMEM, "no memory for the cache's copy of the plan");
    lk_status status =
        build_formats(cache->plan.model, layers, cache->context->allocator, &cache->formats);
    if (!status)
        status = copy_parameters(cache->plan.model, &cache->formats);
    if (!status)
        status = make_layer_budgets(cache);
    if (!status)
        status = count_block_slots(cache);
    if (!status)
        status = check_support(*cache);
    if (!status)
        status = open_states(cache->desc, &cache->states);
    cache->desc.state_bytes = nullptr;  // the caller's
    if (!status)
        status = reserve_work(cache);
    if (!status)
        status = take_workspace(cache);
    if (!status)
        status = open_device(cache);
    return status;
}

void free_cache(lk_cache *cache) {
    lk_context *context = cache->context;
    if (cache->step.is_open)
        drop_step(cache);
    for (Sequence *sequence : cache->sequences)
        free_sequence(cache, sequence);
    if (cache->device)
        context->backend->cache_close(cache->device);
    close_states(cache);
    if (cache->step.workspace.address)
        context->backend->slab_destroy(cache->step.workspace);
    destroy(context->allocator, cache);
}

lk_status create_cache(lk_context *context, const lk_geometry *geometry, const lk_plan *plan,
                       const lk_cache_desc *from, lk_cache **out) {
    lk_cache_desc desc{};
    LK_TRY(import_cache_desc(from, &desc));
    LK_TRY(check_desc(desc));
    if (!desc.max_budget_bytes)
        desc.max_budget_bytes = desc.budget_bytes;
    if (!plan)
        return fail(LK_E_ARGUMENT, "plan is NULL");
    Array<lk_layer> layers(context->allocator);
    LK_TRY(import_geometry(geometry, &layers));
    LK_TRY(validate_plan(plan->model));
    LK_TRY(compare_geometry(plan->model, layers));
    lk_cache *cache = create<lk_cache>(context->allocator, context, desc);
    if (!cache)
        return fail(LK_E_NOMEM, "no memory for a cache of %zu bytes", sizeof *cache);
    lk_status status = fill_cache(cache, layers, plan->model);
    if (status) {
        free_cache(cache);
        return status;
    }
    add_cache(context);
    publish(cache);
    log_line(*context, LK_LOG_INFO, "cache of %zu layers with plan %s and a budget of %llu bytes",
             cache->formats.layers.size(), cache->plan.model.name, ull{desc.budget_bytes});
    *out = cache;
    return LK_OK;
}

}  // namespace

lk_status import_cache_desc(const lk_cache_desc *from, lk_cache_desc *out) {
    *out = {};
    set_defaults(out);
    return import_struct(out, sizeof *out, kOldestDesc, from, "cache_desc");
}

lk_status enter_cache(const lk_cache &cache) {
    const uint32_t generation = cache.context->generation.load(std::memory_order_acquire);
    if (cache.generation.load(std::memory_order_acquire) != generation) {
        const std::lock_guard<std::mutex> lock(cache.context->children);
        if (cache.generation.load() != generation) {
            cache.is_torn = cache.is_torn || cache.n_calls;
            cache.n_calls = 0;
            cache.statistics.enter_child();
            cache.device->enter_child();
            cache.generation.store(generation, std::memory_order_release);
        }
    }
    return cache.is_torn ? fail(LK_E_DEVICE,
                                "this process was made by fork() while another thread was in a "
                                "call on the cache, whose copy here is incomplete: destroy it")
                         : LK_OK;
}

void publish(lk_cache *cache) {
    lk_cache_stats &stats = cache->statistics.counts;
    stats.size = sizeof stats;
    stats.n_sequences = static_cast<uint32_t>(cache->sequences.size());
    stats.budget_bytes = cache->ledger.limit_bytes;
    stats.reserved_bytes = cache->ledger.used_bytes();
    stats.state_bytes = cache->states.used_bytes;
    stats.table_bytes = cache->ledger.table_bytes - stats.workspace_bytes - stats.state_bytes;
    stats.free_bytes = cache->slots.slab_bytes() - cache->slots.slot_bytes();
    stats.fragmented_bytes = cache->ledger.extent_bytes - cache->slots.slot_bytes();
    stats.device_bytes = cache->device->fixed_bytes();
    cache->statistics.publish();
}

}  // namespace lk

extern "C" lk_status lk_cache_desc_init(lk_cache_desc *desc, size_t struct_bytes) {
    lk_cache_desc defaults{};
    lk::set_defaults(&defaults);
    return lk::init_with(desc, struct_bytes, lk::kOldestDesc, defaults, "cache_desc");
}

extern "C" lk_status lk_cache_stats_init(lk_cache_stats *stats, size_t struct_bytes) {
    return lk::init_struct(stats, struct_bytes, lk::kOldestStats, "cache_stats");
}

extern "C" lk_status lk_cache_create(lk_context *context, const lk_geometry *geometry,
                                     const lk_plan *plan, const lk_cache_desc *desc,
                                     lk_cache **out) {
    if (!out)
        return lk::logged(context, lk::fail(LK_E_ARGUMENT, "out is NULL"));
    *out = nullptr;
    // Drivers start threads with the first memory and the first work.
    const lk::SignalBlock block;
    const lk_status status = lk::on_context(
        context, [&] { return lk::create_cache(context, geometry, plan, desc, out); });
    return lk::logged(context, status);
}

// A torn cache stays in this process's memory: its lists may lead anywhere.
extern "C" void lk_cache_destroy(lk_cache **cache) {
    if (!cache || !*cache)
        return;
    lk_cache *owned = *cache;
    lk_context *context = owned->context;
    const lk::Call call(*context);
    if (!context->is_torn)
        (void)lk::enter_cache(*owned);
    if (!context->is_torn && !owned->is_torn)
        lk::free_cache(owned);
    lk::drop_cache(context);
    *cache = nullptr;
}

extern "C" lk_status lk_cache_get_stats(const lk_cache *cache, lk_cache_stats *stats) {
    return lk::read_cache(cache, [&] {
        lk_cache_stats now = cache->statistics.read();
        lk::DataReport report{};
        cache->device->report(&report);
        now.values_saturated = report.n_saturated;
        return lk::export_struct(stats, &now, sizeof now, lk::kOldestStats, "stats");
    });
}

extern "C" const lk_plan *lk_cache_plan(const lk_cache *cache) {
    return cache ? &cache->plan : nullptr;
}

extern "C" lk_status lk_cache_poll(const lk_cache *cache) {
    return lk::read_cache(cache, [&] {
        lk::DataReport report{};
        cache->device->report(&report);
        return lk::has_fault(report) ? lk::fail_data(report) : LK_OK;
    });
}
