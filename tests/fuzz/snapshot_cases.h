// Small caches and their snapshots: what the fuzz target loads into, the corpus, and the golden
// files of the second reader.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FUZZ_SNAPSHOT_CASES_H
#define LK_TESTS_FUZZ_SNAPSHOT_CASES_H

#include <lowkey/lowkey.h>

#include <vector>

constexpr uint32_t kSnapshotCases = 6;
constexpr uint32_t kCaseSequences = 3;
constexpr uint64_t kCaseBudget = 4u << 20;

// A cache without sequences, and how to give it some. Case 0: channels boosted by queries, sinks.
// Case 1: two layers, shared slots, FP8 metadata, keys per token with centers, forks. Case 2:
// chunks that have classes and another order, which a fork shares, and a sequence that is deferred.
// Case 3: recurrent states, with versions that a fork shares. Case 4: values of another dim than
// keys, and a latent layer.
class SnapshotCase {
  public:
    SnapshotCase(lk_context *context, uint32_t which);
    ~SnapshotCase();
    SnapshotCase(const SnapshotCase &) = delete;
    SnapshotCase &operator=(const SnapshotCase &) = delete;

    lk_cache *cache() const { return cache_; }
    void fill();
    // n tokens more, in steps of `chunk`; what tests/second_opinion/snapshot.py knows, too:
    // numbers follow from layer, head, position and channel. false: the cache refused.
    bool append(lk_sequence id, uint32_t n, uint32_t chunk);
    // Classes for the chunks of all its tokens, if the plan has chunks; then it is deferred.
    void use_chunks(lk_sequence id);
    void remove(lk_sequence id);
    std::vector<uint8_t> save() const;

  private:
    void fill_chunks();

    const uint32_t which_;
    lk_layer layers_[2];
    lk_geometry geometry_;
    lk_plan *plan_ = nullptr;
    lk_cache *cache_ = nullptr;
};

#endif
