// Tensors of calls as shaders find them. Those in host memory pass through mapped memory: inputs
// are copied there when a call is made, outputs are taken home before it returns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_HOST_TENSORS_H
#define LK_BACKEND_VULKAN_HOST_TENSORS_H

#include "backend/backend.h"
#include "backend/vulkan/commands.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

// A tensor [n_tokens][n_heads][n_channels] of a call.
struct CallTensor {
    const TensorView *view;
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t n_channels;
    bool is_output;
    PushTensor *push;           // set by place()
    uint64_t offset_bytes = 0;  // place()'s own
};

// Serves one call at a time: place(), the work, finish().
class HostTensors {
  public:
    HostTensors(const Device &device, Commands *commands) : device_(device), commands_(*commands) {}

    // Waits for work that still reads the inputs of an earlier call, if it has inputs of its own.
    lk_status stage(CallTensor *tensors, uint32_t n);
    // Once the work was submitted: waits for it where outputs are the host's.
    lk_status finish(const CallTensor *tensors, uint32_t n);

    uint64_t bytes() const { return inputs_.bytes() + outputs_.bytes(); }

  private:
    lk_status grow(Buffer *buffer, MemoryKind kind, uint64_t bytes);
    lk_status reserve_area(CallTensor *tensors, uint32_t n);

    const Device &device_;
    Commands &commands_;
    Buffer inputs_;
    Buffer outputs_;
    bool is_in_use_ = false;  // by work that was submitted
};

}  // namespace vulkan
}  // namespace lk

#endif
