// Forks: sequences that begin with the rows of another.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

// What the last of the shared rows holds already, for whom it was written.
void note_written(const Sequence &parent, Row *row) {
    if (row->n_holders > 1)
        return;
    const uint64_t n = parent.length - row->first_token;
    row->n_written = n < row->capacity_tokens ? static_cast<uint32_t>(n) : row->capacity_tokens;
}

lk_status share_rows(lk_cache *cache, Sequence *parent, uint64_t n_tokens, Sequence *child) {
    const uint64_t n_rows = block_count(cache->plan.model, n_tokens);
    const uint64_t bytes = n_rows * kLinkBytes;
    if (cache->ledger.left_bytes() < bytes)
        return fail(LK_E_BUDGET,
                    "the budget of %llu bytes lacks %llu bytes for a fork's list of rows",
                    ull{cache->ledger.limit_bytes}, ull{bytes - cache->ledger.left_bytes()});
    if (!child->rows.reserve(n_rows))
        return fail(LK_E_NOMEM, "no memory for a list of %llu rows", ull{n_rows});
    const lk_status status = enter_sequence(cache, child);
    if (status)
        return status;
    for (uint64_t r = 0; r < n_rows; ++r) {
        Row *row = parent->row(r);
        note_written(*parent, row);
        hold_row(cache, row);
        child->rows.push(row);
    }
    return LK_OK;
}

// Bytes lacked for the rest of its entries: whose packing goes on would change what others see.
bool is_partly_packed(const Row &row) { return row.n_packed && row.n_packed < row.n_entries; }

bool has_partly_packed(Sequence *sequence, uint64_t n_rows) {
    for (uint64_t r = sequence->first_open; r < n_rows; ++r)
        if (is_partly_packed(*sequence->row(r)))
            return true;
    return false;
}

// Rows at 16 bits for those that the parent has packed in part.
lk_status own_partly_packed(lk_cache *cache, Sequence *child) {
    for (uint64_t r = 0; r < child->rows.size(); ++r) {
        Row *shared = child->row(r);
        if (!is_partly_packed(*shared))
            continue;
        const uint64_t n = child->length - shared->first_token;
        const uint32_t capacity = shared->capacity_tokens;
        const lk_status status =
            copy_shared_row(cache, child, r, n < capacity ? static_cast<uint32_t>(n) : capacity);
        if (status)
            return status;
        release_row(cache, shared);
    }
    return LK_OK;
}

lk_status fork_sequence(lk_cache *cache, lk_sequence id, uint64_t n_tokens, lk_sequence *out) {
    Sequence *parent = find_sequence(cache, id);
    if (!parent)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is forked", ull{id});
    if (n_tokens == LK_ALL_TOKENS)
        n_tokens = parent->length;
    if (n_tokens > parent->length)
        return fail(LK_E_ARGUMENT, "n_tokens is %llu, sequence %llu has %llu", ull{n_tokens},
                    ull{id}, ull{parent->length});
    const lk_status visible = check_pages(cache, *parent, n_tokens);
    if (visible)
        return visible;
    // Chunks that were reordered have to be laid out anew, from all of them.
    const bool cuts = cuts_chunks(cache, *parent, n_tokens);
    const uint64_t n_kept = n_tokens;
    const bool copies = has_partly_packed(parent, block_count(cache->plan.model, n_tokens));
    if ((cuts || copies) && cache->device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: fork sequence %llu after",
                    ull{id});
    if (cuts)
        n_tokens = parent->length;
    const Allocator &allocator = cache->context->allocator;
    Sequence *child = create<Sequence>(allocator, allocator);
    if (!child)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    lk_status status = copy_chunks(cache, *parent, child);
    if (!status)
        status = share_rows(cache, parent, n_tokens, child);
    if (status) {
        free_sequence(cache, child);
        return status;
    }
    child->length = n_tokens;
    child->first_open = parent->first_open;
    if (child->first_open > child->rows.size())
        child->first_open = child->rows.size();
    child->first_windowed = parent->first_windowed;
    if (child->first_windowed > child->rows.size())
        child->first_windowed = child->rows.size();
    child->scores = parent->scores;
    child->scores_rows = parent->scores_rows;
    if (child->scores)
        ++child->scores->n_holders;
    if (n_tokens < parent->length)
        status = cut_scores(cache, child, child->rows.size());
    if (copies && !status)
        status = leave_recording(cache);
    if (copies && !status)
        status = own_partly_packed(cache, child);
    cache->stats.n_tokens += n_tokens;
    if (cuts && !status)
        status = cut_sequence(cache, child, n_kept);
    else
        trim_chunks(cache, child, n_tokens);
    cache->slots.trim();
    if (status) {
        leave_sequence(cache, child);
        return status;
    }
    *out = child->id;
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_fork(lk_cache *cache, lk_sequence parent, uint64_t n_tokens,
                                      lk_sequence *child) {
    return lk::on_cache(cache, [&] {
        if (!child)
            return lk::fail(LK_E_ARGUMENT, "child is NULL");
        *child = 0;
        return lk::fork_sequence(cache, parent, n_tokens, child);
    });
}
