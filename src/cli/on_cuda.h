// What the command does on a CUDA device by itself, beside the library. In a build without CUDA
// each of these throws llama::Error.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_ON_CUDA_H
#define CLI_ON_CUDA_H

#include <cstdint>
#include <memory>

#include "bench.h"
#include "llama/tensor_space.h"

namespace cli {

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t device_index);
int run_cuda_bench(const BenchOptions &options);

}  // namespace cli

#endif
