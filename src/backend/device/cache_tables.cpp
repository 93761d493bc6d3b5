// SPDX-License-Identifier: Apache-2.0
#include "backend/device/cache_tables.h"

#include "base/status.h"

namespace lk {
namespace device {

static_assert(kPlanes == kPlaneCount, "planes have one order");

namespace {

uint64_t n_sink_logits(const CacheLayout &layout) {
    uint64_t n = 0;
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        n += layout.layers[l].sink_logits ? layout.layers[l].n_query_heads : 0;
    return n;
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

uint64_t CacheTables::permutation(const CacheLayout &layout, uint32_t class_index) const {
    const uint64_t first = uint64_t{layout.n_classes} * sizeof(ClassInfo);
    return layout.classes[class_index].permutation
               ? table_.address() + first + uint64_t{class_index} * LK_MAX_HEAD_DIM
               : 0;
}

lk_status CacheTables::open(const CacheLayout &layout, TableMemory *memory) {
    const uint64_t permutations = uint64_t{layout.n_classes} * sizeof(ClassInfo);
    const uint64_t logits = permutations + uint64_t{layout.n_classes} * LK_MAX_HEAD_DIM;
    const uint64_t bytes = logits + n_sink_logits(layout) * sizeof(float);
    Array<uint8_t> image(allocator_);
    if (!image.resize(bytes) || !sink_logits_.resize(layout.n_layers))
        return fail(LK_E_NOMEM, "no memory for the tables of %u classes and %u layers",
                    layout.n_classes, layout.n_layers);
    lk_status status = table_.open(memory, bytes, "the tables of a cache");
    if (status)
        return status;
    for (uint32_t c = 0; c < layout.n_classes; ++c) {
        const HalfClass &half = layout.classes[c];
        const uint64_t at = permutations + uint64_t{c} * LK_MAX_HEAD_DIM;
        const ClassInfo info = class_info(half, permutation(layout, c));
        std::memcpy(image.data() + c * sizeof info, &info, sizeof info);
        if (half.permutation)
            std::memcpy(image.data() + at, half.permutation, half.shape.head_dim);
    }
    uint64_t next = logits;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        const uint64_t n = view.sink_logits ? view.n_query_heads * sizeof(float) : 0;
        sink_logits_[l] = n ? table_.address() + next : 0;
        if (n)
            std::memcpy(image.data() + next, view.sink_logits, n);
        next += n;
    }
    return memory->put(table_.address(), image.data(), bytes);
}

}  // namespace device
}  // namespace lk
