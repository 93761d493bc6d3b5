// Snapshots of rigs in memory, and damage to them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_SNAPSHOTS_H
#define LK_TESTS_API_SNAPSHOTS_H

#include "rig.h"

#define N_SEQUENCES 3

typedef struct bytes {
    uint8_t *data;
    uint64_t n;
} bytes;

// Of all sequences; the caller frees it.
bytes snapshot_save(rig *r, const lk_snapshot_desc *desc);
void snapshot_same(bytes a, bytes b);
// What is held, by kind.
void snapshot_same_stats(const lk_cache_stats *a, const lk_cache_stats *b);

// Load bytes from a block of their own length into a cache without sequences. What is accepted
// bears every verb, and goes.
lk_status snapshot_try(rig *r, const uint8_t *data, size_t n);
// Every length is refused, with hashes as they were and made to fit.
void snapshot_cut_everywhere(rig *r, bytes saved);
// Three flips of every byte of the frame are refused, and with hashes made to fit refused or
// borne. How many were accepted.
int snapshot_flip_frame(rig *r, bytes saved);

#endif
