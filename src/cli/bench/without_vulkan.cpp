// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/gpu.h"

namespace cli {

std::unique_ptr<Gpu> open_vulkan(const DeviceOptions &, std::uint32_t) {
    throw llama::Error("this build of lowkey has no Vulkan");
}

}  // namespace cli
