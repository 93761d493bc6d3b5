// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/merge.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace vulkan {

static_assert(LK_MERGE_SPLITS == kMergeSplits, "shaders take as many splits as the interface");

namespace {

constexpr uint32_t kThreads = 64;

}  // namespace

lk_status Merger::open() {
    const lk_status status = table_.open(
        device_, MemoryKind::kDevice, kMostTensors * sizeof(PushTensor), "the tensors of a merge");
    return status ? status : commands_.open(pipelines_.layout());
}

lk_status Merger::merge(const MergeView &view) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CallTensor tensors[kMostTensors];
    PushTensor pushes[kMostTensors]{};
    uint32_t n = 0;
    const auto add = [&](const TensorView &tensor, uint32_t n_channels, bool is_output) {
        tensors[n] = {&tensor, view.n_tokens, view.n_heads, n_channels, is_output, &pushes[n], 0};
        ++n;
    };
    for (uint32_t i = 0; i < view.n_splits; ++i)
        add(view.parts[i], view.head_dim, false);
    for (uint32_t i = 0; i < view.n_splits; ++i)
        add(view.lses[i], 1, false);
    add(view.out, view.head_dim, true);
    if (view.lse.data)
        add(view.lse, 1, true);
    const bool is_recorded = view.queue && view.queue->kind == LK_QUEUE_VULKAN_RECORD;
    commands_.record_into(is_recorded ? static_cast<VkCommandBuffer>(view.queue->handle) : nullptr);
    lk_status status = tensors_.stage(tensors, n);
    if (!status)
        status = record(view, pushes);
    return status ? status : tensors_.finish(tensors, n);
}

lk_status Merger::record(const MergeView &view, const PushTensor *pushes) {
    VkPipeline pipeline = VK_NULL_HANDLE;
    const PipelineSpec spec = make_spec(shaders::merge, {{LK_SPEC_THREADS, kThreads}}, 0);
    LK_TRY(pipelines_.get(&spec, 1, &pipeline));
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    recorder.update(table_, 0, pushes, (2 * view.n_splits + 2) * sizeof(PushTensor));
    recorder.barrier();
    recorder.bind(pipeline);
    MergePush push{};
    push.tensors = table_.address();
    push.n_splits = view.n_splits;
    push.n_tokens = view.n_tokens;
    push.n_heads = view.n_heads;
    push.head_dim = view.head_dim;
    const uint64_t n_rows = uint64_t{view.n_tokens} * view.n_heads;
    const uint64_t most = device_.traits().max_workgroup_count;
    for (uint64_t first = 0; first < n_rows; first += most) {
        push.first_row = static_cast<uint32_t>(first);
        recorder.push(push);
        recorder.dispatch(static_cast<uint32_t>(std::min(n_rows - first, most)));
    }
    return commands_.end(semaphores_of(view.queue));
}

}  // namespace vulkan
}  // namespace lk
