// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/new_blocks.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace gpu {

namespace {

uint64_t end_of(const Block &block) { return block.first_token + block.capacity_tokens; }

}  // namespace

// A block has space for 32 tokens or more, but for the last one of the sinks. A sequence's new
// tokens can begin and end within a block.
uint64_t NewBlocks::most_blocks(const CacheLayout &layout) {
    return layout.max_step_tokens / 32 + uint64_t{3} * layout.max_sequences;
}

uint64_t NewBlocks::most_runs(const CacheLayout &layout) {
    return layout.max_step_tokens / kRunTokens + uint64_t{3} * layout.max_sequences;
}

lk_status NewBlocks::fill(const Batch &batch) {
    blocks_.clear();
    runs_.clear();
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        LK_TRY(add(batch.sequences[s]));
    if (blocks_.empty())
        runs_.clear();
    return LK_OK;
}

lk_status NewBlocks::add(const BatchSequence &sequence) {
    const uint64_t end = sequence.n_history + sequence.n_new;
    uint32_t first = sequence.n_blocks;
    while (first && end_of(*sequence.blocks[first - 1]) > sequence.n_history)
        --first;
    bool has_memory = true;
    for (uint32_t b = first; has_memory && b < sequence.n_blocks; ++b) {
        const Block &block = *sequence.blocks[b];
        const uint64_t from = std::max(block.first_token, sequence.n_history);
        const uint64_t to = std::min(end_of(block), end);
        if (from >= to)
            break;
        const auto token = sequence.first_new + static_cast<uint32_t>(from - sequence.n_history);
        has_memory = block.is_packed_on_append ? blocks_.push({&block, token})
                                               : add_run(token, static_cast<uint32_t>(to - from));
    }
    return has_memory ? LK_OK
                      : fail(LK_E_NOMEM, "no memory for the lists of a step of %u new tokens",
                             sequence.n_new);
}

// It goes on with the last run where they are neighbours.
bool NewBlocks::add_run(uint32_t first, uint32_t n) {
    while (n) {
        const bool goes_on = !runs_.empty() && runs_.back().first + runs_.back().n == first &&
                             runs_.back().n < kRunTokens;
        if (!goes_on && !runs_.push({first, 0}))
            return false;
        TokenRun &run = runs_.back();
        const uint32_t taken = std::min(n, kRunTokens - run.n);
        run.n += taken;
        first += taken;
        n -= taken;
    }
    return true;
}

lk_status NewBlocks::list_pages(const CacheLayout &layout, const AppendArgs &args,
                                const Array<PackItem> **out) {
    const uint32_t n_heads = args.layer.n_kv_heads;
    items_.clear();
    if (!items_.reserve(blocks_.size() * n_heads * 2))
        return fail(LK_E_NOMEM, "no memory for a list of %zu pages", blocks_.size() * n_heads * 2);
    for (const NewBlock &fresh : blocks_)
        for (uint32_t page = 0; page < 2 * n_heads; ++page) {
            const uint32_t head = page / 2;
            const PackItem item =
                staged_page(args, layout.formats, fresh.block->entries[args.first_entry + head],
                            head, fresh.first_token, page % 2);
            if (!item.target->layout.is_absent() && !is_ranked_by_queries(item))
                items_.push(item);
        }
    *out = &items_;
    return LK_OK;
}

}  // namespace gpu
}  // namespace lk
