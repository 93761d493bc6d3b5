// The table of half page classes, and what follows from the plan for every entry of a row.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

#include <cmath>

namespace lk {

bool same_layout(const PageLayout &a, const PageLayout &b) {
    return a.side == b.side && a.axis == b.axis && a.metadata == b.metadata &&
           a.permutes == b.permutes && a.head_dim == b.head_dim && a.page_tokens == b.page_tokens &&
           a.group == b.group && a.n_shared == b.n_shared &&
           std::memcmp(a.strips, b.strips, sizeof a.strips) == 0;
}

namespace {

bool same_permutation(const uint8_t *a, const uint8_t *b, uint32_t n) {
    return a && b ? std::memcmp(a, b, n) == 0 : a == b;
}

// While the table grows, permutations are found by this index: their bytes may move.
struct Builder {
    lk_cache *cache;
    Array<uint32_t> permutation_of;  // offset in lk_cache::permutations, kNoSize for none

    const uint8_t *permutation(size_t i) const {
        return permutation_of[i] == kNoSize ? nullptr
                                            : cache->permutations.data() + permutation_of[i];
    }
    lk_status add(const PageFormat &wanted, uint16_t *index);
    lk_status add_raw(Side side, uint32_t head_dim, uint32_t tokens, uint16_t *index);
};

lk_status no_memory() { return fail(LK_E_NOMEM, "no memory for the table of page classes"); }

lk_status Builder::add(const PageFormat &wanted, uint16_t *index) {
    Array<PageFormat> &classes = cache->classes;
    const uint32_t n = wanted.layout.head_dim;
    for (size_t i = 0; i < classes.size(); ++i)
        if (same_layout(classes[i].layout, wanted.layout) && classes[i].ranking == wanted.ranking &&
            classes[i].n_ranked == wanted.n_ranked && classes[i].ranges == wanted.ranges &&
            same_permutation(permutation(i), wanted.permutation, n)) {
            *index = static_cast<uint16_t>(i);
            return LK_OK;
        }
    if (classes.size() > UINT16_MAX)
        return fail(LK_E_UNSUPPORTED, "the plan has more than %u kinds of pages", UINT16_MAX + 1u);
    const size_t offset = cache->permutations.size();
    if (wanted.permutation) {
        if (!cache->permutations.resize(offset + n))
            return no_memory();
        std::memcpy(cache->permutations.data() + offset, wanted.permutation, n);
    }
    if (!classes.push(wanted) ||
        !permutation_of.push(wanted.permutation ? static_cast<uint32_t>(offset) : kNoSize))
        return no_memory();
    *index = static_cast<uint16_t>(classes.size() - 1);
    return LK_OK;
}

lk_status Builder::add_raw(Side side, uint32_t head_dim, uint32_t tokens, uint16_t *index) {
    return add({raw_layout(side, head_dim, tokens), nullptr, Ranking::kNone, 0}, index);
}

Ranking ranking_of(const KeyFormat &key) {
    return !key.boosted_channels   ? Ranking::kNone
           : ranks_by_queries(key) ? Ranking::kQueryRange
                                   : Ranking::kKey;
}

// The classes of a half at a rung.
lk_status add_key(Builder *builder, uint32_t layer, uint32_t head, uint32_t rung, EntryInfo *info,
                  uint16_t *index) {
    KeyFormat key;
    resolve_key_at(builder->cache->plan.model, layer, head, rung, &key);
    if (key.raw) {
        *index = info->key.recent_class;
        return LK_OK;
    }
    info->ranks_by_queries = info->ranks_by_queries || ranks_by_queries(key);
    return builder->add({key.layout, key.has_permutation ? key.permutation : nullptr,
                         ranking_of(key), key.boosted_channels, key.ranges},
                        index);
}

lk_status add_value(Builder *builder, uint32_t layer, uint32_t head, uint32_t rung,
                    const EntryInfo &info, uint16_t *index) {
    ValueFormat value;
    resolve_value_at(builder->cache->plan.model, layer, head, rung, &value);
    *index = info.value.recent_class;
    return value.raw
               ? LK_OK
               : builder->add({value.layout, nullptr, Ranking::kNone, 0, value.ranges}, index);
}

// The classes of rows of chunks.
lk_status add_chunk_classes(Builder *builder, uint32_t layer, uint32_t head, EntryInfo *info) {
    const Plan &plan = builder->cache->plan.model;
    const LayerPlan &own = plan.layers[layer];
    const uint32_t n_rungs = own.n_rungs ? own.n_rungs : 1;
    lk_status status = LK_OK;
    for (uint32_t c = 0; plan.chunks.tokens && c < kChunkClasses; ++c)
        for (uint32_t r = 0; !status && r < n_rungs; ++r) {
            const uint32_t rung = own.n_rungs ? own.rungs[r] : kNoRung;
            const uint32_t cap = width_cap(rung, plan.chunks.bits[c]);
            status = add_key(builder, layer, head, cap, info, &info->key.chunk_class[c][r]);
            if (!status)
                status =
                    add_value(builder, layer, head, cap, *info, &info->value.chunk_class[c][r]);
        }
    return status;
}

lk_status add_entry(Builder *builder, uint32_t layer, uint32_t head) {
    lk_cache *cache = builder->cache;
    const Plan &plan = cache->plan.model;
    const LayerPlan &own = plan.layers[layer];
    const uint32_t head_dim = own.geometry.head_dim;
    EntryInfo info{};
    info.layer = layer;
    info.kv_head = head;
    info.key.slots = key_slots(plan, layer, head);
    info.value.slots = value_slots(plan, layer, head);
    lk_status status =
        builder->add_raw(Side::kKey, head_dim, plan.page_tokens, &info.key.recent_class);
    if (!status)
        status =
            builder->add_raw(Side::kValue, head_dim, plan.page_tokens, &info.value.recent_class);
    if (!status)
        status = add_key(builder, layer, head, own.rung, &info, &info.key.packed_class);
    if (!status)
        status = add_value(builder, layer, head, own.rung, info, &info.value.packed_class);
    for (uint32_t r = 0; !status && r < own.n_rungs; ++r) {
        status = add_key(builder, layer, head, own.rungs[r], &info, &info.key.rung_format[r]);
        if (!status)
            status =
                add_value(builder, layer, head, own.rungs[r], info, &info.value.rung_format[r]);
    }
    if (!status)
        status = add_chunk_classes(builder, layer, head, &info);
    if (status)
        return status;
    if (info.ranks_by_queries) {
        LayerInfo &own_info = cache->layers[layer];
        info.score_offset = cache->n_ranked_channels;
        if (!own_info.ranks_by_queries)
            own_info.score_offset = info.score_offset;
        cache->n_ranked_channels += head_dim;
        own_info.n_ranked_channels += head_dim;
        own_info.ranks_by_queries = true;
    }
    return cache->entries.push(info) ? LK_OK : no_memory();
}

// The classes after each step, which may be ones that no page is packed at: a page keeps the order
// of its slots while it shrinks.
lk_status add_shrunk(Builder *builder, uint16_t from, uint32_t last_rung) {
    lk_cache *cache = builder->cache;
    while (class_bits(cache->classes[from]) > last_rung) {
        PageFormat narrow = cache->classes[from];
        narrow.permutation = builder->permutation(from);
        const Plane wide = plane_of(class_bits(narrow));
        const Plane next = plane_of(narrower_width(class_bits(narrow)));
        narrow.layout.strips[next] =
            static_cast<uint16_t>(narrow.layout.strips[next] + narrow.layout.strips[wide]);
        narrow.layout.strips[wide] = 0;
        uint16_t to;
        const lk_status status = builder->add(narrow, &to);
        if (status)
            return status;
        if (!cache->shrink_steps.resize(cache->classes.size()))
            return no_memory();
        cache->shrink_steps[from].to = to;
        from = to;
    }
    return LK_OK;
}

bool note_class(lk_cache *cache, size_t first, uint16_t index) {
    for (size_t i = first; i < cache->lower_classes.size(); ++i)
        if (cache->lower_classes[i] == index)
            return true;
    return cache->lower_classes.push(index);
}

// A class of a rung and all that halves come by from there.
lk_status add_rung(Builder *builder, size_t first, uint16_t index, uint32_t last_rung) {
    lk_cache *cache = builder->cache;
    if (cache->classes[index].layout.is_raw())
        return LK_OK;
    const lk_status status = add_shrunk(builder, index, last_rung);
    if (status)
        return status;
    bool fits = note_class(cache, first, index);
    while (fits && class_bits(cache->classes[index]) > last_rung) {
        index = cache->shrink_steps[index].to;
        fits = note_class(cache, first, index);
    }
    return fits ? LK_OK : no_memory();
}

// What a half may be below 16 bits, by its layer's ladder and its row's chunks.
lk_status add_lower(Builder *builder, size_t first, const LayerPlan &layer, const HalfInfo &half) {
    const uint32_t last_rung = layer.n_rungs ? layer.rungs[layer.n_rungs - 1] : 16;
    const bool has_chunks = builder->cache->plan.model.chunks.tokens != 0;
    lk_status status = LK_OK;
    for (uint32_t r = 0; !status && r < layer.n_rungs; ++r)
        status = add_rung(builder, first, half.rung_format[r], last_rung);
    for (uint32_t c = 0; has_chunks && c < kChunkClasses; ++c)
        for (uint32_t r = 0; !status && r < (layer.n_rungs ? layer.n_rungs : 1u); ++r)
            status = add_rung(builder, first, half.chunk_class[c][r], last_rung);
    return status;
}

lk_status add_ladder(Builder *builder, uint32_t layer, uint32_t *n_classes) {
    lk_cache *cache = builder->cache;
    const LayerPlan &own = cache->plan.model.layers[layer];
    LayerInfo &info = cache->layers[layer];
    const size_t first = cache->lower_classes.size();
    while (own.n_rungs && own.rungs[info.rung] != own.rung)
        ++info.rung;
    lk_status status = LK_OK;
    for (uint32_t e = info.first_entry; e < info.first_entry + info.view.n_kv_heads; ++e)
        for (const HalfInfo *half : {&cache->entries[e].key, &cache->entries[e].value})
            if (!status)
                status = add_lower(builder, first, own, *half);
    *n_classes = static_cast<uint32_t>(cache->lower_classes.size() - first);
    return status;
}

lk_status add_ladders(Builder *builder) {
    lk_cache *cache = builder->cache;
    Array<uint32_t> counts(cache->context->allocator);
    if (!counts.resize(cache->layers.size()) || !cache->layer_formats.resize(cache->layers.size()))
        return no_memory();
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        const lk_status status = add_ladder(builder, l, &counts[l]);
        if (status)
            return status;
    }
    if (!cache->shrink_steps.resize(cache->classes.size()))
        return no_memory();
    fill_shrink_steps(cache);
    const uint16_t *next = cache->lower_classes.data();
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        cache->layer_formats[l] = {next, counts[l],
                                   cache->plan.model.layers[l].n_rungs > 1 ? 1 : 0};
        next += counts[l];
    }
    return LK_OK;
}

lk_status add_layer(Builder *builder, const lk_layer &geometry) {
    lk_cache *cache = builder->cache;
    const Plan &plan = cache->plan.model;
    const auto index = static_cast<uint32_t>(cache->layers.size());
    LayerInfo info{};
    info.view = {geometry.n_query_heads,
                 geometry.n_kv_heads,
                 geometry.head_dim,
                 geometry.window_tokens,
                 geometry.window_sink_tokens,
                 geometry.scale != 0.0f ? geometry.scale
                                        : 1.0f / std::sqrt(static_cast<float>(geometry.head_dim)),
                 geometry.soft_cap,
                 geometry.sink_logits,
                 nullptr};
    info.first_entry = static_cast<uint32_t>(cache->entries.size());
    const uint32_t rest = plan.sink_tokens % plan.page_tokens;
    lk_status status = LK_OK;
    if (rest) {
        status = builder->add_raw(Side::kKey, geometry.head_dim, rest, &info.last_sink_key);
        if (!status)
            status = builder->add_raw(Side::kValue, geometry.head_dim, rest, &info.last_sink_value);
    }
    if (status)
        return status;
    if (!cache->layers.push(info))
        return no_memory();
    for (uint32_t head = 0; !status && head < geometry.n_kv_heads; ++head)
        status = add_entry(builder, index, head);
    return status;
}

// The geometry's learned sinks are read during the call only, so the cache keeps its own.
lk_status copy_sink_logits(lk_cache *cache) {
    uint64_t n = 0;
    for (const LayerInfo &layer : cache->layers)
        n += layer.view.sink_logits ? layer.view.n_query_heads : 0;
    if (!cache->sink_logits.reserve(n))
        return fail(LK_E_NOMEM, "no memory for %llu sink logits", ull{n});
    for (LayerInfo &layer : cache->layers) {
        if (!layer.view.sink_logits)
            continue;
        float *own = cache->sink_logits.end();
        for (uint32_t h = 0; h < layer.view.n_query_heads; ++h)
            cache->sink_logits.push(layer.view.sink_logits[h]);
        layer.view.sink_logits = own;
    }
    return LK_OK;
}

// Numbers of key channels that a plan may give to some heads of a layer.
using HeadNumbers = const float *(Plan::*)(uint32_t layer, uint32_t head) const;

bool has_numbers(const Plan &plan, uint32_t layer, HeadNumbers numbers) {
    for (uint32_t h = 0; h < plan.layers[layer].geometry.n_kv_heads; ++h)
        if ((plan.*numbers)(layer, h))
            return true;
    return false;
}

// Those of all heads, `none` for heads without; null when no head has any.
const float *gather_numbers(lk_cache *cache, uint32_t l, HeadNumbers numbers, float none) {
    const Plan &plan = cache->plan.model;
    if (!has_numbers(plan, l, numbers))
        return nullptr;
    const LayerView &view = cache->layers[l].view;
    float *first = cache->key_parameters.end();
    for (uint32_t h = 0; h < view.n_kv_heads; ++h)
        for (uint32_t c = 0; c < view.head_dim; ++c) {
            const float *own = (plan.*numbers)(l, h);
            cache->key_parameters.push(own ? own[c] : none);
        }
    return first;
}

const float *gather_inverses(lk_cache *cache, const LayerView &view) {
    if (!view.key_scales)
        return nullptr;
    float *first = cache->key_parameters.end();
    for (uint32_t i = 0; i < view.n_kv_heads * view.head_dim; ++i)
        cache->key_parameters.push(1.0f / view.key_scales[i]);
    return first;
}

lk_status gather_key_numbers(lk_cache *cache) {
    const Plan &plan = cache->plan.model;
    const auto n_layers = static_cast<uint32_t>(cache->layers.size());
    uint64_t n = 0;
    for (uint32_t l = 0; l < n_layers; ++l) {
        const uint64_t n_channels =
            uint64_t{cache->layers[l].view.n_kv_heads} * cache->layers[l].view.head_dim;
        n += has_numbers(plan, l, &Plan::key_centers) ? n_channels : 0;
        n += has_numbers(plan, l, &Plan::key_scales) ? 2 * n_channels : 0;
    }
    if (!cache->key_parameters.reserve(n))
        return fail(LK_E_NOMEM, "no memory for %llu centers and scales of keys", ull{n});
    for (uint32_t l = 0; l < n_layers; ++l) {
        LayerView &view = cache->layers[l].view;
        view.key_centers = gather_numbers(cache, l, &Plan::key_centers, 0);
        view.key_scales = gather_numbers(cache, l, &Plan::key_scales, 1);
        view.key_inverses = gather_inverses(cache, view);
    }
    return LK_OK;
}

bool count_slot(lk_cache *cache, Array<SlotCount> *counts, uint64_t bytes) {
    if (!bytes)
        return true;
    for (SlotCount &count : *counts)
        if (count.slot_bytes == bytes) {
            ++count.n;
            return true;
        }
    return cache->slots.add_size(bytes) && counts->push({bytes, 1});
}

bool count_page_slots(lk_cache *cache, const HalfInfo &half, uint16_t last_sink) {
    const PageSlots &slots = half.slots;
    bool fits = count_slot(cache, &cache->recent_count, slots.recent_payload) &&
                count_slot(cache, &cache->recent_count, slots.recent_metadata) &&
                count_slot(cache, &cache->sink_count, slots.recent_payload);
    if (cache->plan.model.sink_tokens % cache->plan.model.page_tokens)
        fits = fits && count_slot(cache, &cache->last_sink_count,
                                  slot_bytes(payload_bytes(cache->classes[last_sink].layout)));
    return fits;
}

bool count_direct_slots(lk_cache *cache, const HalfInfo &half) {
    const PageSlots &slots = half.slots;
    return count_slot(cache, &cache->direct_count,
                      half.packs() ? slots.packed_payload : slots.recent_payload) &&
           count_slot(cache, &cache->direct_count,
                      half.packs() ? half.metadata_slot() : slots.recent_metadata);
}

bool add_families(lk_cache *cache) {
    SlotFamily families[kMaxFamilies];
    const uint32_t n = slot_families(cache->plan.model, families);
    for (uint32_t f = 0; f < n; ++f)
        if (!cache->slots.add_family(families[f].top, families[f].least))
            return false;
    for (const uint16_t c : cache->lower_classes)
        if (!cache->slots.add_size(slot_bytes(payload_bytes(cache->classes[c].layout))))
            return false;
    if (cache->plan.model.chunks.tokens)
        for (const uint16_t c : cache->lower_classes)
            if (!cache->slots.add_size(slot_bytes(metadata_bytes(cache->classes[c].layout))))
                return false;
    return true;
}

lk_status count_slots(lk_cache *cache) {
    bool fits = add_families(cache);
    for (const EntryInfo &entry : cache->entries) {
        const LayerInfo &layer = cache->layers[entry.layer];
        fits = fits && count_page_slots(cache, entry.key, layer.last_sink_key) &&
               count_page_slots(cache, entry.value, layer.last_sink_value) &&
               count_direct_slots(cache, entry.key) && count_direct_slots(cache, entry.value);
    }
    fits = fits && cache->slot_needs.resize(cache->slots.n_sizes()) &&
           cache->direct_count.reserve(cache->slots.n_sizes());
    return fits ? LK_OK : fail(LK_E_NOMEM, "no memory for the table of slot sizes");
}

}  // namespace

lk_status build_classes(lk_cache *cache, const Array<lk_layer> &geometry) {
    Builder builder = {cache, Array<uint32_t>(cache->context->allocator)};
    for (const lk_layer &layer : geometry) {
        const lk_status status = add_layer(&builder, layer);
        if (status)
            return status;
    }
    lk_status status = add_ladders(&builder);
    if (status)
        return status;
    for (size_t i = 0; i < cache->classes.size(); ++i)
        cache->classes[i].permutation = builder.permutation(i);
    status = copy_sink_logits(cache);
    if (!status)
        status = gather_key_numbers(cache);
    return status ? status : count_slots(cache);
}

// All its sizes are known, and there is room for them.
void count_direct(lk_cache *cache) {
    cache->direct_count.clear();
    for (const EntryInfo &entry : cache->entries)
        for (const HalfInfo *half : {&entry.key, &entry.value})
            (void)count_direct_slots(cache, *half);
}

HalfBytes half_bytes(const PageFormat &half) {
    const uint64_t payload = payload_bytes(half.layout);
    return half.layout.is_raw() ? HalfBytes{0, 0, payload}
                                : HalfBytes{payload, metadata_bytes(half.layout), 0};
}

void count_halves(lk_cache *cache, uint16_t page_format, int64_t n_added) {
    const PageLayout &layout = cache->classes[page_format].layout;
    const HalfBytes bytes = half_bytes(cache->classes[page_format]);
    const auto n = static_cast<uint64_t>(n_added);  // modulo 2^64, as are the sums
    lk_cache_stats &stats = cache->stats;
    static_assert(sizeof stats.plane_bytes == kPlaneCount * sizeof(uint64_t), "one sum a plane");
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        stats.plane_bytes[p] +=
            n * layout.strips[p] * strip_bytes(layout.page_tokens, kPlaneBits[p]);
    stats.payload_bytes += n * bytes.payload;
    stats.metadata_bytes += n * bytes.metadata;
    stats.recent_bytes += n * bytes.recent;
}

}  // namespace lk
