// Steps that several rigs take alike: the same tokens, kept or dropped in the same way.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_RIGS_H
#define LK_TESTS_API_RIGS_H

#include "rig.h"

#define RIGS_SEQUENCES 4u  // of a step, at most

// The layers of an open step; rig_layers() is one.
typedef lk_status (*rigs_layers)(rig *r, const rig_token *tokens, uint32_t n, float *out);

typedef struct rigs {
    rig *rigs;
    float *const *out;  // [n][tokens of a step][rig_width]
    uint32_t n;
    rigs_layers layers;
} rigs;

// A step of n tokens from `place` on for each sequence, kept up to `keep`; -1 = dropped.
void rigs_step(const rigs *all, const lk_sequence *ids, uint32_t n_sequences, uint32_t place,
               uint32_t n, const int32_t *parent, int32_t keep);
// Drafts of a tree, of which a path that is no chain of its first tokens is kept; how many tokens
// the tree has.
uint32_t rigs_keep_path(const rigs *all, lk_sequence id, uint32_t place);

#endif
