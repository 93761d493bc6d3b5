// What kernels read that stays the same for a cache's life: classes with their fixed permutations,
// sink logits and key centers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_DEVICE_CACHE_TABLES_H
#define LK_BACKEND_DEVICE_CACHE_TABLES_H

#include "backend/backend.h"
#include "backend/device/memory.h"
#include "format/tables.h"

namespace lk {
namespace device {

class CacheTables {
  public:
    explicit CacheTables(const Allocator &allocator)
        : allocator_(allocator), sink_logits_(allocator), key_centers_(allocator) {}

    lk_status open(const CacheLayout &layout, TableMemory *memory);

    uint64_t classes() const { return table_.address(); }
    // u8 [head_dim] of a class with a fixed permutation, or 0.
    uint64_t permutation(const CacheLayout &layout, uint32_t class_index) const;
    // f32 [n_query_heads] of a layer, or 0.
    uint64_t sink_logits(uint32_t layer) const { return sink_logits_[layer]; }
    // f32 [n_kv_heads][head_dim] of a layer, or 0.
    uint64_t key_centers(uint32_t layer) const { return key_centers_[layer]; }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    const Allocator &allocator_;
    Array<uint64_t> sink_logits_;  // [layers] addresses
    Array<uint64_t> key_centers_;  // the same
    Table table_;  // ClassInfo [classes], u8 [classes][LK_MAX_HEAD_DIM], then f32 by layers: sink
                   // logits, key centers
};

// A class as kernels read it; `permutation` is the device's copy of the fixed one.
ClassInfo class_info(const HalfClass &half, uint64_t permutation);

}  // namespace device
}  // namespace lk

#endif
