// Packing: a thread block takes a page from 16 bits to its page format. The values come from a
// 16-bit page or the staging area, by a list of jobs, or, for the blocks that new tokens fill, from
// the host's tensors.
//
// SPDX-License-Identifier: Apache-2.0
#include "cuda/launch.h"
#include "cuda/launch_kernel.cuh"
#include "cuda/pack/page.cuh"
#include "cuda/pack/rows.cuh"

namespace lk {
namespace cuda {

namespace {

struct PackArgs {
    const FormatInfo *formats;
    const PackJob *jobs;   // a thread block's, or null: the pages of new tokens
    AppendPages pages;     // thread blocks: x = KV heads of blocks, y = keys and values
    uint32_t page_tokens;  // of packed pages, at most
    uint32_t n_entries;    // of ranges and of minima that a packed page has, at most
};

// In shared memory a 16-bit page may not fit: it may be longer than a packed one.
__device__ void copy_page(const PackJob &job, const FormatInfo &c) {
    const ValueOrder order =
        job.source_format == kStaged ? rows_order(c.head_dim) : strips_order(c);
    write_raw_tokens(reinterpret_cast<const uint16_t *>(job.source), order, c,
                     reinterpret_cast<uint8_t *>(job.payload), 0, c.page_tokens);
}

// Copy the source of a job to shared memory. Returns whether the values are in rows.
__device__ bool copy_values(const PackJob &job, const FormatInfo &c, uint16_t *values) {
    const auto *source = reinterpret_cast<const uint8_t *>(job.source);
    bool is_rows = true;
    if (job.source_format == kStaged) {
        copy_rows(values, source, c);
    } else if (is_ordered(c) && !c.is_value) {
        copy_keys_to_rows(values, source, c);
    } else {
        copy_strips(values, source, c);
        is_rows = false;
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    return is_rows;
}

// A page of new tokens and its tokens.
struct NewPage {
    PageTokens tokens;
    const Entry *entry;

    __device__ explicit NewPage(const AppendPages &pages) {
        const LayerArg &layer = pages.tokens.layer;
        const NewBlock block = pages.blocks[blockIdx.x / layer.n_kv_heads];
        tokens = {block.first_token, blockIdx.x % layer.n_kv_heads, blockIdx.y != 0};
        entry = reinterpret_cast<const Entry *>(block.entries) + layer.first_entry + tokens.head;
    }
    __device__ uint32_t format() const {
        return tokens.is_value ? entry->value_format : entry->key_format;
    }
    __device__ PageBytes bytes() const {
        return {reinterpret_cast<uint8_t *>(tokens.is_value ? entry->value_payload
                                                            : entry->key_payload),
                reinterpret_cast<uint8_t *>(tokens.is_value ? entry->value_metadata
                                                            : entry->key_metadata),
                nullptr};
    }
};

// Take the tokens of a page to rows in shared memory, which are complete when all threads return;
// pages of 16 bits are done then.
__device__ void take_tokens(const PackArgs &args, const NewPage &page, const FormatInfo &c,
                            uint16_t *values) {
    const NewTokens &tokens = args.pages.tokens;
    const uint32_t serial = tokens.step.header->serial;
    const uint32_t image_tokens = min(uint32_t{c.page_tokens}, args.page_tokens);
    uint32_t n_saturated = 0;
    // A 16-bit page may be longer than the image.
    for (uint32_t first = 0; first < c.page_tokens; first += image_tokens) {
        n_saturated += take_rows(tokens, serial, page.tokens, first, image_tokens, values);
        if (!c.is_raw)
            break;
        __syncthreads();
        write_raw_tokens(values, rows_order(image_row_values(c.head_dim)), c, page.bytes().payload,
                         first, image_tokens);
        __syncthreads();
    }
    report_saturated(tokens, n_saturated);  // begins with a barrier
}

__global__ void __launch_bounds__(kPackThreads) pack_kernel(const __grid_constant__ PackArgs args) {
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ FormatInfo c;
    auto *values = reinterpret_cast<uint16_t *>(shared);
    PageBytes bytes;
    bool is_rows = true;
    if (args.jobs) {
        const PackJob job = args.jobs[blockIdx.x];
        load_format(&c, args.formats + job.target_format);
        if (c.is_raw) {
            copy_page(job, c);
            return;
        }
        is_rows = copy_values(job, c, values);
        bytes = {reinterpret_cast<uint8_t *>(job.payload),
                 reinterpret_cast<uint8_t *>(job.metadata),
                 reinterpret_cast<const uint64_t *>(job.query_stats)};
    } else {
        const NewPage page(args.pages);
        load_format(&c, args.formats + page.format());
        take_tokens(args, page, c, values);
        if (c.is_raw || c.ranking == kRankedByQueryRange)
            return;
        bytes = page.bytes();
    }
    const Image image = is_rows ? rows_image(values, c) : Image{values, strips_order(c), false};
    pack_image(image, c, bytes, make_space(c.head_dim, c.page_tokens, args.n_entries), shared);
}

cudaError_t launch(const PackArgs &args, const dim3 &grid, uint32_t head_dim, cudaStream_t stream) {
    return launch_kernel(pack_kernel, grid, pack_threads(head_dim, args.page_tokens),
                         make_space(head_dim, args.page_tokens, args.n_entries).end, stream, args);
}

}  // namespace

uint32_t pack_shared_bytes(uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters) {
    return make_space(head_dim, page_tokens, n_parameters).end;
}

cudaError_t launch_pack(const PackJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters,
                        cudaStream_t stream) {
    if (!n_jobs)
        return cudaSuccess;
    PackArgs args{};
    args.formats = formats;
    args.jobs = jobs;
    args.page_tokens = page_tokens < LK_MAX_PAGE_TOKENS ? page_tokens : LK_MAX_PAGE_TOKENS;
    args.n_entries = n_parameters;
    return launch(args, n_jobs, head_dim, stream);
}

cudaError_t launch_append_pages(const AppendPages &pages, cudaStream_t stream) {
    if (!pages.n_blocks)
        return cudaSuccess;
    const LayerArg &layer = pages.tokens.layer;
    const dim3 grid(pages.n_blocks * layer.n_kv_heads, layer.is_latent ? 1 : 2);
    const uint32_t value_dim = stored_dim(layer, true);
    return launch({pages.tokens.step.formats, nullptr, pages, pages.page_tokens, pages.n_entries},
                  grid, layer.head_dim > value_dim ? layer.head_dim : value_dim, stream);
}

}  // namespace cuda
}  // namespace lk
