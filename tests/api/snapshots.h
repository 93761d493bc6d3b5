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

// A snapshot of all sequences; the caller frees it.
bytes snapshot_save(rig *r, const lk_snapshot_desc *desc);
void snapshot_same(bytes a, bytes b);
// Both caches hold as many pages, blocks and bytes of each kind.
void snapshot_same_stats(const lk_cache_stats *a, const lk_cache_stats *b);

// A cache of few bytes: one layer with two query heads and a KV head of 32 channels. open reads the
// preset, whose plan may be changed before make makes the cache; take saves the sequences, which
// go.
void snapshot_small_open(rig *r, const char *preset, uint32_t n_threads);
void snapshot_small_make(rig *r);
bytes snapshot_small_take(rig *r, const lk_sequence *ids, uint32_t n);

// How far apart two caches answer a step of each of n sequences, which is dropped again.
float snapshot_distance(rig *a, const lk_sequence *of_a, rig *b, const lk_sequence *of_b,
                        uint32_t n);

// Load bytes from a block of their own length into a cache without sequences. What is accepted
// supports every call, and is removed.
lk_status snapshot_try(rig *r, const uint8_t *data, size_t n);
// Every length is refused, with hashes as they were and made to fit.
void snapshot_cut_everywhere(rig *r, bytes saved);
// Three flips of every byte of the frame are refused, and with hashes made to fit refused or
// borne. How many were accepted.
int snapshot_flip_frame(rig *r, bytes saved);

#endif
