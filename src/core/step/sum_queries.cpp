// SPDX-License-Identifier: Apache-2.0
#include "core/step/sum_queries.h"

#include <algorithm>

#include "core/cache.h"

namespace lk {

namespace {

constexpr uint64_t kStatBytes = sizeof(uint64_t);

lk_status flush_runs(lk_cache *cache, QueryStatArgs *args) {
    args->runs = cache->work.stat_runs.data();
    args->n_runs = static_cast<uint32_t>(cache->work.stat_runs.size());
    cache->work.stat_runs.clear();
    return args->n_runs ? cache->device->sum_queries(*args) : LK_OK;
}

// A run for each run of the layer's KV heads that rank by queries. run.offset_bytes is where
// channel `first_channel` of those that do lies in a sum.
lk_status queue_run(lk_cache *cache, QueryStatArgs *args, const QueryStatRun &run,
                    uint32_t first_channel) {
    const EntryInfo *entries =
        &cache->formats.entries[cache->formats.layers[args->layer_index].first_entry];
    const uint32_t n_heads = args->layer.n_kv_heads;
    for (uint32_t first = 0; first < n_heads;) {
        uint32_t end = first;
        while (end < n_heads && entries[end].ranks_by_queries)
            ++end;
        if (end > first) {
            QueryStatRun own = run;
            own.offset_bytes += (entries[first].stat_offset - first_channel) * kStatBytes;
            own.first_head = first;
            own.n_heads = end - first;
            cache->work.stat_runs.push(own);
        }
        first = end + 1;
        if (cache->work.stat_runs.size() < kStatBatch)
            continue;
        LK_TRY(flush_runs(cache, args));
    }
    return LK_OK;
}

// The blocks of a part's new tokens: from begin to end, of which those from tail on stay at 16
// bits.
struct StepBlocks {
    uint64_t begin;
    uint64_t tail;
    uint64_t end;
};
StepBlocks blocks_of(const lk_cache &cache, const StepSequence &member) {
    const Plan &plan = cache.plan.model;
    const uint64_t limit = member.sequence->length + member.n_new;
    const uint64_t begin = block_of_token(plan, member.sequence->length);
    const uint64_t end = block_count(plan, limit);
    return {begin, std::clamp(due_blocks(plan, limit), begin, end), end};
}

// New tokens of a long step in one block.
struct BlockTokens {
    uint32_t first;  // of the sequence's new tokens
    uint32_t n;
};
BlockTokens tokens_of(const Plan &plan, const StepSequence &member, uint64_t block) {
    const uint64_t length = member.sequence->length;
    const uint64_t block_begin = block_first_token(plan, block);
    const uint64_t block_end = block_first_token(plan, block + 1);
    const uint64_t begin = block_begin > length ? block_begin : length;
    const uint64_t limit = length + member.n_new;
    const uint64_t end = block_end < limit ? block_end : limit;
    return {static_cast<uint32_t>(begin - length), static_cast<uint32_t>(end - begin)};
}

// The offset of a long step's sums of a block's own tokens for one layer, after the sum of all
// tokens up to the block.
uint64_t own_stats(const LayerInfo &layer, const StepSequence &member, uint64_t i) {
    return member.block_stats + (1 + i) * layer.n_ranked_channels * kStatBytes;
}

// As few runs as blocks of one size allow.
lk_status sum_blocks(lk_cache *cache, QueryStatArgs *args, const StepSequence &member) {
    const Plan &plan = cache->plan.model;
    const LayerInfo &layer = cache->formats.layers[args->layer_index];
    const StepBlocks blocks = blocks_of(*cache, member);
    lk_status status = LK_OK;
    for (uint64_t first = blocks.begin; !status && first < blocks.end;) {
        const BlockTokens tokens = tokens_of(plan, member, first);
        QueryStatRun run = {own_stats(layer, member, first - blocks.begin),
                            layer.n_ranked_channels * kStatBytes,
                            member.first_new + tokens.first,
                            tokens.n,
                            tokens.n,
                            0,
                            0};
        uint64_t block = first + 1;
        for (uint32_t n = tokens.n; block < blocks.end && n == tokens.n; ++block) {
            n = tokens_of(plan, member, block).n;
            if (n > tokens.n)
                break;
            run.n_tokens += n;
        }
        first = block;
        status = queue_run(cache, args, run, layer.stat_offset);
    }
    return status;
}

// The sums of a long step's blocks, in the order of tokens, and the keys of blocks packed on
// append.
class BlockWalk {
  public:
    BlockWalk(lk_cache *cache, uint32_t layer, const StepSequence &member)
        : cache_(*cache),
          layer_(cache->formats.layers[layer]),
          layer_index_(layer),
          member_(member),
          stats_(*member.sequence->query_stats),
          device_stats_(cache->device->query_stats()),
          seen_(device_stats_ + member.block_stats) {}

    lk_status run();

  private:
    lk_status add(uint64_t target, uint64_t source, bool replaces);
    lk_status start();
    lk_status rank_block(uint64_t block, uint64_t own);
    lk_status queue_keys(const CacheBlock &block, uint64_t stats);
    uint64_t of_layer(uint64_t array) const { return array + layer_.stat_offset * kStatBytes; }

    lk_cache &cache_;
    const LayerInfo &layer_;
    const uint32_t layer_index_;
    const StepSequence &member_;
    const QueryStats &stats_;
    const uint64_t device_stats_;
    const uint64_t seen_;   // all |Q| up to the block
    size_t next_item_ = 0;  // of the increments that are not yet in it
    uint32_t follows_ = 0;
};

// source 0: nothing.
lk_status BlockWalk::add(uint64_t target, uint64_t source, bool replaces) {
    const uint32_t flags = follows_ | (replaces ? uint32_t{kStatReplaces} : 0u);
    follows_ = kStatFollows;
    return cache_.stat_queue.add(
        {target, source, source ? 1u : 0u, 0, layer_.n_ranked_channels, flags});
}

lk_status BlockWalk::start() {
    for (uint64_t s = 0; s < member_.n_stats; ++s)
        LK_TRY(add(of_layer(device_stats_ + member_.stats +
                            s * cache_.formats.n_ranked_channels * kStatBytes),
                   0, true));
    return add(seen_, of_layer(stats_.base()), true);
}

lk_status BlockWalk::queue_keys(const CacheBlock &block, uint64_t stats) {
    const LayerView &view = layer_.view;
    const Staging staging = staging_of(&cache_, layer_index_);
    const uint64_t token = member_.first_new + (block.first_token - member_.sequence->length);
    for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
        const EntryInfo &info = cache_.formats.entries[layer_.first_entry + head];
        const PageEntry &entry = block.entries[layer_.first_entry + head];
        if (!info.ranks_by_queries)
            continue;
        if (cache_.work.packs.size() == kBatch)
            LK_TRY(flush_packs(&cache_));
        const uint64_t at = (uint64_t{head} * staging.n_tokens + token) * view.head_dim;
        cache_.work.packs.push({&cache_.formats[entry.key_format], entry.key_payload,
                                entry.key_metadata, nullptr, address_of(staging.k + at),
                                stats + (info.stat_offset - layer_.stat_offset) * kStatBytes});
    }
    return LK_OK;
}

lk_status BlockWalk::rank_block(uint64_t block, uint64_t own) {
    lk_status status = LK_OK;
    for (; !status && next_item_ < stats_.n_items() && stats_.item_block(next_item_) <= block;
         ++next_item_)
        status = add(seen_, of_layer(stats_.item_stats(next_item_)), false);
    bool is_gap;
    const uint64_t kept = device_stats_ + block_stats(&cache_, member_, block, &is_gap);
    if (!status)
        status = add(seen_, own, false);
    if (!status)
        status = add(of_layer(kept), own, false);
    if (status || !is_gap)
        return status;
    LK_TRY(add(own, seen_, true));
    return queue_keys(*member_.sequence->block(block), own);
}

lk_status BlockWalk::run() {
    const StepBlocks blocks = blocks_of(cache_, member_);
    LK_TRY(start());
    for (uint64_t block = blocks.begin; block < blocks.end; ++block)
        LK_TRY(rank_block(block, device_stats_ + own_stats(layer_, member_, block - blocks.begin)));
    return flush_packs(&cache_);
}

// Up to LK_DRAFT_TOKENS tokens have a sum each, since any of them may go. A longer step is kept as
// a whole: 0 for sinks, 1 for the block that it fills up, 2 for all blocks that it writes packed,
// then one for each block that stays at 16 bits.
uint64_t stat_slots(const StepSequence &member, const StepBlocks &blocks) {
    return member.is_draft() ? member.n_new : 3 + blocks.end - blocks.tail;
}
uint64_t slot_of(const Plan &plan, const StepBlocks &blocks, uint64_t block, bool is_gap) {
    if (is_sink_block(plan, block))
        return 0;
    if (is_gap)
        return 2;
    return block < blocks.tail ? 1 : 3 + block - blocks.tail;
}

}  // namespace

lk_status sum_layer(lk_cache *cache, uint32_t layer, const TensorView &q) {
    QueryStatArgs args = {cache->formats.layers[layer].view, layer, q, nullptr, 0};
    const Array<StepSequence> &parts = cache->step.sequences;
    lk_status status = LK_OK;
    for (size_t first = 0; !status && first < parts.size();) {
        const StepSequence &member = parts[first++];
        if (!member.is_draft()) {
            status = sum_blocks(cache, &args, member);
            continue;
        }
        // Drafts that follow each other have their sums one after the other.
        QueryStatRun run = {member.stats,
                            cache->formats.n_ranked_channels * kStatBytes,
                            member.first_new,
                            member.n_new,
                            1,
                            0,
                            0};
        for (; first < parts.size() && parts[first].is_draft(); ++first)
            run.n_tokens += parts[first].n_new;
        status = queue_run(cache, &args, run, 0);
    }
    if (!status)
        status = flush_runs(cache, &args);
    for (const StepSequence &member : parts)
        if (!status && !member.is_draft())
            status = BlockWalk(cache, layer, member).run();
    return status;
}

lk_status reserve_query_stats(lk_cache *cache) {
    Step &step = cache->step;
    step.query_stat_bytes = 0;
    if (!cache->formats.n_ranked_channels)
        return LK_OK;
    uint64_t widest = 0;
    for (const LayerInfo &layer : cache->formats.layers)
        widest = layer.n_ranked_channels > widest ? layer.n_ranked_channels : widest;
    uint64_t n_sums = 0;
    for (StepSequence &member : step.sequences) {
        const StepBlocks blocks = blocks_of(*cache, member);
        const uint64_t n_blocks = blocks.end - blocks.begin;
        member.n_stats = stat_slots(member, blocks);
        n_sums += member.n_stats;
        member.stats = step.query_stat_bytes;
        member.block_stats =
            member.stats + member.n_stats * cache->formats.n_ranked_channels * kStatBytes;
        step.query_stat_bytes =
            member.block_stats + (member.is_draft() ? 0 : (1 + n_blocks) * widest * kStatBytes);
    }
    // A sequence that is added before they are handed over has one more.
    return cache->stat_queue.reserve(n_sums + cache->desc.max_sequences)
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for a list of %llu sums", ull{n_sums});
}

uint64_t block_stats(const lk_cache *cache, const StepSequence &member, uint64_t block,
                     bool *is_gap) {
    const Plan &plan = cache->plan.model;
    *is_gap = packs_on_append(plan, block, member.sequence->length, member.n_new);
    const uint64_t slot = slot_of(plan, blocks_of(*cache, member), block, *is_gap);
    return member.stats + slot * cache->formats.n_ranked_channels * kStatBytes;
}

}  // namespace lk
