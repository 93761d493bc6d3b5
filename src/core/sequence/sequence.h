// Sequences of a cache.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SEQUENCE_SEQUENCE_H
#define LK_CORE_SEQUENCE_SEQUENCE_H

#include "core/sequence/block_table.h"

namespace lk {

struct AttentionScores;
struct ChunkList;
struct Originals;
struct PendingChunks;
class QueryStats;
struct StateVersion;

struct Sequence {
    explicit Sequence(const Allocator &allocator) : block_table(allocator), versions(allocator) {}

    lk_sequence id = 0;
    uint64_t length = 0;                          // committed tokens
    uint64_t first_open = 0;                      // blocks before it are packed, sinks aside
    uint64_t first_windowed = 0;                  // windows free nothing more of blocks before it
    uint64_t mark = 0;                            // the step_begin() that named it last
    Array<Block *> block_table;                   // all are CacheBlock
    QueryStats *query_stats = nullptr;            // null when no channels are ranked by queries
    uint64_t stats_blocks = UINT64_MAX;           // blocks that they are still to be cut to
    AttentionScores *attention_scores = nullptr;  // of lk_chunks_score_attention()
    lk_defer deferral = LK_DEFER_OFF;
    uint64_t retain_bytes = 0;         // of originals in host memory, at most
    Originals *originals = nullptr;    // null without
    uint32_t n_retained = 0;           // chunks that they are of
    ChunkList *chunks = nullptr;       // null until classes are assigned
    PendingChunks *pending = nullptr;  // classes of chunks that are still to come; null without
    // Of the recurrent states, by ascending tokens. The last one is after all tokens, and of 0
    // tokens there is none.
    Array<StateVersion *> versions;

    CacheBlock *block(uint64_t i) { return static_cast<CacheBlock *>(block_table[i]); }
    const CacheBlock *block(uint64_t i) const {
        return static_cast<const CacheBlock *>(block_table[i]);
    }
};
// The sequences of a cache, by ascending ids.
struct Sequences {
    explicit Sequences(const Allocator &allocator) : list(allocator) {}

    size_t size() const { return list.size(); }
    Sequence *operator[](size_t i) const { return list[i]; }
    Sequence *const *begin() const { return list.begin(); }
    Sequence *const *end() const { return list.end(); }
    // The sequence of an id, null when there is none.
    Sequence *find(lk_sequence id) const;

    // visit(block) for every block, once for each although forks list it several times.
    template <class Visit>
    void for_each_block(const Visit &visit) {
        ++next_walk;
        for (Sequence *sequence : list)
            for (uint64_t i = 0; i < sequence->block_table.size(); ++i) {
                CacheBlock *block = sequence->block(i);
                if (block->walk == next_walk)
                    continue;
                block->walk = next_walk;
                visit(block);
            }
    }

    Array<Sequence *> list;
    lk_sequence next_id = 1;
    uint64_t next_mark = 1;  // of steps
    uint64_t next_walk = 1;  // over all blocks, each of them once
};

// Add it to the cache's list with a fresh id. LK_E_BUDGET: it is the caller's.
lk_status enter_sequence(lk_cache *cache, Sequence *sequence);
void free_sequence(lk_cache *cache, Sequence *sequence);
// Take it out of the cache's list and free it.
void leave_sequence(lk_cache *cache, Sequence *sequence);

}  // namespace lk

#endif
