// SPDX-License-Identifier: Apache-2.0
#include "lowkey-device.h"

#include <llama-cparams.h>
#include <llama-model.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "lowkey-cuda.h"
#include "lowkey-graph.h"
#include "lowkey-model.h"
#include "lowkey-vulkan.h"

namespace lowkey {
namespace {

constexpr char kRemedy[] = "; --no-kv-offload keeps the cache on the CPU";

bool is_cpu(ggml_backend_dev_t device) {
    return ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

// What the backend of a device has under a name.
template <typename Calls>
Calls &calls_of(ggml_backend_dev_t device, const char *name) {
    ggml_backend_reg_t backend = ggml_backend_dev_backend_reg(device);
    void *calls = ggml_backend_reg_get_proc_address(backend, name);
    if (calls == nullptr)
        throw std::runtime_error("lowkey has no cache on " +
                                 std::string(ggml_backend_dev_name(device)) +
                                 ": its backend was built without lowkey's hooks" + kRemedy);
    return *static_cast<Calls *>(calls);
}

Place place_of(const lowkey_vulkan_device &device) {
    Place place;
    place.backend = LK_BACKEND_VULKAN;
    lk_vulkan_desc &desc = place.vulkan;
    check(lk_vulkan_desc_init(&desc, sizeof desc));
    desc.get_instance_proc_addr = device.get_instance_proc_addr;
    desc.instance = device.instance;
    desc.physical_device = device.physical_device;
    desc.device = device.device;
    desc.queue = device.queue;
    desc.queue_family = device.queue_family;
    desc.api_version = device.api_version;
    desc.n_extensions = device.n_extensions;
    desc.extensions = device.extensions;
    desc.features = device.features;
    desc.lock_queue = device.lock_queue;
    desc.unlock_queue = device.unlock_queue;
    desc.lock_user = device.lock_user;
    return place;
}

Device device_of(ggml_backend_dev_t of_ggml) {
    const std::string backend = ggml_backend_reg_name(ggml_backend_dev_backend_reg(of_ggml));
    Device found;
    found.of_ggml = of_ggml;
    if (backend == "CUDA") {
        auto &calls = calls_of<lowkey_cuda>(of_ggml, LOWKEY_CUDA_NAME);
        set_node_calls(calls);
        found.place.backend = LK_BACKEND_CUDA;
        found.place.device_index = static_cast<uint32_t>(calls.device_index(of_ggml));
    } else if (backend == "Vulkan") {
        auto &calls = calls_of<lowkey_vulkan>(of_ggml, LOWKEY_VULKAN_NAME);
        set_node_calls(calls);
        found.place = place_of(*calls.describe(of_ggml));
        found.vulkan = &calls;
    } else {
        throw std::runtime_error("lowkey has no cache on " +
                                 std::string(ggml_backend_dev_name(of_ggml)) +
                                 ", only on the CPU, on CUDA and on Vulkan" + kRemedy);
    }
    return found;
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
    if (devices.empty() || is_cpu(devices.front()))
        return Device();
    return device_of(devices.front());
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
