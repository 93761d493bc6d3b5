// SPDX-License-Identifier: Apache-2.0
#include "core/pages/formats.h"

#include <cmath>

#include "core/pages/ladders.h"
#include "plan/layer_budget.h"

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

constexpr uint32_t kNoPermutation = UINT32_MAX;

// While the table grows, permutations are found by this index: their bytes may move.
struct Builder {
    const Plan &plan;
    Formats &formats;
    const Allocator &allocator;
    Array<uint32_t> permutation_of;  // offset in Formats::permutations, kNoPermutation for none

    const uint8_t *permutation(size_t i) const {
        return permutation_of[i] == kNoPermutation
                   ? nullptr
                   : formats.permutations.data() + permutation_of[i];
    }
    lk_status add(const PageFormat &wanted, uint16_t *index);
    lk_status add_raw(Side side, uint32_t head_dim, uint32_t tokens, uint16_t *index);
};

lk_status no_memory() { return fail(LK_E_NOMEM, "no memory for the table of page formats"); }

lk_status Builder::add(const PageFormat &wanted, uint16_t *index) {
    Array<PageFormat> &table = formats.table;
    const uint32_t n = permutation_bytes(wanted.layout.head_dim);
    for (size_t i = 0; i < table.size(); ++i)
        if (same_layout(table[i].layout, wanted.layout) && table[i].ranking == wanted.ranking &&
            table[i].n_ranked == wanted.n_ranked && table[i].ranges == wanted.ranges &&
            same_permutation(permutation(i), wanted.permutation, n)) {
            *index = static_cast<uint16_t>(i);
            return LK_OK;
        }
    if (table.size() > UINT16_MAX)
        return fail(LK_E_UNSUPPORTED, "the plan has more than %u kinds of pages", UINT16_MAX + 1u);
    const size_t offset = formats.permutations.size();
    if (wanted.permutation) {
        if (!formats.permutations.resize(offset + n))
            return no_memory();
        std::memcpy(formats.permutations.data() + offset, wanted.permutation, n);
    }
    if (!table.push(wanted) ||
        !permutation_of.push(wanted.permutation ? static_cast<uint32_t>(offset) : kNoPermutation))
        return no_memory();
    *index = static_cast<uint16_t>(table.size() - 1);
    return LK_OK;
}

lk_status Builder::add_raw(Side side, uint32_t head_dim, uint32_t tokens, uint16_t *index) {
    const PageLayout layout =
        head_dim ? raw_layout(side, head_dim, tokens) : absent_layout(plan.page_tokens);
    return add({layout, nullptr, Ranking::kNone, 0}, index);
}

Ranking ranking_of(const KeyFormat &key) {
    return !key.boosted_channels   ? Ranking::kNone
           : ranks_by_queries(key) ? Ranking::kQueryRange
                                   : Ranking::kKey;
}

// The formats of a page at a rung.
lk_status add_key(Builder *builder, uint32_t layer, uint32_t head, uint32_t rung, EntryInfo *info,
                  uint16_t *index) {
    KeyFormat key;
    resolve_key_at(builder->plan, layer, head, rung, &key);
    if (key.raw) {
        *index = info->key.recent_format;
        return LK_OK;
    }
    info->ranks_by_queries = info->ranks_by_queries || ranks_by_queries(key);
    uint8_t permutation[kMaxPermutationBytes];
    const uint32_t head_dim = key.layout.head_dim;
    for (uint32_t stored = 0; stored < head_dim; ++stored)
        store_channel(permutation, head_dim, stored, key.permutation[stored]);
    return builder->add({key.layout, key.has_permutation ? permutation : nullptr, ranking_of(key),
                         key.boosted_channels, key.ranges},
                        index);
}

lk_status add_value(Builder *builder, uint32_t layer, uint32_t head, uint32_t rung,
                    const EntryInfo &info, uint16_t *index) {
    ValueFormat value;
    resolve_value_at(builder->plan, layer, head, rung, &value);
    *index = info.value.recent_format;
    return value.raw
               ? LK_OK
               : builder->add({value.layout, nullptr, Ranking::kNone, 0, value.ranges}, index);
}

// The formats of blocks of chunks.
lk_status add_chunk_formats(Builder *builder, uint32_t layer, uint32_t head, EntryInfo *info) {
    const Plan &plan = builder->plan;
    const LayerPlan &own = plan.layers[layer];
    const uint32_t n_rungs = own.n_rungs ? own.n_rungs : 1;
    for (uint32_t c = 0; plan.chunks.tokens && c < kChunkClasses; ++c)
        for (uint32_t r = 0; r < n_rungs; ++r) {
            const uint32_t rung = own.n_rungs ? own.rungs[r] : kNoRung;
            const uint32_t cap = width_cap(rung, plan.chunks.bits[c]);
            LK_TRY(add_key(builder, layer, head, cap, info, &info->key.chunk_format[c][r]));
            LK_TRY(add_value(builder, layer, head, cap, *info, &info->value.chunk_format[c][r]));
        }
    return LK_OK;
}

lk_status add_entry(Builder *builder, uint32_t layer, uint32_t head) {
    const Plan &plan = builder->plan;
    const LayerPlan &own = plan.layers[layer];
    const uint32_t head_dim = own.geometry.head_dim;
    const uint32_t value_dim = stored_value_dim(own.geometry);
    EntryInfo info{};
    info.layer = layer;
    info.kv_head = head;
    info.key.slots = key_slots(plan, layer, head);
    info.value.slots = value_slots(plan, layer, head);
    LK_TRY(builder->add_raw(Side::kKey, head_dim, plan.page_tokens, &info.key.recent_format));
    LK_TRY(builder->add_raw(Side::kValue, value_dim, plan.page_tokens, &info.value.recent_format));
    LK_TRY(add_key(builder, layer, head, own.rung, &info, &info.key.packed_format));
    LK_TRY(add_value(builder, layer, head, own.rung, info, &info.value.packed_format));
    for (uint32_t r = 0; r < own.n_rungs; ++r) {
        const uint32_t rung = own.rungs[r];
        LK_TRY(add_key(builder, layer, head, rung, &info, &info.key.rung_format[r]));
        LK_TRY(add_value(builder, layer, head, rung, info, &info.value.rung_format[r]));
    }
    LK_TRY(add_chunk_formats(builder, layer, head, &info));
    if (info.ranks_by_queries) {
        LayerInfo &own_info = builder->formats.layers[layer];
        info.stat_offset = builder->formats.n_ranked_channels;
        if (!own_info.ranks_by_queries)
            own_info.stat_offset = info.stat_offset;
        builder->formats.n_ranked_channels += head_dim;
        own_info.n_ranked_channels += head_dim;
        own_info.ranks_by_queries = true;
    }
    return builder->formats.entries.push(info) ? LK_OK : no_memory();
}

// The formats after each step, which may be ones that no page is packed at: a page keeps the order
// of its stored channels while it shrinks.
lk_status add_shrunk(Builder *builder, uint16_t from, uint32_t last_rung) {
    while (format_bits(builder->formats[from]) > last_rung) {
        PageFormat narrow = builder->formats[from];
        narrow.permutation = builder->permutation(from);
        const Plane wide = plane_of(format_bits(narrow));
        const Plane next = plane_of(narrower_width(format_bits(narrow)));
        narrow.layout.strips[next] =
            static_cast<uint16_t>(narrow.layout.strips[next] + narrow.layout.strips[wide]);
        narrow.layout.strips[wide] = 0;
        uint16_t to;
        LK_TRY(builder->add(narrow, &to));
        if (!builder->formats.shrink_steps.resize(builder->formats.table.size()))
            return no_memory();
        builder->formats.shrink_steps[from].to = to;
        from = to;
    }
    return LK_OK;
}

bool note_format(Formats *formats, size_t first, uint16_t index) {
    for (size_t i = first; i < formats->lower_formats.size(); ++i)
        if (formats->lower_formats[i] == index)
            return true;
    return formats->lower_formats.push(index);
}

// A format of a rung and all formats that its pages pass on their way down.
lk_status add_rung(Builder *builder, size_t first, uint16_t index, uint32_t last_rung) {
    if (builder->formats[index].layout.is_raw())
        return LK_OK;
    LK_TRY(add_shrunk(builder, index, last_rung));
    bool fits = note_format(&builder->formats, first, index);
    while (fits && format_bits(builder->formats[index]) > last_rung) {
        index = builder->formats.shrink_steps[index].to;
        fits = note_format(&builder->formats, first, index);
    }
    return fits ? LK_OK : no_memory();
}

// What a page may be below 16 bits, by its layer's ladder and its block's chunks.
lk_status add_lower(Builder *builder, size_t first, const LayerPlan &layer, const PageInfo &page) {
    const uint32_t last_rung = layer.n_rungs ? layer.rungs[layer.n_rungs - 1] : 16;
    const bool has_chunks = builder->plan.chunks.tokens != 0;
    lk_status status = LK_OK;
    for (uint32_t r = 0; !status && r < layer.n_rungs; ++r)
        status = add_rung(builder, first, page.rung_format[r], last_rung);
    for (uint32_t c = 0; has_chunks && c < kChunkClasses; ++c)
        for (uint32_t r = 0; !status && r < (layer.n_rungs ? layer.n_rungs : 1u); ++r)
            status = add_rung(builder, first, page.chunk_format[c][r], last_rung);
    return status;
}

// Are there pages of packed keys and values at 16 bits, or the reverse?
bool has_half_raw(const Builder &builder, const LayerPlan &layer, const EntryInfo &entry) {
    const auto differ = [&](uint16_t key, uint16_t value) {
        return !builder.formats[value].layout.is_absent() &&
               builder.formats.is_raw(key) != builder.formats.is_raw(value);
    };
    bool found = differ(entry.key.packed_format, entry.value.packed_format);
    for (uint32_t r = 0; r < layer.n_rungs; ++r)
        found = found || differ(entry.key.rung_format[r], entry.value.rung_format[r]);
    const bool has_chunks = builder.plan.chunks.tokens != 0;
    for (uint32_t c = 0; has_chunks && c < kChunkClasses; ++c)
        for (uint32_t r = 0; r < (layer.n_rungs ? layer.n_rungs : 1u); ++r)
            found = found || differ(entry.key.chunk_format[c][r], entry.value.chunk_format[c][r]);
    return found;
}

bool has_half_raw(const Builder &builder, uint32_t layer) {
    const LayerInfo &info = builder.formats.layers[layer];
    bool found = false;
    for (uint32_t e = info.first_entry; e < info.first_entry + info.view.n_kv_heads; ++e)
        found =
            found || has_half_raw(builder, builder.plan.layers[layer], builder.formats.entries[e]);
    return found;
}

lk_status add_ladder(Builder *builder, uint32_t layer, uint32_t *n_formats) {
    const LayerPlan &own = builder->plan.layers[layer];
    LayerInfo &info = builder->formats.layers[layer];
    const size_t first = builder->formats.lower_formats.size();
    info.rung = own.n_rungs ? first_rung(own) : 0;
    lk_status status = LK_OK;
    for (uint32_t e = info.first_entry; e < info.first_entry + info.view.n_kv_heads; ++e)
        for (const PageInfo *page :
             {&builder->formats.entries[e].key, &builder->formats.entries[e].value})
            if (!status)
                status = add_lower(builder, first, own, *page);
    *n_formats = static_cast<uint32_t>(builder->formats.lower_formats.size() - first);
    return status;
}

lk_status add_ladders(Builder *builder) {
    Array<uint32_t> counts(builder->allocator);
    if (!counts.resize(builder->formats.layers.size()) ||
        !builder->formats.layer_formats.resize(builder->formats.layers.size()))
        return no_memory();
    for (uint32_t l = 0; l < builder->formats.layers.size(); ++l)
        LK_TRY(add_ladder(builder, l, &counts[l]));
    if (!builder->formats.shrink_steps.resize(builder->formats.table.size()))
        return no_memory();
    fill_shrink_steps(&builder->formats);
    const uint16_t *next = builder->formats.lower_formats.data();
    for (uint32_t l = 0; l < builder->formats.layers.size(); ++l) {
        builder->formats.layer_formats[l] = {next, counts[l],
                                             builder->plan.layers[l].n_rungs > 1 ? 1 : 0,
                                             has_half_raw(*builder, l) ? 1 : 0};
        next += counts[l];
    }
    return LK_OK;
}

lk_status add_layer(Builder *builder, const lk_layer &geometry) {
    const Plan &plan = builder->plan;
    const auto index = static_cast<uint32_t>(builder->formats.layers.size());
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
    info.view.value_dim = value_dim_of(geometry);
    info.view.is_latent = is_latent(geometry);
    info.kv_layer = plan.kv_layer(index);
    info.owns_kv = plan.owns_kv(index);
    info.first_entry = plan.layers[index].first_head;
    const uint32_t rest = plan.sink_tokens % plan.page_tokens;
    lk_status status = LK_OK;
    if (rest) {
        status = builder->add_raw(Side::kKey, geometry.head_dim, rest, &info.last_sink_key);
        if (!status)
            status = builder->add_raw(Side::kValue, stored_value_dim(geometry), rest,
                                      &info.last_sink_value);
    }
    if (status)
        return status;
    if (!builder->formats.layers.push(info))
        return no_memory();
    for (uint32_t head = 0; info.owns_kv && !status && head < geometry.n_kv_heads; ++head)
        status = add_entry(builder, index, head);
    return status;
}

}  // namespace

uint32_t format_bits(const PageFormat &format) {
    return format.layout.is_raw() ? 16 : shrinking_width(format.layout.strips);
}

lk_status build_formats(const Plan &plan, const Array<lk_layer> &geometry,
                        const Allocator &allocator, Formats *formats) {
    Builder builder = {plan, *formats, allocator, Array<uint32_t>(allocator)};
    for (const lk_layer &layer : geometry)
        LK_TRY(add_layer(&builder, layer));
    LK_TRY(add_ladders(&builder));
    uint64_t staging[kMaxLayers];
    (void)staging_bytes(plan, staging);
    for (uint32_t l = 0; l < formats->layers.size(); ++l)
        formats->layers[l].staging = staging[l];
    for (size_t i = 0; i < formats->table.size(); ++i)
        formats->table[i].permutation = builder.permutation(i);
    return LK_OK;
}

}  // namespace lk
