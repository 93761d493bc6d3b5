// What the blocks of a plan take: slots and bytes of one block at 16 bits, packed and of sinks.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_SIZE_MODEL_H
#define LK_PLAN_SIZE_MODEL_H

#include "plan/footprint.h"
#include "plan/slot_counts.h"

namespace lk {

// What packing an entry takes and then gives; `count` equal entries follow each other.
struct Packing {
    uint32_t taken[4];
    uint32_t given[2];
    uint32_t count;
};

struct Sums {
    uint64_t values;   // of a block over all entries, K and V
    uint64_t payload;  // layout bytes of packed pages
    uint64_t metadata;
    uint64_t raw;  // layout bytes of pages that stay at 16 bits
};

// Layers of one window that drop pages, and what they drop of a packed block.
struct Window {
    const lk_layer *layer;  // one of them
    SlotCounts packed_block;
    Sums page;
};

// What one block of each kind takes: of blocks without a chunk class, or of those of one class.
struct SizeModel {
    explicit SizeModel(const Plan &from, lk_chunk_class of_chunks = LK_CHUNK_NONE,
                       bool keeps = false)
        : plan(&from), chunk_class(of_chunks), keeps_windowed(keeps), families(from) {}
    uint32_t cap(uint32_t layer) const {
        return width_cap(plan->layers[layer].rung, plan->chunks.cap(chunk_class));
    }

    const Plan *plan;
    lk_chunk_class chunk_class;
    bool keeps_windowed;  // LK_CACHE_KEEP_WINDOWED
    SizeFamilies families;
    uint64_t n_sequences = 0;
    uint64_t spare_bytes = 0;  // that the cache keeps, whatever the rungs
    Array<Packing> packings;
    SlotCounts recent_block;  // slots of one block at 16 bits
    SlotCounts packed_block;
    SlotCounts sink_block;       // of a sink block as long as a page
    SlotCounts last_sink_block;  // of the last one when it is shorter
    Array<Window> windows;       // none with keeps_windowed
    Sums page = {};
    // What a computation holds for a while: SlotCounts are too large for a small stack.
    SlotCounts before_layer;
    SlotCounts state;
    SlotCounts cycle;
    SlotCounts classed;
    RunningSlots running{families};
};

// Fill the model from a plan, also once more. False without memory.
bool build_size_model(const Plan &plan, SizeModel *model);

}  // namespace lk

#endif
