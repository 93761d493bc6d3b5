// SPDX-License-Identifier: Apache-2.0
#include "on_cuda.h"

namespace cli {
namespace {

constexpr char kMissing[] = "this build of lowkey has no CUDA";

}  // namespace

std::unique_ptr<llama::TensorSpace> open_cuda_space(std::uint32_t) { throw llama::Error(kMissing); }

int run_cuda_bench(const BenchOptions &) { throw llama::Error(kMissing); }

}  // namespace cli
