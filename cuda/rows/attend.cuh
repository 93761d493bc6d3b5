// Attention over rows, of layers whose values are channels of their keys or of another dim: the
// kernel. Query columns are the rows of both products.
//
// S = Q K^T: a warp multiplies every fourth strip of 16 channels of half of a stage's tokens, whose
// queries it keeps in registers; the sums meet in shared memory, where each column's threads make
// weights of them. O += P V: a warp has every eighth strip of the values. A latent page is unpacked
// once, and its rows are both operands.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_ATTEND_CUH
#define LK_CUDA_ROWS_ATTEND_CUH

#include "cuda/rows/queries.cuh"

namespace lk {
namespace cuda {

constexpr int kShareStrips =
    (kMostKeyStrips + kKeyShares - 1) / kKeyShares;        // of a warp's share of the channels
constexpr int kOwnStrips = kMostValueStrips / kRowsWarps;  // of the output of a warp
static_assert(kShareStrips * kKeyShares >= kMostKeyStrips, "shares hold all strips");

constexpr int kColumnTiles = kRowsColumns / 16;
constexpr uint32_t kColumnThreads = kRowsThreads / kRowsColumns;  // of a column
constexpr uint32_t kOwnTokens = kRowsTokens / kColumnThreads;     // of a thread

struct RowsWarp {
    uint32_t queries[kShareStrips][kColumnTiles][4];
    float out[kOwnStrips][2][kColumnTiles][4];
    float reference;  // of the thread's column
    float sum;        // of the weights of its tokens
};

// The warp's share of the queries as A operands.
__device__ __forceinline__ void take_queries(const RowsBlock &block, RowsWarp &warp) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t share = threadIdx.x / kWarp % kKeyShares;
    const uint32_t at =
        shared_address(block.keys) + lane % 16 * block.key_row_bytes() + 16 * (lane / 16);
#pragma unroll
    for (int i = 0; i < kShareStrips; ++i)
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m) {
            const uint32_t strip = share + kKeyShares * i;
            if (strip < block.key_strips)
                load_matrices(warp.queries[i][m], at + 16 * m * block.key_row_bytes() + 32 * strip);
        }
}

// The warp's sums of products, stored as [share][column][token].
__device__ __forceinline__ void multiply_keys(const RowsBlock &block, const RowsWarp &warp,
                                              float *partial) {
    constexpr uint32_t kHalf = kRowsTokens / 2;
    constexpr int kPairs = kHalf / 16;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t share = threadIdx.x / kWarp % kKeyShares;
    const uint32_t first = threadIdx.x / kWarp / kKeyShares * kHalf;
    const uint32_t row_bytes = block.key_row_bytes();
    const uint32_t at = renewed(shared_address(block.keys)) +
                        (first + lane % 8 + 8 * (lane / 16)) * row_bytes + 16 * (lane / 8 % 2);
    float s[kColumnTiles][2 * kPairs][4] = {};
#pragma unroll
    for (int i = 0; i < kShareStrips; ++i) {
        const uint32_t strip = share + kKeyShares * i;
        if (strip >= block.key_strips)
            continue;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
            uint32_t b[4];
            load_matrices(b, at + 16 * pair * row_bytes + 32 * strip);
#pragma unroll
            for (int m = 0; m < kColumnTiles; ++m) {
                const uint32_t(&q)[4] = warp.queries[i][m];
                mma(s[m][2 * pair], q[0], q[1], q[2], q[3], b[0], b[1]);
                mma(s[m][2 * pair + 1], q[0], q[1], q[2], q[3], b[2], b[3]);
            }
        }
    }
    constexpr uint32_t kStride = kRowsTokens + kRowPad;
    float *to = partial + (share * kRowsColumns + lane / 4) * kStride + first + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kColumnTiles; ++m)
#pragma unroll
        for (int n = 0; n < 2 * kPairs; ++n) {
            float *own = to + 16 * m * kStride + 8 * n;
            *reinterpret_cast<float2 *>(own) = make_float2(s[m][n][0], s[m][n][1]);
            *reinterpret_cast<float2 *>(own + 8 * kStride) = make_float2(s[m][n][2], s[m][n][3]);
        }
}

// What a stage's products need to become weights.
struct RowsStage {
    uint32_t first_token;  // position
    uint32_t n_tokens;
    bool shapes;  // logits take more than a factor
    bool hides;   // some tokens are hidden from some columns
};

// A thread's tokens of its column: sums of products become weights. The reference lies kBelow
// under the highest logit and is raised once a logit passes it by kHeadroom; `shrinks` are what the
// columns' output is multiplied by then. Returns whether it was raised.
__device__ __forceinline__ bool weigh(const TileArgs &args, const RowsBlock &block,
                                      const RowsStage &stage, const float *partial, __half *weights,
                                      float *shrinks, RowsWarp &warp) {
    constexpr uint32_t kStride = kRowsTokens + kRowPad;
    const RowsTables &tables = *block.tables;
    const uint32_t column = threadIdx.x / kColumnThreads;
    // Two neighbours, then the next two of the column's threads.
    const auto token_of = [](uint32_t i) {
        return 2 * (threadIdx.x % kColumnThreads + kColumnThreads * (i / 2)) + i % 2;
    };
    const float factor = logit_factor(args.layer);
    float logits[kOwnTokens];
    float high = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < kOwnTokens; i += 2) {
        float2 x = make_float2(0, 0);
#pragma unroll
        for (uint32_t share = 0; share < kKeyShares; ++share) {
            const float2 own = *reinterpret_cast<const float2 *>(
                partial + (share * kRowsColumns + column) * kStride + token_of(i));
            x.x += own.x;
            x.y += own.y;
        }
        logits[i] = x.x;
        logits[i + 1] = x.y;
    }
    uint32_t seen = 0;  // a bit for each token; the loop stays one, to be short
#pragma unroll 1
    for (uint32_t i = 0; stage.hides && i < kOwnTokens; ++i) {
        const uint32_t token = token_of(i);
        if (token < stage.n_tokens && is_visible(args, tables, column, stage.first_token + token))
            seen |= 1u << i;
    }
#pragma unroll
    for (uint32_t i = 0; i < kOwnTokens; ++i) {
        float x = logits[i];
        if (stage.shapes)
            x = shape_logit(args.layer, fmaf(x, tables.factors[column], tables.offsets[column]));
        // Rounded before the reference is subtracted, so that none lies above its own reference.
        x = __fmul_rn(x, factor);
        x = stage.hides && !(seen >> i & 1) ? -INFINITY : x;
        logits[i] = x;
        high = fmaxf(high, x);
    }
    high = reduce_column<kColumnThreads>(high, [](float a, float b) { return fmaxf(a, b); });
    const bool is_raised = high > warp.reference + kHeadroom;
    const float raised = is_raised ? fmaxf(warp.reference, high - kBelow) : warp.reference;
    const float shrink = exp2_fast(warp.reference - raised);
    warp.reference = raised;
    warp.sum *= shrink;
    if (threadIdx.x % kColumnThreads == 0)
        shrinks[column] = shrink;
#pragma unroll
    for (uint32_t i = 0; i < kOwnTokens; i += 2) {
        const float low = exp2_fast(logits[i] - raised);
        const float next = exp2_fast(logits[i + 1] - raised);
        warp.sum += low + next;
        *reinterpret_cast<uint32_t *>(weights + column * kStride + token_of(i)) =
            pack_f16(low, next);
    }
    return is_raised;
}

// Multiply the warp's output by a number of each column.
__device__ __forceinline__ void scale_columns(const float *factors, RowsWarp &warp) {
    const uint32_t row = threadIdx.x % kWarp / 4;
#pragma unroll
    for (int m = 0; m < kColumnTiles; ++m) {
        const float low = factors[16 * m + row];
        const float high = factors[16 * m + row + 8];
#pragma unroll
        for (int i = 0; i < kOwnStrips; ++i)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                warp.out[i][n][m][0] *= low;
                warp.out[i][n][m][1] *= low;
                warp.out[i][n][m][2] *= high;
                warp.out[i][n][m][3] *= high;
            }
    }
}

__device__ __forceinline__ void multiply_values(const RowsBlock &block, bool is_latent,
                                                uint32_t n_strips, uint32_t n_tokens,
                                                const __half *weights, RowsWarp &warp) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t first_strip = threadIdx.x / kWarp;
    constexpr uint32_t kWeightBytes = 2 * (kRowsTokens + kRowPad);
    const uint32_t weights_at =
        renewed(shared_address(weights)) + lane % 16 * kWeightBytes + 16 * (lane / 16);
    const uint32_t row_bytes = is_latent ? block.key_row_bytes() : block.value_row_bytes();
    // Of latent rows tokens are the rows of matrices, which are transposed; else channels are.
    const uint32_t values_at =
        renewed(shared_address(is_latent ? block.keys : block.values)) +
        (is_latent ? lane % 16 * row_bytes + 16 * (lane / 16)
                   : (lane % 8 + 8 * (lane / 16)) * row_bytes + 16 * (lane / 8 % 2));
#pragma unroll 1
    for (uint32_t tile = 0; tile * LK_TILE_TOKENS < n_tokens; ++tile) {
        uint32_t p[kColumnTiles][4];
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m)
            load_matrices(p[m], weights_at + 16 * m * kWeightBytes + 32 * tile);
#pragma unroll
        for (int i = 0; i < kOwnStrips; ++i) {
            const uint32_t strip = first_strip + kRowsWarps * i;
            if (strip >= n_strips)
                continue;
            uint32_t b[4];
            if (is_latent)
                load_matrices_transposed(b, values_at + 16 * tile * row_bytes + 32 * strip);
            else
                load_matrices(b, values_at + 16 * strip * row_bytes + 32 * tile);
#pragma unroll
            for (int m = 0; m < kColumnTiles; ++m) {
                mma(warp.out[i][0][m], p[m][0], p[m][1], p[m][2], p[m][3], b[0], b[1]);
                mma(warp.out[i][1][m], p[m][0], p[m][1], p[m][2], p[m][3], b[2], b[3]);
            }
        }
    }
}

// Floats of a thread block's split: [columns][value_dim] outputs, then references and sums.
__host__ __device__ inline uint64_t rows_partial_floats(uint32_t value_dim) {
    return static_cast<uint64_t>(kRowsColumns) * (value_dim + 2);
}

// Close the columns, by the threads of each: their sums go to the floats of a split, if there is
// one, or become what the output is multiplied by.
__device__ __forceinline__ void close_columns(const TileArgs &args, const Mask &mask,
                                              float *partial, float *factors,
                                              const RowsWarp &warp) {
    const uint32_t column = threadIdx.x / kColumnThreads;
    const float sum =
        reduce_column<kColumnThreads>(warp.sum, [](float a, float b) { return a + b; });
    if (threadIdx.x % kColumnThreads)
        return;
    Total total = {warp.reference, sum};
    factors[column] = 1;
    if (column >= mask.n_columns)
        return;
    if (partial) {
        float *references = partial + kRowsColumns * args.layer.value_dim;
        references[column] = total.reference;
        references[kRowsColumns + column] = total.sum;
        return;
    }
    const QueryColumn query =
        query_column(mask.sequence, mask.kv_head, mask.group_size, mask.first_column + column);
    const float shrink = add_sink(args.layer, query.head, &total);
    store_lse(args, query, total);
    factors[column] = shrink * inverse(total.sum);
}

// The output goes through shared memory, [column][value_dim], which takes the place of the rows.
__device__ __forceinline__ void put_output(uint32_t value_dim, float *to, const RowsWarp &warp) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int i = 0; i < kOwnStrips; ++i) {
        const uint32_t strip = threadIdx.x / kWarp + kRowsWarps * i;
        if (strip * LK_STRIP_CHANNELS >= value_dim)
            continue;
#pragma unroll
        for (int m = 0; m < kColumnTiles; ++m)
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                float *own = to + (16 * m + lane / 4) * value_dim + strip * LK_STRIP_CHANNELS +
                             8 * n + 2 * (lane % 4);
                const float(&out)[4] = warp.out[i][n][m];
                *reinterpret_cast<float2 *>(own) = make_float2(out[0], out[1]);
                *reinterpret_cast<float2 *>(own + 8 * value_dim) = make_float2(out[2], out[3]);
            }
    }
}
__device__ __noinline__ void store_columns(const TileArgs &args, const Mask &mask, float *partial,
                                           const float *from) {
    const uint32_t quads = args.layer.value_dim / 4;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < mask.n_columns * quads; i += kRowsThreads) {
        const float4 four = reinterpret_cast<const float4 *>(from)[i];
        if (partial) {
            reinterpret_cast<float4 *>(partial)[i] = four;
            continue;
        }
        const QueryColumn query = query_column(mask.sequence, mask.kv_head, mask.group_size,
                                               mask.first_column + i / quads);
        const int64_t at = row_offset(args.out, query.token, query.head) + 4 * (i % quads);
#pragma unroll 1
        for (uint32_t j = 0; j < 2; ++j)
            store_two(args.out, at + 2 * j, j ? four.z : four.x, j ? four.w : four.y);
    }
}

// The stage after one, or the first one after none.
__device__ __noinline__ Stage advance(const TileArgs &args, const RowsBlock block,
                                      const Stage stage) {
    const bool is_first = !stage.n_tokens;
    const EntryView &view = block.view(stage);
    if (is_first || stage.index + 1 == view.end_stage)
        return enter_page(args, block, is_first ? block.tables->mask.page_begin : stage.page + 1,
                          0);
    Stage next = stage;
    ++next.index;
    stage_position(view, block.stage_tokens, &next);
    return next;
}

__global__ void __launch_bounds__(kRowsThreads, kRowsResident)
    attend_rows(const __grid_constant__ TileArgs args, const __grid_constant__ RowsGrid grid) {
    extern __shared__ __align__(16) uint8_t memory[];
    __shared__ RowsTables tables;
    __shared__ float shrinks[kRowsColumns];
    const TilePosition position = {blockIdx.z / args.n_splits, blockIdx.y,
                                   gridDim.x - 1 - blockIdx.x};
    const uint32_t split = blockIdx.z % args.n_splits;
    Mask &mask = tables.mask;
    if (threadIdx.x == 0) {
        mask.stage_tokens = kRowsTokens;
        if (find_mask(args, position, kRowsColumns, &mask))
            cut_pages(args, 0, mask.blocks.n + mask.staged.n, split, &mask);
        else
            mask.n_columns = 0;
    }
    __syncthreads();
    if (!mask.n_columns)
        return;
    const RowsLayout layout = rows_layout(args.layer, grid.page_bytes);
    RowsBlock block;
    block.tables = &tables;
    block.keys = memory;
    block.values = memory + layout.values;
    block.pages = memory + layout.pages;
    block.key_strips = args.layer.head_dim / LK_STRIP_CHANNELS;
    block.value_strips = stored_dim(args.layer, true) / LK_STRIP_CHANNELS;
    block.page_bytes = grid.page_bytes;
    auto *partial = reinterpret_cast<float *>(memory + layout.partial);
    auto *weights = reinterpret_cast<__half *>(memory + layout.weights);
    const uint32_t value_strips = args.layer.value_dim / LK_STRIP_CHANNELS;
    const WarpColumns all = {0, mask.n_columns, mask.first_position, mask.last_position,
                             mask.sequence.has_tree ? mask.sequence.n_history : ~0u};

    load_positions(args, &tables);
    const bool has_factors = __syncthreads_or(load_query_rows(args, block, kRowsColumns));
    RowsWarp warp = {};
    warp.reference = kNoReference;
    take_queries(block, warp);
    RowsStage now;
    now.shapes = has_factors || args.layer.soft_cap > 0;
    Stage stage = {};
#pragma unroll 1
    while (true) {
        const Stage next = advance(args, block, stage);
        __syncthreads();  // the rows are there, and what they were made of is free
        if (next.n_tokens)
            begin_stage(block, next);
        if (stage.n_tokens) {
            multiply_keys(block, warp, partial);
            __syncthreads();
            now.first_token = stage.first_token;
            now.n_tokens = stage.n_tokens;
            now.hides = !all_are_visible(args.layer, all, stage, kRowsTokens);
            const bool is_raised = weigh(args, block, now, partial, weights, shrinks, warp);
            if (__syncthreads_or(is_raised))
                scale_columns(shrinks, warp);
            multiply_values(block, args.layer.is_latent, value_strips, stage.n_tokens, weights,
                            warp);
        }
        stage = next;
        if (!stage.n_tokens)
            break;
        wait_copies<0>();
        __syncthreads();
        make_rows(block, stage);
    }
    const uint32_t index =
        ((position.sequence * gridDim.y + position.kv_head) * gridDim.x + position.tile) *
            args.n_splits +
        split;
    float *own_split = args.n_splits > 1
                           ? args.partials + index * rows_partial_floats(args.layer.value_dim)
                           : nullptr;
    __syncthreads();
    close_columns(args, mask, own_split, shrinks, warp);
    __syncthreads();
    if (!own_split)
        scale_columns(shrinks, warp);
    auto *output = reinterpret_cast<float *>(memory);
    put_output(args.layer.value_dim, output, warp);
    __syncthreads();
    store_columns(args, mask, own_split, output);
}

}  // namespace cuda
}  // namespace lk

#endif
