// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/pipelines.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

// Is this a cache of pipelines of this device and driver? Drivers trust the rest of it.
bool is_own_blob(const Traits &traits, const void *blob, uint64_t bytes) {
    VkPipelineCacheHeaderVersionOne header{};
    if (bytes < sizeof header)
        return false;
    std::memcpy(&header, blob, sizeof header);
    return header.headerVersion == VK_PIPELINE_CACHE_HEADER_VERSION_ONE &&
           header.vendorID == traits.vendor_id && header.deviceID == traits.device_id &&
           !std::memcmp(header.pipelineCacheUUID, traits.pipeline_cache_id, VK_UUID_SIZE);
}

}  // namespace

Pipelines::~Pipelines() {
    const Functions &vk = device_.functions();
    for (const Entry &entry : entries_)
        vk.DestroyPipeline(device_.handle(), entry.pipeline, nullptr);
    destroy_cache(cache_);
    destroy_cache(last_cache_);
    if (layout_)
        vk.DestroyPipelineLayout(device_.handle(), layout_, nullptr);
}

lk_status Pipelines::open(const void *blob, uint64_t bytes) {
    if (!entries_.reserve(kUsual))
        return fail(LK_E_NOMEM, "no memory for the list of %u pipelines", kUsual);
    const Functions &vk = device_.functions();
    const VkPushConstantRange range = {VK_SHADER_STAGE_COMPUTE_BIT, 0, kPushBytes};
    VkPipelineLayoutCreateInfo layout{};
    layout.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO;
    layout.pushConstantRangeCount = 1;
    layout.pPushConstantRanges = &range;
    LK_TRY(device_.checked(vk.CreatePipelineLayout(device_.handle(), &layout, nullptr, &layout_),
                           "making a pipeline layout"));
    return create_cache(blob, is_own_blob(device_.traits(), blob, bytes) ? bytes : 0, &cache_);
}

lk_status Pipelines::create_cache(const void *blob, uint64_t bytes, VkPipelineCache *out) const {
    VkPipelineCacheCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO;
    info.initialDataSize = bytes;
    info.pInitialData = blob;
    return device_.checked(
        device_.functions().CreatePipelineCache(device_.handle(), &info, nullptr, out),
        "making a cache of pipelines");
}

void Pipelines::destroy_cache(VkPipelineCache cache) const {
    if (cache)
        device_.functions().DestroyPipelineCache(device_.handle(), cache, nullptr);
}

lk_status Pipelines::use(const PipelineSpec *specs, uint32_t n, bool is_kept, VkPipeline *out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LK_TRY(add_missing(specs, n));
    for (uint32_t i = 0; i < n; ++i) {
        Entry *entry = find(specs[i]);
        entry->is_kept = entry->is_kept || is_kept;
        entry->n_users += !is_kept;
        out[i] = entry->pipeline;
    }
    return LK_OK;
}

// Drivers may give pipelines that are alike one handle: any entry of it that has a user will do.
void Pipelines::give(VkPipeline pipeline) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry *entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry &known) {
        return known.pipeline == pipeline && known.n_users;
    });
    assert(entry != entries_.end());
    --entry->n_users;
    entry->idle_since = ++n_given_;
    const auto n_idle = std::count_if(entries_.begin(), entries_.end(),
                                      [](const Entry &known) { return !known.is_in_use(); });
    if (n_idle > kMostIdle)
        drop_oldest_idle();
}

void Pipelines::drop(size_t i) {
    device_.functions().DestroyPipeline(device_.handle(), entries_[i].pipeline, nullptr);
    entries_.swap_remove(i);
}

void Pipelines::drop_oldest_idle() {
    const Entry *oldest =
        std::min_element(entries_.begin(), entries_.end(), [](const Entry &a, const Entry &b) {
            return a.is_in_use() != b.is_in_use() ? b.is_in_use() : a.idle_since < b.idle_since;
        });
    drop(static_cast<size_t>(oldest - entries_.begin()));
}

Pipelines::Entry *Pipelines::find(const PipelineSpec &spec) {
    Entry *entry = std::find_if(entries_.begin(), entries_.end(),
                                [&](const Entry &known) { return known.spec.is_like(spec); });
    return entry == entries_.end() ? nullptr : entry;
}

lk_status Pipelines::add_missing(const PipelineSpec *specs, uint32_t n) {
    const size_t n_before = entries_.size();
    for (uint32_t i = 0; i < n; ++i) {
        Entry entry{};
        entry.spec = specs[i];
        if (!find(specs[i]) && !entries_.push(entry)) {
            while (entries_.size() > n_before)
                entries_.pop();
            return fail(LK_E_NOMEM, "no memory for the list of %u more pipelines", n);
        }
    }
    return compile_from(n_before);
}

// The entries from `first` on, as many at once as one generation of the cache takes.
lk_status Pipelines::compile_from(size_t first) {
    PipelineRequest requests[kGeneration];
    lk_status status = LK_OK;
    for (size_t done = first; !status && done < entries_.size();) {
        status = renew_cache();
        uint32_t n = 0;
        for (; !status && n_cached_ < kGeneration && done < entries_.size(); ++n_cached_, ++done)
            requests[n++] = {&entries_[done].spec, &entries_[done].pipeline};
        if (!status)
            status = compiler_.compile(requests, n, layout_, cache_);
    }
    while (status && entries_.size() > first)
        drop(entries_.size() - 1);
    return status;
}

lk_status Pipelines::renew_cache() {
    if (n_cached_ < kGeneration)
        return LK_OK;
    VkPipelineCache fresh = VK_NULL_HANDLE;
    LK_TRY(create_cache(nullptr, 0, &fresh));
    destroy_cache(last_cache_);
    last_cache_ = cache_;
    cache_ = fresh;
    n_cached_ = 0;
    return LK_OK;
}

lk_status Pipelines::save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!last_cache_)
        return read_cache(cache_, buffer, capacity_bytes, needed_bytes);
    VkPipelineCache both = VK_NULL_HANDLE;
    const VkPipelineCache parts[] = {last_cache_, cache_};
    lk_status status = create_cache(nullptr, 0, &both);
    if (!status)
        status = device_.checked(
            device_.functions().MergePipelineCaches(device_.handle(), both, 2, parts),
            "merging caches of pipelines");
    if (!status)
        status = read_cache(both, buffer, capacity_bytes, needed_bytes);
    destroy_cache(both);
    return status;
}

lk_status Pipelines::read_cache(VkPipelineCache cache, void *buffer, uint64_t capacity_bytes,
                                uint64_t *needed_bytes) const {
    const Functions &vk = device_.functions();
    size_t needed = 0;
    LK_TRY(device_.checked(vk.GetPipelineCacheData(device_.handle(), cache, &needed, nullptr),
                           "measuring the cache of pipelines"));
    if (needed_bytes)
        *needed_bytes = needed;
    if (!capacity_bytes)
        return LK_OK;
    if (capacity_bytes < needed)
        return fail(LK_E_ARGUMENT, "capacity_bytes is %llu and the cache of pipelines has %zu",
                    static_cast<unsigned long long>(capacity_bytes), needed);
    size_t written = capacity_bytes;
    return device_.checked(vk.GetPipelineCacheData(device_.handle(), cache, &written, buffer),
                           "reading the cache of pipelines");
}

}  // namespace vulkan
}  // namespace lk
