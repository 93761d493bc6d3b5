// A sequence whose context may have classes: 16 sinks, chunks of 16 tokens, two in a block.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_CHUNK_RIG_H
#define LK_TESTS_CORE_CHUNK_RIG_H

#include "cache_rig.h"
#include "core/chunks/chunks.h"

struct ChunkRig : CacheRig {
    static constexpr uint32_t kChunkTokens = 16;

    explicit ChunkRig(uint32_t n_tokens, const std::function<void(lk_plan *)> &change = chunk_by_16)
        : CacheRig("cocktail", 16u << 20, change), sequence(add()) {
        defer(LK_DEFER_REFUSE);
        grow(sequence, n_tokens);
    }
    void defer(lk_defer mode) {
        assert_int_equal(lk_sequence_defer(cache, sequence->id, mode), LK_OK);
    }
    // Classes of the first chunks.
    lk_status assign(const std::vector<lk_chunk_class> &classes) {
        const uint64_t n_tokens = kSinks + classes.size() * kChunkTokens;
        return lk_chunks_assign(cache, sequence->id, n_tokens,
                                static_cast<uint32_t>(classes.size()), classes.data(), nullptr);
    }
    std::vector<uint32_t> order() const {
        return {sequence->chunks->order.begin(), sequence->chunks->order.end()};
    }
    // Of the blocks after the sinks.
    std::vector<lk_chunk_class> classes() const {
        std::vector<lk_chunk_class> found;
        for (size_t i = 1; i < sequence->block_table.size(); ++i)
            found.push_back(sequence->block(i)->chunk_class);
        return found;
    }

    lk::Sequence *sequence;
};

#endif
