// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/pending.h"

#include <algorithm>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/lay_out.h"
#include "core/chunks/order.h"
#include "core/chunks/retain.h"
#include "core/memory/table_space.h"

namespace lk {

lk_status make_pending(lk_cache *cache, uint32_t n_chunks, PendingChunks **out) {
    const uint64_t bytes = pending_bytes(n_chunks);
    LK_TRY(make_table_space(cache, bytes, "a list of pending classes"));
    const Allocator &allocator = cache->context->allocator;
    auto *pending = create<PendingChunks>(allocator, allocator);
    if (!pending || !pending->order.resize(n_chunks) || !pending->widths.resize(n_chunks) ||
        !pending->assigned.resize(n_chunks)) {
        destroy(allocator, pending);
        return no_chunk_memory(n_chunks);
    }
    pending->counted_bytes = bytes;
    cache->ledger.table_bytes += bytes;
    *out = pending;
    return LK_OK;
}

void release_pending(lk_cache *cache, PendingChunks *pending) {
    if (!pending)
        return;
    cache->ledger.table_bytes -= pending->counted_bytes;
    destroy(cache->context->allocator, pending);
}

lk_status copy_pending(lk_cache *cache, const Sequence &from, Sequence *to) {
    if (!from.pending)
        return LK_OK;
    LK_TRY(make_pending(cache, from.pending->size(), &to->pending));
    for (uint32_t i = 0; i < from.pending->size(); ++i) {
        to->pending->order[i] = from.pending->order[i];
        to->pending->widths[i] = from.pending->widths[i];
        to->pending->assigned[i] = from.pending->assigned[i];
    }
    to->pending->n_context_tokens = from.pending->n_context_tokens;
    to->pending->n_laid = from.pending->n_laid;
    return LK_OK;
}

void cut_pending(Sequence *sequence, uint64_t n_chunks) {
    if (sequence->pending && sequence->pending->n_laid > n_chunks)
        sequence->pending->n_laid = static_cast<uint32_t>(n_chunks);
}

namespace {

uint32_t listed_chunks(const Sequence &sequence) {
    return sequence.chunks ? sequence.chunks->size() : 0;
}

bool has_context(const Sequence &sequence) {
    return sequence.length >= sequence.pending->n_context_tokens;
}

// Chunks whose blocks may be laid out: all of a context that is complete, else those of whole
// blocks that have left the recent tokens.
uint32_t due_chunks(const lk_cache *cache, const Sequence &sequence) {
    if (has_context(sequence))
        return sequence.pending->size();
    const uint64_t recent = cache->plan.model.recent_tokens;
    const uint64_t n = sequence.length > recent ? count_chunks(cache, sequence.length - recent) : 0;
    return static_cast<uint32_t>(n - n % ChunkShape(cache->plan.model).block_chunks);
}

// Does the block whose first chunk is at this index have a class, and one of the first n_chunks
// chunks only?
bool is_complete(const PendingChunks &pending, const ChunkShape &shape, uint32_t first,
                 uint32_t n_chunks, uint32_t *last_chunk) {
    if (pending.widths[pending.order[first]] == kAt16Bits)
        return false;
    *last_chunk = 0;
    for (uint32_t i = first; i < first + shape.block_chunks; ++i)
        *last_chunk = std::max(*last_chunk, pending.order[i]);
    return *last_chunk < n_chunks;
}

bool has_new_block(const lk_cache *cache, const PendingChunks &pending, uint32_t n_chunks) {
    const ChunkShape shape(cache->plan.model);
    uint32_t last_chunk = 0;
    for (uint32_t first = 0; first < pending.size(); first += shape.block_chunks)
        if (is_complete(pending, shape, first, n_chunks, &last_chunk) &&
            last_chunk >= pending.n_laid)
            return true;
    return false;
}

// Complete blocks in the order of the whole context, then the chunks that wait, as they lie.
lk_status order_complete(const lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                         ChunkOrder *layout) {
    const PendingChunks &pending = *sequence.pending;
    const ChunkShape shape(cache->plan.model);
    const bool reorders = cache->plan.model.chunks.reorder;
    Array<uint8_t> is_placed(cache->context->allocator);
    if (!is_placed.resize(n_chunks) || !layout->wanted.assign(pending.widths.data(), n_chunks) ||
        !layout->order.reserve(n_chunks) ||
        !layout->block_classes.reserve(uint64_t{n_chunks} * shape.chunk_blocks))
        return no_chunk_memory(n_chunks);
    uint32_t last_chunk = 0;
    for (uint32_t first = 0; reorders && first < pending.size(); first += shape.block_chunks) {
        if (!is_complete(pending, shape, first, n_chunks, &last_chunk))
            continue;
        for (uint32_t i = first; i < first + shape.block_chunks; ++i) {
            is_placed[pending.order[i]] = 1;
            (void)layout->order.push(pending.order[i]);
        }
        for (uint32_t i = 0; i < shape.chunk_blocks; ++i)
            (void)layout->block_classes.push(pending.widths[pending.order[first]]);
    }
    for (uint32_t p = 0; p < n_chunks; ++p) {
        const uint32_t chunk = p < listed_chunks(sequence) ? sequence.chunks->order[p] : p;
        if (!is_placed[chunk])
            (void)layout->order.push(chunk);
        if (!reorders)  // a block is a chunk
            (void)layout->block_classes.push(pending.widths[chunk]);
    }
    return LK_OK;
}

lk_status lay_until(lk_cache *cache, Sequence *sequence, uint32_t n_chunks) {
    PendingChunks *pending = sequence->pending;
    const bool is_last = n_chunks == pending->size() && has_context(*sequence);
    if (is_last || has_new_block(cache, *pending, n_chunks)) {
        ChunkOrder layout(cache->context->allocator);
        LK_TRY(order_complete(cache, *sequence, n_chunks, &layout));
        const uint32_t n_before = listed_chunks(*sequence);
        const bool is_retained = may_retain(cache, *sequence, n_before, n_chunks);
        if (is_retained)
            LK_TRY(add_originals(cache, sequence, n_before, n_chunks));
        LK_TRY(lay_context(cache, sequence, layout, pending->assigned.data()));
        if (is_retained)
            sequence->n_retained = n_chunks;
    }
    pending->n_laid = n_chunks;
    return LK_OK;
}

}  // namespace

uint32_t chunks_of_next_step(const lk_cache *cache, const Sequence &sequence) {
    const uint32_t n_listed = listed_chunks(sequence);
    if (!sequence.pending)
        return n_listed;
    const uint32_t n_due = due_chunks(cache, sequence);
    const bool is_laid = has_context(sequence) ||
                         (n_due > n_listed && has_new_block(cache, *sequence.pending, n_due));
    return is_laid ? n_due : n_listed;
}

// New blocks are made next to the old ones. Where the budget does not hold those of all chunks, the
// blocks of fewer chunks go first, and their bytes at 16 bits are free for the next ones.
lk_status lay_pending(lk_cache *cache, Sequence *sequence) {
    PendingChunks *pending = sequence->pending;
    if (!pending || cache->device->is_capturing())
        return LK_OK;
    const bool is_last = has_context(*sequence);
    const uint32_t end = chunks_of_next_step(cache, *sequence);
    const uint32_t block_chunks = ChunkShape(cache->plan.model).block_chunks;
    if (end == listed_chunks(*sequence) && !is_last)
        return LK_OK;
    uint32_t n = end;
    for (bool is_done = false; !is_done;) {
        const lk_status status = lay_until(cache, sequence, n);
        const uint32_t base = std::max(pending->n_laid, listed_chunks(*sequence));
        const uint32_t middle = base < n ? base + (n - base) / 2 : 0;
        const uint32_t fewer = middle - middle % block_chunks;
        const bool may_split = status == LK_E_BUDGET && fewer > base;
        if (status && !may_split)
            return status;
        is_done = !status && n == end;
        n = may_split ? fewer : end;
    }
    if (is_last) {
        sequence->pending = nullptr;
        release_pending(cache, pending);
    }
    return LK_OK;
}

}  // namespace lk
