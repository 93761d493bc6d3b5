// Decode attention: the launch of a head dim's kernels.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_INSTANCES_H
#define LK_CUDA_DECODE_INSTANCES_H

#include "cuda/launch.h"

namespace lk {
namespace cuda {

template <int kStrips>
cudaError_t launch_decode_kernel(const DecodeArgs &args, cudaStream_t stream);

// Pages that teams of warps read, of any head dim of has_teams().
cudaError_t launch_teams(const DecodeArgs &args, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
