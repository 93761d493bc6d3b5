// Reclaiming bytes when the budget is short: deferred chunks are packed, pages go down their
// ladders, the host's pressure callback is called, and the least recently used sequence is removed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_RECLAIM_H
#define LK_CORE_MEMORY_RECLAIM_H

#include "core/sequence/sequence.h"

namespace lk {

// One round, by the first of them that frees bytes. LK_E_BUDGET, without a sentence, when none
// does.
lk_status reclaim(lk_cache *cache, uint64_t shortfall_bytes);
// Pack what is due of a sequence (pack_due_blocks(), lay_pending()), with bytes reclaimed where
// packing takes some. LK_E_BUDGET when they do not suffice.
using PackingWork = lk_status (*)(lk_cache *cache, Sequence *sequence);
lk_status pack_with_reclaim(lk_cache *cache, Sequence *sequence, PackingWork work);

}  // namespace lk

#endif
