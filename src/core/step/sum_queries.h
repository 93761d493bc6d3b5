// Query statistics of a step's new tokens: one sum for each token of a short step, since any of
// them may be dropped; of a long one a sum for each block, and the keys of blocks that it writes
// packed are ranked by them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_SUM_QUERIES_H
#define LK_CORE_STEP_SUM_QUERIES_H

#include "core/step/step.h"

namespace lk {

// A long step is kept as a whole, and its StepSequence::n_stats sums are: 0 for sinks, 1 for the
// block that it fills up, 2 for all blocks that it writes packed, then one for each block that
// stays at 16 bits. Find offsets for the statistics of the step's sequences, and reserve the queue
// for what a commit adds. They are apart from the sequences' own: the caller may drop the tokens.
// LK_E_NOMEM.
lk_status reserve_query_stats(lk_cache *cache);
// Sum the queries of a layer, and pack the keys of blocks packed on append that are ranked by them.
lk_status sum_layer(lk_cache *cache, uint32_t layer, const TensorView &q);
// Of a long step: the offset of the sum that a block's tokens are kept in, from
// CacheDevice::query_stats(). Is the block one that was written packed?
uint64_t block_stats(const lk_cache *cache, const StepSequence &member, uint64_t block,
                     bool *is_gap);

}  // namespace lk

#endif
