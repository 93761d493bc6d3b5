// SPDX-License-Identifier: Apache-2.0
#include "core/memory/table_space.h"

#include "core/cache.h"
#include "core/memory/compact.h"

namespace lk {

uint64_t give_slabs_back(lk_cache *cache, uint64_t bytes) {
    cache->slots.trim(bytes);
    while (cache->slots.excess_bytes(bytes) && vacate_slab(cache))
        cache->slots.trim(bytes);
    return cache->slots.excess_bytes(bytes);
}

lk_status make_table_space(lk_cache *cache, uint64_t bytes, const char *purpose) {
    LK_TRY(check_table_bytes(cache->ledger, bytes, purpose));
    if (!cache->slots.excess_bytes(bytes))
        return LK_OK;
    // Pages are moved by work on the cache's queue, and not into what the host records or captures.
    cache->slots.trim(bytes);
    const bool may_move =
        !cache->device->is_capturing() && !is_recorded(*cache->context, cache->step.queue);
    const uint64_t missing =
        may_move ? give_slabs_back(cache, bytes) : cache->slots.excess_bytes(bytes);
    return missing ? fail(LK_E_BUDGET,
                          "the budget of %llu bytes is short of %llu bytes for %s: slabs that are "
                          "in use in part hold %llu",
                          ull{cache->ledger.limit_bytes}, ull{missing}, purpose,
                          ull{cache->slots.slab_bytes()})
                   : LK_OK;
}

}  // namespace lk
