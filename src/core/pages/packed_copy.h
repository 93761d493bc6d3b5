// Packed copies of shared blocks.
//
// A block that other sequences have too stays as it is for them. Its packed copy is made once and
// waits for them, linked from the block; when the last sequence leaves the copy before they come,
// they pack the block themselves. Where query statistics rank the channels, a copy is right for
// those alone whose statistics are the same. They are for forks that hold the block in full, whose
// tokens up to there have been the same ones; but sums of tokens that were truncated may linger
// (query_stats.h), so digests are compared.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_PACKED_COPY_H
#define LK_CORE_PAGES_PACKED_COPY_H

#include "core/sequence/sequence.h"

namespace lk {

// Put the packed copy of a block in the sequence's block table; it is made where there is none.
// The statistics are the sequence's own. False in *is_done: the block has become the sequence's
// alone, and is to be packed in place. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status take_packed_copy(lk_cache *cache, Sequence *sequence, uint64_t index, bool *is_done);

}  // namespace lk

#endif
