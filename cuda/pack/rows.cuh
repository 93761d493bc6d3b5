// New tokens of a KV head, from the host's tensor to FP16 rows in shared memory.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_PACK_ROWS_CUH
#define LK_CUDA_PACK_ROWS_CUH

#include "cuda/pack/image.cuh"
#include "cuda/pack/new_tokens.cuh"

namespace lk {
namespace cuda {

// The tokens of a page.
struct PageTokens {
    uint32_t first;  // in the batch
    uint32_t head;
    bool is_value;
};

// What a thread takes of the rows of an image: the same chunk of every step-th row below `end`.
struct RowShare {
    ChunkPosition at;
    uint32_t first;
    uint32_t step;
    uint32_t end;

    __device__ RowShare(const PageTokens &page, uint32_t head_dim, uint32_t n_rows) {
        const uint32_t head_chunks = head_dim / kChunk;
        at = {page.head, threadIdx.x % head_chunks * kChunk};
        first = threadIdx.x / head_chunks;
        step = blockDim.x / head_chunks;
        end = first < step ? n_rows : 0;
    }
};

// FP16 rows of the image: stage them. Returns whether all are finite.
__device__ inline bool stage_f16(const RowShare &share, const uint16_t *row, uint32_t row_step,
                                 uint16_t *staged, uint32_t staged_step) {
    uint32_t found = 0;
#pragma unroll 4
    for (uint32_t i = share.first; i < share.end; i += share.step) {
        const uint4 chunk = *reinterpret_cast<const uint4 *>(row);
        found |= not_finite(chunk.x) | not_finite(chunk.y);
        found |= not_finite(chunk.z) | not_finite(chunk.w);
        if (staged) {
            *reinterpret_cast<uint4 *>(staged) = chunk;
            staged += staged_step;
        }
        row += row_step;
    }
    return !found;
}

// n tokens of the page from one on, to rows of the image. Returns how many values were saturated.
__device__ inline uint32_t take_rows(const NewTokens &tokens, uint32_t serial,
                                     const PageTokens &page, uint32_t first_token,
                                     uint32_t n_tokens, uint16_t *image) {
    const uint32_t head_dim = tokens.layer.head_dim;
    const uint32_t row_values = image_row_values(head_dim);
    const RowShare share(page, head_dim, n_tokens);
    const uint32_t first = page.first + first_token;
    const uint32_t dtype = tokens.kv[page.is_value].dtype;
    const ChunkParameters parameters = chunk_parameters(tokens, page.is_value, share.at);
    uint16_t *row = image + share.first * row_values + share.at.channel;
    uint16_t *staged = staged_chunk(tokens, page.is_value, first + share.first, share.at);
    const uint32_t row_step = share.step * row_values;
    const uint32_t staged_step = share.step * head_dim;
    ChunkReader reader(tokens, share.at, page.is_value, first);
    const bool is_copied =
        reader.copy(image + share.at.channel, row_values, share.first, share.step, share.end);
    if (is_copied && dtype == kF16 && !parameters.exist() &&
        stage_f16(share, row, row_step, staged, staged_step))
        return 0;
    uint32_t n_saturated = 0;
#pragma unroll 1
    for (uint32_t token = share.first; token < share.end; token += share.step) {
        RawChunk raw;
        reader.load(token, &raw);
        const Chunk chunk(raw, dtype, parameters);
        store_chunk(row, chunk);
        row += row_step;
        if (staged) {
            store_chunk(staged, chunk);
            staged += staged_step;
        }
        if (chunk.has_fault)
            report_chunk(tokens, serial, page.is_value, first + token, share.at);
        n_saturated += chunk.n_saturated;
    }
    return n_saturated;
}

}  // namespace cuda
}  // namespace lk

#endif
