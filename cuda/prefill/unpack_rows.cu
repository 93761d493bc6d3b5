// Attention of long steps: new tokens become FP16 in slots, from the host's tensors.
//
// A thread block takes the keys or the values of a run of a pair's new tokens.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch_kernel.cuh"
#include "cuda/pack/rows.cuh"
#include "cuda/prefill/slots.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kThreads = 256;

template <bool kIsValue>
__device__ void store_tiles(const Image &image, const SlotPage &target) {
    constexpr uint32_t kTiles = kSlotTokens / LK_TILE_TOKENS;  // of a strip
    const RowsReader<kIsValue> reader(image, threadIdx.x % kWarp);
    for (uint32_t i = threadIdx.x / kWarp; i < target.head_dim / LK_STRIP_CHANNELS * kTiles;
         i += kThreads / kWarp) {
        uint32_t a[4];
        reader.load(i / kTiles, i % kTiles, a);
        target.store(i / kTiles, i % kTiles, a);
    }
}

__global__ void __launch_bounds__(kThreads)
    unpack_rows(const __grid_constant__ NewTokens tokens, const __grid_constant__ PagePass pass) {
    extern __shared__ __align__(16) uint16_t rows[];
    const StepHeader header = *tokens.step.header;
    if (header.n_sequences != tokens.n_sequences || header.n_tokens != tokens.n_tokens)
        return;
    const uint32_t n_heads = tokens.layer.n_kv_heads;
    const uint32_t head_dim = tokens.layer.head_dim;
    const uint32_t pair = pass.first_pair + blockIdx.y;
    const uint32_t side = blockIdx.z;
    const SequenceInfo &sequence = tokens.step.sequences[pair / n_heads];
    const uint32_t page = first_slot_page(pass, sequence) + blockIdx.x;
    const uint32_t first = (page - sequence.n_attended) * kSlotTokens;
    if (page < sequence.n_attended || sequence.new_in_blocks || first >= sequence.n_new)
        return;
    const uint32_t n = min(kSlotTokens, sequence.n_new - first);
    const uint32_t row_values = image_row_values(head_dim);
    take_rows(tokens, header.serial, {sequence.first_new + first, pair % n_heads, side != 0}, 0, n,
              rows);
    for (uint32_t i = n * row_values + threadIdx.x; i < kSlotTokens * row_values; i += kThreads)
        rows[i] = 0;
    __syncthreads();
    const Image image = {rows, rows_order(row_values), true};
    const SlotPage target = slot_page(pass, head_dim, blockIdx.y, blockIdx.x, side);
    if (side)
        store_tiles<true>(image, target);
    else
        store_tiles<false>(image, target);
}

}  // namespace

cudaError_t launch_unpack_rows(const TileArgs &args, const PagePass &pass, cudaStream_t stream) {
    const NewTokens tokens =
        new_tokens(args.step, args.layer, pass.k, pass.v, {}, args.n_sequences, args.n_tokens);
    return launch_kernel(unpack_rows, dim3(pass.n_pages, pass.n_pairs, 2), kThreads,
                         2 * kSlotTokens * image_row_values(args.layer.head_dim), stream, tokens,
                         pass);
}

}  // namespace cuda
}  // namespace lk
