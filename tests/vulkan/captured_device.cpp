// SPDX-License-Identifier: Apache-2.0
#include "captured_device.h"

#include "base/status.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace {

CapturedDevice *g_device = nullptr;
std::mutex g_mutex;  // of what it keeps: lowkey compiles on several threads

bool has_code(const VkShaderModuleCreateInfo &info, const lk::vulkan::ShaderCode &shader) {
    lk::Array<uint32_t> words(lk::default_allocator());
    return info.codeSize == shader.n_words * sizeof(uint32_t) && inflate(shader, &words) &&
           std::memcmp(info.pCode, words.data(), info.codeSize) == 0;
}

// The shader whose code a module has.
const char *name_of(const VkShaderModuleCreateInfo &info) {
#define LK_SHADER(shader)                            \
    if (has_code(info, lk::vulkan::shaders::shader)) \
        return lk::vulkan::shaders::shader.name;
    LK_SHADERS(LK_SHADER)
#undef LK_SHADER
    return "?";
}

double number_of(const VkPipelineExecutableStatisticKHR &statistic) {
    switch (statistic.format) {
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR: return statistic.value.b32;
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
            return static_cast<double>(statistic.value.i64);
        case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
            return static_cast<double>(statistic.value.u64);
        default: return statistic.value.f64;
    }
}

VkPipelineExecutableInfoKHR executable_info(VkPipeline pipeline, uint32_t index) {
    VkPipelineExecutableInfoKHR info{};
    info.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR;
    info.pipeline = pipeline;
    info.executableIndex = index;
    return info;
}

}  // namespace

// The functions that lowkey gets in place of the driver's.
struct Interposed {
    static VKAPI_ATTR VkResult VKAPI_CALL make_module(VkDevice device,
                                                      const VkShaderModuleCreateInfo *info,
                                                      const VkAllocationCallbacks *callbacks,
                                                      VkShaderModule *out) {
        const VkResult result = g_device->host_.vk.CreateShaderModule(device, info, callbacks, out);
        const std::lock_guard<std::mutex> lock(g_mutex);
        if (result == VK_SUCCESS)
            g_device->modules_.emplace_back(*out, name_of(*info));
        return result;
    }
    static VKAPI_ATTR VkResult VKAPI_CALL compile(VkDevice device, VkPipelineCache cache,
                                                  uint32_t n,
                                                  const VkComputePipelineCreateInfo *infos,
                                                  const VkAllocationCallbacks *, VkPipeline *out) {
        const std::lock_guard<std::mutex> lock(g_mutex);
        VkResult result = VK_SUCCESS;
        for (uint32_t i = 0; i < n && result == VK_SUCCESS; ++i)
            result = g_device->compile(device, cache, infos[i], &out[i]);
        return result;
    }
    static PFN_vkVoidFunction find(const char *name) {
        if (!std::strcmp(name, "vkGetDeviceProcAddr"))
            return reinterpret_cast<PFN_vkVoidFunction>(device_function);
        if (!std::strcmp(name, "vkCreateShaderModule"))
            return reinterpret_cast<PFN_vkVoidFunction>(make_module);
        if (!std::strcmp(name, "vkCreateComputePipelines"))
            return reinterpret_cast<PFN_vkVoidFunction>(compile);
        return nullptr;
    }
    static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL device_function(VkDevice device,
                                                                    const char *name) {
        const PFN_vkVoidFunction own = find(name);
        return own ? own : g_device->host_.vk.GetDeviceProcAddr(device, name);
    }
    static VKAPI_ATTR PFN_vkVoidFunction VKAPI_CALL instance_function(VkInstance instance,
                                                                      const char *name) {
        const PFN_vkVoidFunction own = find(name);
        return own ? own : g_device->host_.get_instance_proc_addr(instance, name);
    }
};

CapturedDevice::CapturedDevice()
    : device_(lk::default_allocator()), pipelines_(lk::default_allocator(), device_) {
    g_device = this;
}

CapturedDevice::~CapturedDevice() { g_device = nullptr; }

const char *CapturedDevice::open(uint32_t index) {
    vulkan_host_options options{};
    options.device_index = index;
    options.only_compiles = 1;
    const vulkan_failure failure = vulkan_host_open(&options, &host_);
    if (failure)
        return failure;
    lk_context_desc desc{};
    lk_vulkan_desc vulkan{};
    vulkan_host_describe(&host_, &vulkan);
    vulkan.get_instance_proc_addr =
        reinterpret_cast<lk_vulkan_function>(Interposed::instance_function);
    if (device_.open(desc, vulkan) || pipelines_.open(nullptr, 0))
        return lk::last_sentence();
    return nullptr;
}

std::string CapturedDevice::driver() const {
    VkPhysicalDeviceDriverProperties driver{};
    driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES;
    VkPhysicalDeviceProperties2 properties{};
    properties.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2;
    properties.pNext = &driver;
    const auto query = reinterpret_cast<PFN_vkGetPhysicalDeviceProperties2>(
        host_.get_instance_proc_addr(host_.instance, "vkGetPhysicalDeviceProperties2"));
    query(host_.physical_device, &properties);
    return std::string(driver.driverName) + ", " + driver.driverInfo;
}

const Compiled *CapturedDevice::compiled(VkPipeline pipeline) const {
    const auto at = std::find_if(compiled_.begin(), compiled_.end(),
                                 [&](const Compiled &known) { return known.pipeline == pipeline; });
    return at == compiled_.end() ? nullptr : &*at;
}

VkResult CapturedDevice::compile(VkDevice device, VkPipelineCache cache,
                                 const VkComputePipelineCreateInfo &from, VkPipeline *out) {
    VkComputePipelineCreateInfo info = from;
    if (has_statistics())
        info.flags |= VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR |
                      VK_PIPELINE_CREATE_CAPTURE_INTERNAL_REPRESENTATIONS_BIT_KHR;
    const VkResult result = host_.vk.CreateComputePipelines(device, cache, 1, &info, nullptr, out);
    if (result != VK_SUCCESS)
        return result;
    Compiled made{*out, "?", 0, {}, {}};
    for (const auto &[module, name] : modules_)
        if (module == info.stage.module)
            made.shader = name;
    if (has_statistics()) {
        VkPipelineInfoKHR of{};
        of.sType = VK_STRUCTURE_TYPE_PIPELINE_INFO_KHR;
        of.pipeline = *out;
        VkPipelineExecutablePropertiesKHR executable{};
        executable.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_PROPERTIES_KHR;
        uint32_t n = 1;  // a compute pipeline has one
        function<PFN_vkGetPipelineExecutablePropertiesKHR>("vkGetPipelineExecutablePropertiesKHR")(
            device, &of, &n, &executable);
        made.subgroup_size = executable.subgroupSize;
        read_statistics(0, &made);
        read_texts(0, &made);
    }
    compiled_.push_front(made);  // handles of destroyed pipelines come again
    return result;
}

void CapturedDevice::read_statistics(uint32_t executable, Compiled *to) const {
    const VkPipelineExecutableInfoKHR info = executable_info(to->pipeline, executable);
    const auto read =
        function<PFN_vkGetPipelineExecutableStatisticsKHR>("vkGetPipelineExecutableStatisticsKHR");
    uint32_t n = 0;
    read(host_.device, &info, &n, nullptr);
    VkPipelineExecutableStatisticKHR empty{};
    empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    std::vector<VkPipelineExecutableStatisticKHR> found(n, empty);
    read(host_.device, &info, &n, found.data());
    for (const VkPipelineExecutableStatisticKHR &statistic : found)
        to->statistics.emplace_back(statistic.name, number_of(statistic));
}

// Twice: the first call gives the sizes of the texts.
void CapturedDevice::read_texts(uint32_t executable, Compiled *to) const {
    const VkPipelineExecutableInfoKHR info = executable_info(to->pipeline, executable);
    const auto read = function<PFN_vkGetPipelineExecutableInternalRepresentationsKHR>(
        "vkGetPipelineExecutableInternalRepresentationsKHR");
    uint32_t n = 0;
    read(host_.device, &info, &n, nullptr);
    VkPipelineExecutableInternalRepresentationKHR empty{};
    empty.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INTERNAL_REPRESENTATION_KHR;
    std::vector<VkPipelineExecutableInternalRepresentationKHR> found(n, empty);
    read(host_.device, &info, &n, found.data());
    std::vector<std::string> texts(n);
    for (uint32_t i = 0; i < n; ++i) {
        texts[i].resize(found[i].dataSize);
        found[i].pData = texts[i].data();
    }
    read(host_.device, &info, &n, found.data());
    for (uint32_t i = 0; i < n; ++i)
        if (found[i].isText)
            to->texts.emplace_back(found[i].name, texts[i].c_str());
}
