// Truncation: a sequence keeps its first tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_TRUNCATE_H
#define LK_CORE_SEQUENCE_TRUNCATE_H

#include "core/sequence/sequence.h"

namespace lk {

// Keep its first n_tokens tokens, as lk_sequence_truncate(); no step is open and the queue is not
// captured.
lk_status cut_sequence(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);

}  // namespace lk

#endif
