// Sliding windows: a layer frees its pages that no later query of it attends to, and a length that
// would need them again is refused.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_WINDOWS_H
#define LK_CORE_SEQUENCE_WINDOWS_H

#include "core/sequence/sequence.h"

namespace lk {

// Free the pages that later queries do not attend to, of packed blocks that no other sequence has;
// none with LK_CACHE_KEEP_WINDOWED.
void free_hidden_pages(lk_cache *cache, Sequence *sequence);
// Are the pages there that queries after n_tokens tokens attend to? LK_E_UNSUPPORTED.
lk_status check_pages(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);

}  // namespace lk

#endif
