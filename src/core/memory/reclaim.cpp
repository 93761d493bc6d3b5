// SPDX-License-Identifier: Apache-2.0
#include "core/memory/reclaim.h"

#include "core/cache.h"
#include "core/chunks/defer.h"
#include "core/pages/ladders.h"
#include "core/pages/pack.h"

namespace lk {

namespace {

constexpr uint32_t kPressureIds = 256;  // that a host may name at once

bool is_in_step(const lk_cache *cache, const Sequence &sequence) {
    return sequence.mark == cache->sequences.next_mark;
}

lk_status remove_named(lk_cache *cache, const lk_sequence *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; ++i) {
        const Sequence *sequence = cache->sequences.find(ids[i]);
        if (!sequence || is_in_step(cache, *sequence))
            return fail(LK_E_ARGUMENT, "the pressure callback names sequence %llu, which %s",
                        ull{ids[i]}, sequence ? "is in the step" : "is not there");
    }
    for (uint32_t i = 0; i < n; ++i)
        if (Sequence *sequence = cache->sequences.find(ids[i])) {
            leave_sequence(cache, sequence);
            ++cache->statistics.counts.sequences_evicted;
        }
    return LK_OK;
}

// What the host gives up; LK_E_BUDGET when that is nothing.
lk_status call_pressure(lk_cache *cache, uint64_t shortfall_bytes) {
    lk_sequence ids[kPressureIds] = {};
    lk_pressure pressure{};
    pressure.size = sizeof pressure;
    pressure.capacity = kPressureIds;
    pressure.shortfall_bytes = shortfall_bytes;
    pressure.budget_bytes = cache->ledger.limit_bytes;
    pressure.reserved_bytes = cache->ledger.used_bytes();
    pressure.ids = ids;
    const lk_pressure_action action = cache->desc.pressure(cache->desc.pressure_user, &pressure);
    if (action == LK_PRESSURE_REFUSE)
        return LK_E_BUDGET;
    if (action == LK_PRESSURE_BUDGET) {
        if (pressure.budget_bytes <= cache->ledger.limit_bytes ||
            pressure.budget_bytes > cache->desc.max_budget_bytes)
            return fail(LK_E_ARGUMENT,
                        "the pressure callback's budget is %llu bytes, not above %llu and at most "
                        "max_budget_bytes, %llu",
                        ull{pressure.budget_bytes}, ull{cache->ledger.limit_bytes},
                        ull{cache->desc.max_budget_bytes});
        cache->ledger.limit_bytes = pressure.budget_bytes;
        return LK_OK;
    }
    if (action != LK_PRESSURE_REMOVE)
        return fail(LK_E_ARGUMENT, "the pressure callback returned %u, not an lk_pressure_action",
                    action);
    if (!pressure.n_ids || pressure.n_ids > kPressureIds)
        return fail(LK_E_ARGUMENT, "the pressure callback's n_ids is %u, not 1 to %u",
                    pressure.n_ids, kPressureIds);
    return remove_named(cache, ids, pressure.n_ids);
}

bool evict(lk_cache *cache) {
    Sequence *oldest = nullptr;
    for (Sequence *sequence : cache->sequences)
        if (!is_in_step(cache, *sequence) && (!oldest || sequence->mark < oldest->mark))
            oldest = sequence;
    if (!oldest)
        return false;
    log_line(*cache->context, LK_LOG_INFO, "sequence %llu of %llu tokens is evicted",
             ull{oldest->id}, ull{oldest->length});
    leave_sequence(cache, oldest);
    ++cache->statistics.counts.sequences_evicted;
    return true;
}

}  // namespace

lk_status reclaim(lk_cache *cache, uint64_t shortfall_bytes) {
    uint32_t n_done = 0;
    lk_status status = pack_deferred(cache, &n_done);
    if ((!status || status == LK_E_BUDGET) && !n_done)
        status = shrink_pages(cache, kShrinkBatch, &n_done);
    if (status && status != LK_E_BUDGET)
        return status;
    if (n_done)
        return LK_OK;
    if (cache->desc.pressure)
        return call_pressure(cache, shortfall_bytes);
    return cache->desc.flags & LK_CACHE_EVICT && evict(cache) ? LK_OK : LK_E_BUDGET;
}

lk_status pack_with_reclaim(lk_cache *cache, Sequence *sequence, PackingWork work) {
    for (;;) {
        const lk_status status = work(cache, sequence);
        const lk_status reclaimed = status == LK_E_BUDGET ? reclaim(cache, LK_EXTENT_BYTES) : LK_OK;
        if (reclaimed == LK_E_BUDGET)
            return work(cache, sequence);
        if (status != LK_E_BUDGET || reclaimed)
            return reclaimed ? reclaimed : status;
    }
}

}  // namespace lk
