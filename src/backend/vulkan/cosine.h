// lk_chunks_score_cosine() on a device.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_COSINE_H
#define LK_BACKEND_VULKAN_COSINE_H

#include "backend/vulkan/host_tensors.h"

namespace lk {
namespace vulkan {

// Any thread.
class CosineScorer {
  public:
    CosineScorer(const Device &device, Pipelines *pipelines)
        : device_(device),
          pipelines_(*pipelines),
          commands_(device),
          tensors_(device, &commands_) {}

    lk_status open() { return commands_.open(pipelines_.layout()); }
    lk_status score(const CosineView &view);

  private:
    lk_status record(const CosineView &view, const CosinePush &push);

    const Device &device_;
    Pipelines &pipelines_;
    std::mutex mutex_;  // of all below
    Commands commands_;
    HostTensors tensors_;
};

}  // namespace vulkan
}  // namespace lk

#endif
