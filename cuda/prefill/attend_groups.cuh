// Attention of long steps on Hopper: the kernel.
//
// A thread block has two warpgroups of 64 query columns and a warp that feeds them: it copies the
// keys and values of stages of 64 tokens from slots to a ring in shared memory, a copy each. While
// a warpgroup makes weights of the products of a stage, its products of the weights and values
// before it run, and those of the other warpgroup.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PREFILL_ATTEND_GROUPS_CUH
#define LK_CUDA_PREFILL_ATTEND_GROUPS_CUH

#include "cuda/instances.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/prefill/pass_columns.cuh"
#include "cuda/prefill/pass_stages.cuh"
#include "cuda/prefill/wgmma.cuh"

namespace lk {
namespace cuda {

constexpr uint32_t kFedGroups = 2;
constexpr uint32_t kGroupColumns = 64;
constexpr uint32_t kFedThreads = kFedGroups * kGroupThreads;
// A whole warpgroup feeds, since the warpgroups divide the registers; one warp of it has work.
constexpr uint32_t kGroupsThreads = kFedThreads + kGroupThreads;
constexpr int kGroupTiles = kGroupStageTokens / LK_TILE_TOKENS;
constexpr uint32_t kDepth = 5;      // stages in the ring
constexpr int kFeedRegisters = 40;  // of a thread
constexpr int kFedRegisters = 232;

template <int kStrips>
struct GroupsShape {
    static constexpr uint32_t kHeadDim = kStrips * LK_STRIP_CHANNELS;
    static constexpr uint32_t kSideBytes = 2 * kGroupStageTokens * kHeadDim;
    static constexpr uint32_t kQueryBytes = kStrips * kTileBytes;  // of a warp
    static constexpr uint32_t kRingBytes = 2 * kDepth * kSideBytes;
    static constexpr uint32_t kBytes = kRingBytes + kFedThreads / kWarp * kQueryBytes;
};

struct GroupsTables : PassTables {
    uint64_t full[2][kDepth];  // barriers of keys and of values
    uint64_t empty[2][kDepth];
    Stage stages[kDepth];  // what the ring holds
};

// A position in the ring.
struct RingSlot {
    uint32_t index = 0;
    uint32_t round = 0;

    __device__ __forceinline__ void advance() {
        if (++index == kDepth) {
            index = 0;
            ++round;
        }
    }
};

// A warp, of which one thread copies.
struct FeedingThreads {
    static __device__ __forceinline__ uint32_t index() { return threadIdx.x - kFedThreads; }
    static __device__ __forceinline__ void meet() { __syncwarp(); }
};

template <int kStrips>
struct Feeder {
    using Shape = GroupsShape<kStrips>;

    const PassPages<FeedingThreads> &pages;
    GroupsTables &tables;
    uint32_t ring;  // shared address

    __device__ __forceinline__ void await_empty(const RingSlot &slot, uint32_t side) const {
        if (slot.round)
            await(shared_address(&tables.empty[side][slot.index]), (slot.round - 1) & 1);
    }
    __device__ __forceinline__ void copy(const RingSlot &slot, const Stage &stage) const {
        for (uint32_t side = 0; side < 2; ++side) {
            await_empty(slot, side);
            if (side == 0)
                tables.stages[slot.index] = stage;
            copy_bulk(ring + (2 * slot.index + side) * Shape::kSideBytes,
                      pages.view(stage).sides[side].tiles + stage.index * Shape::kSideBytes,
                      Shape::kSideBytes, shared_address(&tables.full[side][slot.index]));
        }
    }
    __device__ __forceinline__ void feed(const TileArgs &args) const {
        const bool copies = FeedingThreads::index() == 0;
        RingSlot slot;
        Stage stage = enter_page(args, pages, tables.mask.page_begin);
#pragma unroll 1
        for (; stage.n_tokens; slot.advance()) {
            if (copies)
                copy(slot, stage);
            stage = next_stage(args, pages, stage);
        }
        if (copies) {
            await_empty(slot, 0);
            tables.stages[slot.index] = stage;
            arrive(shared_address(&tables.full[0][slot.index]));
        }
    }
};

// What sums of outputs shrink by, until the products that add to them are done.
struct LateShrink {
    float factors[2] = {1, 1};

    __device__ __forceinline__ void shrink(int half, float factor) { factors[half] = factor; }
};

template <int kStrips>
struct Group {
    using Shape = GroupsShape<kStrips>;

    const TileArgs &args;
    GroupsTables &tables;
    const WarpColumns warp;
    uint32_t ring;

    __device__ __forceinline__ uint32_t side(const RingSlot &slot, uint32_t side) const {
        return ring + (2 * slot.index + side) * Shape::kSideBytes;
    }
    __device__ __forceinline__ void await_full(const RingSlot &slot, uint32_t side) const {
        await(shared_address(&tables.full[side][slot.index]), slot.round & 1);
    }
    __device__ __forceinline__ void release(const RingSlot &slot, uint32_t side) const {
        __syncwarp();
        if (threadIdx.x % kWarp == 0)
            arrive(shared_address(&tables.empty[side][slot.index]));
    }

    __device__ __forceinline__ void multiply_keys(const RingSlot &slot,
                                                  const uint32_t (&queries)[kStrips][4],
                                                  float (&products)[2 * kGroupTiles][4]) const {
        constexpr uint32_t kRun = 16 * kGroupStageTokens;
        const Operand b(side(slot, 0), kMatrixBytes, kRun);
        pin(products);
        open_products();
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip)
            group_mma(products, queries[strip], b.at(strip * 2 * kRun), strip > 0);
        commit_products();
        pin(products);
    }
    __device__ __forceinline__ void multiply_values(const RingSlot &slot,
                                                    const uint32_t (&weights)[kGroupTiles][4],
                                                    float (&out)[2 * kStrips][4]) const {
        constexpr uint32_t kRun = 16 * Shape::kHeadDim;
        const Operand b(side(slot, 1), kMatrixBytes, kRun);
        pin(out);
        open_products();
#pragma unroll
        for (int tile = 0; tile < kGroupTiles; ++tile)
            group_mma(out, weights[tile], b.at(tile * 2 * kRun), true);
        commit_products();
        pin(out);
    }

    template <class Out>
    __device__ __forceinline__ void weigh(const Stage &stage, float (&products)[2 * kGroupTiles][4],
                                          RowSums<kStrips> &sums, Out &out,
                                          uint32_t (&weights)[kGroupTiles][4]) const {
        if (tables.has_factors || args.layer.soft_cap > 0)
            shape_rows<kGroupTiles>(args.layer, tables, warp, 0, products);
        if (!all_are_visible(args.layer, warp, stage, kGroupStageTokens))
            hide_rows<kGroupTiles>(args, tables, warp, stage, 0, products);
        weigh_rows<kStrips, kGroupTiles>(products, logit_factor(args.layer), sums, out, weights);
    }

    __device__ __forceinline__ void attend(const uint32_t (&queries)[kStrips][4],
                                           RowSums<kStrips> (&rows)[1]) const {
        RowSums<kStrips> &sums = rows[0];
        RingSlot keys;
        await_full(keys, 0);
        Stage stage = tables.stages[keys.index];
        if (!stage.n_tokens)
            return;
        float products[2 * kGroupTiles][4];
        uint32_t weights[kGroupTiles][4];
        multiply_keys(keys, queries, products);
        wait_products<0>();
        pin(products);
        release(keys, 0);
        weigh(stage, products, sums, sums, weights);
#pragma unroll 1
        while (true) {
            const RingSlot values = keys;
            keys.advance();
            await_full(keys, 0);
            stage = tables.stages[keys.index];
            if (!stage.n_tokens) {
                keys = values;
                break;
            }
            multiply_keys(keys, queries, products);
            await_full(values, 1);
            multiply_values(values, weights, sums.out);
            wait_products<1>();
            pin(products);
            release(keys, 0);
            uint32_t next[kGroupTiles][4];
            LateShrink late;
            weigh(stage, products, sums, late, next);
            wait_products<0>();
            pin(sums.out);
            release(values, 1);
            if (late.factors[0] != 1 || late.factors[1] != 1) {
                sums.shrink(0, late.factors[0]);
                sums.shrink(1, late.factors[1]);
            }
            // A copy that compilers cannot leave out: the products read the former registers until
            // here.
#pragma unroll
            for (int tile = 0; tile < kGroupTiles; ++tile)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    asm volatile("mov.b32 %0, %1;" : "=r"(weights[tile][i]) : "r"(next[tile][i]));
        }
        await_full(keys, 1);
        multiply_values(keys, weights, sums.out);
        wait_products<0>();
        pin(sums.out);
    }

    // As A operands, through the warp's own memory.
    __device__ __forceinline__ void load(uint8_t *memory, uint32_t (&queries)[kStrips][4]) const {
        const bool has_factors = load_queries<kStrips, 1>(args, tables, warp, memory);
        if (has_factors && threadIdx.x % kWarp == 0)
            atomicOr(&tables.has_factors, 1);
        __syncwarp();
#pragma unroll
        for (int strip = 0; strip < kStrips; ++strip) {
            const uint4 q =
                reinterpret_cast<const uint4 *>(memory + strip * kTileBytes)[threadIdx.x % kWarp];
            queries[strip][0] = warp.n ? q.x : 0;
            queries[strip][1] = warp.n ? q.y : 0;
            queries[strip][2] = warp.n ? q.z : 0;
            queries[strip][3] = warp.n ? q.w : 0;
        }
    }
};

template <int kStrips>
__device__ __forceinline__ void attend_matrices(const TileArgs &args, const PagePass &pass) {
    using Shape = GroupsShape<kStrips>;
    extern __shared__ __align__(128) uint8_t ring_memory[];
    __shared__ GroupsTables tables;
    __shared__ WarpColumns columns[kFedThreads / kWarp];
    constexpr uint32_t kBlockColumns = kFedGroups * kGroupColumns;
    const PassPosition position = pass_position(args, pass);
    if (threadIdx.x == 0) {
        tables.mask.stage_tokens = kGroupStageTokens;
        tables.has_factors = 0;
        find_pass_mask(args, pass, position, kBlockColumns, &tables.mask);
        for (uint32_t i = 0; i < 2 * kDepth; ++i) {
            open_barrier(shared_address(&tables.full[0][0] + i), 1);
            open_barrier(shared_address(&tables.empty[0][0] + i), kFedThreads / kWarp);
        }
        publish_barriers();
    }
    __syncthreads();
    if (!tables.mask.n_columns)
        return;
    load_positions(args, &tables);
    __syncthreads();
    const PassPages<FeedingThreads> pages = {&pass, &tables, blockIdx.y};
    const uint32_t ring = shared_address(ring_memory);
    if (threadIdx.x >= kFedThreads) {
        keep_registers<kFeedRegisters>();
        if (FeedingThreads::index() < kWarp)
            Feeder<kStrips>{pages, tables, ring}.feed(args);
    } else {
        take_registers<kFedRegisters>();
        WarpColumns &warp = columns[threadIdx.x / kWarp];
        if (threadIdx.x % kWarp == 0)
            warp = find_columns(args, tables.mask, LK_TILE_TOKENS);
        __syncwarp();
        const Group<kStrips> group = {args, tables, warp, ring};
        uint32_t queries[kStrips][4];
        group.load(ring_memory + Shape::kRingBytes + threadIdx.x / kWarp * Shape::kQueryBytes,
                   queries);
        const Partial partial = pass_partial(args, pass, position, kBlockColumns);
        RowSums<kStrips> sums[1];
        if (pass.is_first)
            clear(sums[0]);
        else
            for_state(warp, partial, sums, LoadState());
        // All warps have added to has_factors, and a result may be stored over another's state.
        meet<1, kFedThreads>();
        group.attend(queries, sums);
        if (pass.is_last)
            store_output(args, tables.mask, warp, partial, sums);
        else
            for_state(warp, partial, sums, StoreState());
    }
}

template <int kStrips>
__global__ void __launch_bounds__(kGroupsThreads, 1)
    attend_groups(const __grid_constant__ TileArgs args, const __grid_constant__ PagePass pass) {
    if constexpr (kIsHopper)
        attend_matrices<kStrips>(args, pass);
}

// A kernel that was not compiled for sm_90a is empty, and so needs no shared memory.
template <int kStrips>
bool has_groups_kernel() {
    if constexpr (has_groups(kStrips * LK_STRIP_CHANNELS)) {
        cudaFuncAttributes attributes{};
        return cudaFuncGetAttributes(&attributes, attend_groups<kStrips>) == cudaSuccess &&
               attributes.sharedSizeBytes > 0;
    } else {
        return false;
    }
}

template <int kStrips>
cudaError_t launch_groups_kernel(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    if constexpr (has_groups(kStrips * LK_STRIP_CHANNELS)) {
        constexpr uint32_t kBytes = GroupsShape<kStrips>::kBytes;
        return launch_kernel(attend_groups<kStrips>, pass_blocks(args, pass), kGroupsThreads,
                             kBytes, stream, args, pass);
    } else {
        return cudaErrorInvalidConfiguration;
    }
}

}  // namespace cuda
}  // namespace lk

#endif
