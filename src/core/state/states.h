// Recurrent states: the versions of a sequence, and the places where a step has them.
//
// A step's host changes states in the places, one for each index of a sequence in a step, which
// keep their addresses. What a commit leaves there is saved to its version by the next begin, or by
// whatever reads versions before it, so a commit queues no work, like that of query statistics.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STATE_STATES_H
#define LK_CORE_STATE_STATES_H

#include "backend/backend.h"
#include "base/memory.h"
#include "core/sequence/sequence.h"

#include <lowkey/state.h>

namespace lk {

struct StepSequence;

// All states after n_tokens tokens of a sequence. Its bytes change only while it is the newest of a
// sequence that shares it with no other.
struct StateVersion {
    SlabMemory memory{};
    uint64_t n_tokens = 0;
    uint32_t n_holders = 1;
    uint64_t walk = 0;  // Sequences::next_walk of the snapshot that has its number
    uint64_t number = 0;
};

struct StatePlace {
    SlabMemory memory;
    StateVersion *version;  // whose states are in it, if they are those after n_tokens
    uint64_t n_tokens;
    bool is_unsaved;  // they are in it alone
};

struct States {
    explicit States(const Allocator &allocator)
        : bytes(allocator), offsets(allocator), places(allocator), copies(allocator) {}

    bool has_any() const { return !bytes.empty(); }
    // For steps of so many sequences; false without memory.
    bool reserve(uint32_t n_sequences) {
        return !has_any() || (places.reserve(n_sequences) && copies.reserve(n_sequences));
    }

    Array<uint64_t> bytes;    // of each state
    Array<uint64_t> offsets;  // of each in a version or a place
    uint64_t total_bytes = 0;
    uint32_t n_kept = 0;  // versions of earlier steps that a sequence has at most
    uint32_t interval_tokens = 0;
    uint64_t used_bytes = 0;  // of the ledger's table_bytes
    Array<StatePlace> places;
    Array<MemoryCopy> copies;
};

// The sizes of a cache's states. LK_E_ARGUMENT, LK_E_NOMEM.
lk_status open_states(const lk_cache_desc &desc, States *states);
void close_states(lk_cache *cache);
// What the states of the first sequence and of its first step take of the budget.
uint64_t first_state_bytes(const States &states);
// What a sequence with all its versions takes, and its place in a step.
uint64_t most_state_bytes(const States &states);

// The list of a new sequence's versions, which holds n at least. LK_E_BUDGET, LK_E_NOMEM.
lk_status list_versions(lk_cache *cache, size_t n, Sequence *sequence);
// A version without bytes; the caller's. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status make_version(lk_cache *cache, uint64_t n_tokens, StateVersion **out);
void release_version(lk_cache *cache, StateVersion *version);
void drop_versions(lk_cache *cache, Sequence *sequence);

// Of the versions that no other sequence shares, with the one that a step adds.
uint64_t private_state_bytes(const States &states, const Sequence &sequence);

// Tokens of the newest version at or before n_tokens; n_tokens in a cache without states.
uint64_t find_version(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);
// LK_E_UNSUPPORTED unless there is one after n_tokens.
lk_status check_version(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens);
void cut_versions(lk_cache *cache, Sequence *sequence, uint64_t n_tokens);
// Those of the first n_tokens tokens, for a fork with a list.
void share_versions(const Sequence &parent, uint64_t n_tokens, Sequence *child);

// What the versions and places of a step take more of the budget.
uint64_t step_state_bytes(const lk_cache *cache);
// Allocate them, and queue the copies to the places. LK_E_BUDGET, LK_E_NOMEM, LK_E_DEVICE.
lk_status reserve_states(lk_cache *cache);
lk_status load_states(lk_cache *cache);
// The step's tokens of a sequence are kept, or dropped.
void keep_states(lk_cache *cache, StepSequence *member);
void drop_states(lk_cache *cache, StepSequence *member);
// Queue the copies of what places hold alone. LK_E_DEVICE.
lk_status save_states(lk_cache *cache);

// Of a version, without the gaps between its states.
uint64_t content_bytes(const States &states);
// Where bytes [first, first + n_bytes) of a version are, its states one after the other: the pieces
// between `host` and the version, added to *out. false without memory.
bool add_state_copies(const States &states, const SlabMemory &memory, uint64_t first,
                      uint64_t n_bytes, uint8_t *host, Array<SlotCopy> *out);

}  // namespace lk

#endif
