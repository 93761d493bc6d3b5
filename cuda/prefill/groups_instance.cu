// Attention of long steps on Hopper for one head dim, LK_CUDA_HEAD_DIM.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/prefill/attend_groups.cuh"

namespace lk {
namespace cuda {

template bool has_groups_kernel<LK_CUDA_HEAD_DIM / 16>();
template cudaError_t launch_groups_kernel<LK_CUDA_HEAD_DIM / 16>(const TileArgs &, const PagePass &,
                                                                 cudaStream_t);

}  // namespace cuda
}  // namespace lk
