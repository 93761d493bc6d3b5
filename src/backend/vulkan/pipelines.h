// Compute pipelines of a device, made once for each shader and set of constants.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_PIPELINES_H
#define LK_BACKEND_VULKAN_PIPELINES_H

#include <initializer_list>
#include <mutex>

#include "backend/vulkan/device.h"
#include "backend/vulkan/shader_code.h"

namespace lk {
namespace vulkan {

constexpr uint32_t kPushBytes = 128;  // what every device has

// A specialisation constant. A shader that has none of this id does not mind.
struct Constant {
    uint32_t id;
    uint32_t value;
};

class Pipelines {
  public:
    Pipelines(const Allocator &allocator, const Device &device)
        : device_(device), entries_(allocator) {}
    ~Pipelines();
    Pipelines(const Pipelines &) = delete;
    Pipelines &operator=(const Pipelines &) = delete;

    // blob: what save() gave, of this driver or of another.
    lk_status open(const void *blob, uint64_t bytes);

    // The pipeline of a shader with these constants, compiled when it is asked for first. Any
    // thread. It lives as long as this object. subgroup_size: 0 = the driver's choice, else one
    // between the device's bounds, which differ only with Traits.subgroup_size_control.
    lk_status get(const ShaderCode &shader, std::initializer_list<Constant> constants,
                  uint32_t subgroup_size, VkPipeline *out);
    // Without descriptor sets: shaders get addresses in kPushBytes of push constants.
    VkPipelineLayout layout() const { return layout_; }

    // As lk_vulkan_pipeline_cache().
    lk_status save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const;

  private:
    static constexpr uint32_t kMaxConstants = 10;
    static constexpr uint32_t kUsual = 64;  // pipelines of one model
    struct Entry {
        const ShaderCode *shader;
        uint32_t subgroup_size;
        uint32_t n_constants;
        Constant constants[kMaxConstants];
        VkPipeline pipeline;

        bool is_like(const Entry &other) const;
    };
    lk_status compile(Entry *entry) const;
    lk_status compile_module(VkShaderModule module, Entry *entry) const;

    const Device &device_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    std::mutex mutex_;  // guards entries_
    Array<Entry> entries_;
};

}  // namespace vulkan
}  // namespace lk

#endif
