// Rigs whose sequences have chunks, and prompts that wait for their classes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_CHUNKED_H
#define LK_TESTS_API_CHUNKED_H

#include "rig.h"

#define SINKS 16u
#define MAX_CHUNKS 160u

typedef struct shape {
    uint32_t page_tokens, chunk_tokens;
} shape;

uint32_t chunked_random(uint32_t *seed);

// Two layers under the plan "cocktail" with these chunks; the cache is still to be made.
void chunked_open(rig *r, const rig_device *device, uint32_t cpu_mask, shape s, uint32_t reorder);
void chunked_rule(rig *r, shape s, uint32_t reorder, uint32_t hold);
// Another plan, and a sliding window of 40 tokens in the second layer; chunks are pages and keep
// their places.
void chunked_window(rig *r, shape s, const char *preset);

// The first n tokens of a chain, in steps of up to 200: keys and values alone, without attention.
lk_status chunked_append(rig *r, lk_sequence id, uint32_t chain, uint32_t n);
// A deferred sequence with the first n tokens of its chain.
lk_sequence chunked_prompt(rig *r, uint32_t chain, uint32_t n);

lk_chunks_info chunked_info(rig *r, lk_sequence id);
// Half of them low, a fifth high.
void chunked_classes(uint32_t *seed, uint32_t n, lk_chunk_class *classes);

#endif
