// Decode attention: few query columns over many packed pages. See docs/performance.md.
//
// A block takes work items in turn: rows of one KV head of one sequence. It loads the queries, its
// warps go through their pieces on their own, then their results are merged, and the last block of
// a (sequence, KV head, column tile) merges the blocks'.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_ATTEND_DECODE_CUH
#define LK_CUDA_ATTEND_DECODE_CUH

#include "decode_merge.cuh"

namespace lk {
namespace cuda {

// Numbers lane, lane + 32, ... of a row: one choice of type, then all loads at once.
template <int kCount, typename Number, typename Convert>
__device__ __forceinline__ void load_row(const void *data, int64_t at, uint32_t n, uint32_t lane,
                                         float (&out)[kCount], Convert convert) {
    const Number *row = static_cast<const Number *>(data) + at;
#pragma unroll
    for (uint32_t i = 0; i < kCount; ++i)
        out[i] = i * kWarp + lane < n ? convert(row[i * kWarp + lane]) : 0.0f;
}
template <int kCount>
__device__ __forceinline__ void load_row(const TensorArg &from, int64_t at, uint32_t n,
                                         uint32_t lane, float (&out)[kCount]) {
    if (from.dtype == kF32)
        load_row<kCount, float>(from.data, at, n, lane, out, [](float x) { return x; });
    else if (from.dtype == kF16)
        load_row<kCount, __half>(from.data, at, n, lane, out,
                                 [](__half x) { return __half2float(x); });
    else
        load_row<kCount, uint16_t>(from.data, at, n, lane, out, [](uint16_t x) {
            return __uint_as_float(static_cast<uint32_t>(x) << 16);
        });
}

__device__ __forceinline__ float power(int exponent) {
    return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

// The columns' queries, brought to at most 1 by a power of two, into the copies. A warp a column.
template <int kStrips, int kTiles>
__device__ __forceinline__ void load_queries(const DecodeArgs &args, const Unit &unit,
                                             const WorkItem &item, uint32_t n_history,
                                             __half *copies, Column *columns, uint32_t warp,
                                             uint32_t n_warps, uint32_t lane) {
    constexpr uint32_t kHeadDim = kStrips * 16;
    constexpr uint32_t kCopy = kTiles * kHeadDim * 8;  // halves
    constexpr int kCount = (kHeadDim + kWarp - 1) / kWarp;
    for (uint32_t column = warp; column < kTiles * 8; column += n_warps) {
        const bool is_real = column < unit.n_columns;
        const uint32_t i = is_real ? (unit.first_column + column) / unit.group : 0;
        const uint32_t token = item.first_new + i;
        const uint32_t head =
            unit.first_head + (is_real ? unit.first_column + column - i * unit.group : 0);
        const int64_t at = row_offset(args.q, token, head);
        float q[kCount];
        float most = 0;
        load_row(args.q, at, is_real ? kHeadDim : 0, lane, q);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            most = fmaxf(most, fabsf(q[n]));
#pragma unroll
        for (int distance = 16; distance; distance /= 2)
            most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
        // 2^exponent is above the largest; at the ends of FP32's range a little less is as good.
        const int exponent =
            most > 0 ? min(max(static_cast<int>(__float_as_uint(most) >> 23) - 126, -100), 100) : 0;
        const float down = args.layer.scale < 0 ? -power(-exponent) : power(-exponent);
        __half *to = copies + ((column / 8) * kHeadDim + lane) * 8 + column % 8;
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            if (n * kWarp + lane < kHeadDim) {
                to[n * kWarp * 8 + kPlain * kCopy] = __float2half_rn(q[n] * down);
                to[n * kWarp * 8 + kSixteenth * kCopy] = __float2half_rn(q[n] * down * 0.0625f);
            }
        if (lane)
            continue;
        Column made;
        made.ancestors = ~uint64_t{0} >> (63u - i);
        made.position = n_history + i;
        made.factor = fabsf(args.layer.scale) * kLog2e * power(exponent);
        made.token = token;
        made.head = head;
        if (item.has_tree) {
            made.ancestors = args.step.ancestors[item.first_new + i];
            made.position = args.step.positions[item.first_new + i];
        }
        columns[column] = made;
    }
}

__device__ __forceinline__ Unit unit_of(const DecodeArgs &args, const WorkItem &item,
                                        uint32_t columns_of_tile) {
    Unit unit;
    unit.group = args.layer.n_query_heads / args.layer.n_kv_heads;
    unit.head_dim = args.layer.head_dim;
    unit.first_head = item.kv_head * unit.group;
    unit.first_column = item.column_tile * columns_of_tile;
    unit.n_columns = min(item.n_new * unit.group - unit.first_column, columns_of_tile);
    return unit;
}

template <typename Args>
__device__ __forceinline__ bool is_step_of(const Args &args) {
    return args.step.header->n_sequences == args.n_sequences &&
           args.step.header->n_tokens == args.n_tokens;
}

// What the block's threads look up side by side once they know the item: its number in the list is
// checked only then, since the list is never shorter than the grid.
__device__ __forceinline__ bool read_item(const DecodeArgs &args, uint32_t index, Share *share) {
    __shared__ uint32_t n_items;
    if (threadIdx.x < sizeof(WorkItem) / 4)
        reinterpret_cast<uint32_t *>(&share->item)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(args.items + index)[threadIdx.x];
    else if (threadIdx.x == kWarp)
        n_items = is_step_of(args) ? *args.n_items : 0;
    __syncthreads();
    return index < n_items;
}

// The classes of the item's head, and the channels of slots in their fixed order.
__device__ __forceinline__ void read_classes(const DecodeArgs &args, Share *share, uint8_t *slots,
                                             uint32_t lane) {
    constexpr uint32_t kWords = sizeof(ClassInfo) / 4;
    const uint32_t side = lane / kWords;
    const ClassInfo *from =
        args.step.classes + (side ? share->item.value_class : share->item.key_class);
    reinterpret_cast<uint32_t *>(&share->classes[side])[lane % kWords] =
        reinterpret_cast<const uint32_t *>(from)[lane % kWords];
    __syncwarp();
    if (lane == 0) {
        share->page = {};
        fill_half(&share->page, share->classes[0], 0);
        fill_half(&share->page, share->classes[1], 1);
    }
    const auto *fixed = reinterpret_cast<const uint8_t *>(share->classes[0].permutation);
    for (uint32_t i = lane; i < args.layer.head_dim; i += kWarp)
        slots[i] = fixed ? fixed[i] : static_cast<uint8_t>(i);
}

__device__ __forceinline__ LogitRules logit_rules(const DecodeArgs &args, const WorkItem &item,
                                                  uint32_t n_history, const Column *columns) {
    const LayerArg &layer = args.layer;
    return {{columns, item.has_tree ? args.step.positions + item.first_new : nullptr, n_history,
             item.new_in_rows ? item.n_new : 0u, n_history + item.n_new - 1, layer.window_tokens,
             layer.window_sink_tokens},
            layer.soft_cap * kLog2e,
            layer.soft_cap > 0 ? 2.0f / layer.soft_cap : 0.0f};
}

template <int kStrips, int kTiles, bool kGrouped>
__device__ __forceinline__ void gather(Ring &ring, const Queries &queries, uint32_t slots,
                                       const LogitRules &rules, uint32_t n_tokens, uint32_t lane,
                                       Gathered<kStrips, kTiles> &g, uint32_t *value_group_strips) {
#pragma unroll 1
    for (; ring.has_more(); ring.next_piece()) {
        Work<kTiles> work;
        const uint32_t piece = ring.piece();
        const Place place = read_place(piece);
        if (ring.is_empty())
            continue;
        if (place.is_raw) {
            multiply_raw_keys<kStrips>(ring, queries, lane, work.s[0]);
            weigh_raw(place, lane, rules, work, g);
            multiply_raw_values(ring, place, lane, n_tokens, work, g);
            continue;
        }
        const Keys keys = read_keys(piece);
        multiply_keys<kStrips, kTiles, kGrouped>(ring, keys, queries, slots, lane, work);
        const Values values = read_values(piece);
        if (kGrouped)
            *value_group_strips = min(*value_group_strips, values.group_strips);
        (void)ring.wait();
        weigh_packed<kStrips, kTiles, kGrouped>(keys, values, ring.value_metadata(),
                                                place.first_token, lane, rules, work, g);
        multiply_values<kStrips, kTiles, kGrouped>(ring, values, lane, work, g);
    }
}

template <int kStrips, int kTiles, bool kGrouped, int kThreads, int kBlocks>
__global__ void __launch_bounds__(kThreads, kBlocks)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ Share share;
    __shared__ Column columns[kTiles * 8];
    __shared__ ColumnTotals totals;
    __shared__ LogitRules rules;
    __shared__ uint8_t slots[256];
    __shared__ __align__(8) uint64_t barriers[kThreads / kWarp * 2];
    const uint32_t warp = threadIdx.x / kWarp;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_warps = blockDim.x / kWarp;
    // Queries, then pieces, then a ring for each warp.
    auto *pieces = reinterpret_cast<Piece *>(memory + kQueryCopies * kTiles * kStrips * 16 * 16);
    uint8_t *rings = reinterpret_cast<uint8_t *>(pieces + n_warps * kWarpPieces);
    const uint32_t ring_bytes =
        2 * kChunkBytes + args.key_metadata_bytes + args.value_metadata_bytes;
    const Arrivals arrivals(shared_address(barriers + 2 * warp), lane);
    if (lane == 0)
        Arrivals::open(shared_address(barriers + 2 * warp));
    __syncwarp();
    uint32_t uses = 0;
#pragma unroll 1
    for (uint32_t index = blockIdx.x; read_item(args, index, &share); index += gridDim.x) {
        const WorkItem &item = share.item;
        const Unit unit = unit_of(args, item, kTiles * 8);
        const uint32_t n_raw = kRowTiles * (item.raw_count[0] + item.raw_count[1]);
        const uint32_t n_pieces = n_raw + item.packed_count;
        // The last warps look up the pieces while the first ones load the queries.
        const uint32_t from_end = blockDim.x - 1 - threadIdx.x;
        const uint32_t n_history = args.step.sequences[item.sequence].n_history;
        const uint32_t n_tokens = n_history + (item.new_in_rows ? item.n_new : 0u);
        const uint32_t capacity = n_warps * kWarpPieces;
        PieceSource source;
        if (from_end < min(n_pieces, capacity))
            source = find_piece(args, item, n_raw, from_end);
        load_queries<kStrips, kTiles>(args, unit, item, n_history,
                                      reinterpret_cast<__half *>(memory), columns, warp, n_warps,
                                      lane);
        if (warp == n_warps - 1)
            read_classes(args, &share, slots, lane);
        if (threadIdx.x == 0)
            rules = logit_rules(args, item, n_history, columns);
        __syncthreads();
        const Queries queries = {renewed(shared_address(memory)), args.layer.head_dim * 16};
        Gathered<kStrips, kTiles> g;
        g.clear();
        uint32_t value_group_strips = 255;
#pragma unroll 1
        for (uint32_t first = 0; first < n_pieces; first += capacity) {
            const uint32_t piece = first + from_end;
            if (first && from_end < min(n_pieces - first, capacity))
                source = find_piece(args, item, n_raw, piece);
            if (from_end < min(n_pieces - first, capacity))
                fill_piece(args, share, source, piece < n_raw, piece % kRowTiles, n_tokens,
                           pieces + from_end);
            __syncthreads();
            Ring ring(shared_address(pieces), min(n_pieces - first, capacity),
                      shared_address(rings + warp * ring_bytes), args.key_metadata_bytes, arrivals,
                      uses, warp, n_warps);
            gather<kStrips, kTiles, kGrouped>(ring, queries, shared_address(slots), rules, n_tokens,
                                              lane, g, &value_group_strips);
            uses = ring.uses();
            __syncthreads();
        }
        const WarpResults results(rings, n_warps, unit.n_columns, args.layer.head_dim);
        store_warp<kStrips, kTiles, kGrouped>(g, results, warp, lane, value_group_strips);
        merge_warps({&args, columns, unit}, item, results, n_warps,
                    reinterpret_cast<float *>(memory), &totals);
        Arrivals::fence();
        __syncthreads();
    }
}

}  // namespace cuda
}  // namespace lk

#endif
