// Copy on write: who may write to the block that a step's first tokens go to, and a copy for those
// who may not.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_COPY_ON_WRITE_H
#define LK_CORE_SEQUENCE_COPY_ON_WRITE_H

#include "core/step/step.h"

namespace lk {

// Replace a shared block of the sequence by one of its own at 16 bits, with the first n_tokens
// tokens, of what their codes stand for. The sequence still holds the shared one, which the caller
// releases. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE with nothing changed.
lk_status copy_shared_block(lk_cache *cache, Sequence *sequence, uint64_t index, uint32_t n_tokens);

// Decide which sequences of the step have to copy the block that their tokens begin in.
void choose_tails(lk_cache *cache);
// Give a sequence of the step query statistics of its own, and a last block of its own where it
// copies it. On failure return_tail() undoes what was done.
lk_status own_tail(lk_cache *cache, StepSequence *member);
// Its tokens are dropped: what it shared is shared again.
void return_tail(lk_cache *cache, StepSequence *member);
// Its tokens are kept: the length is the new one.
void keep_tail(lk_cache *cache, StepSequence *member);

}  // namespace lk

#endif
