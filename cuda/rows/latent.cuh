// Attention of latent layers by key warps and value warps: few query columns over packed pages of
// one width, whose codes are multiplied.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_LATENT_CUH
#define LK_CUDA_ROWS_LATENT_CUH

#include "cuda/rows/key_warp.cuh"

namespace lk {
namespace cuda {

constexpr int kNarrowStrips = kMostValueStrips / kSideWarps;
using NarrowSums = StripSums<kNarrowStrips, kNarrowEights>;

// Barrier 3: products with minima go from value warps to key warps.
__device__ __forceinline__ void give_minima() {
    __syncwarp();
    asm volatile("bar.arrive 3, %0;" ::"n"(kRowsThreads) : "memory");
}
__device__ __forceinline__ void await_minima() {
    __syncwarp();
    asm volatile("bar.sync 3, %0;" ::"n"(kRowsThreads) : "memory");
}

// A word or two of a lane: its part of a tile of codes.
template <uint32_t kBits>
__device__ __forceinline__ uint32_t tile_offset(uint32_t tile) {
    constexpr uint32_t kVectorBytes = 4 * LK_VECTOR_WORDS * LK_LANES;
    return kBits == 8   ? tile / 2 * kVectorBytes + tile % 2 * 8
           : kBits == 4 ? tile / 4 * kVectorBytes + tile % 4 * 4
                        : tile / 2 * 4;
}

// S of a tile of codes, or of FP16 numbers (kBits 16): all strips of the keys.
template <uint32_t kBits>
__device__ __forceinline__ void multiply_own_tile(const RowsBlock &block, const Codes &codes,
                                                  const KeyRangeScale &scale, uint32_t slot,
                                                  uint32_t n_tiles, uint32_t tile,
                                                  TileProducts &products) {
    const uint32_t lane = threadIdx.x % kWarp;
    const bool is_coded = kBits < 16;
    const uint32_t stride = is_coded ? strip_bytes(codes.page_tokens, kBits) : n_tiles * kTileBytes;
    const uint32_t words = is_coded
                               ? codes.words + lane_offset<kBits>(codes) + tile_offset<kBits>(tile)
                               : slot + tile * kTileBytes + 16 * lane;
    const uint32_t queries = shared_address(block.queries) + 16 * lane;
    const uint32_t ranges = codes.ranges + 8 * (lane % 4);
    const uint32_t shift = kBits == 2 ? tile % 2 * 2 : 0;
    const auto multiply = [&](uint32_t strip, TileProducts &sums) {
        const uint4 q = load_shared4(queries + strip * kTileBytes);
        uint32_t b[4] = {q.x, q.y, q.z, q.w};
        const uint32_t at = words + strip * stride;
        uint32_t a[4];
        if (is_coded) {
            const uint2 r = load_shared2(ranges + 32 * strip);
            const uint32_t lower = multiply_f16(r.x, scale.lower);
            const uint32_t upper = multiply_f16(r.y, scale.upper);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                b[i] = multiply_f16(b[i], i % 2 ? upper : lower);
            const uint2 two = kBits == 8 ? load_shared2(at) : make_uint2(load_shared1(at), 0);
            mask_codes<is_coded ? kBits : 8>(two.x >> shift, kBits == 8 ? two.y : two.x >> shift,
                                             a);
        } else {
            const uint4 four = load_shared4(at);
            a[0] = four.x, a[1] = four.y, a[2] = four.z, a[3] = four.w;
        }
#pragma unroll
        for (int n = 0; n < kNarrowEights; ++n)
            mma(sums[n], a[0], a[1], a[2], a[3], b[2 * n], b[2 * n + 1]);
    };
    TileProducts odd = {};  // a second chain of sums
    uint32_t strip = 0;
#pragma unroll 2
    for (; strip + 1 < block.key_strips; strip += 2) {
        multiply(strip, products);
        multiply(strip + 1, odd);
    }
    if (strip < block.key_strips)
        multiply(strip, products);
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            products[n][i] += odd[n][i];
}

// Products of the warp's tile; a warp whose tile a stage does not have gets zeros.
__device__ __forceinline__ void multiply_keys_of_one_width(const RowsBlock &block,
                                                           const Codes &codes, uint32_t slot,
                                                           uint32_t n_tiles, uint32_t warp,
                                                           const float *minima,
                                                           TileProducts &products) {
    KeyRangeScale scale = {};
    if (!codes.bits) {
        if (warp < n_tiles)
            multiply_own_tile<16>(block, codes, scale, slot, n_tiles, warp, products);
        return;
    }
    if (warp < n_tiles) {
        scale = find_range_scale(codes, 0, block.key_strips);
        if (codes.bits == 4)
            multiply_own_tile<4>(block, codes, scale, slot, n_tiles, warp, products);
        else if (codes.bits == 2)
            multiply_own_tile<2>(block, codes, scale, slot, n_tiles, warp, products);
        else
            multiply_own_tile<8>(block, codes, scale, slot, n_tiles, warp, products);
    }
    await_minima();
    const float factor = scale.inverse * code_factor(codes.bits);
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const auto *of_column =
                reinterpret_cast<const float4 *>(minima + column_of_product(n, j) * kSideWarps);
            float least = 0;
#pragma unroll
            for (uint32_t i = 0; i < kSideWarps / 4; ++i) {
                const float4 four = of_column[i];
                least += (four.x + four.y) + (four.z + four.w);
            }
            products[n][j] = fmaf(products[n][j], factor, least);
            products[n][2 + j] = fmaf(products[n][2 + j], factor, least);
        }
}

// Find the stage after `stage` and begin its copies. Value warps.
__device__ __forceinline__ void find_next(const TileArgs &args, const RowsBlock &block,
                                          const Stage &stage, FoundStage *found) {
    const Stage next = advance<ValueThreads<false>>(args, block, stage);
    if (next.n_tokens)
        begin_stage<ValueThreads<false>>(block, next);
    if (ValueThreads<false>::index())
        return;
    found->stage = next;
    if (!next.n_tokens)
        return;
    found->slot = shared_address(block.slot(next));
    found->codes = find_codes(block, next, found->slot);
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
    const WarpColumns all = all_columns(mask);

    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warp = __shfl_sync(kAllLanes, threadIdx.x / kWarp, 0);
    const bool is_key_warp = warp < kSideWarps;
    if (!is_key_warp)
        find_next(args, block, {0, 0, 0, 0, block.n_slots - 1}, &found[0]);
    load_positions(args, &tables);
    load_query_columns(args, block);
    KeyWarp keys;
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
        keys.references[n][0] = keys.references[n][1] = kNoReference;
    NarrowSums out = {};
    float sums[kNarrowEights][2] = {};  // of the lane's columns' weights
    bool has_before = false;            // a stage whose values are to be multiplied
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
            finish_stage<true>(block, now.stage);
            __syncthreads();
        }
        if (is_key_warp && has_stage) {
            TileProducts logits = {};
            const Codes codes = now.codes;
            const Stage stage = now.stage;
            multiply_keys_of_one_width(block, codes, renewed(now.slot), stage_tiles(stage), warp,
                                       minima, logits);
            const RowsStage weighs = {stage.first_token, stage.n_tokens, codes.bits != 0,
                                      !all_are_visible(args.layer, all, stage, 1)};
            keys.shape(args, tables, weighs, warp, logits);
            WeighedStage &to = weighed[turn % 2];
            const bool is_raised = keys.keep_up(logits, warp, minima, to.shrinks);
            auto *weights = reinterpret_cast<__half *>(memory + layout.weights +
                                                       turn % 2 * rows_weight_bytes(grid));
            keys.store_weights(logits, warp, weights, weight_stride);
            if (threadIdx.x == 0)
                to.is_raised = is_raised;
        }
        if (!is_key_warp) {
            if (has_stage) {
                find_next(args, block, now.stage, &found[(turn + 1) % kFoundStages]);
                if (now.codes.bits) {
                    multiply_minima<false, kSideWarps, kSideWarps>(
                        now.codes,
                        shared_address(block.queries) + (warp - kSideWarps) * kTileBytes +
                            16 * lane,
                        warp - kSideWarps, block.key_strips, minima + warp - kSideWarps);
                    give_minima();
                }
            } else if (ValueThreads<false>::index() == 0) {
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
                }
                const auto *weights = reinterpret_cast<const __half *>(
                    memory + layout.weights + (turn + 1) % 2 * rows_weight_bytes(grid));
                const ValueWork work = {args.layer.value_dim / LK_STRIP_CHANNELS,
                                        stage_tiles(before.stage), warp - kSideWarps,
                                        weights_address(weights, weight_stride), weight_stride};
                RoundedSums of_weights = {};
                const Codes codes = before.codes;
                multiply_values<false, kNarrowStrips, kNarrowEights>(
                    block, codes, renewed(before.slot), work, of_weights, out);
#pragma unroll
                for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
                    for (int j = 0; j < 2; ++j)
                        sums[n][j] += of_weights.of(n, j);
            }
        }
        has_before = has_stage;
    }
    const bool tells = (warp == 0 || warp == kSideWarps) && lane < 4;
#pragma unroll
    for (int n = 0; n < kNarrowEights; ++n)
#pragma unroll
        for (int j = 0; tells && j < 2; ++j)
            totals[!is_key_warp][column_of_product(n, j)] =
                is_key_warp ? keys.references[n][j] : sums[n][j];
    __syncthreads();
    float *own_split = own_partial(args, block, position, split);
    float *factors = weighed[0].shrinks;
    if (threadIdx.x < block.n_columns)
        factors[threadIdx.x] = close_column(args, block, own_split, threadIdx.x,
                                            {totals[0][threadIdx.x], totals[1][threadIdx.x]});
    __syncthreads();
    auto *output = reinterpret_cast<float *>(memory);
    if (!is_key_warp) {
        if (!own_split)
            scale_columns<kNarrowStrips, kNarrowEights>(factors, out);
        put_output<kNarrowStrips, kNarrowEights>(args.layer.value_dim, warp - kSideWarps, false,
                                                 output, out);
    }
    __syncthreads();
    store_columns(args, mask, own_split, output);
}

}  // namespace cuda
}  // namespace lk

#endif
