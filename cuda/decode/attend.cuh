// Decode attention: few query columns over many packed pages. See docs/kernels.md.
//
// A thread block takes work items in turn. It loads the queries, its warps go through their KV
// tiles independently, then it merges their results. The last thread block of a work tile merges
// the splits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_DECODE_ATTEND_CUH
#define LK_CUDA_DECODE_ATTEND_CUH

#include "cuda/decode/merge_wide.cuh"
#include "cuda/decode/methods.cuh"
#include "cuda/rotate.cuh"

namespace lk {
namespace cuda {

// Elements lane, lane + 32, ... of a row: one choice of type, then all loads at once.
template <int kCount, typename Float, typename Convert>
__device__ __forceinline__ void load_row(const void *data, int64_t at, uint32_t n, uint32_t lane,
                                         float (&out)[kCount], Convert convert) {
    const Float *row = static_cast<const Float *>(data) + at;
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

// The product of a query, of which each lane has some channels, with the center of keys.
template <int kCount>
__device__ __forceinline__ float center_product(const LayerArg &layer, uint32_t kv_head,
                                                const float (&q)[kCount], uint32_t lane) {
    if (!layer.key_centers)
        return 0;
    const float *center = layer.key_centers + kv_head * layer.head_dim;
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
        if (n * kWarp + lane < layer.head_dim)
            sum = fmaf(q[n], center[n * kWarp + lane], sum);
#pragma unroll
    for (int distance = 16; distance; distance /= 2)
        sum += __shfl_xor_sync(kAllLanes, sum, distance);
    return sum;
}

// Multiply a query, of which each lane has some channels, by the key scales.
template <int kCount>
__device__ __forceinline__ void scale_query(const LayerArg &layer, uint32_t kv_head,
                                            float (&q)[kCount], uint32_t lane) {
    if (!layer.key_scales)
        return;
    const float *scale = layer.key_scales + kv_head * layer.head_dim;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
        if (n * kWarp + lane < layer.head_dim)
            q[n] *= scale[n * kWarp + lane];
}

// The columns' queries, brought to at most 2^kQueryShift by a power of two. A warp takes a column.
template <class Method>
__device__ __forceinline__ void load_queries(const DecodeArgs &args, const WorkTile &work_tile,
                                             const WorkItem &item, uint32_t n_history,
                                             __half *queries, Column *columns, uint32_t warp,
                                             uint32_t n_warps, uint32_t head_dim, uint32_t lane) {
    constexpr int kCount = (Method::Team::kMostChannels + kWarp - 1) / kWarp;
    // The last warps have fewest KV tiles to look up.
    for (uint32_t column = n_warps - 1 - warp; column < Method::kColumns; column += n_warps) {
        const bool is_real = column < work_tile.n_columns;
        const uint32_t i = is_real ? (work_tile.first_column + column) / work_tile.group : 0;
        const uint32_t token = item.first_new + i;
        const uint32_t head = work_tile.first_head +
                              (is_real ? work_tile.first_column + column - i * work_tile.group : 0);
        const int64_t at = row_offset(args.q, token, head);
        float q[kCount];
        float most = 0;
        load_row(args.q, at, is_real ? head_dim : 0, lane, q);
        // A query beyond its layer's limit counts as zeros; Destination::close() makes it NaN.
        bool is_beyond = false;
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            is_beyond |= is_beyond_limit(args.layer, q[n]);
        is_beyond = __any_sync(kAllLanes, is_beyond);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            q[n] = is_beyond ? 0.0f : q[n];
        const float centered = center_product(args.layer, item.kv_head, q, lane);
        scale_query(args.layer, item.kv_head, q, lane);
        if (args.layer.key_rotation)
            rotate_query(args.layer.key_rotation, q);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            most = fmaxf(most, fabsf(q[n]));
#pragma unroll
        for (int distance = 16; distance; distance /= 2)
            most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
        // 2^exponent is above the largest, which queries' limit keeps below 2^100.
        const int exponent =
            (most > 0 ? min(max(static_cast<int>(__float_as_uint(most) >> 23) - 126, -100), 100)
                      : 0) -
            Method::kQueryShift;
        const float down = args.layer.scale < 0 ? -power(-exponent) : power(-exponent);
#pragma unroll
        for (int n = 0; n < kCount; ++n)
            if (n * kWarp + lane < head_dim)
                Method::put_query(queries, head_dim, column, n * kWarp + lane, q[n] * down);
        Method::end_column(args.templates[item.kv_head], queries, head_dim, column, lane);
        if (lane)
            continue;
        Column made;
        made.ancestors = ~uint64_t{0} >> (63u - i);
        made.position = n_history + i;
        made.offset = args.layer.scale * kLog2e * centered;
        made.factor = fabsf(args.layer.scale) * kLog2e * power(exponent);
        made.token = token;
        made.head = head;
        made.is_beyond = is_beyond;
        if (item.has_tree) {
            made.ancestors = args.step.ancestors[item.first_new + i];
            made.position = args.step.positions[item.first_new + i];
        }
        columns[column] = made;
    }
}

__device__ __forceinline__ WorkTile work_tile_of(const DecodeArgs &args, const WorkItem &item,
                                                 uint32_t columns_of_tile) {
    WorkTile work_tile;
    work_tile.group = args.layer.n_query_heads / args.layer.n_kv_heads;
    work_tile.head_dim = args.layer.head_dim;
    work_tile.first_head = item.kv_head * work_tile.group;
    work_tile.first_column = item.column_tile * columns_of_tile;
    work_tile.n_columns =
        min(item.n_new * work_tile.group - work_tile.first_column, columns_of_tile);
    return work_tile;
}

// The item's index in the list is checked only when the item is there, since the list is never
// shorter than the grid.
__device__ __forceinline__ bool read_item(const DecodeArgs &args, uint32_t index, WorkItem *item) {
    __shared__ uint32_t n_items;
    if (threadIdx.x < sizeof(WorkItem) / 4) {
        reinterpret_cast<uint32_t *>(item)[threadIdx.x] =
            reinterpret_cast<const uint32_t *>(args.items + index)[threadIdx.x];
    } else if (threadIdx.x == kWarp) {
        const StepHeader header = *args.step.header;
        const uint32_t n = *args.n_items;
        const bool is_ours =
            header.n_sequences == args.n_sequences && header.n_tokens == args.n_tokens;
        n_items = is_ours ? n : 0;
    }
    __syncthreads();
    return index < n_items;
}

// The channels of the keys' slots: in the fixed order of pages, then as they are.
template <class Team>
__device__ __forceinline__ void read_slots(const DecodeArgs &args, const WorkItem &item,
                                           const Team &team, uint8_t *slots, uint32_t lane) {
    const uint32_t head_dim = team.head_dim();
    const auto *fixed = reinterpret_cast<const uint8_t *>(args.templates[item.kv_head].permutation);
    for (uint32_t i = lane; i < head_dim; i += kWarp) {
        store_channel(slots, head_dim, i, fixed ? load_channel(fixed, head_dim, i) : i);
        store_channel(slots + team.raw_offset(), head_dim, i, i);
    }
}

__device__ __forceinline__ LogitRules logit_rules(const DecodeArgs &args, const WorkItem &item,
                                                  uint32_t n_history, const Column *columns) {
    const LayerArg &layer = args.layer;
    return {{columns, item.has_tree ? args.step.positions + item.first_new : nullptr, n_history,
             item.new_in_blocks ? item.n_new : 0u, n_history + item.n_new - 1, layer.window_tokens,
             layer.window_sink_tokens},
            layer.soft_cap * kLog2e,
            layer.soft_cap > 0 ? 2.0f / layer.soft_cap : 0.0f};
}

template <uint32_t kWarps>
__host__ __device__ constexpr uint32_t most_threads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
    return (kWarps < kSmallSharedWarps ? kWarps : kSmallSharedWarps) * kWarp;
#else
    return kWarps * kWarp;
#endif
}

// kWarps: of a multiprocessor, which one thread block has or two share.
template <class Method, uint32_t kWarps>
__global__ void __launch_bounds__(most_threads<kWarps>(), 1)
    decode_kernel(const __grid_constant__ DecodeArgs args) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ WorkItem item;
    __shared__ Column columns[Method::kColumns];
    __shared__ LogitRules rules;
    using Team = typename Method::Team;
    __shared__ __align__(2) uint8_t slots[Team::kSlotsBytes];
    __shared__ __align__(8) uint64_t barriers[kWarps * 2];
    __shared__ uint32_t addresses[kWarps];  // of what members of teams give each other
    // Of teams uniform registers hold it and what follows from it: 60 to 240 bytes fewer spills.
    const uint32_t warp_index = threadIdx.x / kWarp;
    const uint32_t warp = Team::kIsTeam ? __shfl_sync(kAllLanes, warp_index, 0) : warp_index;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_warps = blockDim.x / kWarp;
    const Team team(args.layer.head_dim, warp, shared_address(addresses));
    // Queries, then KV tiles, then a ring for each warp.
    auto *kv_tiles =
        reinterpret_cast<KvTile *>(memory + decode_query_bytes(team.head_dim(), Method::kColumns));
    uint8_t *rings = reinterpret_cast<uint8_t *>(kv_tiles + n_warps * kWarpKvTiles);
    const uint32_t ring_bytes =
        decode_ring_bytes(args.key_metadata_bytes, args.value_metadata_bytes, args.own_bytes);
    const Arrivals arrivals(shared_address(barriers + 2 * warp), lane);
    if (lane == 0)
        Arrivals::open(shared_address(barriers + 2 * warp));
    __syncwarp();
    KvTile *mine = kv_tiles + warp * kWarpKvTiles;
    Ring<Team> ring(shared_address(mine), shared_address(rings + warp * ring_bytes), args, arrivals,
                    team);
#pragma unroll 1
    for (uint32_t index = blockIdx.x; read_item(args, index, &item); index += gridDim.x) {
        const WorkTile work_tile = work_tile_of(args, item, Method::kColumns);
        const uint32_t n_history = args.step.sequences[item.sequence].n_history;
        const uint32_t n_tokens = n_history + (item.new_in_blocks ? item.n_new : 0u);
        // Queries come first: after the copies of pages they would be late.
        load_queries<Method>(args, work_tile, item, n_history, reinterpret_cast<__half *>(memory),
                             columns, warp, n_warps, team.head_dim(), lane);
        Method method;
        uint32_t queries = 0;
        uint32_t turn = 0;
        uint32_t n_mine = 0;
        // Looked up at the loop's begin, all KV tiles share the code of one place. See
        // Method::kLooksUpInLoop.
        const auto look_up = [&] {
            n_mine = find_kv_tiles<Method::kTokenTiles, Method::kSkipsRawPages>(
                args, item, n_tokens, turn, mine, team, n_warps, lane);
            ring.start(n_mine);
        };
        const auto begin = [&] {
            if (warp == n_warps / 2)
                read_slots(args, item, team, slots, lane);
            if (threadIdx.x == 0)
                rules = logit_rules(args, item, n_history, columns);
            __syncthreads();
            queries = renewed(shared_address(memory));
            method.clear();
        };
        if (!Method::kLooksUpInLoop) {
            look_up();
            begin();
        }
#pragma unroll 1
        while (true) {
            if (Method::kLooksUpInLoop) {
                look_up();
                if (!turn)
                    begin();
            }
            ring.follow();
            method.accumulate(ring, queries, shared_address(slots), rules, n_tokens, lane);
            if (n_mine < kWarpKvTiles)
                break;
            turn += kWarpKvTiles;
            if (!Method::kLooksUpInLoop)
                look_up();
        }
        __syncthreads();
        const uint32_t n_results =
            readers_with_kv_tiles<Method::kTokenTiles>(item, team.readers(n_warps));
        const WarpResults results(rings, n_results, work_tile.n_columns, args.layer.head_dim);
        if (team.reader() < n_results)
            method.store(results.from(team.first_strip() * 16), team.reader(), lane);
        const Destination destination = {&args, columns, work_tile};
        if constexpr (Team::kIsTeam)
            merge_wide<wide_ahead(kWarps)>(destination, item, results, n_results);
        else
            merge_warps<lane_channels(Team::kMostChannels)>(destination, item, results, n_results);
        Arrivals::fence();
        __syncthreads();
    }
}

}  // namespace cuda
}  // namespace lk

#endif
