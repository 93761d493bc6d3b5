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

// The rows of a share, from one on, and where they are staged; null: nowhere.
struct RowCursor {
    uint16_t *row;
    uint16_t *staged;
    uint32_t row_step;  // of FP16 numbers, to the next row of the share
    uint32_t staged_step;

    __device__ uint4 &at(uint32_t i) const {
        return *reinterpret_cast<uint4 *>(row + i * row_step);
    }
    __device__ void stage(uint32_t i, const uint4 &chunk) const {
        if (staged)
            *reinterpret_cast<uint4 *>(staged + i * staged_step) = chunk;
    }
    __device__ void advance(uint32_t n) {
        row += n * row_step;
        if (staged)
            staged += n * staged_step;
    }
};

// Rows of 16-bit elements in shared memory become FP16 where they are, kBatch at once, and are
// staged. Returns the first row that is not done: its batch has a number that FP16 does not hold.
template <bool kIsBf16>
__device__ inline uint32_t take_numbers(const RowShare &share, RowCursor *cursor) {
    uint32_t token = share.first;
    for (; token < share.end; token += kBatch * share.step) {
        uint4 chunks[kBatch];
        uint32_t found = 0;
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            chunks[i] = make_uint4(0, 0, 0, 0);
            if (token + i * share.step < share.end)
                chunks[i] = cursor->at(i);
            if (kIsBf16)
                chunks[i] = bf16_to_f16(chunks[i]);
            found |= not_finite(chunks[i].x) | not_finite(chunks[i].y);
            found |= not_finite(chunks[i].z) | not_finite(chunks[i].w);
        }
        if (found)
            break;
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i) {
            if (token + i * share.step >= share.end)
                continue;
            if (kIsBf16)
                cursor->at(i) = chunks[i];
            cursor->stage(i, chunks[i]);
        }
        cursor->advance(kBatch);
    }
    return token;
}

constexpr int32_t kWarpVectors = kWarp;  // of a row, that a warp has: one of a chunk

// n tokens of the page from one on, to rows of the image. Returns how many values were saturated.
__device__ inline uint32_t take_rows(const NewTokens &tokens, uint32_t serial,
                                     const PageTokens &page, uint32_t first_token,
                                     uint32_t n_tokens, uint16_t *image) {
    const uint32_t head_dim = stored_dim(tokens.layer, page.is_value);
    const uint32_t row_values = image_row_values(head_dim);
    const RowShare share(page, head_dim, n_tokens);
    const uint32_t first = page.first + first_token;
    const uint32_t dtype = tokens.kv[page.is_value].dtype;
    const ChunkParameters parameters = chunk_parameters(tokens, page.is_value, share.at);
    RowCursor cursor = {image + share.first * row_values + share.at.channel,
                        staged_chunk(tokens, page.is_value, first + share.first, share.at),
                        share.step * row_values, share.step * head_dim};
    ChunkReader reader(tokens, share.at, page.is_value, first);
    const bool is_copied =
        reader.copy(image + share.at.channel, row_values, share.first, share.step, share.end);
    uint32_t token = share.first;
    if (is_copied && !parameters.exist())
        token = dtype == kBf16 ? take_numbers<true>(share, &cursor)
                               : take_numbers<false>(share, &cursor);
    uint32_t n_saturated = 0;
    // Of a rotation threads without a token come along.
    const uint32_t end = parameters.rotation ? share.first + n_tokens : share.end;
#pragma unroll 1
    for (; token < end; token += share.step) {
        const bool exists = token < share.end;
        RawChunk raw = {};
        if (exists)
            reader.load(token, &raw);
        auto *own = exists ? reinterpret_cast<float4 *>(cursor.row) : nullptr;
        Chunk chunk = {};
        if (parameters.rotation || !convert_usual(raw, dtype, parameters, chunk.words))
            chunk = convert_any(raw, dtype, parameters, own,
                                own + (parameters.is_upper ? -kWarpVectors : kWarpVectors));
        if (!exists)
            continue;
        cursor.at(0) = chunk.vector();
        cursor.stage(0, chunk.vector());
        cursor.advance(1);
        if (chunk.has_fault)
            report_chunk(tokens, serial, page.is_value, first + token, share.at);
        n_saturated += chunk.n_saturated;
    }
    return n_saturated;
}

}  // namespace cuda
}  // namespace lk

#endif
