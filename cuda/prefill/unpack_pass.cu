// Attention of long steps: packed pages and staged tokens of a pass become FP16, in slots.
//
// A thread block takes the K page or the V page of a pair. Keys whose channels are stored in
// another order are put into that of the channels, through shared memory. Slots of matrices take
// 16-bit pages too.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/fragment.cuh"
#include "cuda/launch_kernel.cuh"
#include "cuda/prefill/load.cuh"
#include "cuda/prefill/slots.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kUnpackTiles = 2;  // that a warp makes together

// Calls f(strip, tile) for the tiles that the warp makes.
template <class F>
__device__ __forceinline__ void for_tiles(uint32_t head_dim, uint32_t n_tokens, F f) {
    const uint32_t n_tiles = n_tokens / LK_TILE_TOKENS;
    const uint32_t n = head_dim / LK_STRIP_CHANNELS * n_tiles;
    for (uint32_t i = threadIdx.x / kWarp; i < n; i += kThreads / kWarp)
        f(i / n_tiles, i % n_tiles);
}

// n tokens of FP16 rows; zeros follow them.
template <bool kIsValue>
__device__ void convert_rows(const uint16_t *rows, uint32_t n, const SlotPage &target) {
    const uint32_t lane = threadIdx.x % kWarp;
    const auto load = [&](uint32_t token, uint32_t channel) {
        return token < n ? uint32_t{rows[token * target.head_dim + channel]} : 0;
    };
    for_tiles(target.head_dim, kStagedTokens, [&](uint32_t strip, uint32_t tile) {
        uint32_t a[4];
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
            const uint32_t row = LK_TILE_ROW(lane, r);
            const uint32_t k = LK_TILE_K(lane, r);
            const uint32_t channel = strip * LK_STRIP_CHANNELS + (kIsValue ? row : k);
            const uint32_t token = tile * LK_TILE_TOKENS + (kIsValue ? k : row);
            a[r] = load(token, channel) | load(token + kIsValue, channel + !kIsValue) << 16;
        }
        target.store(strip, tile, a);
    });
}

// A page of a block. The offsets of its strips count from the payload, as if the metadata followed
// it.
struct BlockPage {
    const FormatInfo &info;
    const StripInfo *strips;
    const uint8_t *payload;
    const uint8_t *metadata;
    uint32_t n_tokens;  // that exist

    // Two tiles of a strip: zeros where the page ends.
    template <bool kIsValue>
    __device__ __forceinline__ void make_round(uint32_t strip, uint32_t first_tile,
                                               uint32_t (&a)[kUnpackTiles][4]) const {
        const StripInfo &own = strips[strip];
        const uint32_t n_tiles = info.page_tokens / LK_TILE_TOKENS;
        if (own.is_plain && first_tile < n_tiles) {
            make_plain_round(own, payload, metadata - info.payload_bytes, first_tile, a);
        } else {
#pragma unroll
            for (uint32_t t = 0; t < kUnpackTiles; ++t) {
                a[t][0] = a[t][1] = a[t][2] = a[t][3] = 0;
                if (first_tile + t < n_tiles)
                    load_values<kIsValue>(info, own.position, payload, metadata, strip,
                                          first_tile + t, threadIdx.x % kWarp, a[t]);
            }
        }
        if (kIsValue && n_tokens < info.page_tokens)
#pragma unroll
            for (uint32_t t = 0; t < kUnpackTiles; ++t)
                clear_hidden(a[t], first_tile + t, n_tokens);
    }
};

// Calls f(strip, tile, its words) for the tiles of n tokens that the warp unpacks.
template <bool kIsValue, class F>
__device__ __forceinline__ void for_rounds(const BlockPage &page, uint32_t n_tokens, F f) {
    const uint32_t n_tiles = n_tokens / LK_TILE_TOKENS;
    const uint32_t n_rounds = (n_tiles + kUnpackTiles - 1) / kUnpackTiles;
    const uint32_t n = page.info.head_dim / LK_STRIP_CHANNELS * n_rounds;
#pragma unroll 1
    for (uint32_t i = threadIdx.x / kWarp; i < n; i += kThreads / kWarp) {
        uint32_t a[kUnpackTiles][4];
        const uint32_t first_tile = i % n_rounds * kUnpackTiles;
        page.make_round<kIsValue>(i / n_rounds, first_tile, a);
#pragma unroll
        for (uint32_t t = 0; t < kUnpackTiles; ++t)
            if (first_tile + t < n_tiles)
                f(i / n_rounds, first_tile + t, a[t]);
    }
}

template <bool kIsValue>
__device__ void unpack_in_order(const BlockPage &page, const SlotPage &target) {
    for_rounds<kIsValue>(page, target.read_tokens(page.info.page_tokens),
                         [&](uint32_t strip, uint32_t tile, const uint32_t(&a)[4]) {
                             target.store(strip, tile, a);
                         });
}

// `image` has the page's tiles.
__device__ void unpack_permuted(const BlockPage &page, const uint8_t *permutation,
                                const SlotPage &image, const SlotPage &target) {
    const uint32_t lane = threadIdx.x % kWarp;
    const auto permute = [&](uint32_t strip, uint32_t tile, const uint32_t(&a)[4]) {
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
            const uint32_t row = LK_TILE_ROW(lane, i / 2);
            const uint32_t stored = strip * LK_STRIP_CHANNELS + LK_TILE_K(lane, i / 2) + i % 2;
            const uint32_t channel = load_channel(permutation, page.info.head_dim, stored);
            const uint32_t k = channel % LK_STRIP_CHANNELS;
            uint8_t *to = image.tile(channel / LK_STRIP_CHANNELS, tile) +
                          16 * LK_TILE_LANE(row, k) + 4 * LK_TILE_REGISTER(row, k) +
                          2 * LK_TILE_HALF(k);
            *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(a[i / 2] >> (16 * (i % 2)));
        }
    };
    for_rounds<false>(page, page.info.page_tokens, permute);
    __syncthreads();
    for_tiles(target.head_dim, page.info.page_tokens, [&](uint32_t strip, uint32_t tile) {
        const uint4 words = reinterpret_cast<const uint4 *>(image.tile(strip, tile))[lane];
        target.store(strip, tile, {words.x, words.y, words.z, words.w});
    });
}

// n_tokens: of the page's, those that exist.
__device__ void unpack_block(const TileArgs &args, const Entry &entry, uint32_t side,
                             uint32_t n_tokens, const SlotPage &target, uint8_t *memory) {
    __shared__ StripInfo strips[kMaxStrips];
    const uint32_t page_format = side ? entry.value_format : entry.key_format;
    const FormatInfo &c = args.step.formats[page_format];
    if (c.is_raw && !target.has_matrices)
        return;
    const uint64_t payload = side ? entry.value_payload : entry.key_payload;
    const uint64_t metadata = side ? entry.value_metadata : entry.key_metadata;
    if (threadIdx.x < target.head_dim / LK_STRIP_CHANNELS) {
        PageView view;
        view_page(args, payload, metadata, page_format, &view);
        strips[threadIdx.x] = describe_strip(view, threadIdx.x);
    }
    __syncthreads();
    const BlockPage page = {c, strips, reinterpret_cast<const uint8_t *>(payload),
                            reinterpret_cast<const uint8_t *>(metadata), n_tokens};
    const uint8_t *permutation = c.permutes ? page.metadata + c.permutation_offset
                                            : reinterpret_cast<const uint8_t *>(c.permutation);
    if (side)
        unpack_in_order<true>(page, target);
    else if (permutation)
        unpack_permuted(page, permutation, {memory, target.head_dim, false, false}, target);
    else
        unpack_in_order<false>(page, target);
}

__global__ void __launch_bounds__(kThreads)
    unpack_pass(const __grid_constant__ TileArgs args, const __grid_constant__ PagePass pass) {
    extern __shared__ __align__(16) uint8_t memory[];
    if (args.step.header->n_sequences != args.n_sequences ||
        args.step.header->n_tokens != args.n_tokens)
        return;
    const uint32_t pair = pass.first_pair + blockIdx.y;
    const uint32_t kv_head = pair % args.layer.n_kv_heads;
    const uint32_t side = blockIdx.z;
    const SequenceInfo &sequence = args.step.sequences[pair / args.layer.n_kv_heads];
    const uint32_t page = first_slot_page(pass, sequence) + blockIdx.x;
    const uint32_t head_dim = args.layer.head_dim;
    const SlotPage target = slot_page(pass, head_dim, blockIdx.y, blockIdx.x, side);
    if (page < sequence.n_attended) {
        const BlockInfo &block = args.step.blocks[sequence.first_block + page];
        const uint32_t end = sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0);
        const uint32_t n_tokens = end > block.first_token ? end - block.first_token : 0;
        if (!is_outside_window(args.layer, block.first_token, uint32_t{block.capacity_tokens},
                               sequence.n_history))
            unpack_block(
                args,
                reinterpret_cast<const Entry *>(block.entries)[args.layer.first_entry + kv_head],
                side, n_tokens, target, memory);
        return;
    }
    const uint32_t first = (page - sequence.n_attended) * kStagedTokens;
    if (!args.staging.k || sequence.new_in_blocks || first >= sequence.n_new)
        return;
    const uint32_t n = min(kStagedTokens, sequence.n_new - first);
    const uint64_t at =
        (static_cast<uint64_t>(kv_head) * args.staging.n_tokens + sequence.first_new + first) *
        head_dim;
    if (side)
        convert_rows<true>(args.staging.v + at, n, target);
    else
        convert_rows<false>(args.staging.k + at, n, target);
}

}  // namespace

cudaError_t launch_unpack_pass(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    return launch_kernel(unpack_pass, dim3(pass.n_pages, pass.n_pairs, 2), kThreads,
                         slot_bytes(args.layer.head_dim) / 2, stream, args, pass);
}

}  // namespace cuda
}  // namespace lk
