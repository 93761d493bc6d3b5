// SPDX-License-Identifier: Apache-2.0
#include "on_devices.h"

namespace cli {
namespace {

constexpr char kMissing[] = "this build of lowkey has no CUDA";

}  // namespace

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t) { throw llama::Error(kMissing); }

std::unique_ptr<Gpu> open_cuda(const DeviceOptions &) { throw llama::Error(kMissing); }

}  // namespace cli
