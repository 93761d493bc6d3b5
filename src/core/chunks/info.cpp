// What hosts read of the chunks of a sequence.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstddef>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/chunks/order.h"
#include "core/chunks/pending.h"
#include "core/chunks/retain.h"

namespace lk {

namespace {

constexpr size_t kOldestInfo = offsetof(lk_chunks_info, n_pending);

// The class that a block keeps its chunks at, as hosts know it.
lk_chunk_class stored_class(const lk_cache *cache, const CacheBlock &block) {
    const uint8_t width = width_of(cache, block);
    if (width != kAt16Bits)
        return width;
    const ChunkRule &chunks = cache->plan.model.chunks;
    return is_raw_block(cache->formats, block) && chunks.cap(LK_CHUNK_HIGH) == 16 ? LK_CHUNK_HIGH
                                                                                  : LK_CHUNK_NONE;
}

struct ChunkLists {
    uint32_t capacity;
    lk_chunk_class *assigned;
    lk_chunk_class *stored;
    uint32_t *order;
};

void count_chunk(lk_chunk_class assigned, lk_chunk_class stored, lk_chunks_info *info) {
    const auto rank = [](lk_chunk_class c) { return c ? c : lk_chunk_class{kAt16Bits}; };
    info->n_low += stored == LK_CHUNK_LOW;
    info->n_middle += stored == LK_CHUNK_MIDDLE;
    info->n_high += stored == LK_CHUNK_HIGH;
    info->n_wider += assigned && rank(stored) > assigned;
    info->n_narrower += assigned && rank(stored) < assigned;
}

lk_status describe(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                   const ChunkLists &lists) {
    Sequence *sequence;
    LK_TRY(find_chunked(cache, id, &sequence));
    const ChunkList *chunks = sequence->chunks;
    const PendingChunks *pending = sequence->pending;
    const ChunkShape shape(cache->plan.model);
    const uint64_t n_present = count_chunks(cache, sequence->length);
    const uint64_t n_listed = chunks ? chunks->size() : 0;
    const uint64_t n_chunks = pending  ? std::min<uint64_t>(n_present, pending->size())
                              : chunks ? n_listed
                                       : n_present;
    lk_chunks_info found{};
    found.n_chunks = static_cast<uint32_t>(n_chunks);
    found.chunk_tokens = shape.chunk_tokens;
    found.deferral = sequence->deferral;
    found.is_assigned = chunks || pending;
    found.first_token = first_chunk_token(cache);
    found.retained_bytes = sequence->originals ? sequence->originals->bytes.size() : 0;
    const bool has_lists = lists.assigned || lists.stored || lists.order;
    const bool fits = !has_lists || lists.capacity >= n_chunks;
    uint32_t n_packed = 0;
    for (uint32_t p = 0; p < n_chunks; ++p) {
        const uint32_t chunk = p < n_listed ? chunks->order[p] : p;
        const lk_chunk_class assigned = pending        ? pending->assigned[chunk]
                                        : p < n_listed ? chunks->assigned[chunk]
                                                       : lk_chunk_class{LK_CHUNK_NONE};
        const uint64_t block = sink_blocks(cache->plan.model) + shape.block_of_index(p);
        const lk_chunk_class stored = stored_class(cache, *sequence->block(block));
        count_chunk(assigned, stored, &found);
        n_packed += width_of(cache, *sequence->block(block)) != kAt16Bits;
        if (fits && lists.assigned)
            lists.assigned[chunk] = assigned;
        if (fits && lists.stored)
            lists.stored[chunk] = stored;
        if (fits && lists.order)
            lists.order[p] = chunk;
    }
    found.n_pending = pending ? pending->size() - n_packed : 0;
    if (info) {
        const lk_status exported =
            export_struct(info, &found, sizeof found, kOldestInfo, "chunks_info");
        if (exported)
            return exported;
    }
    return fits ? LK_OK
                : fail(LK_E_ARGUMENT,
                       "sequence %llu has %llu chunks, the lists have a capacity of %u", ull{id},
                       ull{n_chunks}, lists.capacity);
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_chunks_info_init(lk_chunks_info *info, size_t struct_bytes) {
    return lk::init_struct(info, struct_bytes, lk::kOldestInfo, "chunks_info");
}

extern "C" lk_status lk_chunks_get(const lk_cache *cache, lk_sequence id, lk_chunks_info *info,
                                   uint32_t capacity, lk_chunk_class *assigned,
                                   lk_chunk_class *stored, uint32_t *order) {
    return lk::read_cache(cache, [&] {
        return lk::describe(cache, id, info, {capacity, assigned, stored, order});
    });
}
