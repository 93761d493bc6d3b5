// Shrinking: strips of 2b bits become strips of b bits by merging neighbouring words of a lane,
// docs/FORMAT.md, section 11. A thread block takes a page of a run and reads it whole before it
// writes, since a page may shrink into its own beginning.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "format/format_const.h"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kShrinkThreads = 256;
// Vectors of 16 bytes that a thread writes: 576 channels of 128 tokens at 4 bits are 2304.
constexpr uint32_t kMaxVectors = LK_MAX_HEAD_DIM * LK_MAX_PAGE_TOKENS * 4 / 8 / 16 / kShrinkThreads;
static_assert(kMaxVectors * kShrinkThreads * 32 == LK_MAX_HEAD_DIM * LK_MAX_PAGE_TOKENS,
              "the largest page is divided without a rest");

template <uint32_t kBits>
__device__ __forceinline__ uint4 merge_vectors(const uint4 &low, const uint4 &high) {
    if (kBits == 4)
        return make_uint4(LK_MERGE_8_TO_4(low.x, low.y), LK_MERGE_8_TO_4(low.z, low.w),
                          LK_MERGE_8_TO_4(high.x, high.y), LK_MERGE_8_TO_4(high.z, high.w));
    return make_uint4(LK_MERGE_4_TO_2(low.x, low.y), LK_MERGE_4_TO_2(low.z, low.w),
                      LK_MERGE_4_TO_2(high.x, high.y), LK_MERGE_4_TO_2(high.z, high.w));
}

// Vector i of the narrow strips comes from vectors first and first + stride of the wide ones: a
// lane's vectors 2v and 2v + 1, where lanes have whole vectors; else two neighbours.
struct VectorPair {
    uint32_t first;
    uint32_t stride;
};
__device__ __forceinline__ VectorPair wide_vectors(uint32_t i, bool is_whole) {
    if (!is_whole)
        return {2 * i, 1};
    return {i / LK_LANES * 2 * LK_LANES + i % LK_LANES, LK_LANES};
}

template <uint32_t kBits>
__device__ void shrink_strips(const ShrinkJob &job, uint32_t n_vectors) {
    const auto *source = reinterpret_cast<const uint4 *>(job.source);
    auto *target = reinterpret_cast<uint4 *>(job.target);
    const bool is_whole = job.page_tokens * kBits / 64 >= LK_VECTOR_WORDS;
    uint4 narrow[kMaxVectors];
#pragma unroll
    for (uint32_t n = 0; n < kMaxVectors; ++n) {
        const uint32_t i = n * kShrinkThreads + threadIdx.x;
        if (i >= n_vectors)
            continue;
        const VectorPair wide = wide_vectors(i, is_whole);
        narrow[n] = merge_vectors<kBits>(source[wide.first], source[wide.first + wide.stride]);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t n = 0; n < kMaxVectors; ++n) {
        const uint32_t i = n * kShrinkThreads + threadIdx.x;
        if (i < n_vectors)
            target[i] = narrow[n];
    }
}

__global__ void __launch_bounds__(kShrinkThreads) shrink_kernel(const ShrinkJob *jobs) {
    ShrinkJob job = jobs[blockIdx.y];
    if (blockIdx.x >= job.n_pages)
        return;
    job.source += uint64_t{blockIdx.x} * job.stride_bytes;
    job.target += uint64_t{blockIdx.x} * job.stride_bytes;
    // A strip of 16 channels: two bytes a bit and token.
    const uint32_t n_vectors = job.n_strips * job.page_tokens * job.bits * 2 / 16;
    if (job.bits == 4)
        shrink_strips<4>(job, n_vectors);
    else if (job.n_strips)
        shrink_strips<2>(job, n_vectors);
    const auto *tail = reinterpret_cast<const uint4 *>(job.source) + 2 * n_vectors;
    auto *to = reinterpret_cast<uint4 *>(job.target) + n_vectors;
    for (uint32_t i = threadIdx.x; i < job.tail_bytes / 16; i += kShrinkThreads)
        to[i] = tail[i];
}

}  // namespace

cudaError_t launch_shrink(const ShrinkJob *jobs, uint32_t n_jobs, uint32_t most_pages,
                          cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    shrink_kernel<<<dim3(most_pages, n_jobs), kShrinkThreads, 0, stream>>>(jobs);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
