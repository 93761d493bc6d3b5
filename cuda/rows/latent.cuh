// Attention of latent layers by key warps and value warps: 16 query columns over packed pages of
// any format, whose codes are multiplied.
//
// Key warps make weights of a stage, while value warps copy the next one and multiply the weights
// and values of the stage before: a thread block meets once for each stage.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_LATENT_CUH
#define LK_CUDA_ROWS_LATENT_CUH

#include "cuda/rows/key_warp.cuh"

namespace lk {
namespace cuda {

constexpr int kNarrowStrips = kMostValueStrips / kSideWarps;
using NarrowSums = StripSums<kNarrowStrips, kNarrowEights>;

// Sums of the weights of a stage as they were rounded, by a product with ones.
struct RoundedSums {
    TileProducts sums;

    template <bool kWide>
    __device__ __forceinline__ void add(const ColumnOperands<kWide> &weights) {
        weights.multiply({kOnes, kOnes, kOnes, kOnes}, sums);
    }
    __device__ __forceinline__ float of(int n, int i) const { return sums[n][i]; }
};

// The queries' products with the minima of every eighth strip, to [column][kSideWarps].
__device__ __forceinline__ void multiply_own_minima(const RowsBlock &block, const Codes &codes,
                                                    uint32_t first_strip, float *minima) {
    const uint32_t lane = threadIdx.x % kWarp;
    TileProducts products = {};
#pragma unroll 1
    for (uint32_t strip = first_strip; strip < block.key_strips; strip += kSideWarps) {
        const uint2 m = load_shared2(codes.minima + 32 * strip + 8 * (lane % 4));
        uint32_t b[4];
        load_own_queries(block, strip * LK_STRIP_CHANNELS + lane % 16, b);
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
            mma(products[n], m.x, m.x, m.y, m.y, b[2 * n], b[2 * n + 1]);
    }
    // All rows are the same.
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int j = 0; lane < 4 && j < 2; ++j)
            minima[column_of_product(n, j) * kSideWarps + first_strip] = products[n][j];
}

// Add the sums of channels to the output in shared memory, and multiply it by its columns' factors.
__device__ __forceinline__ void close_output(const ChannelSums &from, const float *factors,
                                             float *to) {
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < kRowsColumns * from.n_channels; i += kRowsThreads) {
        float &sum = to[i % kRowsColumns * (from.n_channels + kOutputPad) + i / kRowsColumns];
        sum = (sum + (from.sums ? from.sums[i] : 0)) * (factors ? factors[i % kRowsColumns] : 1);
    }
}

// Find the stage after `stage` and begin its copies. Value warps.
__device__ __noinline__ void find_next(const TileArgs &args, const RowsBlock block,
                                       const Stage stage, FoundStage *found) {
    const Stage next = advance(args, block, stage);
    if (next.n_tokens)
        begin_stage(block, next);
    const uint32_t slot = shared_address(block.slot(next));
    const FormatInfo &info = block.view(next).pages[0].info;
    const uint32_t strip = block.copies.index();
    if (next.n_tokens && block.code_bits(next) == kAnyCodes && strip < block.key_strips) {
        found->page.strips[strip] = find_strip(info, strip);
        found->page.parameters[strip] = static_cast<uint16_t>(
            info.is_token_axis ? strip * LK_STRIP_CHANNELS / info.group * info.page_tokens
                               : strip * info.n_groups * LK_STRIP_CHANNELS);
    }
    if (strip)
        return;
    found->stage = next;
    if (!next.n_tokens)
        return;
    found->slot = slot;
    found->codes = find_codes(block, next, slot);
    AnyFormat &page = found->page.format;
    const uint32_t metadata = slot + info.payload_bytes;
    page.order = info.permutes      ? metadata + info.permutation_offset
                 : info.permutation ? metadata + info.metadata_bytes
                                    : 0;
    page.ranges_bytes = info.minima_offset;
    page.n_stored = info.head_dim;
    page.group_shift = static_cast<uint8_t>(31 - __clz(info.group / LK_TILE_TOKENS));
    page.n_shared = info.n_shared;
    page.is_token_axis = info.is_token_axis;
    page.is_f8 = info.parameter_bytes == bytes_of_parameter(Metadata::kF8);
    found->is_whole = is_copied_whole(block, next);
}

__global__ void __launch_bounds__(kRowsThreads, 1)
    attend_latent(const __grid_constant__ TileArgs args, const __grid_constant__ RowsGrid grid) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ RowsTables tables;
    __shared__ WeighedStage weighed[2];
    __shared__ FoundStage found[kFoundStages];
    __shared__ float totals[2][kRowsColumns];
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
    auto *minima = reinterpret_cast<float *>(memory + layout.minima);
    const ChannelSums channels = {
        grid.has_sums ? reinterpret_cast<float *>(memory + layout.sums) : nullptr,
        args.layer.value_dim};
    const WarpColumns all = all_columns(mask);

    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
    const bool is_key_warp = warp < kSideWarps;
    if (!is_key_warp)
        find_next(args, block, {0, 0, 0, 0, block.n_slots - 1}, &found[0]);
    load_positions(args, &tables);
    load_query_columns(args, block);
    for (uint32_t i = threadIdx.x; channels.sums && i < kRowsColumns * channels.n_channels;
         i += kRowsThreads)
        channels.sums[i] = 0;
    __syncthreads();
    turn_queries(block);
    KeyWarp keys;
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
        keys.references[n][0] = keys.references[n][1] = is_key_warp ? kNoReference : 0;
    // Of the lane's columns' weights, in a value warp, which has no references.
    float(&sums)[kNarrowEights][2] = keys.references;
    NarrowSums out = {};
    bool has_before = false;  // a stage whose values are to be multiplied
#pragma unroll 1
    for (uint32_t turn = 0;; ++turn) {
        wait_copies<0>();
        // The stage and the weights of the one before are there; what value warps read last is
        // free.
        __syncthreads();
        const FoundStage &now = found[turn % kFoundStages];
        const bool has_stage = now.stage.n_tokens;
        if (!has_stage && !has_before)
            break;
        if (has_stage && !now.is_whole) {
            finish_stage<false>(block, now.stage);
            __syncthreads();
        }
        if (is_key_warp && has_stage) {
            TileProducts logits = {};
            const Codes codes = now.codes;
            const Stage stage = now.stage;
            keys.multiply(block, now, codes, renewed(now.slot), stage_tiles(stage), warp, minima,
                          logits);
            const RowsStage weighs = {stage.first_token, stage.n_tokens, codes.bits != 0,
                                      !all_are_visible(args.layer, all, stage, 1)};
            keys.shape(args, tables, weighs, warp, logits);
            float over = -INFINITY;
#pragma unroll
            for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    over = fmaxf(over, logits[n][i] - keys.references[n][i % 2]);
            WeighedStage &to = weighed[turn % 2];
            const bool is_raised = any_of_key_warps(over > kHeadroom);
            if (is_raised)
                keys.raise(logits, warp, minima, to.shrinks);
            auto *weights = reinterpret_cast<__half *>(memory + layout.weights +
                                                       turn % 2 * rows_weight_bytes(grid));
            keys.store_weights(logits, warp, weights, weight_stride);
            if (threadIdx.x == 0)
                to.is_raised = is_raised;
        }
        if (!is_key_warp) {
            // Of two slots the values that are multiplied now have one.
            if (has_stage) {
                if (block.n_slots > 2)
                    find_next(args, block, now.stage, &found[(turn + 1) % kFoundStages]);
                if (now.codes.bits && now.codes.bits != kAnyCodes) {
                    multiply_own_minima(block, now.codes, warp - kSideWarps, minima);
                    give_minima();
                }
            } else if (block.copies.index() == 0) {
                found[(turn + 1) % kFoundStages].stage.n_tokens = 0;
            }
            if (has_before) {
                const FoundStage &before = found[(turn + kFoundStages - 1) % kFoundStages];
                const WeighedStage &of_before = weighed[(turn + 1) % 2];
                if (of_before.is_raised) {
                    scale_columns<kNarrowStrips, kNarrowEights>(of_before.shrinks, out);
#pragma unroll
                    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                        for (int j = 0; j < 2; ++j)
                            sums[n][j] *= of_before.shrinks[column_of_product(n, j)];
                    if (channels.sums) {
                        for (uint32_t i = block.copies.index();
                             i < kRowsColumns * channels.n_channels; i += block.copies.n())
                            channels.sums[i] *= of_before.shrinks[i % kRowsColumns];
                        block.copies.meet();
                    }
                }
                const auto *weights = reinterpret_cast<const __half *>(
                    memory + layout.weights + (turn + 1) % 2 * rows_weight_bytes(grid));
                const ValueWork work = {args.layer.value_dim / LK_STRIP_CHANNELS,
                                        stage_tiles(before.stage), warp - kSideWarps,
                                        weights_address(weights, weight_stride), weight_stride};
                RoundedSums of_weights = {};
                if (before.codes.bits == kAnyCodes) {
#pragma unroll 1
                    for (uint32_t tile = 0; tile < work.n_tiles; ++tile)
                        of_weights.add(work.operands<false>(tile));
                    multiply_any_values(block, before.page, before.codes, work, channels);
                } else {
                    const Codes codes = before.codes;
                    multiply_values<false, kNarrowStrips, kNarrowEights>(
                        block, codes, renewed(before.slot), work, of_weights, out);
                }
#pragma unroll
                for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        sums[n][j] += of_weights.of(n, j);
            }
            if (has_stage && block.n_slots == 2) {
                block.copies.meet();
                find_next(args, block, now.stage, &found[(turn + 1) % kFoundStages]);
            }
        }
        has_before = has_stage;
    }
    const bool tells = (warp == 0 || warp == kSideWarps) && lane < 4;
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int j = 0; tells && j < 2; ++j)
            totals[!is_key_warp][column_of_product(n, j)] = keys.references[n][j];
    __syncthreads();
    float *own_split = own_partial(args, block, position, split);
    float *factors = weighed[0].shrinks;
    if (threadIdx.x < block.n_columns)
        factors[threadIdx.x] = close_column(args, block, own_split, threadIdx.x,
                                            {totals[0][threadIdx.x], totals[1][threadIdx.x]});
    __syncthreads();
    auto *output = reinterpret_cast<float *>(memory);
    if (!is_key_warp)
        put_output<kNarrowStrips, kNarrowEights>(args.layer.value_dim, warp - kSideWarps, false,
                                                 output, out);
    __syncthreads();
    if (channels.sums || !own_split) {
        close_output(channels, own_split ? nullptr : factors, output);
        __syncthreads();
    }
    store_columns(args, mask, own_split, output);
}

}  // namespace cuda
}  // namespace lk

#endif
