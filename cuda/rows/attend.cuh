// Attention of uneven layers, whose values are channels of their keys or of another dim: the
// kernel, for pages of 16 bits and for codes that are multiplied.
//
// S^T = K Q^T: a warp multiplies a share of the channels of a part of the stage's tokens; the
// shares' sums meet in shared memory, where a warp makes weights of a column's. O^T += V^T P^T: a
// warp has every so many-th strip of the values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ROWS_ATTEND_CUH
#define LK_CUDA_ROWS_ATTEND_CUH

#include "cuda/rows/products.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kOwnColumns = kMostRowsColumns / kRowsWarps;  // that a warp weighs

// What a thread keeps between stages: its part of the output, its columns' references, its parts of
// their sums of weights.
struct RowsThread {
    OwnSums out;
    float references[kOwnColumns];
    float sums[kOwnColumns];
};

// What a stage's products need to become weights.
struct RowsStage {
    uint32_t first_token;  // position
    uint32_t n_tokens;
    bool is_long;  // more than 64 tokens; else a thread has one pair of them
    bool hides;    // some tokens are hidden from some columns
};

// The arrays of rows_layout() that products and weights go through.
struct RowsSums {
    uint32_t first_column;  // of partial
    float *partial;
    uint32_t partial_stride;
    uint32_t n_places;  // of a column's products and weights
    float *minima;
    __half *weights;
    uint32_t weight_stride;
    float *shrinks;  // of the columns: what their output is multiplied by
    float *sums;     // of the weights of the stage
};

// The token of a place in a column's products and weights.
struct PlainOrder {
    static constexpr bool kHasMinima = true;  // of codes, which are whole pages

    __device__ __forceinline__ uint32_t token_at(uint32_t place) const { return place; }
    __device__ __forceinline__ constexpr uint32_t n_shares() const { return kKeyShares; }
};

// A thread's tokens of a column: sums of products become weights. The reference lies kBelow
// under the highest logit and is raised once a logit passes it by kHeadroom. Returns whether it was
// raised.
template <class Order>
__device__ __forceinline__ bool weigh(const TileArgs &args, const RowsTables &tables,
                                      const RowsStage &stage, const Order &order,
                                      const RowsSums &at, uint32_t n_columns, uint32_t column,
                                      float &reference, float &row_sum) {
    constexpr uint32_t kPairs = kMostRowsTokens / 2 / kWarp;
    const uint32_t lane = threadIdx.x % kWarp;
    const float factor = logit_factor(args.layer);
    // Lanes whose places a short stage does not have read those of the last one that has some.
    const float *products = at.partial + (column - at.first_column) * at.partial_stride +
                            min(2 * lane, at.n_places - 2);
    uint32_t seen = ~0u;  // a bit for each token; the loop stays one, to be short
#pragma unroll 1
    for (uint32_t i = 0; stage.hides && i < 2 * kPairs; ++i) {
        const uint32_t token = order.token_at(2 * (lane + kWarp * (i / 2)) + i % 2);
        if (token < stage.n_tokens && !is_visible(args, tables, column, stage.first_token + token))
            seen ^= 1u << i;
    }
    float least = 0;
    if (Order::kHasMinima && stage.is_long)
#pragma unroll
        for (uint32_t i = 0; i < kRowsWarps / 4; ++i) {
            const float4 four =
                reinterpret_cast<const float4 *>(at.minima + column * kRowsWarps)[i];
            least += (four.x + four.y) + (four.z + four.w);
        }
    float logits[2 * kPairs];
    float high = -INFINITY;
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
        float2 x = make_float2(least, least);
        if (pair == 0 || stage.is_long)
#pragma unroll
            for (uint32_t share = 0; share < kKeyShares; ++share) {
                if (share >= order.n_shares())
                    break;
                const float2 own = *reinterpret_cast<const float2 *>(
                    products + share * n_columns * at.partial_stride + 2 * kWarp * pair);
                x.x += own.x;
                x.y += own.y;
            }
        logits[2 * pair] = fmaf(x.x, tables.factors[column], tables.offsets[column]);
        logits[2 * pair + 1] = fmaf(x.y, tables.factors[column], tables.offsets[column]);
    }
    if (args.layer.soft_cap > 0)
#pragma unroll
        for (float &logit : logits)
            logit = shape_logit(args.layer, logit);
#pragma unroll
    for (uint32_t i = 0; i < 2 * kPairs; ++i) {
        // Rounded before the reference is subtracted, so that none lies above its own.
        logits[i] = __fmul_rn(logits[i], factor);
        const uint32_t token = order.token_at(2 * (lane + kWarp * (i / 2)) + i % 2);
        if (token >= stage.n_tokens || !(seen >> i & 1))
            logits[i] = -INFINITY;
        high = fmaxf(high, logits[i]);
    }
    const bool is_raised = __any_sync(kAllLanes, high > reference + kHeadroom);
    float raised = reference;
    if (is_raised)
        raised = fmaxf(reference, warp_max(high) - kBelow);
    const float shrink = exp2_fast(reference - raised);
    reference = raised;
    float sum = 0;
    __syncwarp();  // weights may replace products that other lanes read
#pragma unroll
    for (uint32_t pair = 0; pair < kPairs; ++pair) {
        if (pair && !stage.is_long)
            continue;
        const float low = exp2_fast(logits[2 * pair] - raised);
        const float next = exp2_fast(logits[2 * pair + 1] - raised);
        sum += low + next;
        if (pair || 2 * lane < at.n_places)
            *reinterpret_cast<uint32_t *>(at.weights + column * at.weight_stride +
                                          2 * (lane + kWarp * pair)) = pack_f16(low, next);
    }
    row_sum = fmaf(row_sum, shrink, sum);
    const float all = stage.is_long ? warp_sum(sum) : 0;
    if (lane == 0) {
        at.shrinks[column] = shrink;
        at.sums[column] = all;
    }
    return is_raised;
}

static_assert(kOwnColumns == 2, "they are swapped");
__device__ __forceinline__ void swap_two(float (&two)[2]) {
    const float first = two[0];
    two[0] = two[1];
    two[1] = first;
}
template <class Order>
__device__ __forceinline__ bool weigh_columns(const TileArgs &args, const RowsBlock &block,
                                              const RowsStage &stage, const Order &order,
                                              const RowsSums &at, RowsThread &thread) {
    bool is_raised = false;
    // One copy of the code: the columns' numbers take turns.
#pragma unroll 1
    for (uint32_t i = 0; i < kOwnColumns; ++i) {
        const uint32_t column = threadIdx.x / kWarp + kRowsWarps * i;
        if (column < block.n_columns)
            is_raised |= weigh(args, *block.tables, stage, order, at, block.n_columns, column,
                               thread.references[0], thread.sums[0]);
        swap_two(thread.references);
        swap_two(thread.sums);
    }
    return is_raised;
}

// Multiply the warp's output by a number of each column.
template <int kStrips, int kN>
__device__ __forceinline__ void scale_columns(const float *factors, StripSums<kStrips, kN> &out) {
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float factor = factors[8 * n + 2 * (threadIdx.x % 4) + j];
#pragma unroll
            for (int i = 0; i < kStrips; ++i) {
                out[i][n][j] *= factor;
                out[i][n][2 + j] *= factor;
            }
        }
}

// Floats of a thread block's split: [columns][value_dim] outputs, then references and sums.
__host__ __device__ inline uint64_t rows_partial_floats(uint32_t n_columns, uint32_t value_dim) {
    return static_cast<uint64_t>(n_columns) * (value_dim + 2);
}

// Close a column: its sum goes to the floats of a split, if there is one, or becomes what the
// output is multiplied by.
__device__ __forceinline__ float close_column(const TileArgs &args, const RowsBlock &block,
                                              float *partial, uint32_t column, Total total) {
    const Mask &mask = block.tables->mask;
    if (column >= mask.n_columns)
        return 1;
    if (partial) {
        float *references = partial + block.n_columns * args.layer.value_dim;
        references[column] = total.reference;
        references[block.n_columns + column] = total.sum;
        return 1;
    }
    const QueryColumn query =
        query_column(mask.sequence, mask.kv_head, mask.group_size, mask.first_column + column);
    const float shrink = add_sink(args.layer, query.head, &total);
    store_lse(args, query, total);
    return shrink * inverse(total.sum);
}
// All columns, by the warp of each.
__device__ __forceinline__ void close_columns(const TileArgs &args, const RowsBlock &block,
                                              float *partial, float *factors, RowsThread &thread) {
#pragma unroll 1
    for (uint32_t i = 0; i < kOwnColumns; ++i) {
        const uint32_t column = threadIdx.x / kWarp + kRowsWarps * i;
        const Total total = {thread.references[0], warp_sum(thread.sums[0])};
        swap_two(thread.references);
        swap_two(thread.sums);
        if (threadIdx.x % kWarp == 0 && column < block.n_columns)
            factors[column] = close_column(args, block, partial, column, total);
    }
}

// The output goes through shared memory, rows_output_bytes().
template <int kStrips, int kN>
__device__ __forceinline__ void put_output(uint32_t value_dim, uint32_t reader, bool is_wide,
                                           float *to, const StripSums<kStrips, kN> &out) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t stride = value_dim + kOutputPad;
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
        const uint32_t channel = (reader + kReaders<kStrips> * i) * LK_STRIP_CHANNELS + lane / 4;
        if (channel >= value_dim)
            continue;
#pragma unroll
        for (int n = 0; n < kN; ++n)
#pragma unroll
            for (int j = 0; (n < kEights / 2 || is_wide) && j < 4; ++j)
                to[(8 * n + 2 * (lane % 4) + j % 2) * stride + channel + j / 2 * 8] = out[i][n][j];
    }
}
__device__ __noinline__ void store_columns(const TileArgs &args, const Mask &mask, float *partial,
                                           const float *from) {
    const uint32_t quads = args.layer.value_dim / 4;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < mask.n_columns * quads; i += kRowsThreads) {
        const float4 four = *reinterpret_cast<const float4 *>(
            from + i / quads * (args.layer.value_dim + kOutputPad) + 4 * (i % quads));
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

template <class Threads>
__device__ __forceinline__ Codes find_codes(const RowsBlock &block, const Stage &stage,
                                            uint32_t slot) {
    const FormatInfo &c = block.view(stage).pages[0].info;
    const uint32_t n_cuts = Threads::kCanCut && block.cuts_page(block.code_bits(stage)) ? 1 : 0;
    const uint32_t ranges = slot + (c.payload_bytes >> n_cuts);
    return {block.code_bits(stage), uint32_t{c.page_tokens} >> n_cuts, slot, ranges,
            ranges + c.minima_offset};
}

// The mask of a thread block and its split's pages, by its first thread. False where it has no
// columns.
__device__ __forceinline__ bool find_work(const TileArgs &args, const RowsGrid &grid,
                                          const TilePosition &position, uint32_t split,
                                          Mask *mask) {
    if (threadIdx.x == 0) {
        mask->stage_tokens = grid.stage_tokens;
        if (find_mask(args, position, grid.n_columns, mask))
            cut_pages(args, 0, mask->blocks.n + mask->staged.n, split, mask);
        else
            mask->n_columns = 0;
    }
    __syncthreads();
    return mask->n_columns != 0;
}
__device__ __forceinline__ TilePosition own_position(const TileArgs &args) {
    return {blockIdx.z / args.n_splits, blockIdx.y, gridDim.x - 1 - blockIdx.x};
}
__device__ __forceinline__ RowsBlock make_block(const TileArgs &args, const RowsGrid &grid,
                                                const RowsLayout &layout, uint8_t *memory,
                                                RowsTables *tables) {
    return {tables,
            memory,
            memory + layout.queries,
            memory + layout.copy,
            grid.n_slots,
            grid.slot_bytes,
            grid.page_bytes,
            grid.copy_bytes,
            grid.stage_tokens,
            grid.n_columns,
            args.layer.head_dim / LK_STRIP_CHANNELS,
            stored_dim(args.layer, true) / LK_STRIP_CHANNELS};
}
// The floats of the thread block's split, if there are several.
__device__ __forceinline__ float *own_partial(const TileArgs &args, const RowsBlock &block,
                                              const TilePosition &position, uint32_t split) {
    const uint32_t index =
        ((position.sequence * gridDim.y + position.kv_head) * gridDim.x + position.tile) *
            args.n_splits +
        split;
    return args.n_splits > 1
               ? args.partials + index * rows_partial_floats(block.n_columns, args.layer.value_dim)
               : nullptr;
}

__device__ __forceinline__ WarpColumns all_columns(const Mask &mask) {
    return {0, mask.n_columns, mask.first_position, mask.last_position,
            mask.sequence.has_tree ? mask.sequence.n_history : ~0u};
}

__device__ __forceinline__ RowsSums make_sums(const RowsGrid &grid, const RowsLayout &layout,
                                              uint8_t *memory,
                                              float (&column_values)[2][kMostRowsColumns]) {
    return {0,
            reinterpret_cast<float *>(memory + layout.partial),
            partial_stride(grid),
            grid.partial_tokens,
            reinterpret_cast<float *>(memory + layout.minima),
            reinterpret_cast<__half *>(memory + layout.weights),
            grid.weight_stride,
            column_values[0],
            column_values[1]};
}
__device__ __forceinline__ RowsThread new_thread() {
    RowsThread thread = {};
    for (float &reference : thread.references)
        reference = kNoReference;
    return thread;
}
__device__ __forceinline__ void load_queries(const TileArgs &args, const RowsBlock &block) {
    load_positions(args, block.tables);
    if (args.layer.key_rotation)
        load_rotated_columns(args, block);
    else
        load_query_columns(args, block);
}
// The end of a thread block: its output, or that of its split.
__device__ __forceinline__ void store_output(const TileArgs &args, const RowsBlock &block,
                                             const TilePosition &position, uint32_t split,
                                             const RowsSums &sums, uint8_t *memory,
                                             RowsThread &thread) {
    float *own_split = own_partial(args, block, position, split);
    __syncthreads();
    close_columns(args, block, own_split, sums.shrinks, thread);
    __syncthreads();
    if (!own_split)
        scale_columns<kOwnStrips, kEights>(sums.shrinks, thread.out);
    auto *output = reinterpret_cast<float *>(memory);
    put_output<kOwnStrips, kEights>(args.layer.value_dim, threadIdx.x / kWarp, block.is_wide(),
                                    output, thread.out);
    __syncthreads();
    store_columns(args, block.tables->mask, own_split, output);
}

__global__ void __launch_bounds__(kRowsThreads, 1)
    attend_rows(const __grid_constant__ TileArgs args, const __grid_constant__ RowsGrid grid) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ RowsTables tables;
    __shared__ float column_values[2][kMostRowsColumns];
    const TilePosition position = own_position(args);
    const uint32_t split = blockIdx.z % args.n_splits;
    Mask &mask = tables.mask;
    if (!find_work(args, grid, position, split, &mask))
        return;
    const RowsLayout layout = rows_layout(args.layer, grid);
    const RowsBlock block = make_block(args, grid, layout, memory, &tables);
    const RowsSums sums = make_sums(grid, layout, memory, column_values);
    const WarpColumns all = all_columns(mask);

    const bool copies_ahead = grid.n_slots > 1;
    Stage stage = advance<AllThreads>(args, block, {0, 0, 0, 0, block.n_slots - 1});
    if (stage.n_tokens)
        begin_stage<AllThreads>(block, stage);
    load_queries(args, block);
    RowsThread thread = new_thread();
#pragma unroll 1
    while (stage.n_tokens) {
        wait_copies<0>();
        finish_stage<AllThreads>(block, stage);
        const uint32_t slot = renewed(shared_address(block.slot(stage)));
        const Codes codes = find_codes<AllThreads>(block, stage, slot);
        const Stage next = advance<AllThreads>(args, block, stage);
        __syncthreads();  // the stage is there, and what the one before was read from is free
        if (next.n_tokens && copies_ahead)
            begin_stage<AllThreads>(block, next);
        const uint32_t n_tiles = stage_tiles(stage);
        if (block.is_wide())
            multiply_keys<true>(block, codes, slot, n_tiles, sums.partial, sums.partial_stride,
                                sums.minima);
        else
            multiply_keys<false>(block, codes, slot, n_tiles, sums.partial, sums.partial_stride,
                                 sums.minima);
        __syncthreads();
        const RowsStage now = {stage.first_token, stage.n_tokens, codes.bits != 0,
                               !all_are_visible(args.layer, all, stage, 1)};
        if (__syncthreads_or(weigh_columns(args, block, now, PlainOrder{}, sums, thread)))
            scale_columns<kOwnStrips, kEights>(sums.shrinks, thread.out);
        const ValueWork work = {
            args.layer.value_dim / LK_STRIP_CHANNELS, n_tiles, threadIdx.x / kWarp,
            weights_address(sums.weights, sums.weight_stride), sums.weight_stride};
        StoredSums of_weights = {sums.sums};
        if (block.is_wide())
            multiply_values<true, kOwnStrips, kEights>(block, codes, slot, work, of_weights,
                                                       thread.out);
        else
            multiply_values<false, kOwnStrips, kEights>(block, codes, slot, work, of_weights,
                                                        thread.out);
        if (next.n_tokens && !copies_ahead) {
            __syncthreads();
            begin_stage<AllThreads>(block, next);
        }
        stage = next;
    }
    store_output(args, block, position, split, sums, memory, thread);
}

}  // namespace cuda
}  // namespace lk

#endif
