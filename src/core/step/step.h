// The open step of a cache.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_STEP_H
#define LK_CORE_STEP_STEP_H

#include "backend/backend.h"
#include "core/context/tensor.h"
#include "core/sequence/sequence.h"
#include "core/step/replay.h"

#include <lowkey/step.h>

namespace lk {

static_assert(kDraftTokens == LK_DRAFT_TOKENS, "devices take drafts as long as the interface");

// A sequence that takes part in a step: a member of the step.
struct StepSequence {
    Sequence *sequence;
    uint32_t n_new;
    uint32_t first_new;     // of the batch
    const int32_t *parent;  // [n_new] or null
    const uint32_t *reach;  // as BatchSequence's
    // Provisional query statistics, as offsets in bytes from CacheDevice::query_stats().
    uint64_t stats;        // u64 [n_stats][ranked channels]
    uint64_t n_stats;      // n_new up to LK_DRAFT_TOKENS; else see sum_queries.h
    uint64_t block_stats;  // of a longer step, per layer: u64 [1 + blocks][its channels]
    uint64_t n_blocks_before;
    uint32_t n_moved;            // tokens of a path that are where they are kept
    bool copies_tail;            // its last block may not be written to
    CacheBlock *borrowed_block;  // that one, once its copy is in the block table
    QueryStats *borrowed_stats;  // those it shared until then
    StateVersion *next_version;  // that a commit adds; null = it writes to the sequence's newest

    bool is_draft() const { return n_new <= LK_DRAFT_TOKENS; }
};

static_assert(sizeof(Sequence) + sizeof(Sequence *) + sizeof(StepSequence) +
                      sizeof(BatchSequence) <=
                  kSequenceBytes,
              "sequences are counted in the budget with what lists have for them");

constexpr uint32_t kNoLayer = UINT32_MAX;
enum LayerState : uint8_t { kNoKeys, kHasKeys, kAttended };

struct Step {
    explicit Step(const Allocator &allocator)
        : sequences(allocator),
          views(allocator),
          parents(allocator),
          reaches(allocator),
          layers(allocator),
          attention_scores(allocator),
          captured(allocator) {}

    bool is_open = false;
    bool is_poisoned = false;
    uint32_t n_tokens = 0;
    uint32_t last_layer = kNoLayer;  // whose keys were appended last
    Array<StepSequence> sequences;
    Array<BatchSequence> views;
    Array<int32_t> parents;
    Array<uint32_t> reaches;  // of a step with spans
    bool spans_are_windowed = false;
    Array<uint8_t> layers;  // LayerState
    uint64_t query_stat_bytes = 0;
    Array<ChunkAttention> attention_scores;  // of the layer at hand
    ReplayShapes captured;                   // in graphs
    lk_queue_kind queue = 0;                 // 0 = none was given
    TensorRange k;                           // of the last layer
    TensorRange v;
    SlabMemory workspace{};  // the staging area
};

// The staging area as the tokens of the layer's KV layer fill it.
Staging staging_of(const lk_cache *cache, uint32_t layer);

// Drop the tokens that the step has for a sequence, or for all of them.
void drop_tokens(lk_cache *cache, StepSequence *member);
void drop_step(lk_cache *cache);

// Before work outside of a step: the command buffer that the last step was recorded into is the
// host's again. LK_E_DEVICE.
lk_status leave_recording(lk_cache *cache);

}  // namespace lk

#endif
