// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/matrix_probe.h"

#include <algorithm>
#include <cstring>

#include "backend/vulkan/commands.h"
#include "base/status.h"
#include "format/format_const.h"
#include "format/fp16.h"
#include "shaders/push.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint32_t kMatrixValues = 16 * 16;
constexpr uint32_t kSums = 16 * 8;

// In one buffer that is mapped.
struct ProbeData {
    uint16_t values[kMatrixValues];
    float sums[kSums];
    uint32_t fits[LK_LANES];
};

// `fits` is set to whether all lanes have what the shader expects.
lk_status run_probe(const Device &device, Pipelines *pipelines, const ShaderCode &shader,
                    const Buffer &buffer, bool *fits) {
    auto *data = buffer.as<ProbeData>();
    std::memset(data->fits, 0, sizeof data->fits);
    VkPipeline pipeline = VK_NULL_HANDLE;
    Commands commands(device);
    Recorder recorder;
    const uint32_t subgroup_size = device.traits().subgroup_size_control ? LK_LANES : 0;
    const PipelineSpec spec = make_spec(shader, {}, subgroup_size);
    LK_TRY(pipelines->get(&spec, 1, &pipeline));
    LK_TRY(commands.open(pipelines->layout()));
    LK_TRY(commands.begin(&recorder));
    recorder.bind(pipeline);
    const MatrixProbePush push = {buffer.address(offsetof(ProbeData, values)),
                                  buffer.address(offsetof(ProbeData, sums)),
                                  buffer.address(offsetof(ProbeData, fits))};
    recorder.push(push);
    recorder.dispatch(1);
    LK_TRY(commands.end());
    LK_TRY(commands.wait());
    *fits = std::all_of(data->fits, data->fits + LK_LANES, [](uint32_t fit) { return fit != 0; });
    return LK_OK;
}

}  // namespace

lk_status probe_matrices(Device *device, Pipelines *pipelines) {
    if (!device->traits().cooperative_matrix)
        return LK_OK;
    Buffer buffer;
    LK_TRY(
        buffer.open(*device, MemoryKind::kReadback, sizeof(ProbeData), "a question to the device"));
    auto *data = buffer.as<ProbeData>();
    *data = {};
    bool is_saturated = false;
    for (uint32_t i = 0; i < kMatrixValues; ++i)
        data->values[i] = float_to_half(static_cast<float>(i), &is_saturated);
    for (uint32_t i = 0; i < kSums; ++i)
        data->sums[i] = static_cast<float>(i);
    bool fits = false;
    LK_TRY(run_probe(*device, pipelines, shaders::matrix_probe, buffer, &fits));
    if (!fits)
        device->forbid_matrices();
    if (!device->traits().matrix_uses)
        return LK_OK;
    LK_TRY(run_probe(*device, pipelines, shaders::matrix_use_probe, buffer, &fits));
    if (!fits)
        device->forbid_matrix_uses();
    return LK_OK;
}

}  // namespace vulkan
}  // namespace lk
