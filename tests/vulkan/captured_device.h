// A device of which lowkey makes pipelines, but runs none: a driver's compiler is all that it
// needs. Each pipeline keeps what the driver says of the compiled code
// (VK_KHR_pipeline_executable_properties).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_CAPTURED_DEVICE_H
#define LK_TESTS_VULKAN_CAPTURED_DEVICE_H

#include "backend/vulkan/device.h"
#include "backend/vulkan/pipelines.h"
#include "vulkan/host.h"

#include <list>
#include <string>
#include <utility>
#include <vector>

struct Compiled {
    VkPipeline pipeline;
    std::string shader;
    uint32_t subgroup_size;                                  // of the code
    std::vector<std::pair<std::string, double>> statistics;  // in the driver's words and order
    std::vector<std::pair<std::string, std::string>> texts;  // representations, by their names
};

// One at a time.
class CapturedDevice {
  public:
    CapturedDevice();
    ~CapturedDevice();
    CapturedDevice(const CapturedDevice &) = delete;
    CapturedDevice &operator=(const CapturedDevice &) = delete;

    // Null, or why the device does not open.
    const char *open(uint32_t index);

    const vulkan_host &host() const { return host_; }
    std::string driver() const;  // name and version
    bool has_statistics() const { return host_.statistics_features.pipelineExecutableInfo; }
    const lk::vulkan::Traits &traits() const { return device_.traits(); }
    lk::vulkan::Pipelines &pipelines() { return pipelines_; }
    // What was compiled as this pipeline; null where the driver was not called for it.
    const Compiled *compiled(VkPipeline pipeline) const;

  private:
    friend struct Interposed;
    VkResult compile(VkDevice device, VkPipelineCache cache,
                     const VkComputePipelineCreateInfo &info, VkPipeline *out);
    void read_statistics(uint32_t executable, Compiled *to) const;
    void read_texts(uint32_t executable, Compiled *to) const;
    template <class Function>
    Function function(const char *name) const {
        return reinterpret_cast<Function>(host_.vk.GetDeviceProcAddr(host_.device, name));
    }

    // The device goes after lowkey's pipelines; leak checkers know the driver while it is loaded.
    struct Host : vulkan_host {
        Host() : vulkan_host{} {}
        ~Host() { vulkan_host_close_device(this); }
        Host(const Host &) = delete;
        Host &operator=(const Host &) = delete;
    };
    Host host_;
    lk::vulkan::Device device_;
    lk::vulkan::Pipelines pipelines_;
    std::list<Compiled> compiled_;  // the latest first; they stay where they are
    std::vector<std::pair<VkShaderModule, std::string>> modules_;
};

#endif
