// lk_merge() on a device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_MERGE_H
#define LK_BACKEND_VULKAN_MERGE_H

#include "backend/vulkan/host_tensors.h"

namespace lk {
namespace vulkan {

// Any thread.
class Merger {
  public:
    Merger(const Device &device, Pipelines *pipelines)
        : device_(device),
          pipelines_(*pipelines),
          commands_(device),
          tensors_(device, &commands_) {}

    lk_status open();
    lk_status merge(const MergeView &view);

  private:
    static constexpr uint32_t kMostTensors = 2 * kMergeSplits + 2;
    lk_status record(const MergeView &view, const PushTensor *pushes);

    const Device &device_;
    Pipelines &pipelines_;
    std::mutex mutex_;  // of all below
    Commands commands_;
    HostTensors tensors_;
    Buffer table_;  // PushTensor [kMostTensors]
};

}  // namespace vulkan
}  // namespace lk

#endif
