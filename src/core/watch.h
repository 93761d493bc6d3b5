// Attention mass of the chunks of a sequence's context (lk_chunks_score_attention()). A watch waits
// for the next step of its sequence, gathers in its attends, and has scores once the step is
// committed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_WATCH_H
#define LK_CORE_WATCH_H

#include "core/step.h"

namespace lk {

struct Watch {
    explicit Watch(const Allocator &allocator) : layers(allocator) {}

    uint32_t n_query_tokens = 0;
    uint32_t chunk_tokens = 0;
    uint32_t n_chunks = 0;
    uint32_t max_units = 0;    // ChunkAttention
    Array<uint8_t> layers;     // [n_layers] 1 where it is watched
    SlabMemory memory{};       // masses, then partials
    bool is_open = false;      // the open step is the one
    uint32_t first_query = 0;  // of the step's new tokens
    uint32_t n_attended = 0;   // watched layers so far
    uint32_t n_scored = 0;     // layers that the scores are of; 0 = there are none yet

    uint64_t context_tokens() const { return uint64_t{n_chunks} * chunk_tokens; }
};

inline bool is_watched(const StepSequence &part) {
    return part.sequence->watch && part.sequence->watch->is_open;
}

// lk_step_begin(). Can the watch that waits have this step? LK_E_ARGUMENT.
lk_status check_watch(const lk_cache *cache, const StepSequence &part, bool has_parents);
// Room to list the watches of the step. LK_E_NOMEM.
lk_status reserve_watches(lk_cache *cache);
void begin_watches(lk_cache *cache);

// lk_attend(). What is watched of the layer; LK_E_STATE while the queue is captured.
lk_status list_watches(lk_cache *cache, AttendArgs *args);
void count_watches(lk_cache *cache, uint32_t layer);

// The sequence's tokens are kept: there are scores if a layer was attended. Or dropped: the watch
// waits again.
void keep_watch(StepSequence *part);
void return_watch(StepSequence *part);

// The sequence keeps n_tokens tokens: a watch whose context is cut ends.
void cut_watch(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
void drop_watch(lk_cache *cache, Sequence *sequence);

}  // namespace lk

#endif
