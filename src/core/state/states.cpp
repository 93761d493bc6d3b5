// SPDX-License-Identifier: Apache-2.0
#include "core/state/states.h"

#include <algorithm>

#include "core/cache.h"
#include "core/memory/table_space.h"
#include "format/snapshot_frame.h"

namespace lk {

namespace {

// Between states, so that a host of Vulkan may bind each as a storage buffer.
constexpr uint64_t kAlign = 256;
constexpr uint64_t kVersionBytes = 64;  // of one, next to its states
static_assert(sizeof(StateVersion) <= kVersionBytes, "versions are counted in the budget");

// Those of earlier steps, the newest, and the one that a commit adds before the oldest goes.
uint64_t list_length(const States &states) { return uint64_t{states.n_kept} + 2; }
uint64_t list_bytes(const States &states) {
    return states.has_any() ? list_length(states) * sizeof(StateVersion *) : 0;
}

void charge(lk_cache *cache, uint64_t bytes) {
    cache->ledger.table_bytes += bytes;
    cache->states.used_bytes += bytes;
}

void give_back(lk_cache *cache, uint64_t bytes) {
    cache->ledger.table_bytes -= bytes;
    cache->states.used_bytes -= bytes;
}

StateVersion *newest(const Sequence &sequence) {
    return sequence.versions.empty() ? nullptr : sequence.versions.end()[-1];
}

// Does the sequence keep its newest version when a later one comes?
bool keeps_newest(const States &states, const Sequence &sequence) {
    const size_t n = sequence.versions.size();
    const uint64_t before = n > 1 ? sequence.versions[n - 2]->n_tokens : 0;
    return n && states.n_kept &&
           sequence.versions[n - 1]->n_tokens - before >= states.interval_tokens;
}

// Does a commit write to another version than the sequence's newest?
bool needs_version(const States &states, const Sequence &sequence) {
    const StateVersion *version = newest(sequence);
    return !version || version->n_holders > 1 || keeps_newest(states, sequence);
}

lk_status take_memory(lk_cache *cache, uint64_t bytes, SlabMemory *out) {
    LK_TRY(make_table_space(cache, bytes, "recurrent states"));
    LK_TRY(cache->context->backend->slab_create(cache->states.total_bytes, out));
    charge(cache, bytes);
    return LK_OK;
}

lk_status add_place(lk_cache *cache) {
    States &states = cache->states;
    StatePlace place{};  // the list has space for max_sequences
    LK_TRY(take_memory(cache, states.total_bytes, &place.memory));
    states.places.push(place);
    return LK_OK;
}

lk_status copy_states(lk_cache *cache) {
    Array<MemoryCopy> &copies = cache->states.copies;
    const lk_status status =
        copies.empty() ? LK_OK
                       : cache->device->copy(copies.data(), static_cast<uint32_t>(copies.size()));
    copies.clear();
    return status;
}

}  // namespace

lk_status open_states(const lk_cache_desc &desc, States *states) {
    if (desc.reserved)
        return fail(LK_E_ARGUMENT, "cache_desc.reserved is %u, not 0", desc.reserved);
    if (desc.n_states > kMaxStates)
        return fail(LK_E_ARGUMENT, "cache_desc.n_states is %u, at most %u", desc.n_states,
                    kMaxStates);
    if (desc.n_states && !desc.state_bytes)
        return fail(LK_E_ARGUMENT, "cache_desc.state_bytes is NULL for %u states", desc.n_states);
    if (desc.state_versions > kMaxVersions - 1)
        return fail(LK_E_ARGUMENT, "cache_desc.state_versions is %u, at most %u",
                    desc.state_versions, kMaxVersions - 1);
    if (!desc.state_interval_tokens)
        return fail(LK_E_ARGUMENT, "cache_desc.state_interval_tokens is 0, at least 1");
    if (!states->bytes.assign(desc.state_bytes, desc.n_states) ||
        !states->offsets.resize(desc.n_states))
        return fail(LK_E_NOMEM, "no memory for the sizes of %u states", desc.n_states);
    for (uint32_t i = 0; i < desc.n_states; ++i) {
        const uint64_t bytes = states->bytes[i];
        if (!bytes || bytes % 16 || bytes > kMaxStateBytes - states->total_bytes)
            return fail(LK_E_ARGUMENT,
                        "cache_desc.state_bytes[%u] is %llu, not a multiple of 16 from 16 on, %llu "
                        "in sum at most",
                        i, ull{bytes}, ull{kMaxStateBytes});
        states->offsets[i] = states->total_bytes;
        states->total_bytes += round_up(bytes, kAlign);
    }
    states->n_kept = desc.state_versions;
    states->interval_tokens = desc.state_interval_tokens;
    return LK_OK;
}

void close_states(lk_cache *cache) {
    for (const StatePlace &place : cache->states.places)
        cache->context->backend->slab_destroy(place.memory);
    cache->states.places.clear();
}

uint64_t first_state_bytes(const States &states) {
    return states.has_any() ? list_bytes(states) + 2 * states.total_bytes + kVersionBytes : 0;
}

uint64_t most_state_bytes(const States &states) {
    const uint64_t version = states.total_bytes + kVersionBytes;
    return states.has_any()
               ? list_bytes(states) + states.total_bytes + list_length(states) * version
               : 0;
}

// A snapshot may have more versions than a sequence of this cache keeps; the next commit drops
// them.
lk_status list_versions(lk_cache *cache, size_t n, Sequence *sequence) {
    if (!cache->states.has_any())
        return LK_OK;
    const uint64_t length = std::max<uint64_t>(list_length(cache->states), n + 1);
    const uint64_t bytes = length * sizeof(StateVersion *);
    LK_TRY(make_table_space(cache, bytes, "a sequence's list of states"));
    if (!sequence->versions.reserve(length))
        return fail(LK_E_NOMEM, "no memory for a list of %llu versions of states", ull{length});
    charge(cache, bytes);
    return LK_OK;
}

lk_status make_version(lk_cache *cache, uint64_t n_tokens, StateVersion **out) {
    const Allocator &allocator = cache->context->allocator;
    auto *version = create<StateVersion>(allocator);
    if (!version)
        return fail(LK_E_NOMEM, "no memory for a version of states");
    const lk_status status =
        take_memory(cache, cache->states.total_bytes + kVersionBytes, &version->memory);
    if (status) {
        destroy(allocator, version);
        return status;
    }
    version->n_tokens = n_tokens;
    *out = version;
    return LK_OK;
}

void release_version(lk_cache *cache, StateVersion *version) {
    if (!version || --version->n_holders)
        return;
    for (StatePlace &place : cache->states.places)
        if (place.version == version) {
            place.version = nullptr;
            place.is_unsaved = false;
        }
    cache->context->backend->slab_destroy(version->memory);
    give_back(cache, cache->states.total_bytes + kVersionBytes);
    destroy(cache->context->allocator, version);
}

void drop_versions(lk_cache *cache, Sequence *sequence) {
    cut_versions(cache, sequence, 0);
    give_back(cache, sequence->versions.capacity() * sizeof(StateVersion *));
}

uint64_t private_state_bytes(const States &states, const Sequence &sequence) {
    uint64_t n = states.has_any() && needs_version(states, sequence);
    for (const StateVersion *version : sequence.versions)
        n += version->n_holders == 1;
    return n * (states.total_bytes + kVersionBytes);
}

uint64_t find_version(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens) {
    if (!cache->states.has_any())
        return n_tokens;
    const auto after = std::upper_bound(
        sequence.versions.begin(), sequence.versions.end(), n_tokens,
        [](uint64_t n, const StateVersion *version) { return n < version->n_tokens; });
    return after == sequence.versions.begin() ? 0 : after[-1]->n_tokens;
}

lk_status check_version(const lk_cache *cache, const Sequence &sequence, uint64_t n_tokens) {
    const uint64_t found = find_version(cache, sequence, n_tokens);
    return found == n_tokens
               ? LK_OK
               : fail(LK_E_UNSUPPORTED,
                      "sequence %llu has no version of its recurrent states after %llu tokens; the "
                      "newest one before is after %llu",
                      ull{sequence.id}, ull{n_tokens}, ull{found});
}

void cut_versions(lk_cache *cache, Sequence *sequence, uint64_t n_tokens) {
    while (!sequence->versions.empty() && newest(*sequence)->n_tokens > n_tokens) {
        release_version(cache, newest(*sequence));
        sequence->versions.pop();
    }
}

void share_versions(const Sequence &parent, uint64_t n_tokens, Sequence *child) {
    for (StateVersion *version : parent.versions) {
        if (version->n_tokens > n_tokens)
            break;
        ++version->n_holders;
        child->versions.push(version);
    }
}

uint64_t step_state_bytes(const lk_cache *cache) {
    const States &states = cache->states;
    if (!states.has_any())
        return 0;
    const size_t n = cache->step.sequences.size();
    const size_t n_places = n > states.places.size() ? n - states.places.size() : 0;
    uint64_t bytes = n_places * states.total_bytes;
    for (const StepSequence &member : cache->step.sequences)
        if (needs_version(states, *member.sequence))
            bytes += states.total_bytes + kVersionBytes;
    return bytes;
}

lk_status reserve_states(lk_cache *cache) {
    States &states = cache->states;
    if (!states.has_any())
        return LK_OK;
    while (states.places.size() < cache->step.sequences.size())
        LK_TRY(add_place(cache));
    for (StepSequence &member : cache->step.sequences)
        if (needs_version(states, *member.sequence))
            LK_TRY(make_version(cache, 0, &member.next_version));
    return LK_OK;
}

lk_status load_states(lk_cache *cache) {
    States &states = cache->states;
    if (!states.has_any())
        return LK_OK;
    LK_TRY(save_states(cache));
    const Array<StepSequence> &members = cache->step.sequences;
    for (size_t i = 0; i < members.size(); ++i) {
        const StateVersion *version = newest(*members[i].sequence);
        StatePlace &place = states.places[i];
        if (!version || place.version != version || place.n_tokens != version->n_tokens)
            states.copies.push(
                {version ? version->memory.address : 0, place.memory.address, states.total_bytes});
        place.version = nullptr;
    }
    return copy_states(cache);
}

void keep_states(lk_cache *cache, StepSequence *member) {
    States &states = cache->states;
    if (!states.has_any())
        return;
    Sequence *sequence = member->sequence;
    Array<StateVersion *> &versions = sequence->versions;
    if (member->next_version) {
        if (!versions.empty() && !keeps_newest(states, *sequence)) {
            release_version(cache, versions.back());
            versions.pop();
        }
        versions.push(member->next_version);
        member->next_version = nullptr;
    }
    versions.back()->n_tokens = sequence->length;
    while (versions.size() > uint64_t{states.n_kept} + 1) {
        release_version(cache, versions[0]);
        std::copy(versions.begin() + 1, versions.end(), versions.begin());
        versions.pop();
    }
    StatePlace &place = states.places[member - cache->step.sequences.begin()];
    place.version = versions.back();
    place.n_tokens = sequence->length;
    place.is_unsaved = true;
}

void drop_states(lk_cache *cache, StepSequence *member) {
    release_version(cache, member->next_version);
    member->next_version = nullptr;
}

lk_status save_states(lk_cache *cache) {
    States &states = cache->states;
    for (const StatePlace &place : states.places)
        if (place.is_unsaved)
            states.copies.push(
                {place.memory.address, place.version->memory.address, states.total_bytes});
    LK_TRY(copy_states(cache));
    for (StatePlace &place : states.places)
        place.is_unsaved = false;
    return LK_OK;
}

uint64_t content_bytes(const States &states) {
    uint64_t sum = 0;
    for (const uint64_t bytes : states.bytes)
        sum += bytes;
    return sum;
}

bool add_state_copies(const States &states, const SlabMemory &memory, uint64_t first,
                      uint64_t n_bytes, uint8_t *host, Array<SlotCopy> *out) {
    bool fits = true;
    for (size_t i = 0; n_bytes; first -= states.bytes[i++]) {
        if (first >= states.bytes[i])
            continue;
        const uint64_t n = std::min(n_bytes, states.bytes[i] - first);
        fits = fits && out->push({memory.address + states.offsets[i] + first, host, n});
        host += n;
        first += n;
        n_bytes -= n;
    }
    return fits;
}

}  // namespace lk
