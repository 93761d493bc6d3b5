// Launches of pack/query_stats.cu: sums of |Q| that rank the key channels of pages.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_QUERY_STATS_H
#define LK_CUDA_QUERY_STATS_H

#include <cuda_runtime.h>

#include "cuda/types.h"

namespace lk {
namespace cuda {

// A run of sums: QueryStatArgs and QueryStatRun of src/backend/backend.h.
struct QueryStatsLaunch {
    const StepHeader *header;
    TensorArg q;
    const float *key_scales;  // [n_kv_heads][head_dim] device, or null
    const uint64_t
        *query_stats_cell;  // device: where the step's sums lie, which a graph reads anew
    uint64_t offset_bytes;
    uint64_t stride_bytes;
    uint32_t n_sequences;  // of the step; one of another shape is left alone
    uint32_t n_step_tokens;
    uint32_t head_dim;
    uint32_t group_size;
    uint32_t first_token;
    uint32_t n_tokens;
    uint32_t tokens_per_sum;
    uint32_t first_head;
    uint32_t n_heads;
    uint32_t key_rotation;  // channels of a block that is rotated, or 0
};
cudaError_t launch_query_stats(const QueryStatsLaunch &args, cudaStream_t stream);

// Arithmetic on sums: StatItem of src/backend/backend.h, whose bytes these are.
struct SumJob {
    uint64_t target;
    uint64_t source;
    uint64_t mask;
    uint64_t stride_bytes;
    uint32_t n_channels;
    uint32_t flags;  // 1 replaces, 2 clears, 4 follows
};
cudaError_t launch_add_query_stats(const SumJob *jobs, uint32_t n_jobs, uint32_t most_channels,
                                   cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
