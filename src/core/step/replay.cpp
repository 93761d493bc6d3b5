// SPDX-License-Identifier: Apache-2.0
#include "core/step/replay.h"

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/step/faults.h"

namespace lk {

bool ReplayShapes::has(const Array<StepSequence> &members) const {
    for (size_t i = 0; i < counts_.size(); i += 1 + counts_[i]) {
        bool is_same = counts_[i] == members.size();
        for (size_t m = 0; is_same && m < members.size(); ++m)
            is_same = counts_[i + 1 + m] == members[m].n_new;
        if (is_same)
            return true;
    }
    return false;
}

lk_status ReplayShapes::add(const Array<StepSequence> &members) {
    if (has(members))
        return LK_OK;
    if (!counts_.reserve(counts_.size() + 1 + members.size()))
        return fail(LK_E_NOMEM, "no memory for the list of captured steps");
    counts_.push(static_cast<uint32_t>(members.size()));
    for (const StepSequence &member : members)
        counts_.push(member.n_new);
    return LK_OK;
}

namespace {

lk_status replay(lk_cache *cache) {
    const BackendTraits &traits = cache->context->backend->traits();
    if (!traits.replays_graphs)
        return fail(LK_E_UNSUPPORTED, "%s has no graphs to replay", traits.name);
    LK_TRY(check_open(cache));
    Step &step = cache->step;
    for (uint32_t l = 0; l < cache->formats.layers.size(); ++l)
        if (step.layers[l] != kNoKeys)
            return fail(LK_E_STATE, "layer %u has its keys in this step already", l);
    for (const StepSequence &member : step.sequences)
        if (has_open_scores(member))
            return fail(LK_E_STATE, "the chunks of sequence %llu are scored, which no graph does",
                        ull{member.sequence->id});
    if (!step.captured.has(step.sequences))
        return fail(LK_E_STATE,
                    "no step of this cache with these %zu sequences and %u new tokens was captured",
                    step.sequences.size(), step.n_tokens);
    std::memset(step.layers.data(), kAttended, step.layers.size());
    return LK_OK;
}

}  // namespace

lk_status note_capture(lk_cache *cache) {
    if (!cache->device->is_capturing())
        return LK_OK;
    Step &step = cache->step;
    for (const StepSequence &member : step.sequences)
        if (!member.is_draft())
            return fail(LK_E_UNSUPPORTED,
                        "sequence %llu has %u new tokens, at most %d in a step that is captured",
                        ull{member.sequence->id}, member.n_new, LK_DRAFT_TOKENS);
    return step.captured.add(step.sequences);
}

}  // namespace lk

extern "C" lk_status lk_step_replay(lk_cache *cache) {
    return lk::use_cache(cache, [&] { return lk::replay(cache); });
}
