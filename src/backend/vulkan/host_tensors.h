// Tensors in host memory: copied to mapped memory when a call is made, and back before it returns.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_HOST_TENSORS_H
#define LK_BACKEND_VULKAN_HOST_TENSORS_H

#include "backend/backend.h"
#include "backend/vulkan/commands.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

struct TensorShape {
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t n_channels;
};

// Of one call at a time: begin(), add_*() of its tensors, place(), the work, finish().
class HostTensors {
  public:
    HostTensors(const Allocator &allocator, const Device &device)
        : allocator_(allocator), device_(device) {}
    ~HostTensors();
    HostTensors(const HostTensors &) = delete;
    HostTensors &operator=(const HostTensors &) = delete;

    void begin() { n_parts_ = 0; }
    // Tensors that are the device's are left alone. *view stays until finish().
    void add_input(TensorView *view, const TensorShape &shape) { add(view, shape, kInput); }
    void add_output(TensorView *view, const TensorShape &shape) { add(view, shape, kOutput); }
    // Views of host tensors become those that shaders find, with inputs in place. Waits for work
    // that still reads the inputs of an earlier call.
    lk_status place(Commands *commands);
    // Once the work was submitted: waits for it where there are outputs, and takes them home.
    lk_status finish(Commands *commands);

    uint64_t bytes() const;

  private:
    enum Direction { kInput, kOutput, kDirections };
    struct Part {
        TensorView *view;
        TensorView home;
        TensorShape shape;
        Direction direction;
        uint64_t offset_bytes;
    };
    static constexpr uint32_t kMaxParts = 2 * kMergeParts + 2;

    void add(TensorView *view, const TensorShape &shape, Direction direction);
    lk_status grow(Direction direction, uint64_t bytes);

    const Allocator &allocator_;
    const Device &device_;
    Buffer *buffers_[kDirections] = {};
    Part parts_[kMaxParts];
    uint32_t n_parts_ = 0;
    bool is_in_use_ = false;  // by work that was submitted
};

}  // namespace vulkan
}  // namespace lk

#endif
