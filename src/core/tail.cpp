// Copy on write: who may write to the row that a step's first tokens go to, and a copy for those
// who may not.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

// Tokens of the sequence in its last row.
uint32_t tail_tokens(const Sequence &sequence, const Row &row) {
    const uint64_t n = sequence.length - row.first_token;
    return n < row.capacity_tokens ? static_cast<uint32_t>(n) : row.capacity_tokens;
}

// Behind what any holder has, one of them may write. A packed row is one that a truncation or a
// fork cut while it had other holders.
bool may_write(const lk_cache *cache, const Sequence &sequence, const Row &row) {
    if (row.n_packed)
        return false;
    return row.n_holders == 1 ||
           (row.n_written <= tail_tokens(sequence, row) && row.writer != cache->next_mark);
}

lk_status copy_half(lk_cache *cache, uint16_t from, uint64_t payload, uint64_t metadata,
                    uint16_t to, uint64_t target, uint32_t n_tokens) {
    cache->reopens.push(
        {&cache->classes[from], payload, metadata, &cache->classes[to], target, n_tokens});
    return cache->reopens.size() < kBatch ? LK_OK : flush_reopens(cache);
}

}  // namespace

lk_status flush_reopens(lk_cache *cache) {
    lk_status status = LK_OK;
    if (!cache->reopens.empty())
        status = cache->device->dequantize(cache->reopens.data(),
                                           static_cast<uint32_t>(cache->reopens.size()));
    cache->reopens.clear();
    return status;
}

lk_status copy_raw_halves(lk_cache *cache, const Row &from, const Row &to, uint32_t n_tokens) {
    lk_status status = LK_OK;
    for (uint32_t e = 0; !status && e < to.n_entries; ++e) {
        const PageEntry &source = from.entries[e];
        const PageEntry &target = to.entries[e];
        if (cache->classes[target.key_format].layout.is_raw())
            status = copy_half(cache, source.key_format, source.key_payload, source.key_metadata,
                               target.key_format, target.key_payload, n_tokens);
        if (!status && cache->classes[target.value_format].layout.is_raw())
            status =
                copy_half(cache, source.value_format, source.value_payload, source.value_metadata,
                          target.value_format, target.value_payload, n_tokens);
    }
    return status ? status : flush_reopens(cache);
}

lk_status copy_shared_row(lk_cache *cache, Sequence *sequence, uint64_t index, uint32_t n_tokens) {
    const RowKind kind =
        is_sink_block(cache->plan.model, index) ? RowKind::kSink : RowKind::kRecent;
    Row *own = nullptr;
    lk_status status = create_row(cache, index, kind, &own);
    if (status)
        return status;
    status = copy_raw_halves(cache, *sequence->row(index), *own, n_tokens);
    if (status) {
        release_row(cache, own);
        return status;
    }
    cache->stats.pages_copied += 2u * own->n_entries;
    sequence->rows[index] = own;
    if (sequence->first_open > index)
        sequence->first_open = index;
    return LK_OK;
}

void choose_tails(lk_cache *cache) {
    for (StepSequence &part : cache->step.sequences) {
        Sequence *sequence = part.sequence;
        Row *row = part.n_rows_before ? sequence->row(part.n_rows_before - 1) : nullptr;
        if (!row || tail_tokens(*sequence, *row) == row->capacity_tokens)
            continue;
        part.copies_tail = !may_write(cache, *sequence, *row);
        if (part.copies_tail)
            continue;
        row->writer = cache->next_mark;
        part_twins(row);
    }
}

lk_status own_tail(lk_cache *cache, StepSequence *part) {
    Sequence *sequence = part->sequence;
    lk_status status = own_scores(cache, sequence, &part->borrowed_scores);
    if (status || !part->copies_tail)
        return status;
    const uint64_t index = part->n_rows_before - 1;
    Row *shared = sequence->row(index);
    status = copy_shared_row(cache, sequence, index, tail_tokens(*sequence, *shared));
    if (!status)
        part->borrowed_row = shared;
    return status;
}

void return_tail(lk_cache *cache, StepSequence *part) {
    Sequence *sequence = part->sequence;
    if (part->borrowed_row) {
        release_row(cache, sequence->row(part->n_rows_before - 1));
        sequence->rows[part->n_rows_before - 1] = part->borrowed_row;
    }
    if (part->borrowed_scores) {
        release_scores(cache, sequence->scores);
        sequence->scores = part->borrowed_scores;
    }
    part->borrowed_row = nullptr;
    part->borrowed_scores = nullptr;
}

void keep_tail(lk_cache *cache, StepSequence *part) {
    Sequence *sequence = part->sequence;
    if (part->borrowed_row)
        release_row(cache, part->borrowed_row);
    release_scores(cache, part->borrowed_scores);
    part->borrowed_row = nullptr;
    part->borrowed_scores = nullptr;
    if (!part->n_rows_before)
        return;
    Row *row = sequence->row(part->n_rows_before - 1);
    const uint32_t n_written = tail_tokens(*sequence, *row);
    if (row->n_holders > 1 && row->n_written < n_written)
        row->n_written = n_written;
}

}  // namespace lk
