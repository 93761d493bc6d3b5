// Compiles shaders into pipelines, several at a time: a driver's compiler takes up to seconds for
// one, and works in the thread that calls it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_PIPELINE_COMPILER_H
#define LK_BACKEND_VULKAN_PIPELINE_COMPILER_H

#include <initializer_list>

#include "backend/vulkan/device.h"
#include "backend/vulkan/shader_code.h"

namespace lk {
namespace vulkan {

// A specialisation constant. A shader that has none of this id does not mind.
struct Constant {
    uint32_t id;
    uint32_t value;
};

using Constants = std::initializer_list<Constant>;

// What a pipeline is made of. subgroup_size: 0 = the driver's choice, else one between the device's
// bounds, which differ only with Traits.subgroup_size_control.
struct PipelineSpec {
    static constexpr uint32_t kMaxConstants = 16;
    const ShaderCode *shader;
    uint32_t subgroup_size;
    uint32_t n_constants;
    Constant constants[kMaxConstants];

    bool is_like(const PipelineSpec &other) const;
};
PipelineSpec make_spec(const ShaderCode &shader, Constants constants, uint32_t subgroup_size);

// A pipeline to be made, and where it goes.
struct PipelineRequest {
    const PipelineSpec *spec;
    VkPipeline *out;
};

class PipelineCompiler {
  public:
    static constexpr uint32_t kMostThreads = 8;

    explicit PipelineCompiler(const Device &device) : device_(device) {}

    // n: at least 1. By up to kMostThreads threads, of which the caller's is one. All are made, or
    // none: then all are null.
    lk_status compile(const PipelineRequest *requests, uint32_t n, VkPipelineLayout layout,
                      VkPipelineCache cache) const;

  private:
    struct Work;
    static void *take_part(void *work);
    VkResult compile_one(const PipelineSpec &spec, const Work &work, VkPipeline *out) const;
    VkResult compile_module(const PipelineSpec &spec, VkShaderModule module, const Work &work,
                            VkPipeline *out) const;
    bool has_required_size(const PipelineSpec &spec) const {
        return spec.subgroup_size && device_.traits().subgroup_size_control;
    }
    lk_status report(VkResult result, const PipelineSpec &spec) const;

    const Device &device_;
};

}  // namespace vulkan
}  // namespace lk

#endif
