// A cache, and the concepts that it is made of.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CACHE_H
#define LK_CORE_CACHE_H

#include "core/context/call.h"
#include "core/memory/block_slots.h"
#include "core/memory/layer_budgets.h"
#include "core/memory/slabs.h"
#include "core/memory/statistics.h"
#include "core/pages/formats.h"
#include "core/pages/shrink.h"
#include "core/pages/work_queues.h"
#include "core/sequence/sequence.h"
#include "core/state/states.h"
#include "core/step/query_stats.h"
#include "core/step/step.h"

struct lk_cache {
    lk_cache(lk_context *owner, const lk_cache_desc &from)
        : context(owner),
          desc(from),
          generation(owner->generation.load()),
          plan(owner->allocator),
          slots(owner->allocator, *owner->backend, ledger,
                from.slab_bytes ? from.slab_bytes : 64u << 20),
          formats(owner->allocator),
          block_slots(owner->allocator),
          layer_budgets(owner->allocator),
          sequences(owner->allocator),
          states(owner->allocator),
          step(owner->allocator),
          work(owner->allocator),
          shrinking(owner->allocator),
          stat_queue(owner->allocator) {}

    lk_context *context;
    lk_cache_desc desc;
    // Of enter_cache(). In a process that fork() made, the first call changes them.
    mutable std::atomic<uint32_t> generation;  // of the context, when the cache was last used
    mutable uint32_t n_calls = 0;              // that run and have the cache alone
    mutable bool is_torn = false;  // a thread of the parent process was changing the cache
    lk_plan plan;                  // a copy
    lk::CacheDevice *device = nullptr;

    lk::Ledger ledger;
    lk::Slots slots;
    lk::Formats formats;
    lk::BlockSlots block_slots;
    lk::LayerBudgets layer_budgets;
    lk::Sequences sequences;
    lk::States states;
    lk::Step step;
    lk::WorkQueues work;
    lk::ShrinkLists shrinking;
    lk::StatQueue stat_queue;  // with capacity for what a commit queues
    lk::Statistics statistics;
};

namespace lk {

// A caller's description over the defaults.
lk_status import_cache_desc(const lk_cache_desc *from, lk_cache_desc *out);

// Make the statistics of the finished call visible to other threads.
void publish(lk_cache *cache);

// LK_OK where calls on the cache may run in this process. The first call in a child process renews
// the cache's locks. LK_E_DEVICE: the process was forked in the middle of a call, so this copy of
// the cache is neither as before nor as after the call.
lk_status enter_cache(const lk_cache &cache);

// A call on a cache that others may read meanwhile: run() where it may run.
template <class Run>
lk_status read_cache(const lk_cache *cache, const Run &run) {
    if (!cache)
        return fail(LK_E_ARGUMENT, "cache is NULL");
    const Call call(*cache->context);
    LK_TRY(call.status());
    LK_TRY(enter_cache(*cache));
    return run();
}

// A call that has the cache alone: run() where it may run, and what failed is logged.
template <class Run>
lk_status use_cache(lk_cache *cache, const Run &run) {
    const lk_status status = read_cache(cache, [&] {
        ++cache->n_calls;
        const lk_status result = run();
        --cache->n_calls;
        return result;
    });
    return cache ? logged(cache->context, status) : status;
}

// The same, and its statistics are published.
template <class Run>
lk_status on_cache(lk_cache *cache, const Run &run) {
    return use_cache(cache, [&] {
        const lk_status status = run();
        publish(cache);
        return status;
    });
}

}  // namespace lk

#endif
