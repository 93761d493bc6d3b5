// Attention of many columns for head dims without an instance of their own.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/prefill/attend.cuh"

namespace lk {
namespace cuda {

template cudaError_t launch_tile_kernel<8, false>(const TileArgs &, const TileGrid &, cudaStream_t);
template cudaError_t launch_tile_kernel<32, false>(const TileArgs &, const TileGrid &,
                                                   cudaStream_t);

}  // namespace cuda
}  // namespace lk
