// The calls of lowkey/state.h.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/sequence/truncate.h"

namespace lk {

namespace {

constexpr uint32_t kMaxSequences = 65536;

lk_status check_place(const lk_cache &cache, uint32_t sequence, uint32_t state) {
    if (!cache.step.is_open)
        return fail(LK_E_STATE, "no step is open");
    if (sequence >= cache.step.sequences.size())
        return fail(LK_E_ARGUMENT, "sequence is %u, the step has %zu", sequence,
                    cache.step.sequences.size());
    if (state >= cache.states.bytes.size())
        return fail(LK_E_ARGUMENT, "state is %u, the cache has %zu", state,
                    cache.states.bytes.size());
    return LK_OK;
}

lk_status view_state(const lk_cache &cache, uint32_t sequence, uint32_t state, lk_state *out) {
    LK_TRY(check_place(cache, sequence, state));
    const Backend &backend = *cache.context->backend;
    const States &states = cache.states;
    MemoryView view{};
    LK_TRY(
        backend.view_memory(states.places[sequence].memory.address + states.offsets[state], &view));
    lk_state found{};
    found.size = sizeof found;
    found.memory = backend.traits().memory;
    found.data = view.data;
    found.buffer = view.buffer;
    found.offset_bytes = view.offset_bytes;
    found.bytes = states.bytes[state];
    return export_struct(out, &found, sizeof found, sizeof found, "out");
}

// A state of the open step, and the host's memory for it.
lk_status find_copy(const lk_cache &cache, uint32_t sequence, uint32_t state, const void *host,
                    uint64_t bytes, SlotCopy *out) {
    LK_TRY(check_place(cache, sequence, state));
    if (!host)
        return fail(LK_E_ARGUMENT, "the host's memory is NULL");
    if (bytes != cache.states.bytes[state])
        return fail(LK_E_ARGUMENT, "bytes is %llu, state %u has %llu", ull{bytes}, state,
                    ull{cache.states.bytes[state]});
    if (is_recorded(*cache.context, cache.step.queue))
        return fail(LK_E_UNSUPPORTED,
                    "the step is recorded: its commands reach state %u by lk_step_state()", state);
    if (cache.device->is_capturing())
        return fail(LK_E_STATE, "the cache's queue is being captured: copy state %u after", state);
    *out = {cache.states.places[sequence].memory.address + cache.states.offsets[state],
            static_cast<uint8_t *>(const_cast<void *>(host)), bytes};
    return LK_OK;
}

lk_status find_length(const lk_cache *cache, lk_sequence id, uint64_t n_tokens, uint64_t *out) {
    const Sequence *sequence = cache->sequences.find(id);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (n_tokens == LK_ALL_TOKENS)
        n_tokens = sequence->length;
    if (n_tokens > sequence->length)
        return fail(LK_E_ARGUMENT, "n_tokens is %llu, sequence %llu has %llu", ull{n_tokens},
                    ull{id}, ull{sequence->length});
    *out = find_version(cache, *sequence, n_tokens);
    return LK_OK;
}

lk_status roll_back(lk_cache *cache, lk_sequence id, uint64_t n_tokens, uint64_t *kept) {
    if (!kept)
        return fail(LK_E_ARGUMENT, "kept is NULL");
    uint64_t length = 0;
    LK_TRY(find_length(cache, id, n_tokens, &length));
    LK_TRY(truncate_sequence(cache, id, length));
    *kept = length;
    return LK_OK;
}

lk_status count_bytes(const lk_cache_desc *from, uint32_t n_sequences, uint64_t *bytes) {
    lk_cache_desc desc{};
    LK_TRY(import_cache_desc(from, &desc));
    if (!bytes)
        return fail(LK_E_ARGUMENT, "bytes is NULL");
    if (n_sequences < 1 || n_sequences > kMaxSequences)
        return fail(LK_E_ARGUMENT, "n_sequences is %u, not 1 to %u", n_sequences, kMaxSequences);
    States states(default_allocator());
    LK_TRY(open_states(desc, &states));
    *bytes = n_sequences * most_state_bytes(states);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_state_init(lk_state *state, size_t struct_bytes) {
    return lk::init_struct(state, struct_bytes, sizeof(lk_state), "state");
}

extern "C" lk_status lk_step_state(const lk_cache *cache, uint32_t sequence, uint32_t state,
                                   lk_state *out) {
    return lk::read_cache(cache, [&] { return lk::view_state(*cache, sequence, state, out); });
}

extern "C" lk_status lk_step_read_state(lk_cache *cache, uint32_t sequence, uint32_t state,
                                        void *to, uint64_t bytes) {
    return lk::use_cache(cache, [&] {
        lk::SlotCopy copy{};
        LK_TRY(lk::find_copy(*cache, sequence, state, to, bytes, &copy));
        return cache->device->download(&copy, 1);
    });
}

extern "C" lk_status lk_step_write_state(lk_cache *cache, uint32_t sequence, uint32_t state,
                                         const void *from, uint64_t bytes) {
    return lk::use_cache(cache, [&] {
        lk::SlotCopy copy{};
        LK_TRY(lk::find_copy(*cache, sequence, state, from, bytes, &copy));
        return cache->device->upload(&copy, 1);
    });
}

extern "C" lk_status lk_sequence_find_state(const lk_cache *cache, lk_sequence id,
                                            uint64_t n_tokens, uint64_t *found) {
    return lk::read_cache(cache, [&] {
        return found ? lk::find_length(cache, id, n_tokens, found)
                     : lk::fail(LK_E_ARGUMENT, "found is NULL");
    });
}

extern "C" lk_status lk_sequence_rollback(lk_cache *cache, lk_sequence id, uint64_t n_tokens,
                                          uint64_t *kept) {
    return lk::on_cache(cache, [&] { return lk::roll_back(cache, id, n_tokens, kept); });
}

extern "C" lk_status lk_state_bytes(const lk_cache_desc *desc, uint32_t n_sequences,
                                    uint64_t *bytes) {
    return lk::count_bytes(desc, n_sequences, bytes);
}
