// Originals: keys and values of a context at 16 bits in host memory, from which chunks are packed
// anew, wider too (lk_chunks_retain()).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CHUNKS_RETAIN_H
#define LK_CORE_CHUNKS_RETAIN_H

#include "core/sequence/sequence.h"

namespace lk {

// Blocks of a context as it came, the sinks aside: all pages of a block one after the other.
struct Originals {
    explicit Originals(const Allocator &allocator) : bytes(allocator), offsets(allocator) {}

    Array<uint8_t> bytes;
    Array<uint64_t> offsets;  // by block; kNoOriginal for one that was packed before
    uint32_t n_holders = 1;   // forks share them
};
constexpr uint64_t kNoOriginal = UINT64_MAX;

// Copy the blocks of n_chunks chunks in their order; *out is null where nothing is to be retained.
// LK_E_BUDGET (beyond the sequence's retain_bytes), LK_E_NOMEM, LK_E_DEVICE.
lk_status keep_originals(lk_cache *cache, Sequence *sequence, uint32_t n_chunks, Originals **out);
// Space for the originals of n_chunks pending chunks, which add_originals() copies as they come;
// *out is null where nothing is to be retained. LK_E_BUDGET, LK_E_NOMEM.
lk_status open_originals(lk_cache *cache, const Sequence &sequence, uint32_t n_chunks,
                         Originals **out);
// Are the chunks from n_before to n_chunks the next ones to be retained? Not after forks or
// truncations, nor where a list of chunks was there before.
bool may_retain(const lk_cache *cache, const Sequence &sequence, uint32_t n_before,
                uint32_t n_chunks);
// Copy the blocks of chunks n_before to n_chunks, which lie in their order. LK_E_NOMEM,
// LK_E_DEVICE.
lk_status add_originals(lk_cache *cache, Sequence *sequence, uint32_t n_before, uint32_t n_chunks);
// Does the sequence have the original of a chunk?
bool has_original(const lk_cache *cache, const Sequence &sequence, uint32_t chunk);
// Bring a block of them, counted from the sinks on, to a 16-bit block. LK_E_NOMEM, LK_E_DEVICE.
lk_status load_original(lk_cache *cache, const Originals &originals, uint64_t block,
                        const CacheBlock &to);

void share_originals(const Sequence &from, Sequence *to);
// Only those of the first n_chunks chunks are still the sequence's.
void cut_originals(lk_cache *cache, Sequence *sequence, uint32_t n_chunks);
void drop_originals(lk_cache *cache, Sequence *sequence);

}  // namespace lk

#endif
