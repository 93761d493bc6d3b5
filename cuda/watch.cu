// Attention mass of chunks (ChunkAttention of src/backend/backend.h): products of the watched
// queries and the context's keys, parts of their softmax for each chunk, and the sums of these.
//
// A warp takes a chunk under the 64 columns of a unit: it loads tiles of keys of any class as A
// fragments, straight from the page, and multiplies them with queries that the block holds in
// shared memory. There is no copy ahead, since the rows of queries are few and keys come from the
// L2 cache that this layer's attention has just filled.
//
// SPDX-License-Identifier: Apache-2.0
#include "fragment.cuh"
#include "launch.h"
#include "tensor.cuh"
#include "values.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr int kSlices = kAttentionScoreColumns / 8;
constexpr uint32_t kPartWarps = 4;
constexpr uint32_t kMaxPartBlocks = 65535;
constexpr uint32_t kTotalColumns = 8;  // of a block that totals
constexpr uint32_t kTotalParts = 64;
constexpr uint32_t kMassWarps = 8;
constexpr uint32_t kRowBytes =
    2 * kAttentionScoreColumns + 16;  // of a channel: neighbours in other banks
constexpr float kNoTop = -1e30f;
constexpr float kLog2E = 1.44269504f;

// What a dot product becomes a logit by, times log2(e) or, under a soft-cap, over the cap.
struct ColumnTables {
    float factors[kAttentionScoreColumns];
    float offsets[kAttentionScoreColumns];
};

struct UnitPlace {
    uint32_t kv_head;
    uint32_t first_column;
    uint32_t n_columns;
};

__device__ inline UnitPlace place_unit(const WatchArgs &args, uint32_t unit) {
    const uint32_t first = unit % args.n_tiles * kAttentionScoreColumns;
    const uint32_t n = args.n_queries * (args.layer.n_query_heads / args.layer.n_kv_heads);
    return {unit / args.n_tiles, first, min(kAttentionScoreColumns, n - first)};
}

__device__ inline float2 *parts_of(const WatchArgs &args, uint32_t place, uint32_t chunk) {
    const uint64_t chunks = static_cast<uint64_t>(place) * (args.n_chunks + 1) + chunk;
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

// What the head's keys were divided by, and what was taken from them, if logits need to know.
struct HeadNumbers {
    const float *scales;
    const float *centers;
};
__device__ inline HeadNumbers head_numbers(const LayerArg &layer, uint32_t kv_head) {
    const uint32_t first = kv_head * layer.head_dim;
    const bool has_centers = layer.key_centers && layer.soft_cap > 0;
    return {layer.key_scales ? layer.key_scales + first : nullptr,
            has_centers ? layer.key_centers + first : nullptr};
}

// A warp's columns of the unit: [channel][column] in FP16, each over a power of two.
__device__ void load_column(const WatchArgs &args, const UnitPlace &unit, uint32_t column,
                            uint8_t *queries, ColumnTables *tables) {
    const LayerArg &layer = args.layer;
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t group = layer.n_query_heads / layer.n_kv_heads;
    const bool exists = column < unit.n_columns;
    const uint32_t at = unit.first_column + (exists ? column : 0);
    const int64_t row =
        row_offset(args.q, args.first_query + at / group, unit.kv_head * group + at % group);
    const HeadNumbers numbers = head_numbers(layer, unit.kv_head);
    const auto load = [&](uint32_t channel) {
        const float q = load_element(args.q, row + channel);
        return numbers.scales ? q * numbers.scales[channel] : q;
    };
    float most = 0;
    float offset = 0;
    for (uint32_t c = lane; c < layer.head_dim; c += kWarp) {
        most = fmaxf(most, fabsf(load(c)));
        offset += numbers.centers ? load_element(args.q, row + c) * numbers.centers[c] : 0;
    }
    const float divisor = power_below(warp_max(most));
    offset = warp_sum(offset);
    for (uint32_t c = lane; c < layer.head_dim; c += kWarp)
        *reinterpret_cast<__half *>(queries + c * kRowBytes + 2 * column) =
            __float2half_rn(exists ? load(c) / divisor : 0);
    const float scale = layer.soft_cap > 0 ? layer.scale / layer.soft_cap : layer.scale * kLog2E;
    if (lane == 0) {
        tables->factors[column] = divisor * scale;
        tables->offsets[column] = offset * scale;
    }
}

// A page of keys as a warp reads it.
struct Keys {
    const FormatInfo *info;
    const uint8_t *payload;
    const uint8_t *metadata;
    const uint8_t *order;  // slot -> channel, or null
};

__device__ inline Keys find_keys(const WatchArgs &args, uint32_t kv_head, uint32_t page) {
    const SequenceInfo &sequence = args.step.sequences[args.sequence];
    const BlockInfo &row = args.step.rows[sequence.first_row + args.first_row + page];
    const Entry &entry =
        reinterpret_cast<const Entry *>(row.entries)[args.layer.first_entry + kv_head];
    const FormatInfo &c = args.step.classes[entry.key_format];
    return {&c, reinterpret_cast<const uint8_t *>(entry.key_payload),
            reinterpret_cast<const uint8_t *>(entry.key_metadata),
            reinterpret_cast<const uint8_t *>(c.permutes ? entry.key_metadata + c.permutation_offset
                                                         : c.permutation)};
}

// Tokens of a tile times the unit's queries.
__device__ __forceinline__ void multiply_tile(const WatchArgs &args, const Keys &keys,
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
        const uint32_t channel = keys.order ? keys.order[slot] : slot;
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

__device__ __forceinline__ void join(float2 other, float2 *part) {
    const float top = fmaxf(part->x, other.x);
    part->y = part->y * exp2_fast(part->x - top) + other.y * exp2_fast(other.x - top);
    part->x = top;
}

// A lane's two tokens of a tile under its columns; those outside of the chunk do not count.
__device__ __forceinline__ void weigh_tile(const LayerArg &layer, const ColumnTables &tables,
                                           bool sees_low, bool sees_high,
                                           const float (&products)[kSlices][4],
                                           float2 (&parts)[kSlices][2]) {
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
            low = sees_low ? low : -INFINITY;
            high = sees_high ? high : -INFINITY;
            float2 &part = parts[slice][i];
            const float top = fmaxf(part.x, fmaxf(low, high));
            part.y =
                part.y * exp2_fast(part.x - top) + exp2_fast(low - top) + exp2_fast(high - top);
            part.x = top;
        }
}

__device__ __forceinline__ void weigh_chunk(const WatchArgs &args, const UnitPlace &unit,
                                            const ColumnTables &tables, uint32_t queries,
                                            uint32_t chunk, float2 (&parts)[kSlices][2]) {
    const uint32_t begin = chunk * args.chunk_tokens;
    const uint32_t end = begin + args.chunk_tokens;
    uint32_t page = ~0u;
    Keys keys = {};
#pragma unroll 1
    for (uint32_t first = begin / LK_TILE_TOKENS * LK_TILE_TOKENS; first < end;
         first += LK_TILE_TOKENS) {
        if (page != first / args.page_tokens) {
            page = first / args.page_tokens;
            keys = find_keys(args, unit.kv_head, page);
        }
        float products[kSlices][4];
        multiply_tile(args, keys, first % args.page_tokens / LK_TILE_TOKENS, queries, products);
        const uint32_t low = first + threadIdx.x % kWarp / 4;
        const uint32_t high = low + 8;
        weigh_tile(args.layer, tables, low >= begin && low < end, high >= begin && high < end,
                   products, parts);
    }
}

// Lanes that have the same columns, one for each row of a tile, put their parts together.
__device__ __forceinline__ void store_parts(float2 (&parts)[kSlices][2], float2 *to) {
    const uint32_t lane = threadIdx.x % kWarp;
#pragma unroll
    for (int slice = 0; slice < kSlices; ++slice)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            float2 part = parts[slice][i];
#pragma unroll
            for (uint32_t step = 4; step < kWarp; step *= 2)
                join({__shfl_xor_sync(kAllLanes, part.x, step),
                      __shfl_xor_sync(kAllLanes, part.y, step)},
                     &part);
            if (lane < 4)
                to[8 * slice + 2 * lane + i] = part;
        }
}

// Blocks: x = chunks in turn, y = units of the batch.
__global__ void __launch_bounds__(kPartWarps *kWarp)
    weigh_chunks(const __grid_constant__ WatchArgs args, uint32_t first_unit) {
    extern __shared__ __align__(16) uint8_t queries[];
    __shared__ ColumnTables tables;
    const UnitPlace unit = place_unit(args, first_unit + blockIdx.y);
    const uint32_t warp = threadIdx.x / kWarp;
    for (uint32_t column = warp; column < kAttentionScoreColumns; column += kPartWarps)
        load_column(args, unit, column, queries, &tables);
    __syncthreads();
    const uint32_t address = renewed(shared_address(queries));
    for (uint32_t chunk = blockIdx.x * kPartWarps + warp; chunk < args.n_chunks;
         chunk += gridDim.x * kPartWarps) {
        float2 parts[kSlices][2];
#pragma unroll
        for (int slice = 0; slice < kSlices; ++slice)
            parts[slice][0] = parts[slice][1] = make_float2(kNoTop, 0);
        weigh_chunk(args, unit, tables, address, chunk, parts);
        store_parts(parts, parts_of(args, blockIdx.y, chunk));
    }
}

// The same over the whole context. Blocks: x = columns by kTotalColumns, y = units of the batch.
__global__ void __launch_bounds__(kTotalColumns *kTotalParts)
    total_columns(const __grid_constant__ WatchArgs args) {
    __shared__ float2 parts[kTotalParts][kTotalColumns];
    const uint32_t i = threadIdx.x % kTotalColumns;
    const uint32_t part = threadIdx.x / kTotalColumns;
    const uint32_t column = blockIdx.x * kTotalColumns + i;
    const float2 *from = parts_of(args, blockIdx.y, 0) + column;
    float2 total = make_float2(kNoTop, 0);
#pragma unroll 4
    for (uint32_t chunk = part; chunk < args.n_chunks; chunk += kTotalParts)
        join(from[static_cast<uint64_t>(chunk) * kAttentionScoreColumns], &total);
    parts[part][i] = total;
    __syncthreads();
    if (part)
        return;
    for (uint32_t other = 1; other < kTotalParts; ++other)
        join(parts[other][i], &total);
    parts_of(args, blockIdx.y, args.n_chunks)[column] = total;
}

// A warp adds up what the units of the batch give to a chunk.
__global__ void __launch_bounds__(kMassWarps *kWarp)
    add_masses(const __grid_constant__ WatchArgs args, uint32_t first_unit, uint32_t n_units) {
    const uint32_t chunk = blockIdx.x * kMassWarps + threadIdx.x / kWarp;
    if (chunk >= args.n_chunks)
        return;
    float mass = 0;
    for (uint32_t place = 0; place < n_units; ++place) {
        const uint32_t n_columns = place_unit(args, first_unit + place).n_columns;
        const float2 *own = parts_of(args, place, chunk);
        const float2 *totals = parts_of(args, place, args.n_chunks);
        for (uint32_t c = threadIdx.x % kWarp; c < n_columns; c += kWarp)
            mass += own[c].y * exp2_fast(own[c].x - totals[c].x) / totals[c].y;
    }
    mass = warp_sum(mass) * args.weight;
    if (threadIdx.x % kWarp)
        return;
    const bool overwrites = args.is_first && first_unit == 0;
    args.masses[chunk] = overwrites ? mass : args.masses[chunk] + mass;
}

}  // namespace

cudaError_t launch_watch(const WatchArgs &args, cudaStream_t stream) {
    const uint32_t n_units = args.n_tiles * args.layer.n_kv_heads;
    const uint32_t wanted = (args.n_chunks + kPartWarps - 1) / kPartWarps;
    const uint32_t shared_bytes = args.layer.head_dim * kRowBytes;
    for (uint32_t first = 0; first < n_units; first += args.max_units) {
        const uint32_t n = n_units - first < args.max_units ? n_units - first : args.max_units;
        const uint32_t n_blocks = wanted < kMaxPartBlocks ? wanted : kMaxPartBlocks;
        weigh_chunks<<<dim3(n_blocks, n), kPartWarps * kWarp, shared_bytes, stream>>>(args, first);
        total_columns<<<dim3(kAttentionScoreColumns / kTotalColumns, n),
                        kTotalColumns * kTotalParts, 0, stream>>>(args);
        add_masses<<<(args.n_chunks + kMassWarps - 1) / kMassWarps, kMassWarps * kWarp, 0,
                     stream>>>(args, first, n);
        const cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

}  // namespace cuda
}  // namespace lk
