// Outputs of attention over disjoint sets of keys become one.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include "cuda/fragment.cuh"
#include "cuda/launch.h"
#include "cuda/tensor.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kRowsPerBlock = 8;  // a warp each
constexpr uint32_t kMaxBlocks = 65536;

// MergeArgs with the tensors themselves.
struct MergeJob {
    TensorArg parts[kMergeSplits];
    TensorArg lses[kMergeSplits];
    TensorArg out;
    TensorArg lse;
    uint32_t n_splits;
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;
};

__device__ inline float reduce_max(float x) {
    for (uint32_t step = 1; step < kWarp; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}
__device__ inline float reduce_sum(float x) {
    for (uint32_t step = 1; step < kWarp; step *= 2)
        x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}

// Lane i weighs split i; then a lane has every 32nd channel.
__device__ inline void merge_row(const MergeJob &job, uint32_t token, uint32_t head) {
    const uint32_t lane = threadIdx.x % kWarp;
    float lse = -INFINITY;
    if (lane < job.n_splits)
        lse = load_element(job.lses[lane], row_offset(job.lses[lane], token, head));
    const float row_max = reduce_max(lse);
    const float weight = lse == -INFINITY ? 0 : expf(lse - row_max);
    const float sum = reduce_sum(weight);
    const float share = sum == 0 ? 0 : weight / sum;
    const int64_t to = row_offset(job.out, token, head);
    for (uint32_t first = 0; first < job.head_dim; first += kWarp) {
        const uint32_t channel = first + lane;
        float value = 0;
        for (uint32_t i = 0; i < job.n_splits; ++i) {
            const float split_share = __shfl_sync(kAllLanes, share, i);
            if (split_share != 0 && channel < job.head_dim)
                value +=
                    split_share *
                    load_element(job.parts[i], row_offset(job.parts[i], token, head) + channel);
        }
        if (channel < job.head_dim)
            store_element(job.out, to + channel, value);
    }
    if (lane == 0 && job.lse.data)
        store_element(job.lse, row_offset(job.lse, token, head),
                      sum == 0 ? row_max : row_max + logf(sum));
}

__global__ void __launch_bounds__(kRowsPerBlock *kWarp)
    merge_rows(const __grid_constant__ MergeJob job) {
    const uint64_t n_rows = static_cast<uint64_t>(job.n_tokens) * job.n_heads;
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * kRowsPerBlock;
    for (uint64_t row = static_cast<uint64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
         row < n_rows; row += step)
        merge_row(job, static_cast<uint32_t>(row / job.n_heads),
                  static_cast<uint32_t>(row % job.n_heads));
}

}  // namespace

cudaError_t launch_merge(const MergeArgs &args, cudaStream_t stream) {
    MergeJob job{};
    for (uint32_t i = 0; i < args.n_splits; ++i) {
        job.parts[i] = args.parts[i];
        job.lses[i] = args.lses[i];
    }
    job.out = args.out;
    job.lse = args.lse;
    job.n_splits = args.n_splits;
    job.n_tokens = args.n_tokens;
    job.n_heads = args.n_heads;
    job.head_dim = args.head_dim;
    const uint64_t n_rows = static_cast<uint64_t>(args.n_tokens) * args.n_heads;
    const uint64_t blocks = (n_rows + kRowsPerBlock - 1) / kRowsPerBlock;
    merge_rows<<<static_cast<uint32_t>(blocks < kMaxBlocks ? blocks : kMaxBlocks),
                 kRowsPerBlock * kWarp, 0, stream>>>(job);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
