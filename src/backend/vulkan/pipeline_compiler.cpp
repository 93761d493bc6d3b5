// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/pipeline_compiler.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/cpu_count.h"
#include "base/signals.h"
#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr size_t kStackBytes = size_t{8} << 20;  // compilers recurse; a host's default may be small

// Threads besides the caller's, which end with their object. Fewer where the system has no more.
class Helpers {
  public:
    Helpers(uint32_t n, void *(*run)(void *), void *argument) {
        const SignalBlock block;
        pthread_attr_t attributes;
        if (pthread_attr_init(&attributes) != 0)
            return;
        (void)pthread_attr_setstacksize(&attributes, kStackBytes);
        while (n_ < n && pthread_create(&threads_[n_], &attributes, run, argument) == 0)
            ++n_;
        (void)pthread_attr_destroy(&attributes);
    }
    ~Helpers() {
        while (n_)
            pthread_join(threads_[--n_], nullptr);
    }
    Helpers(const Helpers &) = delete;
    Helpers &operator=(const Helpers &) = delete;

  private:
    pthread_t threads_[PipelineCompiler::kMostThreads];
    uint32_t n_ = 0;
};

}  // namespace

bool PipelineSpec::is_like(const PipelineSpec &other) const {
    return shader == other.shader && subgroup_size == other.subgroup_size &&
           n_constants == other.n_constants &&
           !std::memcmp(constants, other.constants, n_constants * sizeof *constants);
}

PipelineSpec make_spec(const ShaderCode &shader, Constants constants, uint32_t subgroup_size) {
    assert(constants.size() <= PipelineSpec::kMaxConstants);
    PipelineSpec spec{};
    spec.shader = &shader;
    spec.subgroup_size = subgroup_size;
    spec.n_constants = static_cast<uint32_t>(constants.size());
    std::copy(constants.begin(), constants.end(), spec.constants);
    return spec;
}

// What the threads share. The first failure by its index is reported, whichever thread has it.
struct PipelineCompiler::Work {
    const PipelineCompiler *compiler;
    const PipelineRequest *requests;
    uint32_t n;
    VkPipelineLayout layout;
    VkPipelineCache cache;
    std::atomic<uint32_t> next{0};
    std::atomic<uint64_t> failure{UINT64_MAX};  // index << 32 | VkResult
};

void *PipelineCompiler::take_part(void *argument) {
    Work &work = *static_cast<Work *>(argument);
    for (uint32_t i = work.next.fetch_add(1); i < work.n; i = work.next.fetch_add(1)) {
        const PipelineRequest &request = work.requests[i];
        const VkResult result = work.compiler->compile_one(*request.spec, work, request.out);
        if (result == VK_SUCCESS)
            continue;
        *request.out = VK_NULL_HANDLE;
        const uint64_t failure = uint64_t{i} << 32 | static_cast<uint32_t>(result);
        uint64_t first = work.failure.load();
        while (failure < first && !work.failure.compare_exchange_weak(first, failure)) {}
    }
    return nullptr;
}

lk_status PipelineCompiler::compile(const PipelineRequest *requests, uint32_t n,
                                    VkPipelineLayout layout, VkPipelineCache cache) const {
    Work work{this, requests, n, layout, cache};
    {
        const Helpers helpers(std::min({n, usable_cpus(), kMostThreads}) - 1, take_part, &work);
        take_part(&work);
    }
    const uint64_t failure = work.failure.load();
    if (failure == UINT64_MAX)
        return LK_OK;
    for (uint32_t i = 0; i < n; ++i) {
        device_.functions().DestroyPipeline(device_.handle(), *requests[i].out, nullptr);
        *requests[i].out = VK_NULL_HANDLE;
    }
    return report(static_cast<VkResult>(static_cast<uint32_t>(failure)),
                  *requests[failure >> 32].spec);
}

VkResult PipelineCompiler::compile_one(const PipelineSpec &spec, const Work &work,
                                       VkPipeline *out) const {
    const Functions &vk = device_.functions();
    Array<uint32_t> words(default_allocator());
    if (!inflate(*spec.shader, &words))
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    VkShaderModuleCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO;
    info.codeSize = words.size() * sizeof(uint32_t);
    info.pCode = words.data();
    VkShaderModule module = VK_NULL_HANDLE;
    const VkResult made = vk.CreateShaderModule(device_.handle(), &info, nullptr, &module);
    if (made != VK_SUCCESS)
        return made;
    const VkResult result = compile_module(spec, module, work, out);
    vk.DestroyShaderModule(device_.handle(), module, nullptr);
    return result;
}

VkResult PipelineCompiler::compile_module(const PipelineSpec &spec, VkShaderModule module,
                                          const Work &work, VkPipeline *out) const {
    VkSpecializationMapEntry map[PipelineSpec::kMaxConstants];
    for (uint32_t i = 0; i < spec.n_constants; ++i)
        map[i] = {spec.constants[i].id,
                  static_cast<uint32_t>(i * sizeof(Constant) + offsetof(Constant, value)), 4};
    VkSpecializationInfo special{};
    special.mapEntryCount = spec.n_constants;
    special.pMapEntries = map;
    special.dataSize = spec.n_constants * sizeof(Constant);
    special.pData = spec.constants;
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo required{};
    required.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO;
    required.requiredSubgroupSize = spec.subgroup_size;
    VkComputePipelineCreateInfo info{};
    info.sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO;
    info.stage.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO;
    info.stage.pNext = has_required_size(spec) ? &required : nullptr;
    info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT;
    info.stage.module = module;
    info.stage.pName = "main";
    info.stage.pSpecializationInfo = &special;
    info.layout = work.layout;
    return device_.functions().CreateComputePipelines(device_.handle(), work.cache, 1, &info,
                                                      nullptr, out);
}

lk_status PipelineCompiler::report(VkResult result, const PipelineSpec &spec) const {
    char action[192];
    std::snprintf(action, sizeof action,
                  has_required_size(spec)
                      ? "compiling shader %s for subgroups of %u "
                        "(LK_VULKAN_NO_SUBGROUP in lk_vulkan_desc.mask leaves them out)"
                      : "compiling shader %s",
                  spec.shader->name, spec.subgroup_size);
    return device_.checked(result, action);
}

}  // namespace vulkan
}  // namespace lk
