// Attention of many columns for one head dim, LK_CUDA_HEAD_DIM.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/instances.h"
#include "cuda/prefill/attend.cuh"

namespace lk {
namespace cuda {

#if LK_HAS_OWN_PREFILL(LK_CUDA_HEAD_DIM)
template cudaError_t launch_tile_kernel<LK_CUDA_HEAD_DIM / 16, true>(const TileArgs &,
                                                                     const TileGrid &,
                                                                     cudaStream_t);
#endif

}  // namespace cuda
}  // namespace lk
