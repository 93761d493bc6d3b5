// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/chunks.h"

#include "core/cache.h"
#include "core/chunks/order.h"
#include "core/chunks/pending.h"
#include "core/chunks/retain.h"
#include "core/memory/table_space.h"

namespace lk {

// What a block keeps its chunks at. A budget may have ended while the block was packed.
uint8_t width_of(const lk_cache *cache, const CacheBlock &block) {
    const bool has_class = block.chunk_class && (block.n_packed == block.n_entries ||
                                                 !is_raw_block(cache->formats, block));
    return has_class ? static_cast<uint8_t>(block.chunk_class) : kAt16Bits;
}

uint64_t first_chunk_token(const lk_cache *cache) { return cache->plan.model.sink_tokens; }

// Whole chunks of the first n_tokens tokens.
uint64_t count_chunks(const lk_cache *cache, uint64_t n_tokens) {
    const uint64_t first = first_chunk_token(cache);
    return n_tokens > first ? (n_tokens - first) / cache->plan.model.chunks.tokens : 0;
}

lk_status no_chunk_memory(uint64_t n) {
    return fail(LK_E_NOMEM, "no memory for a list of %llu chunks", ull{n});
}

lk_status make_chunks(lk_cache *cache, uint32_t n_chunks, ChunkList **out) {
    const uint64_t bytes = chunks_bytes(n_chunks);
    LK_TRY(make_table_space(cache, bytes, "a list of chunks"));
    const Allocator &allocator = cache->context->allocator;
    ChunkList *chunks = create<ChunkList>(allocator, allocator);
    if (!chunks || !chunks->order.resize(n_chunks) || !chunks->assigned.resize(n_chunks)) {
        destroy(allocator, chunks);
        return no_chunk_memory(n_chunks);
    }
    chunks->counted_bytes = bytes;
    cache->ledger.table_bytes += bytes;
    *out = chunks;
    return LK_OK;
}

void release_chunks(lk_cache *cache, ChunkList *chunks) {
    if (!chunks)
        return;
    cache->ledger.table_bytes -= chunks->counted_bytes;
    destroy(cache->context->allocator, chunks);
}

lk_status copy_chunks(lk_cache *cache, const Sequence &from, Sequence *to) {
    to->deferral = from.deferral;
    share_originals(from, to);
    LK_TRY(copy_pending(cache, from, to));
    if (!from.chunks)
        return LK_OK;
    const uint32_t n = from.chunks->size();
    const lk_status status = make_chunks(cache, n, &to->chunks);
    if (status || !n)
        return status;
    std::memcpy(to->chunks->order.data(), from.chunks->order.data(), n * sizeof(uint32_t));
    std::memcpy(to->chunks->assigned.data(), from.chunks->assigned.data(), n);
    return LK_OK;
}

lk_status read_chunks(const lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                      ChunkOrder *layout) {
    if (!layout->open(n_chunks))
        return no_chunk_memory(n_chunks);
    const ChunkShape shape(cache->plan.model);
    const ChunkList *chunks = sequence.chunks;
    for (uint32_t p = 0; p < n_chunks; ++p) {
        const uint32_t chunk = chunks && p < chunks->size() ? chunks->order[p] : p;
        const uint64_t block = sink_blocks(cache->plan.model) + shape.block_of_index(p);
        layout->order[p] = chunk;
        layout->kept_at[chunk] = width_of(cache, *sequence.block(block));
    }
    return LK_OK;
}

lk_status find_chunked(const lk_cache *cache, lk_sequence id, Sequence **out) {
    *out = cache->sequences.find(id);
    if (!*out)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (!cache->plan.model.chunks.tokens)
        return fail(LK_E_UNSUPPORTED, "plan %s has no chunks: see lk_plan_set_chunks()",
                    cache->plan.model.name);
    return LK_OK;
}

}  // namespace lk
