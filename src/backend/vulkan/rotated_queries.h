// The queries of layers whose keys are rotated, for the kernels that do not rotate them: all that
// read queries but decode.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_ROTATED_QUERIES_H
#define LK_BACKEND_VULKAN_ROTATED_QUERIES_H

#include "backend/backend.h"
#include "backend/gpu/memory.h"
#include "backend/vulkan/recorder.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

class RotatedQueries {
  public:
    // Memory for the largest step of such a layer, none where there is none.
    lk_status open(const CacheLayout &layout, gpu::TableMemory *memory);
    uint64_t bytes() const { return queries_.bytes(); }

    // query_limit: of RotateQueriesPush. Returns the tensor for the dispatches that follow.
    PushTensor record(const Recorder &recorder, VkPipeline pipeline, const LayerView &layer,
                      uint32_t n_tokens, const PushTensor &q, Address key_scales, float query_limit,
                      uint32_t max_workgroups) const;

  private:
    gpu::Table queries_;  // f32 [n_tokens][n_query_heads][head_dim]
};

}  // namespace vulkan
}  // namespace lk

#endif
