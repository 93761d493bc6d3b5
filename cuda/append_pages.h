// Appending in a long step, whose new tokens fill whole blocks that are packed at once. No graph
// captures such a step, so the host knows its blocks.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_APPEND_PAGES_H
#define LK_CUDA_APPEND_PAGES_H

#include <driver_types.h>

#include "cuda/types.h"

namespace lk {
namespace cuda {

// The new tokens of a layer.
struct NewTokens {
    StepView step;
    LayerArg layer;
    TensorArg kv[2];          // k, v
    uint32_t has_vectors[2];  // every eight channels begin at a multiple of 16 bytes
    StagingArg staging;       // k is null: nothing is staged
    uint32_t n_sequences;
    uint32_t n_tokens;
};
NewTokens new_tokens(const StepView &step, const LayerArg &layer, const TensorArg &k,
                     const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                     uint32_t n_tokens);

// A block that is packed on append: its entries, and its first token in the batch.
struct NewBlock {
    uint64_t entries;
    uint32_t first_token;
    uint32_t reserved;
};
// Neighbouring tokens of the batch in other blocks.
constexpr uint32_t kRunTokens = 4;  // at most: few tokens, whose thread blocks run at once
struct TokenRun {
    uint32_t first;
    uint32_t n;
};

struct AppendPages {
    NewTokens tokens;
    const NewBlock *blocks;
    const TokenRun *runs;
    uint32_t n_blocks;
    uint32_t n_runs;
    uint32_t page_tokens;  // of packed pages
    uint32_t n_entries;    // of ranges and of minima that a packed page has, at most
};
// launch_append() of the tokens of the runs.
cudaError_t launch_append_runs(const AppendPages &pages, cudaStream_t stream);
// The tokens of the blocks: rounded and reported as launch_append() does, packed, and staged. Keys
// that are ranked by queries are not packed.
cudaError_t launch_append_pages(const AppendPages &pages, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
