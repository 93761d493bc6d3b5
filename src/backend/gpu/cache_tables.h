// The constants of a cache that kernels read: page formats with their fixed permutations, sink
// logits, centers and scales of keys.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_CACHE_TABLES_H
#define LK_BACKEND_GPU_CACHE_TABLES_H

#include "backend/backend.h"
#include "backend/gpu/memory.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

class CacheTables {
  public:
    explicit CacheTables(const Allocator &allocator) : allocator_(allocator), layers_(allocator) {}

    // forms: FormatInfo.form [formats], or null.
    lk_status open(const CacheLayout &layout, const uint16_t *forms, TableMemory *memory);

    uint64_t formats() const { return table_.address(); }
    // permutation_bytes() of a page format with a fixed permutation, or 0.
    uint64_t permutation(const CacheLayout &layout, uint32_t format_index) const;
    // The arrays of a LayerView, each an address or 0.
    struct LayerParameters {
        uint64_t sink_logits;
        uint64_t key_centers;
        uint64_t key_scales;
        uint64_t key_inverses;
    };
    const LayerParameters &layer(uint32_t index) const { return layers_[index]; }
    uint64_t bytes() const { return table_.bytes(); }

  private:
    const Allocator &allocator_;
    Array<LayerParameters> layers_;
    Table table_;  // FormatInfo [formats], u8 [formats][kMaxPermutationBytes], then f32 by layers,
                   // in the order of LayerParameters
};

// A page format as kernels read it; `permutation` is the device's copy of the fixed one.
FormatInfo format_info(const PageFormat &format, uint64_t permutation);

}  // namespace gpu
}  // namespace lk

#endif
