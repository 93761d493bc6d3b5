// SPDX-License-Identifier: Apache-2.0
#include "core/step/replay.h"

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/step/faults.h"

namespace lk {

uint8_t *ReplayShapes::calls(const Array<StepSequence> &members) {
    size_t first_call = 0;
    for (size_t i = 0; i < counts_.size(); i += 2 + counts_[i + 1]) {
        bool is_same = counts_[i + 1] == members.size();
        for (size_t m = 0; is_same && m < members.size(); ++m)
            is_same = counts_[i + 2 + m] == members[m].n_new;
        if (is_same)
            return &calls_[first_call];
        first_call += counts_[i];
    }
    return nullptr;
}

lk_status ReplayShapes::add(const Array<StepSequence> &members, uint32_t n_layers) {
    if (calls(members))
        return LK_OK;
    if (!counts_.reserve(counts_.size() + 2 + members.size()) ||
        !calls_.reserve(calls_.size() + n_layers))
        return fail(LK_E_NOMEM, "no memory for the list of captured steps");
    counts_.push(n_layers);
    counts_.push(static_cast<uint32_t>(members.size()));
    for (const StepSequence &member : members)
        counts_.push(member.n_new);
    for (uint32_t l = 0; l < n_layers; ++l)
        calls_.push(0);
    return LK_OK;
}

namespace {

// The state of a layer whose captured calls are done, in the given state before.
uint8_t replayed(uint8_t state, uint8_t calls, bool owns_kv) {
    if (state == kNoKeys && owns_kv && !(calls & kCapturedAppend))
        return kNoKeys;
    if (calls & kCapturedAttend)
        return kAttended;
    return calls & kCapturedAppend && state == kNoKeys ? uint8_t{kHasKeys} : state;
}

lk_status check_no_spans(const Step &step) {
    for (const StepSequence &member : step.sequences)
        if (member.reach)
            return fail(LK_E_UNSUPPORTED, "sequence %llu has spans, which no graph holds",
                        ull{member.sequence->id});
    return LK_OK;
}

lk_status replay(lk_cache *cache) {
    const BackendTraits &traits = cache->context->backend->traits();
    if (!traits.replays_graphs)
        return fail(LK_E_UNSUPPORTED, "%s has no graphs to replay", traits.name);
    LK_TRY(check_open(cache));
    Step &step = cache->step;
    for (const StepSequence &member : step.sequences)
        if (has_open_scores(member))
            return fail(LK_E_STATE, "the chunks of sequence %llu are scored, which no graph does",
                        ull{member.sequence->id});
    LK_TRY(check_no_spans(step));
    const uint8_t *calls = step.captured.calls(step.sequences);
    if (!calls)
        return fail(LK_E_STATE,
                    "no step of this cache with these %zu sequences and %u new tokens was captured",
                    step.sequences.size(), step.n_tokens);
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l)
        step.layers[l] = replayed(step.layers[l], calls[l], cache->formats.layers[l].owns_kv);
    return LK_OK;
}

}  // namespace

lk_status note_capture(lk_cache *cache, uint32_t layer, uint8_t **calls) {
    *calls = nullptr;
    if (!cache->device->is_capturing())
        return LK_OK;
    Step &step = cache->step;
    for (const StepSequence &member : step.sequences)
        if (!member.is_draft())
            return fail(LK_E_UNSUPPORTED,
                        "sequence %llu has %u new tokens, at most %d in a step that is captured",
                        ull{member.sequence->id}, member.n_new, LK_DRAFT_TOKENS);
    LK_TRY(check_no_spans(step));
    LK_TRY(step.captured.add(step.sequences, static_cast<uint32_t>(step.layers.size())));
    *calls = step.captured.calls(step.sequences) + layer;
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_step_replay(lk_cache *cache) {
    return lk::use_cache(cache, [&] { return lk::replay(cache); });
}
