// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/rotated_queries.h"

#include <algorithm>

#include "base/memory.h"
#include "shaders/pack/limits.h"

namespace lk {
namespace vulkan {

lk_status RotatedQueries::open(const CacheLayout &layout, gpu::TableMemory *memory) {
    uint64_t most = 0;
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        const LayerView &layer = layout.layers[l];
        if (layer.key_rotation)
            most = std::max(most, uint64_t{layer.n_query_heads} * layer.head_dim);
    }
    return queries_.open(memory, most * layout.max_step_tokens * sizeof(float),
                         "the rotated queries of a step");
}

PushTensor RotatedQueries::record(const Recorder &recorder, VkPipeline pipeline,
                                  const LayerView &layer, uint32_t n_tokens, const PushTensor &q,
                                  Address key_scales, float query_limit,
                                  uint32_t max_workgroups) const {
    const uint32_t rows_at_once = LK_ROTATE_THREADS / (layer.head_dim / 8);
    RotateQueriesPush push{};
    push.rotated = queries_.address();
    push.key_scales = key_scales;
    push.q = q;
    push.head_dim = layer.head_dim;
    push.key_rotation = layer.key_rotation;
    push.n_heads = layer.n_query_heads;
    push.group_size = layer.n_query_heads / layer.n_kv_heads;
    push.n_rows = n_tokens * layer.n_query_heads;
    push.query_limit = query_limit;
    recorder.bind(pipeline);
    while (push.first_row < push.n_rows) {
        const auto n_groups =
            static_cast<uint32_t>(ceil_div(push.n_rows - push.first_row, rows_at_once));
        const uint32_t n = std::min(n_groups, max_workgroups);
        recorder.push(push);
        recorder.dispatch(n);
        push.first_row += n * rows_at_once;
    }
    recorder.dispatch_barrier();
    PushTensor rotated{};
    rotated.data = queries_.address();
    rotated.dtype = LK_DTYPE_F32;
    rotated.token_stride = layer.n_query_heads * layer.head_dim;
    rotated.head_stride = layer.head_dim;
    return rotated;
}

}  // namespace vulkan
}  // namespace lk
