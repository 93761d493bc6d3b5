// Where a context's cache is: on the device on which llama.cpp would keep it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_DEVICE_H
#define LOWKEY_DEVICE_H

#include <ggml-backend.h>

#include <cstdint>
#include <vector>

#include "lowkey-store.h"

struct llama_cparams;
struct llama_model;
struct lowkey_vulkan;

namespace lowkey {

struct Device {
    ggml_backend_dev_t of_ggml = nullptr;   // nullptr = the CPU
    Place place;                            // of lowkey
    const lowkey_vulkan *vulkan = nullptr;  // Vulkan: the calls of ggml's backend
};

// The device of a model's attention layers. Throws std::runtime_error with one sentence if lowkey
// has no cache there, or if the layers are on several devices.
Device device_of(const llama_model &model, const llama_cparams &cparams,
                 const std::vector<uint32_t> &layer_index);

ggml_backend_buffer_type_t buffer_type_of(const Device &device);

// Assigns a node to the device, so that no scheduling moves it.
void pin(ggml_backend_sched_t sched, ggml_tensor *node, const Device &device);

}  // namespace lowkey

#endif
