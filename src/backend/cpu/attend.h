// The fast path: an attend call is cut into work items, which the kernels of an instruction set
// run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_ATTEND_H
#define LK_BACKEND_CPU_ATTEND_H

#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/threads.h"

namespace lk {
namespace cpu {

// An attend call, with the formats of the cache and the sequences of the batch.
struct AttendCall : AttendArgs {
    const PageFormat *classes;
    const BatchSequence *sequences;
    uint32_t n_sequences;
};

// A split of a work tile: query heads of a KV head, their queries and the blocks of keys that a
// WorkTile gets.
struct WorkItem {
    uint32_t sequence;
    uint32_t kv_head;
    uint32_t first_head;  // of the query heads
    uint32_t n_heads;
    uint32_t first_query;
    uint32_t n_queries;
    uint32_t first_block;  // of the sequence's blocks; n_blocks stands for the staged tokens
    uint32_t end_block;
    uint32_t n_splits;  // items with the same queries follow each other
    uint32_t split;
    uint64_t partial;  // floats into partials: output, row_max, row_sum
};

// Memory that calls reuse; it grows with the shapes.
struct AttendScratch {
    explicit AttendScratch(const Allocator &allocator)
        : items(allocator), threads(allocator), partials(allocator) {}
    Array<WorkItem> items;
    Array<float> threads;   // [threads][a thread's floats]
    Array<float> partials;  // [items][...] of items that share their rows
};

// LK_OK, LK_E_NOMEM or LK_E_DEVICE (HostThreads). The items, and so every bit of the result, depend
// on shapes alone.
lk_status fast_attend(const Kernels &kernels, const AttendCall &args, ThreadPool *pool,
                      AttendScratch *scratch);

}  // namespace cpu
}  // namespace lk

#endif
