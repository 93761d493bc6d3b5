// LayerInfo of a cache's layers; where keys are rotated, once more as shaders read them that get
// queries of RotatedQueries.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_LAYER_TABLE_H
#define LK_BACKEND_VULKAN_LAYER_TABLE_H

#include "backend/backend.h"
#include "backend/gpu/cache_tables.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

uint64_t layer_table_bytes(const CacheLayout &layout);
// At `address` in memory of layer_table_bytes(). LK_E_NOMEM.
lk_status put_layer_table(const Allocator &allocator, const CacheLayout &layout,
                          const gpu::CacheTables &constants, Address address,
                          gpu::TableMemory *memory);

// Of the layer's record for shaders that get rotated queries.
inline uint32_t rotated_record(const CacheLayout &layout, uint32_t layer) {
    return layer + (layout.layers[layer].key_rotation ? layout.n_layers : 0);
}

}  // namespace vulkan
}  // namespace lk

#endif
