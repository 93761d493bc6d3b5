// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cache_tables.h"

#include "base/status.h"
#include "cuda/launch.h"

namespace lk {
namespace cuda {

static_assert(kPlanes == kPlaneCount, "planes have one order");

namespace {

uint64_t n_sink_logits(const CacheLayout &layout) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        n += layout.layers[l].sink_logits ? layout.layers[l].n_query_heads : 0;
    return n;
}

LayerArg layer_arg(const LayerView &view, uint32_t layer, uint32_t first_entry,
                   const float *sink_logits) {
    LayerArg arg{};
    arg.layer = layer;
    arg.n_query_heads = view.n_query_heads;
    arg.n_kv_heads = view.n_kv_heads;
    arg.head_dim = view.head_dim;
    arg.window_tokens = view.window_tokens;
    arg.window_sink_tokens = view.window_sink_tokens;
    arg.first_entry = first_entry;
    arg.scale = view.scale;
    arg.soft_cap = view.soft_cap;
    arg.sink_logits = sink_logits;
    return arg;
}

DecodeKind kind_of_class(const HalfClass &half) {
    const ClassInfo info = class_info(half, half.permutation ? 1 : 0);
    if (!info.is_direct)
        return kDecodeNone;
    const bool is_plain = info.is_raw || (info.number_bytes == 2 && info.n_groups == 1);
    return is_plain ? kDecodePlain : kDecodeGrouped;
}

// The kind that all heads of a layer can be run as.
uint32_t kind_of_layer(const CacheLayout &layout, uint32_t layer) {
    uint32_t kind = kDecodePlain;
    for (uint32_t head = 0; head < layout.layers[layer].n_kv_heads; ++head) {
        const EntryClasses &entry = layout.entry_classes[layout.first_entries[layer] + head];
        for (const uint16_t packed : {entry.packed_key, entry.packed_value}) {
            const uint32_t own = kind_of_class(layout.classes[packed]);
            kind = own > kind ? own : kind;
        }
    }
    return kind;
}

}  // namespace

ClassInfo class_info(const HalfClass &half, uint64_t permutation) {
    const HalfShape &shape = half.shape;
    ClassInfo info{};
    info.permutation = permutation;
    info.payload_bytes = static_cast<uint32_t>(payload_bytes(shape));
    info.metadata_bytes = static_cast<uint32_t>(metadata_bytes(shape));
    info.minima_offset = static_cast<uint32_t>(minima_offset_bytes(shape));
    info.permutation_offset = static_cast<uint32_t>(permutation_offset_bytes(shape));
    info.head_dim = shape.head_dim;
    info.page_tokens = shape.page_tokens;
    info.group = shape.group;
    info.n_groups = static_cast<uint16_t>(n_groups(shape));
    info.n_shared = shape.n_shared;
    info.n_ranked = half.n_ranked;
    info.is_value = shape.side == Side::kValue;
    info.is_token_axis = shape.axis == Axis::kToken;
    info.number_bytes = shape.metadata == Metadata::kF16 ? 2 : 1;
    info.permutes = shape.permutes;
    info.ranking = static_cast<uint8_t>(half.ranking);
    info.is_raw = shape.is_raw();
    for (uint32_t p = 0; p < kPlanes; ++p)
        info.strips[p] = static_cast<uint8_t>(shape.strips[p]);
    info.is_direct = is_direct_class(info);
    return info;
}

bool CacheTables::choose_kinds(const CacheLayout &layout) {
    if (!decode_kinds_.resize(layout.n_layers))
        return false;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        decode_kinds_[l] = kind_of_layer(layout, l);
    return true;
}

lk_status CacheTables::open(const CacheLayout &layout, Upload *upload, cudaStream_t stream) {
    const uint64_t permutations = uint64_t{layout.n_classes} * sizeof(ClassInfo);
    const uint64_t logits = permutations + uint64_t{layout.n_classes} * LK_MAX_HEAD_DIM;
    const uint64_t bytes = logits + n_sink_logits(layout) * sizeof(float);
    Array<uint8_t> image(allocator_);
    if (!image.resize(bytes) || !layers_.resize(layout.n_layers))
        return fail(LK_E_NOMEM, "no memory for the tables of %u classes and %u layers",
                    layout.n_classes, layout.n_layers);
    lk_status status = memory_.open(bytes, "the tables of a cache");
    if (status)
        return status;
    for (uint32_t c = 0; c < layout.n_classes; ++c) {
        const HalfClass &half = layout.classes[c];
        const uint64_t at = permutations + uint64_t{c} * LK_MAX_HEAD_DIM;
        const ClassInfo info = class_info(half, half.permutation ? memory_.address() + at : 0);
        std::memcpy(image.data() + c * sizeof info, &info, sizeof info);
        if (half.permutation)
            std::memcpy(image.data() + at, half.permutation, half.shape.head_dim);
    }
    uint64_t next = logits;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        const uint64_t n = view.sink_logits ? view.n_query_heads * sizeof(float) : 0;
        layers_[l] =
            layer_arg(view, l, layout.first_entries[l], n ? memory_.as<float>(next) : nullptr);
        if (n)
            std::memcpy(image.data() + next, view.sink_logits, n);
        next += n;
    }
    status = upload->put(memory_.address(), image.data(), bytes, stream);
    return status ? status : upload->send(stream);
}

}  // namespace cuda
}  // namespace lk
