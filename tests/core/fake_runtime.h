// The CUDA runtime and the kernels on the host, so that the host side of the CUDA backend runs
// where there is no GPU. Work waits in one queue, runs in its order when something waits for it or
// at times before, and the kernels answer with the CPU's reference from the tables they are given.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_FAKE_RUNTIME_H
#define LK_TESTS_CORE_FAKE_RUNTIME_H

#include "backend/backend.h"

struct FakeCounts {
    uint64_t n_allocations;
    uint64_t n_copies;
    uint64_t copied_bytes;
    uint64_t n_state_copies;  // from device memory to device memory
    uint64_t n_decodes;
    uint64_t n_tiles;
    uint64_t n_long_steps;
    uint64_t n_chunk_attentions;
    uint64_t n_appended_pages;  // launches
    uint64_t n_packs;
    uint64_t n_dequantized;
    uint64_t n_moves;
    uint64_t n_shrinks;
    uint64_t n_query_stats;
    uint64_t n_sums_added;
};
FakeCounts fake_counts();

// The cache whose kernels run.
void fake_use(const lk::PageFormat *classes, uint32_t n_classes, uint32_t n_entries);
// Run all that is queued.
void fake_finish();
// What is launched from now on is kept, and queued with each fake_replay().
void fake_capture(bool is_capturing);
void fake_replay();

// What cudaGetDeviceCount() returns from now on.
void fake_count_error(int error);

// A stream of this handle is another device's.
constexpr uintptr_t kForeignStream = 77;
// Decode has no kernels for this head dim.
constexpr uint32_t kMissingHeadDim = 48;

#endif
