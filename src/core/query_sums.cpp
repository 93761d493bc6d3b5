// Sums of |Q| of a step: one for each new token of a short step, since any of them may go; of a
// long one for each row, and the keys of direct rows ranked by them.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "core/cache.h"

namespace lk {

namespace {

constexpr uint64_t kSumBytes = sizeof(uint64_t);

lk_status flush_runs(lk_cache *cache, QueryStatArgs *args) {
    args->runs = cache->query_stats.data();
    args->n_runs = static_cast<uint32_t>(cache->query_stats.size());
    cache->query_stats.clear();
    return args->n_runs ? cache->device->sum_queries(*args) : LK_OK;
}

// A run for each run of the layer's KV heads that rank by queries. run.offset_bytes is where
// channel `first_channel` of those that do lies in a sum.
lk_status queue_run(lk_cache *cache, QueryStatArgs *args, const QueryStatRun &run,
                    uint32_t first_channel) {
    const EntryInfo *entries = &cache->entries[cache->layers[args->layer_index].first_entry];
    const uint32_t n_heads = args->layer.n_kv_heads;
    for (uint32_t first = 0; first < n_heads;) {
        uint32_t end = first;
        while (end < n_heads && entries[end].ranks_by_queries)
            ++end;
        if (end > first) {
            QueryStatRun own = run;
            own.offset_bytes += (entries[first].score_offset - first_channel) * kSumBytes;
            own.first_head = first;
            own.n_heads = end - first;
            cache->query_stats.push(own);
        }
        first = end + 1;
        if (cache->query_stats.size() < kScoreBatch)
            continue;
        const lk_status status = flush_runs(cache, args);
        if (status)
            return status;
    }
    return LK_OK;
}

// The rows of a part's new tokens: from begin to end, of which those from tail on stay at 16 bits.
struct PartRows {
    uint64_t begin;
    uint64_t tail;
    uint64_t end;
};
PartRows rows_of(const lk_cache &cache, const StepSequence &part) {
    const Plan &plan = cache.plan.model;
    const uint64_t limit = part.sequence->length + part.n_new;
    const uint64_t begin = block_of_token(plan, part.sequence->length);
    const uint64_t end = block_count(plan, limit);
    return {begin, std::clamp(due_blocks(plan, limit), begin, end), end};
}

// New tokens of a long step in one row.
struct RowTokens {
    uint32_t first;  // of the sequence's new tokens
    uint32_t n;
};
RowTokens tokens_of(const Plan &plan, const StepSequence &part, uint64_t row) {
    const uint64_t length = part.sequence->length;
    const uint64_t row_begin = block_first_token(plan, row);
    const uint64_t row_end = block_first_token(plan, row + 1);
    const uint64_t begin = row_begin > length ? row_begin : length;
    const uint64_t limit = length + part.n_new;
    const uint64_t end = row_end < limit ? row_end : limit;
    return {static_cast<uint32_t>(begin - length), static_cast<uint32_t>(end - begin)};
}

// The place of a long step's sums of a row's own tokens for one layer, after the one of all that a
// row has seen.
uint64_t own_sums(const LayerInfo &layer, const StepSequence &part, uint64_t i) {
    return part.row_sums + (1 + i) * layer.n_ranked_channels * kSumBytes;
}

// As few runs as rows of one size allow.
lk_status sum_rows(lk_cache *cache, QueryStatArgs *args, const StepSequence &part) {
    const Plan &plan = cache->plan.model;
    const LayerInfo &layer = cache->layers[args->layer_index];
    const PartRows rows = rows_of(*cache, part);
    lk_status status = LK_OK;
    for (uint64_t first = rows.begin; !status && first < rows.end;) {
        const RowTokens tokens = tokens_of(plan, part, first);
        QueryStatRun run = {own_sums(layer, part, first - rows.begin),
                            layer.n_ranked_channels * kSumBytes,
                            part.first_new + tokens.first,
                            tokens.n,
                            tokens.n,
                            0,
                            0};
        uint64_t row = first + 1;
        for (uint32_t n = tokens.n; row < rows.end && n == tokens.n; ++row) {
            n = tokens_of(plan, part, row).n;
            if (n > tokens.n)
                break;
            run.n_tokens += n;
        }
        first = row;
        status = queue_run(cache, args, run, layer.score_offset);
    }
    return status;
}

// What a long step's rows add up to, in the order of tokens, and the keys of its direct rows.
class RowWalk {
  public:
    RowWalk(lk_cache *cache, uint32_t layer, const StepSequence &part)
        : cache_(*cache),
          layer_(cache->layers[layer]),
          layer_index_(layer),
          part_(part),
          scores_(*part.sequence->scores),
          device_sums_(cache->device->query_stats()),
          seen_(device_sums_ + part.row_sums) {}

    lk_status run();

  private:
    lk_status add(uint64_t target, uint64_t source, bool replaces);
    lk_status start();
    lk_status score_row(uint64_t row, uint64_t own);
    lk_status queue_keys(const Row &row, uint64_t sums);
    uint64_t of_layer(uint64_t array) const { return array + layer_.score_offset * kSumBytes; }

    lk_cache &cache_;
    const LayerInfo &layer_;
    const uint32_t layer_index_;
    const StepSequence &part_;
    const Scores &scores_;
    const uint64_t device_sums_;
    const uint64_t seen_;   // all |Q| up to the row
    size_t next_item_ = 0;  // of the increments that are not yet in it
    uint32_t follows_ = 0;
};

// source 0: nothing.
lk_status RowWalk::add(uint64_t target, uint64_t source, bool replaces) {
    const uint32_t flags = follows_ | (replaces ? uint32_t{kStatReplaces} : 0u);
    follows_ = kStatFollows;
    return cache_.sums.add({target, source, source ? 1u : 0u, 0, layer_.n_ranked_channels, flags});
}

lk_status RowWalk::start() {
    lk_status status = LK_OK;
    for (uint64_t s = 0; !status && s < part_.n_sums; ++s)
        status = add(of_layer(device_sums_ + part_.sums + s * cache_.n_ranked_channels * kSumBytes),
                     0, true);
    return status ? status : add(seen_, of_layer(scores_.base()), true);
}

lk_status RowWalk::queue_keys(const Row &row, uint64_t sums) {
    const LayerView &view = layer_.view;
    const Staging staging = staging_of(&cache_, layer_index_);
    const uint64_t token = part_.first_new + (row.first_token - part_.sequence->length);
    for (uint32_t head = 0; head < view.n_kv_heads; ++head) {
        const EntryInfo &info = cache_.entries[layer_.first_entry + head];
        const PageEntry &entry = row.entries[layer_.first_entry + head];
        if (!info.ranks_by_queries)
            continue;
        if (cache_.packs.size() == kBatch) {
            const lk_status status = flush_packs(&cache_);
            if (status)
                return status;
        }
        const uint64_t at = (uint64_t{head} * staging.n_tokens + token) * view.head_dim;
        cache_.packs.push({&cache_.classes[entry.key_format], entry.key_payload, entry.key_metadata,
                           nullptr, 0, staging.keys + at,
                           sums + (info.score_offset - layer_.score_offset) * kSumBytes});
    }
    return LK_OK;
}

lk_status RowWalk::score_row(uint64_t row, uint64_t own) {
    lk_status status = LK_OK;
    for (; !status && next_item_ < scores_.n_items() && scores_.item_row(next_item_) <= row;
         ++next_item_)
        status = add(seen_, of_layer(scores_.item_sums(next_item_)), false);
    bool is_gap;
    const uint64_t kept = device_sums_ + row_sums(&cache_, part_, row, &is_gap);
    if (!status)
        status = add(seen_, own, false);
    if (!status)
        status = add(of_layer(kept), own, false);
    if (status || !is_gap)
        return status;
    status = add(own, seen_, true);
    return status ? status : queue_keys(*part_.sequence->row(row), own);
}

lk_status RowWalk::run() {
    const PartRows rows = rows_of(cache_, part_);
    lk_status status = start();
    for (uint64_t row = rows.begin; !status && row < rows.end; ++row)
        status = score_row(row, device_sums_ + own_sums(layer_, part_, row - rows.begin));
    return status ? status : flush_packs(&cache_);
}

// Up to LK_DRAFT_TOKENS tokens have a sum each, since any of them may go. A longer step is kept as
// a whole: 0 for sinks, 1 for the row that it fills up, 2 for all rows that it writes packed, then
// one for each row that stays at 16 bits.
uint64_t sum_slots(const StepSequence &part, const PartRows &rows) {
    return part.is_draft() ? part.n_new : 3 + rows.end - rows.tail;
}
uint64_t slot_of(const Plan &plan, const PartRows &rows, uint64_t row, bool is_gap) {
    if (is_sink_block(plan, row))
        return 0;
    if (is_gap)
        return 2;
    return row < rows.tail ? 1 : 3 + row - rows.tail;
}

}  // namespace

lk_status sum_layer(lk_cache *cache, uint32_t layer, const TensorView &q) {
    QueryStatArgs args = {cache->layers[layer].view, layer, q, nullptr, 0};
    const Array<StepSequence> &parts = cache->step.sequences;
    lk_status status = LK_OK;
    for (size_t first = 0; !status && first < parts.size();) {
        const StepSequence &part = parts[first++];
        if (!part.is_draft()) {
            status = sum_rows(cache, &args, part);
            continue;
        }
        // Short ones that follow each other have their sums behind each other.
        QueryStatRun run = {
            part.sums, cache->n_ranked_channels * kSumBytes, part.first_new, part.n_new, 1, 0, 0};
        for (; first < parts.size() && parts[first].is_draft(); ++first)
            run.n_tokens += parts[first].n_new;
        status = queue_run(cache, &args, run, 0);
    }
    if (!status)
        status = flush_runs(cache, &args);
    for (const StepSequence &part : parts)
        if (!status && !part.is_draft())
            status = RowWalk(cache, layer, part).run();
    return status;
}

lk_status place_sums(lk_cache *cache) {
    Step &step = cache->step;
    step.query_stat_bytes = 0;
    if (!cache->n_ranked_channels)
        return LK_OK;
    uint64_t widest = 0;
    for (const LayerInfo &layer : cache->layers)
        widest = layer.n_ranked_channels > widest ? layer.n_ranked_channels : widest;
    uint64_t n_sums = 0;
    for (StepSequence &part : step.sequences) {
        const PartRows rows = rows_of(*cache, part);
        const uint64_t n_rows = rows.end - rows.begin;
        part.n_sums = sum_slots(part, rows);
        n_sums += part.n_sums;
        part.sums = step.query_stat_bytes;
        part.row_sums = part.sums + part.n_sums * cache->n_ranked_channels * kSumBytes;
        step.query_stat_bytes =
            part.row_sums + (part.is_draft() ? 0 : (1 + n_rows) * widest * kSumBytes);
    }
    // A sequence that is added before they are handed over has one more.
    return cache->sums.reserve(n_sums + cache->desc.max_sequences)
               ? LK_OK
               : fail(LK_E_NOMEM, "no memory for a list of %llu sums", ull{n_sums});
}

uint64_t row_sums(const lk_cache *cache, const StepSequence &part, uint64_t row, bool *is_gap) {
    const Plan &plan = cache->plan.model;
    *is_gap = packs_on_append(plan, row, part.sequence->length, part.n_new);
    const uint64_t slot = slot_of(plan, rows_of(*cache, part), row, *is_gap);
    return part.sums + slot * cache->n_ranked_channels * kSumBytes;
}

}  // namespace lk
