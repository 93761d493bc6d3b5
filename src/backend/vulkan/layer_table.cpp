// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/layer_table.h"

#include <cfloat>

#include "base/status.h"
#include "format/rotation.h"

namespace lk {
namespace vulkan {

namespace {

bool has_rotation(const CacheLayout &layout) {
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        if (layout.layers[l].key_rotation)
            return true;
    return false;
}

// Of a layer whose centers are rotated.
uint32_t n_rotated_centers(const LayerView &layer) {
    return layer.key_rotation && layer.key_centers ? layer.n_kv_heads * layer.head_dim : 0;
}

uint64_t records_bytes(const CacheLayout &layout) {
    return uint64_t{layout.n_layers} * (has_rotation(layout) ? 2 : 1) * sizeof(LayerInfo);
}

LayerInfo layer_info(const LayerView &view, const gpu::CacheTables::LayerParameters &parameters,
                     uint32_t first_entry) {
    return {parameters.sink_logits,
            view.n_query_heads,
            view.n_kv_heads,
            view.head_dim,
            view.window_tokens,
            view.window_sink_tokens,
            first_entry,
            view.scale,
            view.soft_cap,
            parameters.key_centers,
            parameters.key_scales,
            parameters.key_inverses,
            view.query_limit,
            view.key_rotation,
            view.value_dim,
            0};
}

// q . c of a query before scales and rotation is the product of the query after both and the center
// divided by the scales and rotated.
void add_rotated_centers(const LayerView &layer, Array<float> *floats) {
    const uint32_t n = n_rotated_centers(layer);
    float *centers = floats->extend(n);
    for (uint32_t i = 0; i < n; ++i)
        centers[i] = layer.key_centers[i] / (layer.key_scales ? layer.key_scales[i] : 1);
    rotate_blocks(centers, n, layer.key_rotation);
}

}  // namespace

uint64_t layer_table_bytes(const CacheLayout &layout) {
    uint64_t bytes = records_bytes(layout);
    for (uint32_t l = 0; l < layout.n_layers; ++l)
        bytes += uint64_t{n_rotated_centers(layout.layers[l])} * sizeof(float);
    return bytes;
}

lk_status put_layer_table(const Allocator &allocator, const CacheLayout &layout,
                          const gpu::CacheTables &constants, Address address,
                          gpu::TableMemory *memory) {
    Array<LayerInfo> records(allocator);
    Array<float> centers(allocator);
    const uint64_t centers_bytes = layer_table_bytes(layout) - records_bytes(layout);
    if (!records.resize(records_bytes(layout) / sizeof(LayerInfo)) ||
        !centers.reserve(centers_bytes / sizeof(float)))
        return fail(LK_E_NOMEM, "no memory for the table of %u layers", layout.n_layers);
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &view = layout.layers[l];
        records[l] = layer_info(view, constants.layer(l), layout.first_entries[l]);
        if (!view.key_rotation)
            continue;
        LayerInfo *rotated = &records[rotated_record(layout, l)];
        *rotated = records[l];
        rotated->key_scales = 0;
        rotated->query_limit = FLT_MAX;  // rows beyond the limit are NaN
        if (!view.key_centers)
            continue;
        rotated->key_centers = address + records_bytes(layout) + centers.size() * sizeof(float);
        add_rotated_centers(view, &centers);
    }
    LK_TRY(memory->put(address, records.data(), records_bytes(layout)));
    return memory->put(address + records_bytes(layout), centers.data(), centers_bytes);
}

}  // namespace vulkan
}  // namespace lk
