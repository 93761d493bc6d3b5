// What kernels read that stays the same for a cache's life: classes with their fixed permutations,
// layers with their sink logits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_CACHE_TABLES_H
#define LK_BACKEND_CUDA_CACHE_TABLES_H

#include "backend/backend.h"
#include "backend/cuda/upload.h"
#include "cuda/types.h"

namespace lk {
namespace cuda {

class CacheTables {
  public:
    explicit CacheTables(const Allocator &allocator)
        : allocator_(allocator), layers_(allocator), decode_kinds_(allocator) {}

    lk_status open(const CacheLayout &layout, Upload *upload, cudaStream_t stream);

    const ClassInfo *classes() const { return memory_.as<ClassInfo>(); }
    const LayerArg &layer(uint32_t index) const { return layers_[index]; }
    // DecodeKind of each layer; false without memory.
    bool choose_kinds(const CacheLayout &layout);
    const uint32_t *decode_kinds() const { return decode_kinds_.data(); }
    uint64_t bytes() const { return memory_.bytes(); }

  private:
    const Allocator &allocator_;
    Array<LayerArg> layers_;
    Array<uint32_t> decode_kinds_;  // [layers] DecodeKind
    DeviceMemory memory_;  // ClassInfo [classes], u8 [classes][LK_MAX_HEAD_DIM], sink logits
};

// A class as kernels read it; `permutation` is the device's copy of the fixed one.
ClassInfo class_info(const HalfClass &half, uint64_t permutation);

}  // namespace cuda
}  // namespace lk

#endif
