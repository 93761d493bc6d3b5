// Attention of long steps: passes, and the launches of each.
//
// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <utility>

#include "cuda/instances.h"
#include "cuda/prefill/instances.h"
#include "cuda/prefill/pass.h"

namespace lk {
namespace cuda {

namespace {

using HeadDims = std::integer_sequence<uint32_t, LK_CUDA_HEAD_DIMS>;

template <uint32_t... kHeadDims>
bool has_instance(std::integer_sequence<uint32_t, kHeadDims...>, uint32_t head_dim) {
    return ((head_dim == kHeadDims && has_long_steps(kHeadDims)) || ...);
}

// Warpgroups have a multiprocessor to themselves.
template <uint32_t... kHeadDims>
bool has_groups(std::integer_sequence<uint32_t, kHeadDims...>, uint32_t head_dim) {
    return ((head_dim == kHeadDims && has_groups_kernel<kHeadDims / 16>()) || ...);
}
uint32_t blocks_at_once(uint32_t head_dim, uint32_t n_sms) {
    return has_groups(HeadDims(), head_dim) ? n_sms : kSharingBlocks * n_sms;
}

template <int kStrips>
cudaError_t launch_one(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    return pass.has_matrices ? launch_groups_kernel<kStrips>(args, pass, stream)
                             : launch_pass_kernel<kStrips>(args, pass, stream);
}

template <uint32_t... kHeadDims>
cudaError_t launch_kernel(std::integer_sequence<uint32_t, kHeadDims...>, const TileArgs &args,
                          const PagePass &pass, cudaStream_t stream) {
    cudaError_t error = cudaErrorInvalidConfiguration;
    (void)((args.layer.head_dim == kHeadDims &&
            (error = launch_one<kHeadDims / 16>(args, pass, stream), true)) ||
           ...);
    return error;
}

uint32_t at_most(uint64_t n, uint32_t most) { return n < most ? static_cast<uint32_t>(n) : most; }
uint32_t divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

uint32_t column_tiles(const TileArgs &args) {
    const uint32_t group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    return divide_up(args.max_new * group_size, long_block_columns(args.layer.head_dim));
}

// Which columns and pages go together.
struct Cut {
    uint32_t n_pairs;
    uint32_t n_tiles;
    uint32_t n_pages;
};

// How often the device fills up with the thread blocks of launches of n pairs each.
uint64_t count_rounds(uint32_t all_pairs, uint32_t n, uint32_t pair_blocks, uint32_t n_blocks) {
    const auto rounds = [&](uint64_t pairs) {
        return (pairs * pair_blocks + n_blocks - 1) / n_blocks;
    };
    return all_pairs / n * rounds(n) + rounds(all_pairs % n);
}

// Of so many pairs at most, those of a launch.
uint32_t choose_pairs(uint32_t all_pairs, uint32_t most, uint32_t pair_blocks, uint32_t n_blocks) {
    uint32_t best = most;
    for (uint32_t n = most; n > 1; --n)
        if (count_rounds(all_pairs, n - 1, pair_blocks, n_blocks) <
            count_rounds(all_pairs, best, pair_blocks, n_blocks))
            best = n - 1;
    return best;
}

// One pass where all pages of a few pairs fit, and their columns fill the device. Else as many
// thread blocks as run at once, whose states the partial results hold between passes.
Cut choose_cut(const TileArgs &args, const LongStep &step, uint32_t all_pages, uint32_t all_tiles) {
    const uint32_t all_pairs = args.n_sequences * args.layer.n_kv_heads;
    const uint32_t n_slots =
        static_cast<uint32_t>(step.slots_bytes / slot_bytes(args.layer.head_dim));
    const uint32_t n_blocks = blocks_at_once(args.layer.head_dim, step.n_sms);
    const uint32_t pair_blocks = all_tiles * args.n_splits;
    const uint32_t fitting = at_most(n_slots / (all_pages ? all_pages : 1), all_pairs);
    if (fitting == all_pairs || static_cast<uint64_t>(fitting) * pair_blocks >= n_blocks)
        return {choose_pairs(all_pairs, fitting, pair_blocks, n_blocks), all_tiles, all_pages};
    const uint32_t n_pairs = at_most(n_blocks / pair_blocks, all_pairs);
    const uint32_t held = n_pairs ? n_pairs : 1;
    const uint32_t pair_slots = n_slots / held ? n_slots / held : 1;
    const uint32_t n_passes = divide_up(all_pages, pair_slots);
    return {held < n_slots ? held : n_slots, n_pairs ? all_tiles : n_blocks,
            divide_up(all_pages, n_passes)};
}

// All passes of some columns.
cudaError_t attend_columns(const TileArgs &args, uint32_t all_pages, PagePass pass,
                           cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    const uint32_t n_passes = all_pages ? divide_up(all_pages, pass.n_pages) : 1;
    for (uint32_t i = 0; error == cudaSuccess && i < n_passes; ++i) {
        pass.first_page = i * pass.n_pages;
        pass.is_first = i == 0;
        pass.is_last = i + 1 == n_passes;
        if (all_pages)
            error = launch_unpack_pass(args, pass, stream);
        if (all_pages && error == cudaSuccess && !args.staging.k)
            error = launch_unpack_rows(args, pass, stream);
        if (error == cudaSuccess)
            error = launch_kernel(HeadDims(), args, pass, stream);
    }
    return error;
}

}  // namespace

bool long_has_instance(uint32_t head_dim) { return has_instance(HeadDims(), head_dim); }

uint64_t long_slots_bytes(uint32_t head_dim, uint32_t n_sms) {
    constexpr uint64_t kProcessorBytes = 256 * 1024;
    const uint64_t bytes = n_sms * kProcessorBytes;
    return bytes > slot_bytes(head_dim) ? bytes : slot_bytes(head_dim);
}

uint32_t long_splits(const TileArgs &args, uint32_t n_sms) {
    const uint64_t n =
        static_cast<uint64_t>(column_tiles(args)) * args.layer.n_kv_heads * args.n_sequences;
    const uint64_t most = blocks_at_once(args.layer.head_dim, n_sms);
    return n && n < most ? at_most(most / n, kMaxSplits) : 1;
}

cudaError_t launch_long(const TileArgs &args, const LongStep &step, cudaStream_t stream) {
    PagePass pass{};
    pass.slots = step.slots;
    pass.has_matrices = has_groups(HeadDims(), args.layer.head_dim);
    pass.skips_blocks = step.blocks_are_raw && !pass.has_matrices;
    pass.k = step.k;
    pass.v = step.v;
    const uint32_t all_tiles = column_tiles(args);
    if (!all_tiles || !args.n_sequences)
        return cudaSuccess;
    const uint32_t all_pairs = args.n_sequences * args.layer.n_kv_heads;
    const uint32_t all_pages = (pass.skips_blocks ? 0 : step.n_blocks) + step.n_staged_pages;
    const Cut cut = choose_cut(args, step, all_pages, all_tiles);
    pass.n_pages = cut.n_pages;
    cudaError_t error = cudaSuccess;
    for (uint32_t pair = 0; pair < all_pairs; pair += cut.n_pairs)
        for (uint32_t tile = 0; error == cudaSuccess && tile < all_tiles; tile += cut.n_tiles) {
            pass.first_pair = pair;
            pass.n_pairs = at_most(all_pairs - pair, cut.n_pairs);
            pass.first_tile = tile;
            pass.n_tiles = at_most(all_tiles - tile, cut.n_tiles);
            error = attend_columns(args, all_pages, pass, stream);
        }
    if (error != cudaSuccess || args.n_splits == 1)
        return error;
    return launch_merge_splits(args, long_block_columns(args.layer.head_dim), all_tiles, stream);
}

}  // namespace cuda
}  // namespace lk
