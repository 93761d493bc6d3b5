// Attention of long steps for one head dim, LK_CUDA_HEAD_DIM.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/prefill/attend_pass.cuh"

namespace lk {
namespace cuda {

template cudaError_t launch_pass_kernel<LK_CUDA_HEAD_DIM / 16>(const TileArgs &, const PagePass &,
                                                               cudaStream_t);

}  // namespace cuda
}  // namespace lk
