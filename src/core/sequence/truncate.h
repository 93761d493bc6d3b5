// Truncation: a sequence keeps its first tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_TRUNCATE_H
#define LK_CORE_SEQUENCE_TRUNCATE_H

#include "core/sequence/sequence.h"

namespace lk {

// As lk_sequence_truncate().
lk_status truncate_sequence(lk_cache *cache, lk_sequence id, uint64_t n_tokens);
// The same of a sequence; no step is open, the queue is not captured, and recurrent states have a
// version there.
lk_status cut_sequence(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);

}  // namespace lk

#endif
