// Tensors in the memory of a device that needs its own calls for them. In a build without the
// device's backend this throws llama::Error.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_DEVICE_SPACE_H
#define CLI_DEVICE_SPACE_H

#include <cstdint>
#include <memory>

#include "llama/tensor_space.h"

namespace cli {

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t device_index);

}  // namespace cli

#endif
