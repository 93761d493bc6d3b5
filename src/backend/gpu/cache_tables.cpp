// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/cache_tables.h"

#include "base/status.h"

namespace lk {
namespace gpu {

namespace {

uint64_t sink_bytes(const LayerView &layer) {
    return layer.sink_logits ? layer.n_query_heads * sizeof(float) : 0;
}

// Of a parameter for each key channel, or of none.
uint64_t key_bytes(const LayerView &layer, const float *parameters) {
    return parameters ? uint64_t{layer.n_kv_heads} * layer.head_dim * sizeof(float) : 0;
}

uint64_t parameter_bytes(const LayerView &layer) {
    return sink_bytes(layer) + key_bytes(layer, layer.key_centers) +
           key_bytes(layer, layer.key_scales) + key_bytes(layer, layer.key_inverses);
}

// Appends a layer's floats to the image; where they will lie, or 0 for none.
uint64_t add_floats(const float *floats, uint64_t bytes, uint64_t table, Array<uint8_t> *image,
                    uint64_t *next) {
    if (!bytes)
        return 0;
    std::memcpy(image->data() + *next, floats, bytes);
    *next += bytes;
    return table + *next - bytes;
}

}  // namespace

FormatInfo format_info(const PageFormat &format, uint64_t permutation) {
    const PageLayout &layout = format.layout;
    FormatInfo info{};
    info.permutation = permutation;
    info.payload_bytes = static_cast<uint32_t>(payload_bytes(layout));
    info.metadata_bytes = static_cast<uint32_t>(metadata_bytes(layout));
    info.minima_offset = static_cast<uint32_t>(minima_offset_bytes(layout));
    info.permutation_offset = static_cast<uint32_t>(permutation_offset_bytes(layout));
    info.head_dim = layout.head_dim;
    info.page_tokens = layout.page_tokens;
    info.group = layout.group;
    info.n_groups = static_cast<uint16_t>(n_groups(layout));
    info.n_shared = layout.n_shared;
    info.n_ranked = format.n_ranked;
    info.is_value = layout.side == Side::kValue;
    info.is_token_axis = layout.axis == Axis::kToken;
    info.parameter_bytes = static_cast<uint8_t>(bytes_of_parameter(layout.metadata));
    info.permutes = layout.permutes;
    info.ranking = static_cast<uint8_t>(format.ranking);
    info.is_raw = layout.is_raw();
    for (uint32_t p = 0; p < sizeof info.strips; ++p)
        info.strips[p] = static_cast<uint8_t>(layout.strips[p]);
    info.by_deviation = format.ranges.one_bit == OneBit::kDeviation;
    info.clip_margin = clip_margin(format.ranges.clip);
    info.is_native =
        is_native_format(info) && (info.is_raw || info.page_tokens == LK_MAX_PAGE_TOKENS);
    return info;
}

uint64_t CacheTables::permutation(const CacheLayout &layout, uint32_t format_index) const {
    const uint64_t first = uint64_t{layout.n_formats} * sizeof(FormatInfo);
    return layout.formats[format_index].permutation
               ? table_.address() + first + uint64_t{format_index} * kMaxPermutationBytes
               : 0;
}

lk_status CacheTables::open(const CacheLayout &layout, const uint16_t *forms, TableMemory *memory) {
    const uint64_t permutations = uint64_t{layout.n_formats} * sizeof(FormatInfo);
    uint64_t next = permutations + uint64_t{layout.n_formats} * kMaxPermutationBytes;
    uint64_t bytes = next;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        bytes += parameter_bytes(layout.layers[l]);
    Array<uint8_t> image(allocator_);
    if (!image.resize(bytes) || !layers_.resize(layout.n_layers))
        return fail(LK_E_NOMEM, "no memory for the tables of %u page formats and %u layers",
                    layout.n_formats, layout.n_layers);
    LK_TRY(table_.open(memory, bytes, "the tables of a cache"));
    for (uint32_t c = 0; c < layout.n_formats; ++c) {
        const PageFormat &format = layout.formats[c];
        const uint64_t at = permutations + uint64_t{c} * kMaxPermutationBytes;
        FormatInfo info = format_info(format, permutation(layout, c));
        info.form = forms ? forms[c] : 0;
        std::memcpy(image.data() + c * sizeof info, &info, sizeof info);
        if (format.permutation)
            std::memcpy(image.data() + at, format.permutation,
                        permutation_bytes(format.layout.head_dim));
    }
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        const auto add = [&](const float *floats, uint64_t n_bytes) {
            return add_floats(floats, n_bytes, table_.address(), &image, &next);
        };
        layers_[l].sink_logits = add(view.sink_logits, sink_bytes(view));
        layers_[l].key_centers = add(view.key_centers, key_bytes(view, view.key_centers));
        layers_[l].key_scales = add(view.key_scales, key_bytes(view, view.key_scales));
        layers_[l].key_inverses = add(view.key_inverses, key_bytes(view, view.key_inverses));
    }
    return memory->put(table_.address(), image.data(), bytes);
}

}  // namespace gpu
}  // namespace lk
