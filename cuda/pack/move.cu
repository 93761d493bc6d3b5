// Moving: chosen tokens of 16-bit pages go to earlier positions. A thread block takes a page, a
// thread channels, whose tokens it moves one after the other: source and target may be the same
// page.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/pack/f16_page.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMoveThreads = 128;
constexpr uint32_t kMaskBits = 64;

__global__ void __launch_bounds__(kMoveThreads)
    move_kernel(const MoveJob *jobs, const FormatInfo *formats) {
    const MoveJob job = jobs[blockIdx.x];
    const FormatInfo &from = formats[job.source_format];
    const FormatInfo &to = formats[job.target_format];
    const Steps tokens = raw_token_steps(from.is_value);
    const Steps source_channels = raw_channel_steps(from.is_value, from.page_tokens);
    const Steps target_channels = raw_channel_steps(from.is_value, to.page_tokens);
    const auto *source = reinterpret_cast<const uint16_t *>(job.source);
    auto *target = reinterpret_cast<uint16_t *>(job.target);
    for (uint32_t channel = threadIdx.x; channel < from.head_dim; channel += kMoveThreads) {
        uint32_t position = job.first_target;
        for (uint32_t i = 0; i < kMaskBits; ++i) {
            if (!(job.mask >> i & 1))
                continue;
            target[tokens.offset(position) + target_channels.offset(channel)] =
                source[tokens.offset(job.first_source + i) + source_channels.offset(channel)];
            ++position;
        }
    }
}

}  // namespace

cudaError_t launch_move(const MoveJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    move_kernel<<<n_jobs, kMoveThreads, 0, stream>>>(jobs, formats);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
