// The fields of the page formats of each (layer, KV head) that decode needs, for one load.
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

    // Of entry `index` of a block and the next ones.
    const KvTileTemplate *of(uint32_t index) const {
        return reinterpret_cast<const KvTileTemplate *>(table_.address()) + index;
    }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    gpu::Table table_;  // KvTileTemplate [entries of a block]
};

}  // namespace cuda
}  // namespace lk

#endif
