// Sums of |Q| that rank the key channels of pages, and arithmetic on them. They are integers and a
// thread has its channels to itself, so they are the same on every device.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/pack/quantize.cuh"
#include "cuda/query_stats.h"
#include "cuda/rotate.cuh"
#include "cuda/tensor.cuh"
#include "format/format_const.h"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kSumThreads = 128;
constexpr uint32_t kMostTiles = 1024;  // of channels of an item, in workgroups side by side

// |q| in units of 2^-24, rounded to FP16; larger magnitudes and NaN count as 65504.
__device__ __forceinline__ uint64_t magnitude(float q) {
    constexpr uint32_t kHalfMax = 0x7BFF;
    bool saturated = false;
    const uint32_t half = min(round_to_half(q, &saturated) & 0x7FFFu, kHalfMax);
    const uint32_t exponent = half >> 10;
    const uint64_t mantissa = half & 0x3FFu;
    return exponent ? (mantissa | 0x400u) << (exponent - 1) : mantissa;
}

// Thread block: a sum of a KV head. Threads: its channels.
__global__ void __launch_bounds__(kSumThreads) query_stats_kernel(const QueryStatsLaunch args) {
    if (args.header->n_sequences != args.n_sequences || args.header->n_tokens != args.n_step_tokens)
        return;
    const uint32_t head = blockIdx.y;
    const uint32_t kv_head = args.first_head + head;
    const uint32_t first = blockIdx.x * args.tokens_per_sum;
    const uint32_t end = min(first + args.tokens_per_sum, args.n_tokens);
    auto *sums = reinterpret_cast<uint64_t *>(*args.query_stats_cell + args.offset_bytes +
                                              blockIdx.x * args.stride_bytes) +
                 head * args.head_dim;
    for (uint32_t c = threadIdx.x; c < args.head_dim; c += kSumThreads) {
        const float scale = args.key_scales ? args.key_scales[kv_head * args.head_dim + c] : 1.0f;
        uint64_t sum = 0;
        for (uint32_t token = first; token < end; ++token)
            for (uint32_t h = 0; h < args.group_size; ++h) {
                const int64_t row =
                    row_offset(args.q, args.first_token + token, kv_head * args.group_size + h);
                sum += magnitude(multiply_exact(load_element(args.q, row + c), scale));
            }
        sums[c] = sum;
    }
}

// The same of layers with a rotation: a warp rotates a query of as many as there are warps.
__global__ void __launch_bounds__(kSumThreads)
    rotated_query_stats_kernel(const QueryStatsLaunch args) {
    constexpr uint32_t kWarps = kSumThreads / kWarp;
    __shared__ float rows[kWarps][LK_MAX_PLAIN_DIM];
    __shared__ uint64_t totals[LK_MAX_PLAIN_DIM];  // of a thread's channels
    if (args.header->n_sequences != args.n_sequences || args.header->n_tokens != args.n_step_tokens)
        return;
    const uint32_t kv_head = args.first_head + blockIdx.y;
    const uint32_t first = blockIdx.x * args.tokens_per_sum;
    const uint32_t n = min(args.tokens_per_sum, args.n_tokens - first) * args.group_size;
    const float *scales = args.key_scales ? args.key_scales + kv_head * args.head_dim : nullptr;
#pragma unroll 1
    for (uint32_t c = threadIdx.x; c < args.head_dim; c += kSumThreads)
        totals[c] = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < (n + kWarps - 1) / kWarps * kWarps; i += kWarps) {
        float *row = rows[threadIdx.x / kWarp];
        const uint32_t query = min(i, n - 1);
        const int64_t at = row_offset(args.q, args.first_token + first + query / args.group_size,
                                      kv_head * args.group_size + query % args.group_size);
#pragma unroll 1
        for (uint32_t c = threadIdx.x % kWarp; c < args.head_dim; c += kWarp) {
            const float q = i < n ? cut_to_rotate(load_element(args.q, at + c)) : 0;
            row[c] = multiply_exact(q, scales ? scales[c] : 1.0f);
        }
        rotate_row(args.key_rotation, args.head_dim, row);
        __syncthreads();
#pragma unroll 1
        for (uint32_t c = threadIdx.x; c < args.head_dim; c += kSumThreads)
#pragma unroll 1
            for (const auto &rotated : rows)
                totals[c] += magnitude(rotated[c]);
        __syncthreads();
    }
    auto *sums = reinterpret_cast<uint64_t *>(*args.query_stats_cell + args.offset_bytes +
                                              blockIdx.x * args.stride_bytes) +
                 blockIdx.y * args.head_dim;
#pragma unroll 1
    for (uint32_t c = threadIdx.x; c < args.head_dim; c += kSumThreads)
        sums[c] = totals[c];
}

__device__ void add_sum(const SumJob &job, uint32_t channel) {
    auto *target = reinterpret_cast<uint64_t *>(job.target) + channel;
    uint64_t sum = job.flags & LK_STAT_REPLACES ? 0 : *target;
    uint64_t at = job.source;
    for (uint64_t mask = job.mask; mask; mask >>= 1, at += job.stride_bytes) {
        if (!(mask & 1))
            continue;
        auto *source = reinterpret_cast<uint64_t *>(at) + channel;
        sum += *source;
        if (job.flags & LK_STAT_CLEARS)
            *source = 0;
    }
    *target = sum;
}

// Thread blocks: x = tiles of channels, y = jobs. The first of jobs that follow each other does
// them all.
__global__ void __launch_bounds__(kSumThreads)
    add_query_stats_kernel(const SumJob *jobs, uint32_t n_jobs) {
    uint32_t index = blockIdx.y;
    if (index && jobs[index].flags & LK_STAT_FOLLOWS)
        return;
    const uint32_t n_channels = jobs[index].n_channels;
    do {
        const SumJob job = jobs[index];
        for (uint32_t c = blockIdx.x * kSumThreads + threadIdx.x; c < n_channels;
             c += gridDim.x * kSumThreads)
            add_sum(job, c);
        ++index;
    } while (index < n_jobs && jobs[index].flags & LK_STAT_FOLLOWS);
}

}  // namespace

cudaError_t launch_query_stats(const QueryStatsLaunch &args, cudaStream_t stream) {
    const uint32_t n_sums = (args.n_tokens + args.tokens_per_sum - 1) / args.tokens_per_sum;
    if (!n_sums || !args.n_heads)
        return cudaSuccess;
    const dim3 grid(n_sums, args.n_heads);
    if (args.key_rotation)
        rotated_query_stats_kernel<<<grid, kSumThreads, 0, stream>>>(args);
    else
        query_stats_kernel<<<grid, kSumThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_add_query_stats(const SumJob *jobs, uint32_t n_jobs, uint32_t most_channels,
                                   cudaStream_t stream) {
    if (!n_jobs || !most_channels)
        return cudaSuccess;
    const uint32_t n_tiles = (most_channels + kSumThreads - 1) / kSumThreads;
    const dim3 grid(n_tiles < kMostTiles ? n_tiles : kMostTiles, n_jobs);
    add_query_stats_kernel<<<grid, kSumThreads, 0, stream>>>(jobs, n_jobs);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
