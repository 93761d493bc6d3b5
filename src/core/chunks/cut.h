// What is left of a sequence's chunks when it is cut.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_CUT_H
#define LK_CORE_CHUNKS_CUT_H

#include "core/sequence/sequence.h"

namespace lk {

// Is the cut within chunks that were reordered? Then cut_chunks() lays out what is left: the
// sequence's blocks and chunks become those of n_tokens tokens. As lay_chunks().
bool cuts_chunks(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);
lk_status cut_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
// Chunks in order, or all of them: forget those that are gone with a length of n_tokens.
void trim_chunks(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);

}  // namespace lk

#endif
