// Compaction: with page rows coming and going, extents of 16-bit slots may each be used in part.
// When the budget ends, the slots of the sparsest are moved together, so that a size never holds
// more extents than its slots fill. Packed halves stay where they are: only truncation and removal
// free any of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

// A 16-bit half in the extent that is to be emptied, and its new place.
struct Move {
    PageRow *row;
    uint64_t *payload;
    uint64_t target;
    uint16_t half_class;
};

bool find_half(const lk_cache *cache, const ExtentSpan &span, PageRow *row, uint16_t half_class,
               uint64_t *payload, Array<Move> *moves) {
    if (*payload < span.first || *payload >= span.first + LK_EXTENT_BYTES ||
        !cache->classes[half_class].shape.is_raw())
        return true;
    return moves->push({row, payload, 0, half_class});
}

// All 16-bit halves in the extent; false when that is not everything in it.
bool find_halves(lk_cache *cache, const ExtentSpan &span, Array<Move> *moves) {
    ++cache->next_walk;
    for (Sequence *sequence : cache->sequences)
        for (uint64_t r = 0; r < sequence->rows.size(); ++r) {
            Row *row = sequence->row(r);
            if (row->walk == cache->next_walk)
                continue;
            row->walk = cache->next_walk;
            for (uint32_t e = 0; e < row->n_entries; ++e) {
                PageEntry &entry = row->entries[e];
                if (!find_half(cache, span, row, entry.key_class, &entry.key_payload, moves) ||
                    !find_half(cache, span, row, entry.value_class, &entry.value_payload, moves))
                    return false;
            }
        }
    return moves->size() == span.n_used;
}

bool copy_half(lk_cache *cache, const Move &move) {
    const HalfClass &half = cache->classes[move.half_class];
    const ReopenItem item = {&half, *move.payload, 0, &half, move.target, half.shape.page_tokens};
    return cache->device->reopen(&item, 1) == LK_OK;
}

// Move what can be moved; a half that the device does not copy stays.
void move_halves(lk_cache *cache, uint64_t slot, Array<Move> *moves) {
    for (Move &move : *moves) {
        if (cache->slots.take(slot, &move.target))
            return;
        if (!copy_half(cache, move)) {
            cache->slots.give(move.target);
            return;
        }
        cache->slots.give(*move.payload);
        *move.payload = move.target;
        if (cache->device->entries_changed(move.row))
            return;
    }
}

}  // namespace

bool compact(lk_cache *cache) {
    const uint64_t before = cache->ledger.extent_bytes;
    Array<Move> moves(cache->context->allocator);
    for (uint32_t size = 0; size < cache->slots.n_sizes(); ++size) {
        ExtentSpan span;
        while (cache->slots.hide_sparsest(size, &span)) {
            moves.clear();
            if (find_halves(cache, span, &moves))
                move_halves(cache, cache->slots.size_of(size), &moves);
        }
        cache->slots.show_hidden(size);
    }
    return cache->ledger.extent_bytes < before;
}

}  // namespace lk
