// Query statistics of sequences: forks share them until one has new tokens or packs.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_SHARED_QUERY_STATS_H
#define LK_CORE_SEQUENCE_SHARED_QUERY_STATS_H

#include "core/sequence/sequence.h"
#include "core/step/query_stats.h"

namespace lk {

// Fresh ones, which are to be started, copied or restored. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status make_query_stats(lk_cache *cache, QueryStats **out);
// One holder fewer; the last one frees them. Null is fine.
void release_query_stats(lk_cache *cache, QueryStats *stats);
// Forget the sums of blocks from n_blocks on, now or when the sequence has statistics of its own.
lk_status cut_query_stats(lk_cache *cache, Sequence *sequence, uint64_t n_blocks);
// Give the sequence statistics of its own. The shared ones go to *borrowed, which holds them, or
// are released when it is null. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE with nothing changed.
lk_status own_query_stats(lk_cache *cache, Sequence *sequence, QueryStats **borrowed);

}  // namespace lk

#endif
