// Compute pipelines of a device, made once for each shader and set of constants while something
// uses them. Plans name ever new sets: unused pipelines are kept for the next cache, up to a
// number, so that a context takes as much memory after its thousandth plan as after its hundredth.
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

using Constants = std::initializer_list<Constant>;

class Pipelines {
  public:
    Pipelines(const Allocator &allocator, const Device &device)
        : device_(device), entries_(allocator) {}
    ~Pipelines();
    Pipelines(const Pipelines &) = delete;
    Pipelines &operator=(const Pipelines &) = delete;

    // blob: what save() gave, of this driver or of another.
    lk_status open(const void *blob, uint64_t bytes);

    // The pipeline of a shader with these constants, compiled when it is not there. Any thread.
    // subgroup_size: 0 = the driver's choice, else one between the device's bounds, which differ
    // only with Traits.subgroup_size_control. What get() gives lives as long as this object: it
    // is for what no plan changes.
    lk_status get(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                  VkPipeline *out) {
        return use(shader, constants, subgroup_size, true, out);
    }
    // The same, living until it was given back as often as it was taken, and then for as long as
    // it is among the kMostIdle that were given back last.
    lk_status take(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                   VkPipeline *out) {
        return use(shader, constants, subgroup_size, false, out);
    }
    // Any thread. Work that uses it has run.
    void give(VkPipeline pipeline);
    // Without descriptor sets: shaders get addresses in kPushBytes of push constants.
    VkPipelineLayout layout() const { return layout_; }

    // As lk_vulkan_pipeline_cache().
    lk_status save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const;

  private:
    static constexpr uint32_t kMaxConstants = 12;
    static constexpr uint32_t kUsual = 64;     // pipelines of one model
    static constexpr uint32_t kMostIdle = 64;  // so its caches may all close before the next opens
    static constexpr uint32_t kGeneration = 128;
    struct Entry {
        const ShaderCode *shader;
        uint32_t subgroup_size;
        uint32_t n_constants;
        Constant constants[kMaxConstants];
        VkPipeline pipeline;
        bool is_kept;         // for get()
        uint32_t n_users;     // that did take() it
        uint64_t idle_since;  // of n_given_, when it is not in use

        bool is_in_use() const { return is_kept || n_users; }
        bool is_like(const Entry &other) const;
    };
    lk_status use(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                  bool is_kept, VkPipeline *out);
    // With mutex_ held.
    lk_status find(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                   Entry **out);
    void drop_oldest_idle();
    lk_status compile(Entry *entry);
    lk_status compile_module(VkShaderModule module, Entry *entry);
    lk_status renew_cache();
    lk_status read_cache(VkPipelineCache cache, void *buffer, uint64_t capacity_bytes,
                         uint64_t *needed_bytes) const;
    lk_status create_cache(const void *blob, uint64_t bytes, VkPipelineCache *out) const;
    void destroy_cache(VkPipelineCache cache) const;

    const Device &device_;
    VkPipelineLayout layout_ = VK_NULL_HANDLE;
    mutable std::mutex mutex_;  // of all below
    // What the driver compiled cannot be taken out of a cache one by one: after kGeneration
    // pipelines a new cache begins, and the one before the last is dropped.
    VkPipelineCache cache_ = VK_NULL_HANDLE;
    VkPipelineCache last_cache_ = VK_NULL_HANDLE;
    uint32_t n_cached_ = 0;  // pipelines made with cache_
    uint64_t n_given_ = 0;
    Array<Entry> entries_;
};

}  // namespace vulkan
}  // namespace lk

#endif
