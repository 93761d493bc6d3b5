// What the command does on a device by itself, beside the library. In a build without the device's
// backend each of these throws llama::Error.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_ON_DEVICES_H
#define CLI_ON_DEVICES_H

#include <memory>

#include "gpu.h"

namespace cli {

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t device_index);
std::unique_ptr<Gpu> open_cuda(const DeviceOptions &options);
std::unique_ptr<Gpu> open_vulkan(const DeviceOptions &options);

}  // namespace cli

#endif
