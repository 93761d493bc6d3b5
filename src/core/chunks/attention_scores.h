// Attention scores of the chunks of a context (lk_chunks_score_attention()). A request waits for
// the next step of its sequence, sums in the attends of that step, and has scores once it is
// committed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_ATTENTION_SCORES_H
#define LK_CORE_CHUNKS_ATTENTION_SCORES_H

#include "core/step/step.h"

namespace lk {

struct AttentionScores {
    explicit AttentionScores(const Allocator &allocator) : layers(allocator) {}

    uint32_t n_query_tokens = 0;
    uint32_t chunk_tokens = 0;
    uint32_t n_chunks = 0;
    uint32_t max_tiles = 0;      // ChunkAttention
    Array<uint8_t> layers;       // [n_layers] 1 where it is scored
    SlabMemory memory{};         // scores by index, then partial results
    uint64_t counted_bytes = 0;  // in the budget: the memory and what is known of it here
    bool is_open = false;        // the open step is the one
    uint32_t first_query = 0;    // of the step's new tokens
    uint32_t n_attended = 0;     // scored layers so far
    uint32_t n_scored = 0;       // layers that the scores are of; 0 = there are none yet

    uint64_t context_tokens() const { return uint64_t{n_chunks} * chunk_tokens; }
};

inline bool has_open_scores(const StepSequence &member) {
    return member.sequence->attention_scores && member.sequence->attention_scores->is_open;
}

// lk_step_begin(). Can the request that waits have this step? LK_E_ARGUMENT.
lk_status check_attention_scores(const lk_cache *cache, const StepSequence &member,
                                 bool has_parents);
// Memory to list the requests of the step. LK_E_NOMEM.
lk_status reserve_attention_scores(lk_cache *cache);
void begin_attention_scores(lk_cache *cache);

// lk_attend(). The requests of the layer; LK_E_STATE while the queue is captured.
lk_status list_attention_scores(lk_cache *cache, AttendArgs *args);
void count_attention_scores(lk_cache *cache, uint32_t layer);

// The sequence's tokens are kept: there are scores if a layer was attended. Or dropped: the request
// waits again.
void keep_attention_scores(StepSequence *member);
void return_attention_scores(StepSequence *member);

// The sequence keeps n_tokens tokens: a request whose context is cut ends.
void cut_attention_scores(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
void drop_attention_scores(lk_cache *cache, Sequence *sequence);

}  // namespace lk

#endif
