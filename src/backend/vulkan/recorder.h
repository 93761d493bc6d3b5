// Commands into one command buffer.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_RECORDER_H
#define LK_BACKEND_VULKAN_RECORDER_H

#include "backend/vulkan/memory.h"
#include "backend/vulkan/pipelines.h"

namespace lk {
namespace vulkan {

class Recorder {
  public:
    Recorder() = default;
    Recorder(const Functions &functions, VkPipelineLayout layout, VkCommandBuffer commands)
        : functions_(&functions), layout_(layout), commands_(commands) {}

    void bind(VkPipeline pipeline) const;
    // Push constants of the next dispatches, of a struct of shaders/push.h.
    template <class T>
    void push(const T &constants) const {
        static_assert(sizeof(T) <= kPushBytes && sizeof(T) % 4 == 0, "a struct of push.h");
        push_bytes(&constants, sizeof(T));
    }
    void dispatch(uint32_t x, uint32_t y = 1, uint32_t z = 1) const;

    // Earlier commands are done, and visible to later shaders and copies.
    void barrier() const;
    // The same between two dispatches, with no copy before or after.
    void dispatch_barrier() const;
    // The same between all that uses the queue before and after our work, and our work; the
    // closing one makes what shaders wrote visible to the host.
    void opening_barrier() const;
    void closing_barrier() const;

    // Copies in the order of commands, between barriers. Offsets and bytes are multiples of 4.
    // update() takes its bytes when it is called.
    void update(const Buffer &to, uint64_t offset_bytes, const void *data, uint64_t bytes) const;
    void copy(const Buffer &from, uint64_t from_bytes, const Buffer &to, uint64_t to_bytes,
              uint64_t bytes) const;
    void fill(const Buffer &to, uint64_t offset_bytes, uint64_t bytes, uint32_t word) const;

  private:
    void push_bytes(const void *constants, uint32_t bytes) const;
    void depend(VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
                VkAccessFlags read) const;

    const Functions *functions_ = nullptr;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkCommandBuffer commands_ = nullptr;
};

}  // namespace vulkan
}  // namespace lk

#endif
