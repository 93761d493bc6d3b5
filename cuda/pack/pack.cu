// Packing: a thread block takes a page from 16 bits to its page format.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/pack/page.cuh"

namespace lk {
namespace cuda {

namespace {

// In shared memory a 16-bit page may not fit: it may be longer than a packed one.
__device__ void copy_page(const PackJob &job, const FormatInfo &c) {
    const ValueOrder order =
        job.source_format == kStaged ? rows_order(c.head_dim) : strips_order(c);
    write_raw_tokens(reinterpret_cast<const uint16_t *>(job.source), order, c,
                     reinterpret_cast<uint8_t *>(job.payload), 0, c.page_tokens);
}

// Copy the source to shared memory.
__device__ Image copy_values(const PackJob &job, const FormatInfo &c, uint16_t *values) {
    const auto *source = reinterpret_cast<const uint8_t *>(job.source);
    bool is_rows = true;
    if (job.source_format == kStaged) {
        copy_rows(values, source, c);
    } else if (is_ordered(c) && !c.is_value) {
        copy_keys_to_rows(values, source, c);
    } else {
        copy_strips(values, source, c);
        is_rows = false;
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    return {values, is_rows ? rows_order(image_row_values(c.head_dim)) : strips_order(c), is_rows};
}

// A page of any format and shape has no more groups.
LK_BOTH constexpr uint32_t most_entries(uint32_t head_dim, uint32_t page_tokens) {
    return head_dim * page_tokens / LK_MIN_GROUP;
}

__global__ void __launch_bounds__(kPackThreads, 2)
    pack_kernel(const PackJob *jobs, const FormatInfo *formats) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ FormatInfo c;
    const PackJob job = jobs[blockIdx.x];
    load_format(&c, formats + job.target_format);
    if (c.is_raw) {
        copy_page(job, c);
        return;
    }
    const Space space =
        make_space(c.head_dim, c.page_tokens, most_entries(c.head_dim, c.page_tokens));
    const Image image = copy_values(job, c, reinterpret_cast<uint16_t *>(shared));
    pack_image(image, c,
               {reinterpret_cast<uint8_t *>(job.payload), reinterpret_cast<uint8_t *>(job.metadata),
                reinterpret_cast<const uint64_t *>(job.query_stats)},
               space, shared);
}

}  // namespace

cudaError_t launch_pack(const PackJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        uint32_t head_dim, uint32_t page_tokens, cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    const uint32_t packed_tokens =
        page_tokens < LK_MAX_PAGE_TOKENS ? page_tokens : LK_MAX_PAGE_TOKENS;
    const uint32_t n_bytes =
        make_space(head_dim, packed_tokens, most_entries(head_dim, packed_tokens)).end;
    const cudaError_t error = cudaFuncSetAttribute(
        pack_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(n_bytes));
    if (error != cudaSuccess)
        return error;
    pack_kernel<<<n_jobs, pack_threads(head_dim, packed_tokens), n_bytes, stream>>>(jobs, formats);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
