// Deferral: Cocktail keeps the prompt at FP16 until its chunks have classes, or packs its oldest
// blocks as middle chunks when the budget is short and the host allows it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_DEFER_H
#define LK_CORE_CHUNKS_DEFER_H

#include "core/sequence/sequence.h"

namespace lk {

// The first block that the plan's own packing may take: after chunks that have classes; none while
// tokens are held at 16 bits.
uint64_t first_to_pack(const lk_cache *cache, const Sequence &sequence);
// Pack the oldest blocks of sequences that are deferred and allow it; *n_done is raised by pages.
// LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status pack_deferred(lk_cache *cache, uint32_t *n_done);

}  // namespace lk

#endif
