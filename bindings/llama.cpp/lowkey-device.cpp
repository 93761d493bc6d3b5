// SPDX-License-Identifier: Apache-2.0
#include "lowkey-device.h"

#include <llama-cparams.h>
#include <llama-model.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "lowkey-cuda.h"
#include "lowkey-graph.h"
#include "lowkey-model.h"

namespace lowkey {
namespace {

constexpr char kRemedy[] = "; --no-kv-offload keeps the cache on the CPU";

bool is_cpu(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// The calls of the CUDA backend that a device belongs to.
lowkey_cuda &cuda_of(ggml_backend_dev_t device) {
    const std::string name = ggml_backend_dev_name(device);
    ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(device);
    if (std::strcmp(ggml_backend_reg_name(backend), "CUDA") != 0)
        throw std::runtime_error("lowkey has no cache on " + name +
                                 ", only on the CPU and on CUDA" + kRemedy);
    void *calls = ggml_backend_reg_get_proc_address(backend, LOWKEY_CUDA_NAME);
    if (calls == nullptr)
        throw std::runtime_error("lowkey has no cache on " + name +
                                 ": its backend was built without lowkey's hooks" + kRemedy);
    return *static_cast<lowkey_cuda *>(calls);
}

}  // namespace

Device device_of(const llama_model &model, const llama_cparams &cparams,
                 const std::vector<uint32_t> &layer_index) {
    std::vector<ggml_backend_dev_t> devices;
    for (size_t il = 0; cparams.offload_kqv && il < layer_index.size(); ++il) {
        ggml_backend_dev_t device = model.dev_layer(static_cast<int>(il));
        const bool is_known = std::find(devices.begin(), devices.end(), device) != devices.end();
        if (layer_index[il] != kNoLayer && !is_known)
            devices.push_back(device);
    }
    if (devices.size() > 1) {
        std::string names;
        for (ggml_backend_dev_t device : devices)
            names += (names.empty() ? "" : ", ") + std::string(ggml_backend_dev_name(device));
        throw std::runtime_error(
            "lowkey keeps a cache on one device, and this model's attention layers are on several "
            "(" +
            names + "): offload all of them to one device or none (-ngl, --split-mode none)" +
            kRemedy);
    }
    Device found;
    if (devices.empty() || is_cpu(devices.front()))
        return found;
    found.of_ggml = devices.front();
    lowkey_cuda &calls = cuda_of(found.of_ggml);
    set_node_calls(calls);
    found.place.backend = LK_BACKEND_CUDA;
    found.place.device_index = static_cast<uint32_t>(calls.device_index(found.of_ggml));
    return found;
}

ggml_backend_buffer_type_t buffer_type_of(const Device &device) {
    return device.of_ggml != nullptr ? ggml_backend_dev_buffer_type(device.of_ggml)
                                     : ggml_backend_cpu_buffer_type();
}

void pin(ggml_backend_sched_t sched, ggml_tensor *node, const Device &device) {
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        ggml_backend_dev_t candidate = ggml_backend_get_device(backend);
        if (device.of_ggml != nullptr ? candidate == device.of_ggml : is_cpu(candidate))
            ggml_backend_sched_set_tensor_backend(sched, node, backend);
    }
}

}  // namespace lowkey
