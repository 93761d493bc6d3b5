// A cache, and the concepts that it is made of.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CACHE_H
#define LK_CORE_CACHE_H

#include "core/context/context.h"
#include "core/memory/block_slots.h"
#include "core/memory/slabs.h"
#include "core/memory/statistics.h"
#include "core/pages/formats.h"
#include "core/pages/shrink.h"
#include "core/pages/work_queues.h"
#include "core/sequence/sequence.h"
#include "core/step/query_stats.h"
#include "core/step/step.h"

struct lk_cache {
    lk_cache(lk_context *owner, const lk_cache_desc &from)
        : context(owner),
          desc(from),
          plan(owner->allocator),
          slots(owner->allocator, *owner->backend, ledger,
                from.slab_bytes ? from.slab_bytes : 64u << 20),
          formats(owner->allocator),
          block_slots(owner->allocator),
          sequences(owner->allocator),
          step(owner->allocator),
          work(owner->allocator),
          shrinking(owner->allocator),
          stat_queue(owner->allocator) {}

    lk_context *context;
    lk_cache_desc desc;
    lk_plan plan;  // a copy
    lk::CacheDevice *device = nullptr;

    lk::Ledger ledger;
    lk::Slots slots;
    lk::Formats formats;
    lk::BlockSlots block_slots;
    lk::Sequences sequences;
    lk::Step step;
    lk::WorkQueues work;
    lk::ShrinkLists shrinking;
    lk::StatQueue stat_queue;  // with capacity for what a commit queues
    lk::Statistics statistics;
};

namespace lk {

// Make the statistics of the finished call visible to other threads.
void publish(lk_cache *cache);

// A call of the interface on a cache: run(), then its statistics are published and what failed is
// logged.
template <class Run>
lk_status on_cache(lk_cache *cache, const Run &run) {
    if (!cache)
        return fail(LK_E_ARGUMENT, "cache is NULL");
    const lk_status status = run();
    publish(cache);
    return logged(cache->context, status);
}

}  // namespace lk

#endif
