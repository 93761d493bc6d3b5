// Plans with ladders, and two caches that do the same: one of the device, and the reference.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_LADDER_H
#define LK_TESTS_API_LADDER_H

#include "rig.h"

#define RIG_PAIR_TOKENS 320u  // of a step that is compared

// NULL past the last. ladder_plan() also takes "bytes of 32" and "all families": "families" in
// classes of chunks.
extern const char *const kLadderPlans[];

// A digit for each rung of a layer, or of LK_ALL: '6' is 16.
lk_status ladder_set(rig *r, uint32_t layer, const char *rungs, uint32_t rung);
void ladder_plan(rig *r, const char *plan);
// A context and the plan of that name, for two layers of two KV heads of 64 channels.
void ladder_open(rig *r, const rig_device *device, uint32_t cpu_mask, const char *plan);

typedef struct rig_pair {
    rig fast, reference;
    float *x, *y;  // answers, of TWINS_TOKENS tokens
} rig_pair;

void rig_pair_open(rig_pair *p, const char *plan);
void rig_pair_close(rig_pair *p);
// The answers of n tokens.
void rig_pair_compare(const rig_pair *p, uint32_t n, const char *what);
// What is there, by bytes and by what was shrunk.
void rig_pair_compare_stats(const rig_pair *p);
// n tokens of chain 1 from `place` on, answered and compared.
void rig_pair_step(rig_pair *p, lk_sequence id, uint32_t place, uint32_t n, const char *what);

#endif
