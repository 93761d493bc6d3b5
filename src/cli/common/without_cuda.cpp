// SPDX-License-Identifier: Apache-2.0
#include "cli/common/device_space.h"
#include "llama/handles.h"

namespace cli {

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t) {
    throw llama::Error("this build of lowkey has no CUDA");
}

}  // namespace cli
