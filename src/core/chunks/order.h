// The order of a context's chunks and the widths that they are kept at, computed from counts alone.
//
// A chunk class is chosen for each block, so the tokens of a block are of chunks of one class,
// collected from where they were. Attention does not depend on the order of committed tokens, so
// only the core's chunks know that they were moved. An *index* counts chunks as they lie, from the
// first block after the sinks; the first blocks have a class each, those after them are at 16 bits,
// as are all tokens after the chunks, which lie at their positions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_ORDER_H
#define LK_CORE_CHUNKS_ORDER_H

#include "base/memory.h"
#include "base/status.h"
#include "plan/plan.h"

#include <lowkey/chunks.h>

namespace lk {

// How chunks and blocks fit. A chunk fills a part of a block, a block or several blocks.
struct ChunkShape {
    explicit ChunkShape(const Plan &plan);

    uint32_t chunk_tokens;
    uint32_t block_tokens;
    uint32_t block_chunks;  // of a block, at least 1
    uint32_t chunk_blocks;  // of a chunk, at least 1

    // Where the chunk at an index begins: the block after the sinks, and the token in it.
    uint64_t block_of_index(uint64_t index) const { return index * chunk_tokens / block_tokens; }
    uint32_t token_of_index(uint64_t index) const {
        return static_cast<uint32_t>(index * chunk_tokens % block_tokens);
    }
};

// What a chunk is kept at: lk_chunk_class, or this. Ascending widths.
constexpr uint8_t kAt16Bits = 4;

// Chunks as they lie, what they shall be kept at, and how they lie then. Blocks that stay as they
// are come first in their class, then new blocks of the chunks that are left. Where these do not
// fill a block, the best of them are kept one class wider; without scores the last ones.
class ChunkOrder {
  public:
    explicit ChunkOrder(const Allocator &allocator)
        : order(allocator), kept_at(allocator), wanted(allocator), block_classes(allocator) {}

    // Make n chunks. False without memory.
    bool open(uint32_t n_chunks);
    // LK_E_NOMEM.
    lk_status arrange(const ChunkShape &shape, bool reorders, const float *scores,
                      const Allocator &allocator);

    // In: as they lie.
    Array<uint32_t> order;   // by index: the chunk
    Array<uint8_t> kept_at;  // by chunk
    // In and out: what they shall be kept at, and are, by chunk; 0 = it goes.
    Array<uint8_t> wanted;
    // Out: `order`, and the classes of the first blocks.
    Array<uint8_t> block_classes;
};

}  // namespace lk

#endif
