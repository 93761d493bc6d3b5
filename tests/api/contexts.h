// Contexts whose classes are known before their tokens come.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_CONTEXTS_H
#define LK_TESTS_API_CONTEXTS_H

#include "chunked.h"
#include "snapshots.h"

#define CONTEXT_BUDGET (64u << 20)

typedef struct context {
    shape shape;
    uint32_t n_chunks, n_tokens;
    lk_chunk_class classes[MAX_CHUNKS];
    float scores[MAX_CHUNKS];
} context;

// Sinks, chunks of random classes and scores, and n_after tokens after them.
context context_make(shape s, uint32_t n_chunks, uint32_t n_after, uint32_t seed);
lk_status context_assign(rig *r, lk_sequence id, const context *c, int has_scores);
// Two caches of one plan, for 3 sequences.
void context_open(rig *first, rig *last, shape s, uint32_t reorder, uint32_t recent);

lk_sequence context_add(rig *r);
// Tokens [from, to) of a chain in steps of at most `step` tokens.
lk_status context_feed(rig *r, lk_sequence id, uint32_t chain, uint32_t from, uint32_t to,
                       uint32_t step);
// The next step lays out what is complete.
void context_touch(rig *r, lk_sequence id);
// Both caches hold the same bytes.
void context_same(rig *a, rig *b);

#endif
