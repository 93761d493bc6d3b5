// What decode needs of the classes of each (layer, KV head), where it finds it with one load.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_KV_TILE_TEMPLATES_H
#define LK_BACKEND_CUDA_KV_TILE_TEMPLATES_H

#include "backend/gpu/cache_tables.h"
#include "cuda/kv_tile.h"

namespace lk {
namespace cuda {

class KvTileTemplates {
  public:
    lk_status open(const CacheLayout &layout, const gpu::CacheTables &constants,
                   const Allocator &allocator, gpu::TableMemory *memory);

    // Of entry `index` of a row and those behind it.
    const KvTileTemplate *of(uint32_t index) const {
        return reinterpret_cast<const KvTileTemplate *>(table_.address()) + index;
    }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    gpu::Table table_;  // PageTemplate [entries of a row]
};

}  // namespace cuda
}  // namespace lk

#endif
