// Recurrent states: a number for each version of a sequence, kept by the rule of lk_cache_desc.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <cstring>

#include "machine.h"

namespace stateful {

namespace {

constexpr uint32_t kStates = 2;
constexpr uint64_t kBytes[kStates] = {48, 272};

// What a state holds: its words are the version's number and their index.
void fill(uint64_t number, uint32_t state, std::vector<uint64_t> *out) {
    out->assign(kBytes[state] / sizeof(uint64_t), 0);
    for (size_t w = 0; number && w < out->size(); ++w)
        (*out)[w] = number + w * 8 + state;
}

}  // namespace

// The first steps of a cache with a full budget are those of a chosen seed.
void Machine::choose_states() {
    if (options_.is_full || !choices_.has_more() || !choices_.one_in(3))
        return;
    desc_.state_bytes = kBytes;
    desc_.n_states = kStates;
    desc_.state_versions = choices_.below(4);
    desc_.state_interval_tokens = 1 + choices_.below(40);
}

uint64_t Machine::newest_state(const Live &live, uint64_t n_tokens) const {
    if (!desc_.n_states)
        return n_tokens;
    uint64_t found = 0;
    for (const Version &version : live.versions)
        found = version.n_tokens <= n_tokens ? version.n_tokens : found;
    return found;
}

void Machine::cut_states(Live *live, uint64_t n_tokens) {
    while (!live->versions.empty() && live->versions.back().n_tokens > n_tokens)
        live->versions.pop_back();
}

// In the open step.
bool Machine::check_states(uint32_t index, const Live &live) {
    std::vector<uint64_t> wanted;
    for (uint32_t s = 0; s < desc_.n_states; ++s) {
        fill(live.versions.empty() ? 0 : live.versions.back().number, s, &wanted);
        std::vector<uint64_t> got(wanted.size());
        if (!expect_status(lk_step_read_state(cache_, index, s, got.data(), kBytes[s]),
                           "read of a state") ||
            !expect(got == wanted, "a step begins with another state"))
            return false;
    }
    return true;
}

bool Machine::write_states(uint32_t index, Live *live) {
    live->next_number = desc_.n_states ? ++next_number_ << 32 : 0;
    std::vector<uint64_t> made;
    for (uint32_t s = 0; s < desc_.n_states; ++s) {
        fill(live->next_number, s, &made);
        if (!expect_status(lk_step_write_state(cache_, index, s, made.data(), kBytes[s]),
                           "write of a state"))
            return false;
    }
    return true;
}

// A commit has kept tokens.
void Machine::grow_states(Live *live) {
    if (!desc_.n_states)
        return;
    std::vector<Version> &versions = live->versions;
    const size_t n = versions.size();
    const uint64_t before = n > 1 ? versions[n - 2].n_tokens : 0;
    if (n &&
        (!desc_.state_versions || versions[n - 1].n_tokens - before < desc_.state_interval_tokens))
        versions.pop_back();
    versions.push_back({live->tokens.length, live->next_number});
    while (versions.size() > desc_.state_versions + size_t{1})
        versions.erase(versions.begin());
}

// Back to the newest version at or before a token.
bool Machine::roll_back(Live *live, uint64_t n_tokens, uint64_t *kept, lk_status *status) {
    uint64_t found = 0;
    if (!expect_status(lk_sequence_find_state(cache_, live->id, n_tokens, &found),
                       "search for a version") ||
        !expect(found == newest_state(*live, n_tokens), "another version is the newest"))
        return false;
    *kept = found;
    *status = lk_sequence_rollback(cache_, live->id, n_tokens, kept);
    return expect(*kept == found, "a sequence goes back to another version");
}

}  // namespace stateful
