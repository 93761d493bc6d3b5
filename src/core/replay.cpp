// Steps whose layers run from a graph that was captured in an earlier step of the same shape.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/watch.h"

namespace lk {

namespace {

bool same_layout(const uint32_t *shape, const Step &step) {
    bool is_same = shape[0] == step.sequences.size();
    for (size_t i = 0; is_same && i < step.sequences.size(); ++i)
        is_same = shape[1 + i] == step.sequences[i].n_new;
    return is_same;
}

bool is_captured(const Step &step) {
    for (size_t i = 0; i < step.captured.size(); i += 1 + step.captured[i])
        if (same_layout(&step.captured[i], step))
            return true;
    return false;
}

lk_status replay(lk_cache *cache) {
    if (cache->context->desc.backend != LK_BACKEND_CUDA)
        return fail(LK_E_UNSUPPORTED, "%s has no graphs to replay",
                    cache->context->desc.backend == LK_BACKEND_CPU ? "the CPU" : "Vulkan");
    const lk_status status = check_open(cache);
    if (status)
        return status;
    Step &step = cache->step;
    for (uint32_t l = 0; l < cache->layers.size(); ++l)
        if (step.layers[l] != kNoKeys)
            return fail(LK_E_STATE, "layer %u has its keys in this step already", l);
    for (const StepSequence &part : step.sequences)
        if (is_watched(part))
            return fail(LK_E_STATE, "the chunks of sequence %llu are watched, which no graph does",
                        ull{part.sequence->id});
    if (!is_captured(step))
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
    for (const StepSequence &part : step.sequences)
        if (!part.is_draft())
            return fail(LK_E_UNSUPPORTED,
                        "sequence %llu has %u new tokens, at most %d in a step that is captured",
                        ull{part.sequence->id}, part.n_new, LK_DRAFT_TOKENS);
    if (is_captured(step))
        return LK_OK;
    if (!step.captured.reserve(step.captured.size() + 1 + step.sequences.size()))
        return fail(LK_E_NOMEM, "no memory for the list of captured steps");
    step.captured.push(static_cast<uint32_t>(step.sequences.size()));
    for (const StepSequence &part : step.sequences)
        step.captured.push(part.n_new);
    return LK_OK;
}

}  // namespace lk

extern "C" lk_status lk_step_replay(lk_cache *cache) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    return lk::logged(cache->context, lk::replay(cache));
}
