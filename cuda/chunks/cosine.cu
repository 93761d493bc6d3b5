// Cosines of embeddings and a query: a warp takes a chunk.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/fragment.cuh"
#include "cuda/launch.h"
#include "cuda/tensor.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kWarps = 8;
constexpr uint32_t kMaxBlocks = 65535;
// A sum of squares between these bounds has lost nothing to FP32's range.
constexpr float kLeastSquares = 8.27180613e-25f;  // 2^-80
constexpr float kMostSquares = 1.32922800e36f;    // 2^120

__device__ inline float warp_sum(float x) {
    for (uint32_t step = kWarp / 2; step; step /= 2)
        x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}
__device__ inline float warp_max(float x) {
    for (uint32_t step = kWarp / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}

struct Sums {
    float dot;
    float chunk;  // of squares
    float query;

    __device__ bool are_in_range() const {
        return chunk >= kLeastSquares && chunk <= kMostSquares && query >= kLeastSquares &&
               query <= kMostSquares;
    }
};

// Rows over powers of two; all lanes get the sums.
__device__ inline Sums sum_rows(const CosineArgs &args, int64_t row, float chunk_factor,
                                float query_factor) {
    Sums sums = {};
#pragma unroll 8
    for (uint32_t c = threadIdx.x % kWarp; c < args.n_channels; c += kWarp) {
        const float x = load_element(args.embeddings, row + c) * chunk_factor;
        const float q = load_element(args.query, c) * query_factor;
        sums.dot += x * q;
        sums.chunk += x * x;
        sums.query += q * q;
    }
    return {warp_sum(sums.dot), warp_sum(sums.chunk), warp_sum(sums.query)};
}

// The factor that brings a row's greatest magnitude near to 1; NaN if there is none.
__device__ inline float find_factor(const TensorArg &tensor, int64_t row, uint32_t n_channels) {
    float most = 0;
    for (uint32_t c = threadIdx.x % kWarp; c < n_channels; c += kWarp)
        most = fmaxf(most, fabsf(load_element(tensor, row + c)));
    most = warp_max(most);
    return most > 0 && most < INFINITY ? exp2f(static_cast<float>(-max(ilogbf(most), -126))) : NAN;
}

__global__ void __launch_bounds__(kWarps *kWarp)
    score_chunks(const __grid_constant__ CosineArgs args) {
    for (uint32_t chunk = blockIdx.x * kWarps + threadIdx.x / kWarp; chunk < args.n_chunks;
         chunk += gridDim.x * kWarps) {
        const int64_t row = row_offset(args.embeddings, chunk, 0);
        Sums sums = sum_rows(args, row, 1, 1);
        if (!sums.are_in_range())
            sums = sum_rows(args, row, find_factor(args.embeddings, row, args.n_channels),
                            find_factor(args.query, 0, args.n_channels));
        const float cosine = sums.dot / (sqrtf(sums.chunk) * sqrtf(sums.query));
        // A comparison with NaN is false, so that NaN stays.
        const float score = cosine > 1 ? 1 : cosine < -1 ? -1 : cosine;
        if (threadIdx.x % kWarp == 0)
            store_element(args.scores, row_offset(args.scores, chunk, 0), score);
    }
}

}  // namespace

cudaError_t launch_cosine(const CosineArgs &args, cudaStream_t stream) {
    const uint32_t wanted = (args.n_chunks - 1) / kWarps + 1;
    const uint32_t n_blocks = wanted < kMaxBlocks ? wanted : kMaxBlocks;
    score_chunks<<<n_blocks, kWarps * kWarp, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
