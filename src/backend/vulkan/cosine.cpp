// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/cosine.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace vulkan {

lk_status CosineScorer::score(const CosineView &view) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CosinePush push{};
    push.n_chunks = view.n_chunks;
    push.n_channels = view.n_channels;
    CallTensor tensors[] = {
        {&view.embeddings, view.n_chunks, 1, view.n_channels, false, &push.embeddings},
        {&view.query, 1, 1, view.n_channels, false, &push.query},
        {&view.scores, view.n_chunks, 1, 1, true, &push.scores}};
    const bool is_recorded = view.queue && view.queue->kind == LK_QUEUE_VULKAN_RECORD;
    commands_.record_into(is_recorded ? static_cast<VkCommandBuffer>(view.queue->handle) : nullptr);
    LK_TRY(tensors_.stage(tensors, 3));
    LK_TRY(record(view, push));
    return tensors_.finish(tensors, 3);
}

lk_status CosineScorer::record(const CosineView &view, const CosinePush &push) {
    VkPipeline pipeline = VK_NULL_HANDLE;
    const PipelineSpec spec = make_spec(shaders::cosine, {}, 0);
    LK_TRY(pipelines_.get(&spec, 1, &pipeline));
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    recorder.bind(pipeline);
    recorder.push(push);
    recorder.dispatch(std::min(view.n_chunks, device_.traits().max_workgroup_count));
    return commands_.end(semaphores_of(view.queue));
}

}  // namespace vulkan
}  // namespace lk
