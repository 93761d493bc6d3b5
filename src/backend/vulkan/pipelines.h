// Compute pipelines of a device, made once for each shader and set of constants while something
// uses them. Plans name ever new sets: unused pipelines are kept for the next cache, up to a
// number, so that a context takes as much memory after its thousandth plan as after its hundredth.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_PIPELINES_H
#define LK_BACKEND_VULKAN_PIPELINES_H

#include <mutex>

#include "backend/vulkan/pipeline_compiler.h"

namespace lk {
namespace vulkan {

constexpr uint32_t kPushBytes = 128;  // what every device has

class Pipelines {
  public:
    Pipelines(const Allocator &allocator, const Device &device)
        : device_(device), compiler_(device), entries_(allocator) {}
    ~Pipelines();
    Pipelines(const Pipelines &) = delete;
    Pipelines &operator=(const Pipelines &) = delete;

    // blob: what save() gave, of this driver or of another.
    lk_status open(const void *blob, uint64_t bytes);

    // The pipelines of n specs; those that are not there are compiled, several at a time. All are
    // given, or none. Any thread. What get() gives lives as long as this object: it is for what no
    // plan changes.
    lk_status get(const PipelineSpec *specs, uint32_t n, VkPipeline *out) {
        return use(specs, n, true, out);
    }
    // The same, living until it was given back as often as it was taken, and then for as long as
    // it is among the kMostIdle that were given back last.
    lk_status take(const PipelineSpec *specs, uint32_t n, VkPipeline *out) {
        return use(specs, n, false, out);
    }
    // Any thread. Work that uses it has run.
    void give(VkPipeline pipeline);
    // Without descriptor sets: shaders get addresses in kPushBytes of push constants.
    VkPipelineLayout layout() const { return layout_; }

    // As lk_vulkan_pipeline_cache().
    lk_status save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const;

  private:
    static constexpr uint32_t kUsual = 64;     // pipelines of one model
    static constexpr uint32_t kMostIdle = 64;  // so its caches may all close before the next opens
    static constexpr uint32_t kGeneration = 128;
    struct Entry {
        PipelineSpec spec;
        VkPipeline pipeline;  // null while it is compiled
        bool is_kept;         // for get()
        uint32_t n_users;     // that did take() it
        uint64_t idle_since;  // of n_given_, when it is not in use

        bool is_in_use() const { return is_kept || n_users; }
    };
    lk_status use(const PipelineSpec *specs, uint32_t n, bool is_kept, VkPipeline *out);
    // With mutex_ held.
    Entry *find(const PipelineSpec &spec);
    lk_status add_missing(const PipelineSpec *specs, uint32_t n);
    lk_status compile_from(size_t first);
    void drop(size_t i);
    void drop_oldest_idle();
    lk_status renew_cache();
    lk_status read_cache(VkPipelineCache cache, void *buffer, uint64_t capacity_bytes,
                         uint64_t *needed_bytes) const;
    lk_status create_cache(const void *blob, uint64_t bytes, VkPipelineCache *out) const;
    void destroy_cache(VkPipelineCache cache) const;

    const Device &device_;
    const PipelineCompiler compiler_;
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
