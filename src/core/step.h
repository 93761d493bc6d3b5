// The open step of a cache.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_H
#define LK_CORE_STEP_H

#include "backend/backend.h"
#include "core/sequence.h"
#include "core/tensor.h"

#include <lowkey/step.h>

namespace lk {

struct StepSequence {
    Sequence *sequence;
    uint32_t n_new;
    uint32_t first_new;     // of the batch
    const int32_t *parent;  // [n_new] or null
    // Provisional sums of |Q|, in bytes behind CacheDevice::query_stats().
    uint64_t sums;      // u64 [n_sums][ranked channels]
    uint64_t n_sums;    // n_new up to LK_DRAFT_TOKENS; else see sum_slots() in query_sums.cpp
    uint64_t row_sums;  // of a longer step, for a layer at a time: u64 [1 + rows][its channels]
    uint64_t n_rows_before;
    uint32_t n_moved;         // tokens of a path that are where they are kept
    bool copies_tail;         // its last row may not be written to
    Row *borrowed_row;        // that one, once a copy has its place
    Scores *borrowed_scores;  // those it shared until then

    bool is_draft() const { return n_new <= LK_DRAFT_TOKENS; }
};

constexpr uint32_t kNoLayer = UINT32_MAX;
enum LayerState : uint8_t { kNoKeys, kHasKeys, kAttended };

struct Step {
    explicit Step(const Allocator &allocator)
        : sequences(allocator),
          views(allocator),
          parents(allocator),
          layers(allocator),
          watches(allocator),
          captured(allocator) {}

    bool is_open = false;
    bool is_poisoned = false;
    uint32_t n_tokens = 0;
    uint32_t last_layer = kNoLayer;  // whose keys were appended last
    Array<StepSequence> sequences;
    Array<BatchSequence> views;
    Array<int32_t> parents;
    Array<uint8_t> layers;  // LayerState
    uint64_t query_stat_bytes = 0;
    Array<ChunkAttention> watches;  // of the layer at hand
    Array<uint32_t> captured;  // shapes of steps in graphs: n_sequences, then the tokens of each
    lk_queue_kind queue = 0;   // 0 = none was given
    TensorRange k;             // of the last layer
    TensorRange v;
};

// The staging area as the layer's tokens fill it.
Staging staging_of(const lk_cache *cache, uint32_t layer);

// LK_E_STATE or LK_E_DATA unless a sound step is open.
lk_status check_open(lk_cache *cache);
// Also LK_E_ARGUMENT unless `layer` is one.
lk_status check_step(lk_cache *cache, uint32_t layer);

// Faults (fault.cpp), as far as the device knows them by now; nothing waits.
bool has_fault(const DataReport &report);
lk_status fail_data(const DataReport &report);
// Poison the open step when it has one. LK_E_DATA with the sentence.
lk_status find_fault(lk_cache *cache);
// Tell once of one that a committed step had. LK_E_DATA with the sentence.
lk_status take_late_fault(lk_cache *cache);
// Forget those of the open step.
void drop_fault(lk_cache *cache);

// Copy on write (tail.cpp). Find out who has to copy the row that its tokens begin in.
void choose_tails(lk_cache *cache);
// Give a sequence of the step its own scores, and its own last row where it copies it. On failure
// return_tail() undoes what was done.
lk_status own_tail(lk_cache *cache, StepSequence *part);
// Its tokens are dropped: what it shared is shared again.
void return_tail(lk_cache *cache, StepSequence *part);
// Its tokens are kept: the length is the new one.
void keep_tail(lk_cache *cache, StepSequence *part);
// Close a sequence's part of the step without its tokens.
void drop_tokens(lk_cache *cache, StepSequence *part);
// Undo what an open step reserved.
void drop_step(lk_cache *cache);

// Before work outside of a step: the command buffer that the last step was recorded into is the
// host's again. LK_E_DEVICE.
lk_status leave_recording(lk_cache *cache);

// Pack what is due of a sequence (pack.cpp).
lk_status pack_due_rows(lk_cache *cache, Sequence *sequence);
// Pack a row of the sequence alone as one of a class of chunks. What a budget leaves at 16 bits the
// next call packs.
lk_status pack_row_as(lk_cache *cache, Sequence *sequence, uint64_t index,
                      lk_chunk_class chunk_class);
// Pack a layer's direct rows from the staging area; keys that are ranked by queries come with
// sum_layer().
lk_status pack_direct_rows(lk_cache *cache, uint32_t layer);

// Sums of |Q| (query_sums.cpp). Find places for those of the step's sequences, which are the
// caller's to drop and so lie beside the sequences' own, and make room for what keeps them.
// LK_E_NOMEM.
lk_status place_sums(lk_cache *cache);
// Those of the step's tokens, and the keys of direct rows that are ranked by them.
lk_status sum_layer(lk_cache *cache, uint32_t layer, const TensorView &q);
// Of a long step: where what a row's tokens add up to is kept, in bytes behind
// CacheDevice::query_stats(). Is the row one that was written packed?
uint64_t row_sums(const lk_cache *cache, const StepSequence &part, uint64_t row, bool *is_gap);

// Note the open step's shape while its queue is captured (replay.cpp). LK_E_UNSUPPORTED,
// LK_E_NOMEM.
lk_status note_capture(lk_cache *cache);

}  // namespace lk

#endif
