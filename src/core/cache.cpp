// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

constexpr uint32_t kMaxSequences = 65536;
constexpr uint32_t kMaxStepTokens = 1048576;
constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 40;

void set_defaults(lk_cache_desc *desc) {
    desc->max_sequences = 1;
    desc->max_step_tokens = 512;
}

lk_status check_desc(const lk_cache_desc &desc) {
    if (desc.max_sequences < 1 || desc.max_sequences > kMaxSequences)
        return fail(LK_E_ARGUMENT, "cache_desc.max_sequences is %u, not 1 to %u",
                    desc.max_sequences, kMaxSequences);
    if (desc.max_step_tokens < 1 || desc.max_step_tokens > kMaxStepTokens)
        return fail(LK_E_ARGUMENT, "cache_desc.max_step_tokens is %u, not 1 to %u",
                    desc.max_step_tokens, kMaxStepTokens);
    if (desc.flags & ~uint32_t{LK_CACHE_EVICT})
        return fail(LK_E_ARGUMENT, "cache_desc.flags is 0x%x, not 0 or LK_CACHE_EVICT, %u",
                    desc.flags, LK_CACHE_EVICT);
    if (desc.max_budget_bytes && desc.max_budget_bytes < desc.budget_bytes)
        return fail(LK_E_ARGUMENT, "cache_desc.max_budget_bytes is %llu, budget_bytes is %llu",
                    ull{desc.max_budget_bytes}, ull{desc.budget_bytes});
    if (desc.slab_bytes % LK_EXTENT_BYTES || desc.slab_bytes > kMaxSlabBytes)
        return fail(LK_E_ARGUMENT, "cache_desc.slab_bytes is %llu, not a multiple of %u up to %llu",
                    ull{desc.slab_bytes}, LK_EXTENT_BYTES, ull{kMaxSlabBytes});
    return LK_OK;
}

// Every pair of widths that a head's pages hold.
lk_status check_head(const lk_context &context, lk_capability asked, const PageLayout &key,
                     const PageLayout &value) {
    for (uint32_t k = 0; k < kPlaneCount; ++k) {
        if (!key.strips[k])
            continue;
        for (uint32_t v = 0; v < kPlaneCount; ++v) {
            if (!value.strips[v])
                continue;
            asked.key_bits = kPlaneBits[k];
            asked.value_bits = kPlaneBits[v];
            const lk_status status = context.backend->supports(asked);
            if (status)
                return status;
        }
    }
    return LK_OK;
}

// By the layer's ladder and by chunks.
lk_status check_lower(const lk_cache &cache, const EntryInfo &entry, const lk_capability &asked) {
    const Plan &plan = cache.plan.model;
    const uint32_t n_rungs = plan.layers[entry.layer].n_rungs;
    const auto check = [&](uint16_t key, uint16_t value) {
        return check_head(*cache.context, asked, cache.classes[key].layout,
                          cache.classes[value].layout);
    };
    lk_status status = LK_OK;
    for (uint32_t r = 0; !status && r < n_rungs; ++r)
        status = check(entry.key.rung_format[r], entry.value.rung_format[r]);
    for (uint32_t c = 0; plan.chunks.tokens && c < kChunkClasses; ++c)
        for (uint32_t r = 0; !status && r < (n_rungs ? n_rungs : 1u); ++r)
            status = check(entry.key.chunk_class[c][r], entry.value.chunk_class[c][r]);
    return status;
}

lk_status check_support(const lk_cache &cache) {
    lk_capability asked{};
    asked.size = sizeof asked;
    asked.page_tokens = cache.plan.model.page_tokens;
    asked.memory = memory_of(cache.context->desc.backend);
    asked.dtype = LK_F32;
    asked.queue = queue_of(cache.context->desc.backend);
    for (const EntryInfo &entry : cache.entries) {
        const LayerView &layer = cache.layers[entry.layer].view;
        asked.head_dim = layer.head_dim;
        asked.group_size = layer.n_query_heads / layer.n_kv_heads;
        const lk_status status =
            check_head(*cache.context, asked, cache.classes[entry.key.packed_class].layout,
                       cache.classes[entry.value.packed_class].layout);
        if (status)
            return status;
        const lk_status lower = check_lower(cache, entry, asked);
        if (lower)
            return lower;
    }
    return LK_OK;
}

// For ladders; class_changes are zeros between two uses.
bool reserve_shrinking(lk_cache *cache) {
    bool has_ladder = false;
    for (const LayerPlan &layer : cache->plan.model.layers)
        has_ladder = has_ladder || layer.n_rungs;
    return !has_ladder ||
           (cache->shrinks.reserve(kBatch) && cache->shrunk_rows.reserve(kBatch) &&
            cache->moved_halves.reserve(kBatch) && cache->left_slots.reserve(kBatch) &&
            cache->class_changes.resize(cache->classes.size()));
}

lk_status reserve_work(lk_cache *cache) {
    const bool ranks = cache->n_ranked_channels != 0;
    const bool fits = cache->packs.reserve(kBatch) && cache->reopens.reserve(kBatch) &&
                      cache->moves.reserve(kBatch) && reserve_shrinking(cache) &&
                      (!ranks || cache->query_stats.reserve(kScoreBatch)) &&
                      (!ranks || cache->sums.reserve(kBatch)) &&
                      cache->step.layers.resize(cache->layers.size());
    return fits ? LK_OK : fail(LK_E_NOMEM, "no memory for the lists of a cache");
}

lk_status take_workspace(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    const uint64_t fixed =
        fixed_bytes(plan, cache->desc.max_sequences, cache->desc.max_step_tokens);
    const uint64_t least = fixed + first_token_bytes(cache);
    if (least > cache->desc.budget_bytes)
        return fail(LK_E_BUDGET,
                    "the budget of %llu bytes lacks %llu bytes: tables, workspace and a sequence's "
                    "first token need %llu",
                    ull{cache->desc.budget_bytes}, ull{least - cache->desc.budget_bytes},
                    ull{least});
    const uint64_t bytes = workspace_bytes(plan, cache->desc.max_step_tokens);
    const lk_status status = cache->context->backend->slab_create(bytes, &cache->workspace);
    if (status)
        return status;
    cache->ledger.limit_bytes = cache->desc.budget_bytes;
    cache->ledger.spare_bytes = spare_bytes(plan);
    cache->ledger.table_bytes = fixed;
    cache->stats.workspace_bytes = bytes;
    return LK_OK;
}

uint64_t slot_bytes_of(const Array<SlotCount> &counts) {
    uint64_t bytes = 0;
    for (const SlotCount &count : counts)
        bytes += count.n * count.slot_bytes;
    return bytes;
}

// Slots of a row of chunks of the lowest class.
uint64_t lowest_chunks_row(const lk_cache &cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &entry : cache.entries) {
        const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
        for (const HalfInfo *half : {&entry.key, &entry.value}) {
            const uint16_t last = half->chunk_class[0][n_rungs ? n_rungs - 1 : 0];
            const PageLayout &layout = cache.classes[last].layout;
            bytes += slot_bytes(payload_bytes(layout)) + slot_bytes(metadata_bytes(layout));
        }
    }
    return bytes;
}

// Slots of a row whose layers are at the last rungs of their ladders.
uint64_t narrowest_row(const lk_cache &cache) {
    uint64_t bytes = 0;
    for (const EntryInfo &entry : cache.entries) {
        const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
        for (const HalfInfo *half : {&entry.key, &entry.value}) {
            const uint16_t last = n_rungs ? half->rung_format[n_rungs - 1] : half->packed_class;
            bytes += slot_bytes(payload_bytes(cache.classes[last].layout));
            bytes += half->packs() ? half->metadata_slot() : half->slots.recent_metadata;
        }
    }
    const bool has_chunks = cache.plan.model.chunks.tokens != 0;
    const uint64_t lowest = has_chunks ? lowest_chunks_row(cache) : bytes;
    return lowest < bytes ? lowest : bytes;
}

// What most pages of a half will be, as far as the plan tells.
uint16_t common_class(const lk_cache &cache, const HalfInfo &half) {
    return cache.plan.model.chunks.tokens && !half.packs() ? half.chunk_class[0][0]
                                                           : half.packed_class;
}

bool same_order(const PageFormat &a, const PageFormat &b) {
    return a.permutation && b.permutation
               ? std::equal(a.permutation, a.permutation + a.layout.head_dim, b.permutation)
               : a.permutation == b.permutation;
}

// Rungs keep the order of a head's channels. Classes of chunks have their own.
uint16_t ordered_class(const lk_cache &cache, const EntryInfo &entry) {
    const HalfInfo &half = entry.key;
    const uint32_t n_rungs = cache.plan.model.layers[entry.layer].n_rungs;
    uint16_t ordered = half.packed_class;
    bool differ = false;
    const auto add = [&](uint16_t page_format) {
        const PageFormat &next = cache.classes[page_format];
        if (next.layout.is_raw())
            return;
        if (cache.classes[ordered].layout.is_raw())
            ordered = page_format;
        differ = differ || !same_order(cache.classes[ordered], next);
    };
    for (uint32_t r = 0; r < n_rungs; ++r)
        add(half.rung_format[r]);
    if (cache.plan.model.chunks.tokens)
        for (const uint16_t(&classes)[kMaxRungs] : half.chunk_class)
            for (uint32_t r = 0; r < (n_rungs ? n_rungs : 1); ++r)
                add(classes[r]);
    return differ ? kNoFormat : ordered;
}

// Rows that the budget holds at most: each takes its table and the slots of the smallest kind,
// which windows may leave without any.
uint64_t most_rows(const lk_cache &cache) {
    uint64_t least = narrowest_row(cache);
    for (const LayerPlan &layer : cache.plan.model.layers)
        if (frees_hidden_pages(cache.plan.model, layer.geometry))
            least = 0;
    for (const Array<SlotCount> *counts :
         {&cache.recent_count, &cache.sink_count, &cache.last_sink_count}) {
        const uint64_t bytes = slot_bytes_of(*counts);
        least = bytes && bytes < least ? bytes : least;
    }
    const uint64_t left = cache.desc.max_budget_bytes - cache.ledger.table_bytes;
    const uint64_t n = left / (block_bytes(cache.plan.model) + least);
    return n < 1 ? 1 : n < UINT32_MAX ? n : UINT32_MAX;
}

// Rows that a step lists at most, where sequences share them: 32 Mi tokens at 128 a page, unless
// the budget holds more.
uint64_t most_step_rows(const lk_cache &cache, uint64_t n_rows) {
    constexpr uint64_t kShared = uint64_t{1} << 18;
    const uint64_t all = n_rows * cache.desc.max_sequences;
    return all < kShared ? all : n_rows > kShared ? n_rows : kShared;
}

lk_status open_device(lk_cache *cache) {
    const size_t n_layers = cache->layers.size();
    if (!cache->layer_views.reserve(n_layers) || !cache->first_entries.reserve(n_layers) ||
        !cache->entry_formats.reserve(cache->entries.size()))
        return fail(LK_E_NOMEM, "no memory for the lists of a cache");
    for (const LayerInfo &layer : cache->layers) {
        cache->layer_views.push(layer.view);
        cache->first_entries.push(layer.first_entry);
    }
    for (const EntryInfo &entry : cache->entries)
        cache->entry_formats.push({entry.key.recent_class, common_class(*cache, entry.key),
                                   entry.value.recent_class, common_class(*cache, entry.value),
                                   ordered_class(*cache, entry)});
    CacheLayout layout{};
    layout.formats = cache->classes.data();
    layout.n_formats = static_cast<uint32_t>(cache->classes.size());
    layout.layers = cache->layer_views.data();
    layout.first_entries = cache->first_entries.data();
    layout.n_layers = static_cast<uint32_t>(n_layers);
    layout.n_entries = static_cast<uint32_t>(cache->entries.size());
    layout.entry_formats = cache->entry_formats.data();
    layout.layer_formats = cache->layer_formats.data();
    layout.page_tokens = cache->plan.model.page_tokens;
    layout.sink_tokens = cache->plan.model.sink_tokens;
    layout.max_sequences = cache->desc.max_sequences;
    layout.max_step_tokens = cache->desc.max_step_tokens;
    layout.max_blocks = most_rows(*cache);
    layout.max_step_blocks = most_step_rows(*cache, layout.max_blocks);
    layout.n_ranked_channels = cache->n_ranked_channels;
    const lk_status status = cache->context->backend->cache_open(layout, &cache->device);
    cache->sums.use(cache->device);
    return status;
}

lk_status fill_cache(lk_cache *cache, const Array<lk_layer> &layers, const Plan &plan) {
    if (!copy_plan(plan, &cache->plan.model))
        return fail(LK_E_NOMEM, "no memory for the cache's copy of the plan");
    lk_status status = build_classes(cache, layers);
    if (!status)
        status = check_support(*cache);
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
    if (cache->workspace.address)
        context->backend->slab_destroy(cache->workspace);
    destroy(context->allocator, cache);
}

lk_status create_cache(lk_context *context, const lk_geometry *geometry, const lk_plan *plan,
                       const lk_cache_desc *from, lk_cache **out) {
    lk_cache_desc desc{};
    set_defaults(&desc);
    lk_status status = import_struct(&desc, sizeof desc, sizeof desc, from, "cache_desc");
    if (!status)
        status = check_desc(desc);
    if (status)
        return status;
    if (!desc.max_budget_bytes)
        desc.max_budget_bytes = desc.budget_bytes;
    if (!plan)
        return fail(LK_E_ARGUMENT, "plan is NULL");
    Array<lk_layer> layers(context->allocator);
    status = import_geometry(geometry, &layers);
    if (!status)
        status = validate_plan(plan->model);
    if (!status)
        status = compare_geometry(plan->model, layers);
    if (status)
        return status;
    lk_cache *cache = create<lk_cache>(context->allocator, context, desc);
    if (!cache)
        return fail(LK_E_NOMEM, "no memory for a cache of %zu bytes", sizeof *cache);
    status = fill_cache(cache, layers, plan->model);
    if (status) {
        free_cache(cache);
        return status;
    }
    add_cache(context);
    publish(cache);
    log_line(*context, LK_LOG_INFO, "cache of %zu layers with plan %s and a budget of %llu bytes",
             cache->layers.size(), cache->plan.model.name, ull{desc.budget_bytes});
    *out = cache;
    return LK_OK;
}

}  // namespace

void publish(lk_cache *cache) {
    lk_cache_stats &stats = cache->stats;
    stats.size = sizeof stats;
    stats.n_sequences = static_cast<uint32_t>(cache->sequences.size());
    stats.budget_bytes = cache->ledger.limit_bytes;
    stats.reserved_bytes = cache->ledger.used_bytes();
    stats.table_bytes = cache->ledger.table_bytes - stats.workspace_bytes;
    stats.free_bytes = cache->slots.slab_bytes() - cache->slots.slot_bytes();
    stats.fragmented_bytes = cache->ledger.extent_bytes - cache->slots.slot_bytes();
    stats.device_bytes = cache->device->fixed_bytes();
    const std::lock_guard<std::mutex> lock(cache->published_mutex);
    cache->published = stats;
}

}  // namespace lk

extern "C" lk_status lk_cache_desc_init(lk_cache_desc *desc, size_t struct_bytes) {
    const lk_status status =
        lk::init_struct(desc, struct_bytes, sizeof(lk_cache_desc), "cache_desc");
    if (!status)
        lk::set_defaults(desc);
    return status;
}

extern "C" lk_status lk_cache_stats_init(lk_cache_stats *stats, size_t struct_bytes) {
    return lk::init_struct(stats, struct_bytes, sizeof(lk_cache_stats), "cache_stats");
}

extern "C" lk_status lk_cache_create(lk_context *context, const lk_geometry *geometry,
                                     const lk_plan *plan, const lk_cache_desc *desc,
                                     lk_cache **out) {
    if (!out)
        return lk::logged(context, lk::fail(LK_E_ARGUMENT, "out is NULL"));
    *out = nullptr;
    if (!context)
        return lk::fail(LK_E_ARGUMENT, "context is NULL");
    return lk::logged(context, lk::create_cache(context, geometry, plan, desc, out));
}

extern "C" void lk_cache_destroy(lk_cache **cache) {
    if (!cache || !*cache)
        return;
    lk_context *context = (*cache)->context;
    lk::free_cache(*cache);
    lk::drop_cache(context);
    *cache = nullptr;
}

extern "C" lk_status lk_cache_get_stats(const lk_cache *cache, lk_cache_stats *stats) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    lk_cache_stats now;
    {
        const std::lock_guard<std::mutex> lock(cache->published_mutex);
        now = cache->published;
    }
    lk::DataReport report{};
    cache->device->report(&report);
    now.values_saturated = report.n_saturated;
    return lk::export_struct(stats, &now, sizeof now, sizeof now, "stats");
}

extern "C" const lk_plan *lk_cache_plan(const lk_cache *cache) {
    return cache ? &cache->plan : nullptr;
}

extern "C" lk_status lk_cache_poll(const lk_cache *cache) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    lk::DataReport report{};
    cache->device->report(&report);
    return lk::has_fault(report) ? lk::fail_data(report) : LK_OK;
}
