// New tokens that fill whole blocks: a thread block takes the keys or the values that a block has
// of a KV head from the host's tensor to their page in one pass.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/pack/page.cuh"
#include "cuda/pack/rows.cuh"

namespace lk {
namespace cuda {

namespace {

__device__ PageBytes page_bytes(const Entry &entry, bool is_value) {
    return {reinterpret_cast<uint8_t *>(is_value ? entry.value_payload : entry.key_payload),
            reinterpret_cast<uint8_t *>(is_value ? entry.value_metadata : entry.key_metadata),
            nullptr};
}

// Thread blocks: x = KV heads of blocks, y = keys and values.
__global__ void __launch_bounds__(kPackThreads, 2)
    append_pages_kernel(const __grid_constant__ AppendPages args) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ FormatInfo c;
    const NewTokens &tokens = args.tokens;
    const NewBlock block = args.blocks[blockIdx.x / tokens.layer.n_kv_heads];
    const PageTokens page = {block.first_token, blockIdx.x % tokens.layer.n_kv_heads,
                             blockIdx.y != 0};
    const Entry &entry =
        reinterpret_cast<const Entry *>(block.entries)[tokens.layer.first_entry + page.head];
    load_format(&c, tokens.step.formats + (page.is_value ? entry.value_format : entry.key_format));
    const PageBytes bytes = page_bytes(entry, page.is_value);
    const uint32_t serial = tokens.step.header->serial;
    const uint32_t image_tokens = min(uint32_t{c.page_tokens}, args.page_tokens);
    const Image image = {reinterpret_cast<const uint16_t *>(shared),
                         rows_order(image_row_values(c.head_dim)), true};
    uint32_t n_saturated = 0;
    // A 16-bit page may be longer than the image.
    for (uint32_t first = 0; first < c.page_tokens; first += image_tokens) {
        n_saturated += take_rows(tokens, serial, page, first, image_tokens,
                                 reinterpret_cast<uint16_t *>(shared));
        __syncthreads();
        if (!c.is_raw)
            break;
        write_raw_tokens(image.values, image.order, c, bytes.payload, first, image_tokens);
        __syncthreads();
    }
    if (!c.is_raw && c.ranking != kRankedByQueryRange)
        pack_image(image, c, bytes, make_space(c.head_dim, c.page_tokens, args.n_entries), shared);
    report_saturated(tokens, n_saturated);
}

}  // namespace

cudaError_t launch_append_pages(const AppendPages &pages, cudaStream_t stream) {
    const LayerArg &layer = pages.tokens.layer;
    if (!pages.n_blocks)
        return cudaSuccess;
    const uint32_t n_bytes = make_space(layer.head_dim, pages.page_tokens, pages.n_entries).end;
    const cudaError_t error =
        cudaFuncSetAttribute(append_pages_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(n_bytes));
    if (error != cudaSuccess)
        return error;
    append_pages_kernel<<<dim3(pages.n_blocks * layer.n_kv_heads, 2),
                          pack_threads(layer.head_dim, pages.page_tokens), n_bytes, stream>>>(
        pages);
    return cudaGetLastError();
}

}  // namespace cuda
}  // namespace lk
