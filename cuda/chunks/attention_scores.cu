// Attention scores of chunks (ChunkAttention of src/backend/backend.h): products of the queries and
// the context's keys, a partial softmax for each chunk and column, and the sums of these.
//
// A warp takes a chunk under the 64 columns of a work tile: it loads tiles of keys of any page
// format as A fragments, straight from the page, and multiplies them with queries that the thread
// block holds in shared memory. It copies nothing ahead, since query columns are few and keys come
// from the L2 cache that this layer's attention has just filled.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/dequantize.cuh"
#include "cuda/fragment.cuh"
#include "cuda/launch.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/rotate.cuh"
#include "cuda/tensor.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr int kSlices = kAttentionScoreColumns / 8;
constexpr uint32_t kPartialWarps = 4;
constexpr uint32_t kMaxPartialBlocks = 65535;
constexpr uint32_t kTotalColumns = 8;  // of a thread block that totals
constexpr uint32_t kTotalShares = 64;
constexpr uint32_t kScoreWarps = 8;
constexpr uint32_t kRowBytes =
    2 * kAttentionScoreColumns + 16;  // of a channel: neighbours in other banks
constexpr float kNoRowMax = -1e30f;
constexpr float kLog2E = 1.44269504f;

// The factor from a dot product to a logit, times log2(e) or, under a soft-cap, over the cap.
struct ColumnTables {
    float factors[kAttentionScoreColumns];
    float offsets[kAttentionScoreColumns];
};

struct WorkTile {
    uint32_t kv_head;
    uint32_t first_column;
    uint32_t n_columns;
};

__device__ inline WorkTile find_work_tile(const AttentionScoresArgs &args, uint32_t work_tile) {
    const uint32_t first = work_tile % args.n_tiles * kAttentionScoreColumns;
    const uint32_t n = args.n_queries * (args.layer.n_query_heads / args.layer.n_kv_heads);
    return {work_tile / args.n_tiles, first, min(kAttentionScoreColumns, n - first)};
}

__device__ inline float2 *partials_of(const AttentionScoresArgs &args, uint32_t index,
                                      uint32_t chunk) {
    const uint64_t chunks = static_cast<uint64_t>(index) * (args.n_chunks + 1) + chunk;
    return args.partials + chunks * kAttentionScoreColumns;
}

__device__ inline float warp_max(float x) {
    for (uint32_t step = kWarp / 2; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
    return x;
}
__device__ inline float warp_sum(float x) {
    for (uint32_t step = kWarp / 2; step; step /= 2)
        x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}

// The power of two below a magnitude: queries over it fill FP16's range at any scale.
__device__ inline float power_below(float magnitude) {
    const uint32_t exponent = __float_as_uint(magnitude) & 0x7F800000u;
    const bool is_usual = exponent >= 1u << 23 && exponent <= 250u << 23;
    return is_usual ? __uint_as_float(exponent) : 1.0f;
}

// The key scales of the head, and the key centers if logits need them.
struct HeadParameters {
    const float *scales;
    const float *centers;
};
__device__ inline HeadParameters head_parameters(const LayerArg &layer, uint32_t kv_head) {
    const uint32_t first = kv_head * layer.head_dim;
    const bool has_centers = layer.key_centers && layer.soft_cap > 0;
    return {layer.key_scales ? layer.key_scales + first : nullptr,
            has_centers ? layer.key_centers + first : nullptr};
}

// A warp's columns of the work tile: [channel][column] in FP16, each over a power of two.
__device__ void load_column(const AttentionScoresArgs &args, const WorkTile &work_tile,
                            uint32_t column, uint8_t *queries, ColumnTables *tables) {
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t group = layer.n_query_heads / layer.n_kv_heads;
    const bool exists = column < work_tile.n_columns;
    const uint32_t at = work_tile.first_column + (exists ? column : 0);
    const int64_t row =
        row_offset(args.q, args.first_query + at / group, work_tile.kv_head * group + at % group);
    const HeadParameters parameters = head_parameters(layer, work_tile.kv_head);
    __shared__ float rows[kPartialWarps][LK_MAX_HEAD_DIM];
    float *q = rows[threadIdx.x / kWarp];
    float most = 0;
    float offset = 0;
    bool is_beyond = false;
    for (uint32_t c = lane; c < layer.head_dim; c += kWarp) {
        const float element = load_element(args.q, row + c);
        is_beyond |= is_beyond_limit(layer, element);
        offset += parameters.centers ? element * parameters.centers[c] : 0;
        q[c] = parameters.scales ? element * parameters.scales[c] : element;
    }
    if (layer.key_rotation)
        rotate_row(layer.key_rotation, layer.head_dim, q);
    for (uint32_t c = lane; c < layer.head_dim; c += kWarp)
        most = fmaxf(most, fabsf(q[c]));
    const float divisor = power_below(warp_max(most));
    const float inverse = inverse_power(divisor);
    offset = warp_sum(offset);
    is_beyond = exists && __any_sync(kAllLanes, is_beyond);
    for (uint32_t c = lane; c < layer.head_dim; c += kWarp)
        *reinterpret_cast<__half *>(queries + c * kRowBytes + 2 * column) =
            __float2half_rn(exists ? q[c] * inverse : 0);
    const float scale = layer.soft_cap > 0 ? layer.scale / layer.soft_cap : layer.scale * kLog2E;
    if (lane == 0) {
        tables->factors[column] = divisor * scale;
        tables->offsets[column] = is_beyond ? __uint_as_float(kNanBits) : offset * scale;
    }
}

// A page of keys as a warp reads it.
struct Keys {
    const FormatInfo *info;
    const uint8_t *payload;
    const uint8_t *metadata;
    const uint8_t *order;  // slot -> channel, or null
};

__device__ inline Keys find_keys(const AttentionScoresArgs &args, uint32_t kv_head, uint32_t page) {
    const SequenceInfo &sequence = args.step.sequences[args.sequence];
    const BlockInfo &block = args.step.blocks[sequence.first_block + args.first_block + page];
    const Entry &entry =
        reinterpret_cast<const Entry *>(block.entries)[args.layer.first_entry + kv_head];
    const FormatInfo &c = args.step.formats[entry.key_format];
    return {&c, reinterpret_cast<const uint8_t *>(entry.key_payload),
            reinterpret_cast<const uint8_t *>(entry.key_metadata),
            reinterpret_cast<const uint8_t *>(c.permutes ? entry.key_metadata + c.permutation_offset
                                                         : c.permutation)};
}

// Multiply the keys of a tile by the work tile's queries.
__device__ __forceinline__ void multiply_tile(const AttentionScoresArgs &args, const Keys &keys,
                                              uint32_t tile, uint32_t queries,
                                              float (&products)[kSlices][4]) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_strips = args.layer.head_dim / LK_STRIP_CHANNELS;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 4; ++i)
            products[slice][i] = 0;
#pragma unroll 2
    for (uint32_t strip = 0; strip < n_strips; ++strip) {
        uint32_t a[4];
        load_values<false>(*keys.info, keys.payload, keys.metadata, strip, tile, lane, a);
        const uint32_t slot = strip * LK_STRIP_CHANNELS + lane % LK_STRIP_CHANNELS;
        const uint32_t channel =
            keys.order ? load_channel(keys.order, args.layer.head_dim, slot) : slot;
        const uint32_t row = queries + channel * kRowBytes + 16 * (lane / 16);
#pragma unroll
        for (int pair = 0; pair < kSlices / 2; ++pair) {
            uint32_t b[4];
            load_matrices_transposed(b, row + 32 * pair);
            mma(products[2 * pair], a[0], a[1], a[2], a[3], b[0], b[1]);
            mma(products[2 * pair + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
        }
    }
}

__device__ __forceinline__ void join(float2 other, float2 *partial) {
    const float row_max = fmaxf(partial->x, other.x);
    partial->y =
        partial->y * exp2_fast(partial->x - row_max) + other.y * exp2_fast(other.x - row_max);
    partial->x = row_max;
}

// A lane's two tokens of a tile under its columns; those outside of the chunk do not count.
__device__ __forceinline__ void weigh_tile(const LayerArg &layer, const ColumnTables &tables,
                                           bool is_low_visible, bool is_high_visible,
                                           const float (&products)[kSlices][4],
                                           float2 (&partials)[kSlices][2]) {
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint32_t column = 8 * slice + 2 * (threadIdx.x % 4) + i;
            const float factor = tables.factors[column];
            const float offset = tables.offsets[column];
            float low = products[slice][i] * factor + offset;
            float high = products[slice][2 + i] * factor + offset;
            if (layer.soft_cap > 0) {
                low = layer.soft_cap * kLog2E * tanhf(low);
                high = layer.soft_cap * kLog2E * tanhf(high);
            }
            low = is_low_visible ? low : -INFINITY;
            high = is_high_visible ? high : -INFINITY;
            float2 &partial = partials[slice][i];
            const float row_max = fmaxf(partial.x, fmaxf(low, high));
            partial.y = partial.y * exp2_fast(partial.x - row_max) + exp2_fast(low - row_max) +
                        exp2_fast(high - row_max);
            partial.x = row_max;
        }
}

__device__ __forceinline__ void weigh_chunk(const AttentionScoresArgs &args,
                                            const WorkTile &work_tile, const ColumnTables &tables,
                                            uint32_t queries, uint32_t chunk,
                                            float2 (&partials)[kSlices][2]) {
    const uint32_t begin = chunk * args.chunk_tokens;
    const uint32_t end = begin + args.chunk_tokens;
    uint32_t page = ~0u;
    Keys keys = {};
#pragma unroll 1
    for (uint32_t first = begin / LK_TILE_TOKENS * LK_TILE_TOKENS; first < end;
         first += LK_TILE_TOKENS) {
        if (page != first / args.page_tokens) {
            page = first / args.page_tokens;
            keys = find_keys(args, work_tile.kv_head, page);
        }
        float products[kSlices][4];
        multiply_tile(args, keys, first % args.page_tokens / LK_TILE_TOKENS, queries, products);
        const uint32_t low = first + threadIdx.x % kWarp / 4;
        const uint32_t high = low + 8;
        weigh_tile(args.layer, tables, low >= begin && low < end, high >= begin && high < end,
                   products, partials);
    }
}

// Lanes that have the same columns, one for each row of a tile, join their partial softmaxes.
__device__ __forceinline__ void store_partials(float2 (&partials)[kSlices][2], float2 *to) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float2 partial = partials[slice][i];
#pragma unroll
            for (uint32_t step = 4; step < kWarp; step *= 2)
                join({__shfl_xor_sync(kAllLanes, partial.x, step),
                      __shfl_xor_sync(kAllLanes, partial.y, step)},
                     &partial);
            if (lane < 4)
                to[8 * slice + 2 * lane + i] = partial;
        }
}

// Thread blocks: x = chunks in turn, y = work tiles of the batch.
__global__ void __launch_bounds__(kPartialWarps *kWarp)
    weigh_chunks(const __grid_constant__ AttentionScoresArgs args, uint32_t first_work_tile) {
    extern __shared__ __align__(16) uint8_t queries[];
    __shared__ ColumnTables tables;
    const WorkTile work_tile = find_work_tile(args, first_work_tile + blockIdx.y);
    const uint32_t warp = threadIdx.x / kWarp;
    for (uint32_t column = warp; column < kAttentionScoreColumns; column += kPartialWarps)
        load_column(args, work_tile, column, queries, &tables);
    __syncthreads();
    const uint32_t address = renewed(shared_address(queries));
    for (uint32_t chunk = blockIdx.x * kPartialWarps + warp; chunk < args.n_chunks;
         chunk += gridDim.x * kPartialWarps) {
        float2 partials[kSlices][2];
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice)
            partials[slice][0] = partials[slice][1] = make_float2(kNoRowMax, 0);
        weigh_chunk(args, work_tile, tables, address, chunk, partials);
        store_partials(partials, partials_of(args, blockIdx.y, chunk));
    }
}

// The same over the whole context. Thread blocks: x = columns by kTotalColumns, y = work tiles of
// the batch.
__global__ void __launch_bounds__(kTotalColumns *kTotalShares)
    total_columns(const __grid_constant__ AttentionScoresArgs args) {
    __shared__ float2 partials[kTotalShares][kTotalColumns];
    const uint32_t i = threadIdx.x % kTotalColumns;
    const uint32_t share = threadIdx.x / kTotalColumns;
    const uint32_t column = blockIdx.x * kTotalColumns + i;
    const float2 *from = partials_of(args, blockIdx.y, 0) + column;
    float2 total = make_float2(kNoRowMax, 0);
#pragma unroll 4
    for (uint32_t chunk = share; chunk < args.n_chunks; chunk += kTotalShares)
        join(from[static_cast<uint64_t>(chunk) * kAttentionScoreColumns], &total);
    partials[share][i] = total;
    __syncthreads();
    if (share)
        return;
    for (uint32_t other = 1; other < kTotalShares; ++other)
        join(partials[other][i], &total);
    partials_of(args, blockIdx.y, args.n_chunks)[column] = total;
}

// A warp adds the work tiles of the batch up to the score of a chunk.
__global__ void __launch_bounds__(kScoreWarps *kWarp)
    add_scores(const __grid_constant__ AttentionScoresArgs args, uint32_t first_work_tile,
               uint32_t n_work_tiles) {
    const uint32_t chunk = blockIdx.x * kScoreWarps + threadIdx.x / kWarp;
    if (chunk >= args.n_chunks)
        return;
    float score = 0;
    for (uint32_t index = 0; index < n_work_tiles; ++index) {
        const uint32_t n_columns = find_work_tile(args, first_work_tile + index).n_columns;
        const float2 *own = partials_of(args, index, chunk);
        const float2 *totals = partials_of(args, index, args.n_chunks);
        for (uint32_t c = threadIdx.x % kWarp; c < n_columns; c += kWarp)
            score += own[c].y * exp2_fast(own[c].x - totals[c].x) / totals[c].y;
    }
    score = warp_sum(score) * args.weight;
    if (threadIdx.x % kWarp)
        return;
    const bool overwrites = args.is_first && first_work_tile == 0;
    args.scores[chunk] = overwrites ? score : args.scores[chunk] + score;
}

}  // namespace

cudaError_t launch_attention_scores(const AttentionScoresArgs &args, cudaStream_t stream) {
    const uint32_t n_work_tiles = args.n_tiles * args.layer.n_kv_heads;
    const uint32_t wanted = (args.n_chunks + kPartialWarps - 1) / kPartialWarps;
    const uint32_t shared_bytes = args.layer.head_dim * kRowBytes;
    for (uint32_t first = 0; first < n_work_tiles; first += args.max_work_tiles) {
        const uint32_t n =
            n_work_tiles - first < args.max_work_tiles ? n_work_tiles - first : args.max_work_tiles;
        const uint32_t n_blocks = wanted < kMaxPartialBlocks ? wanted : kMaxPartialBlocks;
        const cudaError_t launched =
            launch_kernel(weigh_chunks, dim3(n_blocks, n), kPartialWarps * kWarp, shared_bytes,
                          stream, args, first);
        if (launched != cudaSuccess)
            return launched;
        total_columns<<<dim3(kAttentionScoreColumns / kTotalColumns, n),
                        kTotalColumns * kTotalShares, 0, stream>>>(args);
        add_scores<<<(args.n_chunks + kScoreWarps - 1) / kScoreWarps, kScoreWarps * kWarp, 0,
                     stream>>>(args, first, n);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

}  // namespace cuda
}  // namespace lk
