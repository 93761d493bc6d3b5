// Attention of latent layers by key warps and value warps: packed pages of any format, 16 query
// columns of a thread block.
//
// FP16 tiles, of 16-bit pages and of tokens that are not packed, are one more format.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_ANY_LATENT_CUH
#define LK_CUDA_ROWS_ANY_LATENT_CUH

#include "cuda/rows/any_codes.cuh"

namespace lk {
namespace cuda {

struct FoundAny {
    Stage stage;
    Codes codes;
    uint32_t is_whole;  // once its copies have arrived
    FoundPage page;
};

// Find the stage after `stage` and begin its copies. Value warps.
__device__ __noinline__ void find_any(const TileArgs &args, const RowsBlock block,
                                      const Stage stage, FoundAny *found) {
    using Threads = ValueThreads<true>;
    const Stage next = advance<Threads>(args, block, stage);
    if (next.n_tokens)
        begin_stage<Threads>(block, next);
    const uint32_t strip = Threads::index();
    const FormatInfo &info = block.view(next).pages[0].info;
    const bool is_packed = next.n_tokens && block.code_bits(next);
    if (next.n_tokens && strip < block.key_strips) {
        found->page.strips[strip] =
            is_packed ? find_strip(info, strip)
                      : StripPosition{16, strip * stage_tiles(next) * kTileBytes, 0, 0};
        found->page.parameters[strip] =
            static_cast<uint16_t>(is_packed && info.is_token_axis
                                      ? strip * LK_STRIP_CHANNELS / info.group * info.page_tokens
                                      : strip * info.n_groups * LK_STRIP_CHANNELS);
    }
    if (strip)
        return;
    found->stage = next;
    if (!next.n_tokens)
        return;
    const uint32_t slot = shared_address(block.slot(next));
    const uint32_t metadata = slot + info.payload_bytes;
    found->codes = find_codes(block, next, slot);
    found->is_whole = is_copied_whole(block, next);
    AnyFormat page = {};
    page.group_shift = 3;  // all tiles of a stage
    if (is_packed) {
        page.order = info.permutes      ? metadata + info.permutation_offset
                     : info.permutation ? metadata + info.metadata_bytes
                                        : 0;
        page.ranges_bytes = info.minima_offset;
        page.group_shift = static_cast<uint8_t>(31 - __clz(info.group / LK_TILE_TOKENS));
        page.n_shared = info.n_shared;
        page.is_token_axis = info.is_token_axis;
        page.is_f8 = info.parameter_bytes == bytes_of_parameter(Metadata::kF8);
    }
    page.n_stored = static_cast<uint16_t>(block.key_strips * LK_STRIP_CHANNELS);
    found->page.format = page;
}

__global__ void __launch_bounds__(kRowsThreads, 1)
    attend_any_latent(const __grid_constant__ TileArgs args,
                      const __grid_constant__ RowsGrid grid) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ RowsTables tables;
    __shared__ WeighedStage weighed[2];
    __shared__ FoundAny found[kFoundStages];
    __shared__ float references[kRowsColumns];
    __shared__ float factors[kRowsColumns];
    const TilePosition position = own_position(args);
    const uint32_t split = blockIdx.z % args.n_splits;
    Mask &mask = tables.mask;
    if (threadIdx.x == 0)
        find_work(args, grid, position, split, &mask);
    __syncthreads();
    if (!mask.n_columns)
        return;
    const RowsLayout layout = rows_layout(args.layer, grid);
    const RowsBlock block = make_block(args, grid, layout, memory, &tables);
    const uint32_t weight_stride = grid.partial_tokens + kWeightPad;
    auto *of_warps = reinterpret_cast<float *>(memory + layout.minima);  // [column][kSideWarps]
    const ChannelSums channels = {reinterpret_cast<float *>(memory + layout.sums),
                                  args.layer.value_dim};
    const uint32_t n_sums = kRowsColumns * channels.n_channels;
    const WarpColumns all = all_columns(mask);

    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
    const bool is_key_warp = warp < kSideWarps;
    const uint32_t reader = warp % kSideWarps;
    if (!is_key_warp)
        find_any(args, block, {0, 0, 0, 0, block.n_slots - 1}, &found[0]);
    load_positions(args, &tables);
    load_query_columns(args, block);
    for (uint32_t i = threadIdx.x; i < n_sums; i += kRowsThreads)
        channels.sums[i] = 0;
    __syncthreads();
    turn_queries(block);
    KeyWarp keys;
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
        keys.references[n][0] = keys.references[n][1] = is_key_warp ? kNoReference : 0;
    // A value warp has no references, but sums of weights of its tiles, of the lane's columns.
    float(&sums)[kNarrowEights][2] = keys.references;
    bool has_before = false;  // a stage whose values are to be multiplied
#pragma unroll 1
    for (uint32_t turn = 0;; ++turn) {
        wait_copies<0>();
        // The stage and the weights of the one before are there; what value warps read last is
        // free.
        __syncthreads();
        const FoundAny &now = found[turn % kFoundStages];
        const bool has_stage = now.stage.n_tokens;
        if (!has_stage && !has_before)
            break;
        if (has_stage && !now.is_whole) {
            finish_stage<false>(block, now.stage);
            __syncthreads();
        }
        if (is_key_warp && has_stage) {
            TileProducts logits = {};
            const Stage stage = now.stage;
            if (warp < stage_tiles(stage))
                multiply_any_keys(block, now.page, now.codes, warp, logits);
            const RowsStage weighs = {stage.first_token, stage.n_tokens, true,
                                      !all_are_visible(args.layer, all, stage, 1)};
            keys.shape(args, tables, weighs, warp, logits);
            WeighedStage &to = weighed[turn % 2];
            const bool is_raised = keys.keep_up(logits, warp, of_warps, to.shrinks);
            auto *weights = reinterpret_cast<__half *>(memory + layout.weights +
                                                       turn % 2 * rows_weight_bytes(grid));
            keys.store_weights(logits, warp, weights, weight_stride);
            if (threadIdx.x == 0)
                to.is_raised = is_raised;
        }
        if (!is_key_warp) {
            FoundAny *next = &found[(turn + 1) % kFoundStages];
            // Of two slots the values that are multiplied now have one.
            if (has_stage && block.n_slots > 2)
                find_any(args, block, now.stage, next);
            if (!has_stage && ValueThreads<true>::index() == 0)
                next->stage.n_tokens = 0;
            if (has_before) {
                const FoundAny &before = found[(turn + kFoundStages - 1) % kFoundStages];
                const WeighedStage &of_before = weighed[(turn + 1) % 2];
                if (of_before.is_raised) {
#pragma unroll
                    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                        for (int j = 0; j < 2; ++j)
                            sums[n][j] *= of_before.shrinks[column_of_product(n, j)];
                    for (uint32_t i = ValueThreads<true>::index(); i < n_sums;
                         i += ValueThreads<true>::kN)
                        channels.sums[i] *= of_before.shrinks[i % kRowsColumns];
                    ValueThreads<true>::meet();
                }
                const auto *weights = reinterpret_cast<const __half *>(
                    memory + layout.weights + (turn + 1) % 2 * rows_weight_bytes(grid));
                const ValueWork work = {args.layer.value_dim / LK_STRIP_CHANNELS,
                                        stage_tiles(before.stage), reader,
                                        weights_address(weights, weight_stride), weight_stride};
                RoundedSums of_weights = {};
                if (reader < work.n_tiles)
                    of_weights.add(work.operands<false>(reader));
#pragma unroll
                for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        sums[n][j] += of_weights.of(n, j);
                multiply_any_values(block, before.page, before.codes, work, channels);
            }
            if (has_stage && block.n_slots == 2) {
                ValueThreads<true>::meet();
                find_any(args, block, now.stage, next);
            }
        }
        has_before = has_stage;
    }
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int j = 0; lane < 4 && j < 2; ++j) {
            const uint32_t column = column_of_product(n, j);
            if (!is_key_warp)
                of_warps[column * kSideWarps + reader] = sums[n][j];
            else if (warp == 0)
                references[column] = keys.references[n][j];
        }
    __syncthreads();
    float *own_split = own_partial(args, block, position, split);
    if (threadIdx.x < kRowsColumns) {
        float sum = 0;
        for (uint32_t i = 0; i < kSideWarps; ++i)
            sum += of_warps[threadIdx.x * kSideWarps + i];
        factors[threadIdx.x] =
            close_column(args, block, own_split, threadIdx.x, {references[threadIdx.x], sum});
    }
    __syncthreads();
    auto *output = reinterpret_cast<float *>(memory);
    for (uint32_t i = threadIdx.x; i < n_sums; i += kRowsThreads)
        output[i % kRowsColumns * (channels.n_channels + kOutputPad) + i / kRowsColumns] =
            channels.sums[i] * factors[i % kRowsColumns];
    __syncthreads();
    store_columns(args, mask, own_split, output);
}

}  // namespace cuda
}  // namespace lk

#endif
