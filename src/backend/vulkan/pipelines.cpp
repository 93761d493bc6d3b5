// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/pipelines.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdio>
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

bool Pipelines::Entry::is_like(const Entry &other) const {
    return shader == other.shader && subgroup_size == other.subgroup_size &&
           n_constants == other.n_constants &&
           !std::memcmp(constants, other.constants, n_constants * sizeof *constants);
}

lk_status Pipelines::use(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                         bool is_kept, VkPipeline *out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Entry *entry = nullptr;
    LK_TRY(find(shader, constants, subgroup_size, &entry));
    entry->is_kept = entry->is_kept || is_kept;
    entry->n_users += !is_kept;
    *out = entry->pipeline;
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

void Pipelines::drop_oldest_idle() {
    Entry *oldest =
        std::min_element(entries_.begin(), entries_.end(), [](const Entry &a, const Entry &b) {
            return a.is_in_use() != b.is_in_use() ? b.is_in_use() : a.idle_since < b.idle_since;
        });
    device_.functions().DestroyPipeline(device_.handle(), oldest->pipeline, nullptr);
    entries_.swap_remove(static_cast<size_t>(oldest - entries_.begin()));
}

lk_status Pipelines::find(const ShaderCode &shader, Constants constants, uint32_t subgroup_size,
                          Entry **out) {
    assert(constants.size() <= kMaxConstants);
    Entry entry{};
    entry.shader = &shader;
    entry.subgroup_size = subgroup_size;
    entry.n_constants = static_cast<uint32_t>(constants.size());
    std::copy(constants.begin(), constants.end(), entry.constants);
    for (Entry &known : entries_)
        if (known.is_like(entry)) {
            *out = &known;
            return LK_OK;
        }
    if (entries_.size() == entries_.capacity() && !entries_.reserve(2 * entries_.size()))
        return fail(LK_E_NOMEM, "no memory for the list of %zu pipelines", 2 * entries_.size());
    LK_TRY(compile(&entry));
    entries_.push(entry);
    *out = &entries_.back();
    return LK_OK;
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

lk_status Pipelines::compile(Entry *entry) {
    const Functions &vk = device_.functions();
    VkShaderModuleCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    info.codeSize = entry->shader->n_bytes;
    info.pCode = entry->shader->words;
    VkShaderModule module = VK_NULL_HANDLE;
    LK_TRY(renew_cache());
    LK_TRY(device_.checked(vk.CreateShaderModule(device_.handle(), &info, nullptr, &module),
                           entry->shader->name));
    const lk_status status = compile_module(module, entry);
    vk.DestroyShaderModule(device_.handle(), module, nullptr);
    return status;
}

lk_status Pipelines::compile_module(VkShaderModule module, Entry *entry) {
    VkSpecializationMapEntry map[kMaxConstants];
    for (uint32_t i = 0; i < entry->n_constants; ++i)
        map[i] = {entry->constants[i].id,
                  static_cast<uint32_t>(i * sizeof(Constant) + offsetof(Constant, value)), 4};
    VkSpecializationInfo special{};
    special.mapEntryCount = entry->n_constants;
    special.pMapEntries = map;
    special.dataSize = entry->n_constants * sizeof(Constant);
    special.pData = entry->constants;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required{};
    required.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    required.requiredSubgroupSize = entry->subgroup_size;
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.pNext =
        entry->subgroup_size && device_.traits().subgroup_size_control ? &required : nullptr;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &special;
    info.layout = layout_;
    char action[192];
    std::snprintf(action, sizeof action,
                  info.stage.pNext
                      ? "compiling shader %s for subgroups of %u "
                        "(LK_VULKAN_NO_SUBGROUP in lk_vulkan_desc.mask leaves them out)"
                      : "compiling shader %s",
                  entry->shader->name, entry->subgroup_size);
    ++n_cached_;
    return device_.checked(device_.functions().CreateComputePipelines(
                               device_.handle(), cache_, 1, &info, nullptr, &entry->pipeline),
                           action);
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
