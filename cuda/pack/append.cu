// New tokens of a layer: to FP16, keys centered and scaled, into their 16-bit blocks and the
// staging area. A thread block takes the keys or the values of a few neighbouring tokens.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "cuda/launch.h"
#include "cuda/pack/f16_page.cuh"
#include "cuda/pack/new_tokens.cuh"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kAppendThreads = 128;
constexpr uint32_t kAppendWarps = kAppendThreads / kWarp;
constexpr uint32_t kBlockTokens = 32;  // of a thread block, at most
constexpr uint32_t kManyBlocks = 256;  // that come before thread blocks take more tokens

struct AppendKernelArgs {
    NewTokens tokens;
    const TokenRun *runs;   // a thread block's, or null: all tokens, block_tokens at a time
    uint32_t block_tokens;  // at most kBlockTokens
    uint32_t block_chunks;  // of a token, at most kAppendThreads
    uint32_t token_step;    // tokens that a thread block takes at once

    __device__ TokenRun run(uint32_t block) const {
        if (runs)
            return runs[block];
        const uint32_t first = block * block_tokens;
        return {first, min(block_tokens, tokens.n_tokens - first)};
    }
};

// The share of a thread: a chunk of a head, of every step-th token of the thread block.
struct Share {
    ChunkPosition at;
    uint32_t first;
    uint32_t step;
    bool exists;

    __device__ Share(const AppendKernelArgs &args, bool is_value) {
        const LayerArg &layer = args.tokens.layer;
        const uint32_t head_chunks = stored_dim(layer, is_value) / kChunk;
        const uint32_t chunk = blockIdx.y * args.block_chunks + threadIdx.x % args.block_chunks;
        at = {chunk / head_chunks, chunk % head_chunks * kChunk};
        first = threadIdx.x / args.block_chunks;
        step = args.token_step;
        exists = first < step && at.head < layer.n_kv_heads;
    }
};

// Where a token lies in the block that stores it.
struct TokenPosition {
    const Entry *entries;  // [heads] of the layer
    uint32_t token;        // in the block
};

// The last of n ascending values that is not above the limit; the first is not. Whole warps.
template <typename Value>
__device__ uint32_t find_last(uint32_t n, uint32_t limit, const Value &value) {
    const uint32_t lane = threadIdx.x % kWarp;
    uint32_t first = 0;
    // The token is mostly near the end.
    if (n > kWarp) {
        first = n - kWarp;
        const uint32_t found = __ballot_sync(kAllLanes, value(first + lane) <= limit);
        if (found)
            return first + __popc(found) - 1;
        n = first;
        first = 0;
    }
    // A token further back: each round leaves one of 32 ranges.
    for (;;) {
        const uint32_t step = (n + kWarp - 1) / kWarp;
        const uint32_t i = lane * step;
        const uint32_t part =
            __popc(__ballot_sync(kAllLanes, i < n && value(first + i) <= limit)) - 1;
        if (step == 1)
            return first + part;
        first += part * step;
        n = min(step, n - part * step);
    }
}

// Where a token goes, and the n tokens from it on that follow it in its block. Whole warps.
__device__ TokenPosition find_position(const NewTokens &tokens, uint32_t token, uint32_t *n) {
    const SequenceInfo *sequences = tokens.step.sequences;
    const SequenceInfo &sequence = sequences[find_last(
        tokens.n_sequences, token, [&](uint32_t i) { return sequences[i].first_new; })];
    const uint32_t in_sequence = token - sequence.first_new;
    const uint32_t position = sequence.n_history + in_sequence;
    const BlockInfo *blocks = tokens.step.blocks + sequence.first_block;
    const BlockInfo &block = blocks[find_last(sequence.n_blocks, position,
                                              [&](uint32_t i) { return blocks[i].first_token; })];
    const auto *entries = reinterpret_cast<const Entry *>(block.entries);
    const uint32_t in_block = position - block.first_token;
    *n = min(sequence.n_new - in_sequence, block.capacity_tokens - in_block);
    return {entries + tokens.layer.first_entry, in_block};
}

// Where n tokens of the batch go, at most kBlockTokens. Each warp finds those of its share.
__device__ void find_positions(const NewTokens &tokens, uint32_t first_token, uint32_t n,
                               TokenPosition *positions) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t n_share = (n + kAppendWarps - 1) / kAppendWarps;
    uint32_t token = threadIdx.x / kWarp * n_share;
    const uint32_t end = min(token + n_share, n);
    while (token < end) {
        uint32_t n_found;
        const TokenPosition position = find_position(tokens, first_token + token, &n_found);
        n_found = min(n_found, end - token);
        if (lane < n_found)
            positions[token + lane] = {position.entries, position.token + lane};
        token += n_found;
    }
}

__device__ void store_in_block(const StepView &step, const Entry &entry,
                               const uint32_t (&words)[kChunk / 2], bool is_value, uint32_t token,
                               uint32_t channel) {
    const FormatInfo &c = step.formats[is_value ? entry.value_format : entry.key_format];
    if (!c.is_raw)
        return;
    auto *values =
        reinterpret_cast<uint16_t *>(is_value ? entry.value_payload : entry.key_payload) +
        raw_token_steps(is_value).offset(token);
    const Steps channels = raw_channel_steps(is_value, c.page_tokens);
    // Two channels share a word of a key tile.
    for (uint32_t i = 0; i < kChunk / 2; ++i) {
        const uint32_t pair = words[i];
        uint16_t *low = values + channels.offset(channel + 2 * i);
        if (is_value) {
            low[0] = static_cast<uint16_t>(pair);
            values[channels.offset(channel + 2 * i + 1)] = static_cast<uint16_t>(pair >> 16);
        } else {
            *reinterpret_cast<uint32_t *>(low) = pair;
        }
    }
}

// Where a thread's chunks go.
struct ChunkStore {
    const NewTokens &tokens;
    const TokenPosition *positions;
    ChunkPosition at;
    uint32_t first_token;  // of the thread block
    bool is_value;

    __device__ void operator()(const uint32_t (&words)[kChunk / 2], uint32_t token) const {
        const TokenPosition position = positions[token];
        if (tokens.staging.k)
            store_chunk(staged_chunk(tokens, is_value, first_token + token, at), words);
        store_in_block(tokens.step, position.entries[at.head], words, is_value, position.token,
                       at.channel);
    }
};

// The tokens of a mask, with anything to convert. Of a layer with a rotation all threads come. Out
// of line, so that usual tokens have the registers. Returns how many numbers were saturated.
__device__ __noinline__ uint32_t append_any(const AppendKernelArgs &args, const TokenRun run,
                                            uint32_t serial, bool is_value, uint32_t mask,
                                            const TokenPosition *positions) {
    __shared__ float4 exchanged[kAppendThreads];
    const NewTokens &tokens = args.tokens;
    const Share share(args, is_value);
    const ChunkReader reader(tokens, share.at, is_value, run.first);
    const ChunkStore store = {tokens, positions, share.at, run.first, is_value};
    ChunkParameters parameters = chunk_parameters(tokens, is_value, share.at);
    if (!share.exists)
        parameters.centers = parameters.inverses = nullptr;
    uint32_t n_saturated = 0;
#pragma unroll 1
    for (uint32_t token = share.first; token < share.first + run.n; token += share.step) {
        const bool exists = share.exists && token < run.n && mask >> token & 1;
        if (!exists && !parameters.rotation)
            continue;
        RawChunk raw = {};
        if (exists)
            reader.load(token, &raw);
        const Chunk chunk = convert_any(raw, tokens.kv[is_value].dtype, parameters,
                                        exists ? exchanged + threadIdx.x : nullptr,
                                        exchanged + (threadIdx.x ^ kWarp));
        if (!exists)
            continue;
        if (chunk.has_fault)
            report_chunk(tokens, serial, is_value, run.first + token, share.at);
        store(chunk.words, token);
        n_saturated += chunk.n_saturated;
    }
    return n_saturated;
}

// Loads that need no table come first, so that a step of few tokens waits for memory less often.
__global__ void __launch_bounds__(kAppendThreads, 6)
    append_kernel(const __grid_constant__ AppendKernelArgs args) {
    __shared__ TokenPosition positions[kBlockTokens];
    const NewTokens &tokens = args.tokens;
    const bool is_value = blockIdx.z;
    const bool is_rotated = tokens.layer.key_rotation && !is_value;
    const TokenRun run = args.run(blockIdx.x);
    const StepHeader header = *tokens.step.header;
    const Share share(args, is_value);
    const ChunkReader reader(tokens, share.at, is_value, run.first);
    const uint32_t end = share.exists && !is_rotated ? run.n : 0;
    RawChunk raw[kBatch];
    uint32_t token = share.first;
    reader.load(token, share.step, end, raw);
    if (header.n_sequences != tokens.n_sequences || header.n_tokens != tokens.n_tokens) {
        if (threadIdx.x == 0 && blockIdx.x == 0)
            report_fault(tokens, kShapeFault);
        return;
    }
    find_positions(tokens, run.first, run.n, positions);
    const ChunkParameters parameters = chunk_parameters(tokens, is_value, share.at);
    const ChunkStore store = {tokens, positions, share.at, run.first, is_value};
    __syncthreads();
    uint32_t unusual = is_rotated ? ~0u : 0;  // tokens of the thread block
    while (token < end) {
#pragma unroll
        for (uint32_t i = 0; i < kBatch; ++i, token += share.step) {
            if (token >= end)
                continue;
            uint32_t words[kChunk / 2];
            if (convert_usual(raw[i], tokens.kv[is_value].dtype, parameters, words))
                store(words, token);
            else
                unusual |= 1u << token;
        }
        reader.load(token, share.step, end, raw);
    }
    uint32_t n_saturated = 0;
    if (unusual)
        n_saturated = append_any(args, run, header.serial, is_value, unusual, positions);
    report_saturated(tokens, n_saturated);
}

bool begins_at_vectors(const TensorArg &tensor) {
    const uint64_t bytes = element_bytes(tensor);
    const uint64_t strides = static_cast<uint64_t>(tensor.token_stride) * bytes |
                             static_cast<uint64_t>(tensor.head_stride) * bytes;
    return (reinterpret_cast<uint64_t>(tensor.data) | strides) % sizeof(uint4) == 0;
}

cudaError_t launch(AppendKernelArgs *args, uint32_t n_runs, cudaStream_t stream) {
    const LayerArg &layer = args->tokens.layer;
    const uint32_t most_channels = std::max(layer.head_dim, stored_dim(layer, true));
    const uint32_t n_chunks = layer.n_kv_heads * (most_channels / kChunk);
    // Threads of the chunks of a rotated block are neighbours in a warp.
    const uint32_t rotated_chunks = std::max(layer.key_rotation / kChunk, 1u);
    const uint32_t n_whole = (n_chunks + rotated_chunks - 1) / rotated_chunks * rotated_chunks;
    args->block_chunks = std::min(n_whole, kAppendThreads);
    args->token_step = kAppendThreads / args->block_chunks;
    const dim3 grid(n_runs, (n_chunks + args->block_chunks - 1) / args->block_chunks,
                    layer.is_latent ? 1 : 2);
    append_kernel<<<grid, kAppendThreads, 0, stream>>>(*args);
    return cudaGetLastError();
}

}  // namespace

NewTokens new_tokens(const StepView &step, const LayerArg &layer, const TensorArg &k,
                     const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                     uint32_t n_tokens) {
    const bool has_vectors[2] = {begins_at_vectors(k), begins_at_vectors(v)};
    return {step, layer, {k, v}, {has_vectors[0], has_vectors[1]}, staging, n_sequences, n_tokens};
}

cudaError_t launch_append(const StepView &step, const LayerArg &layer, const TensorArg &k,
                          const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                          uint32_t n_tokens, cudaStream_t stream) {
    if (!n_tokens)
        return cudaSuccess;
    AppendKernelArgs args{};
    args.tokens = new_tokens(step, layer, k, v, staging, n_sequences, n_tokens);
    args.block_tokens = std::clamp(n_tokens / kManyBlocks, 1u, kBlockTokens);
    return launch(&args, (n_tokens + args.block_tokens - 1) / args.block_tokens, stream);
}

cudaError_t launch_append_runs(const AppendPages &pages, cudaStream_t stream) {
    if (!pages.n_runs)
        return cudaSuccess;
    AppendKernelArgs args{};
    args.tokens = pages.tokens;
    args.runs = pages.runs;
    return launch(&args, pages.n_runs, stream);
}

}  // namespace cuda
}  // namespace lk
