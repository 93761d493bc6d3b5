// The C interface of exact bytes: null checks and struct import around the size model.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/float_mode.h"
#include "plan/footprint.h"
#include "plan/plan.h"

extern "C" {

lk_status lk_plan_size_init(lk_plan_size *size, size_t struct_bytes) {
    return lk::init_struct(size, struct_bytes, sizeof *size, "size");
}

lk_status lk_plan_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                        uint32_t step_tokens, lk_plan_size *out) {
    return lk_cache_bytes(plan, 0, n_tokens, n_sequences, step_tokens, out);
}

lk_status lk_cache_bytes(const lk_plan *plan, uint32_t flags, uint64_t n_tokens,
                         uint32_t n_sequences, uint32_t step_tokens, lk_plan_size *out) {
    const lk::FloatMode mode;
    if (!plan)
        return lk::null_argument("plan");
    if (!out)
        return lk::null_argument("out");
    if (flags & ~lk::kCacheFlags)
        return lk::fail(LK_E_ARGUMENT, "flags is 0x%x, known bits are 0x%x", flags,
                        lk::kCacheFlags);
    LK_TRY(lk::validate_plan(plan->model));
    lk_plan_size own = {};
    LK_TRY(lk::cache_bytes(plan->model, flags, n_tokens, n_sequences, step_tokens, &own));
    own.size = sizeof own;
    return lk::export_struct(out, &own, sizeof own, sizeof own, "out");
}

lk_status lk_chunk_mix_init(lk_chunk_mix *mix, size_t struct_bytes) {
    return lk::init_struct(mix, struct_bytes, sizeof *mix, "mix");
}

lk_status lk_plan_chunk_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                              uint32_t step_tokens, const lk_chunk_mix *mix, lk_plan_size *out) {
    const lk::FloatMode mode;
    if (!plan)
        return lk::null_argument("plan");
    if (!out)
        return lk::null_argument("out");
    lk_chunk_mix own_mix = {};
    LK_TRY(lk::import_struct(&own_mix, sizeof own_mix, sizeof own_mix, mix, "mix"));
    LK_TRY(lk::validate_plan(plan->model));
    lk_plan_size own = {};
    LK_TRY(lk::plan_chunk_bytes(plan->model, n_tokens, n_sequences, step_tokens, own_mix, &own));
    own.size = sizeof own;
    return lk::export_struct(out, &own, sizeof own, sizeof own, "out");
}

lk_status lk_plan_chunk_prefill_bytes(const lk_plan *plan, uint64_t n_tokens, uint32_t n_sequences,
                                      uint32_t step_tokens, const lk_chunk_mix *mix,
                                      uint64_t *budget_bytes) {
    if (!plan)
        return lk::null_argument("plan");
    if (!budget_bytes)
        return lk::null_argument("budget_bytes");
    lk_chunk_mix own_mix = {};
    LK_TRY(lk::import_struct(&own_mix, sizeof own_mix, sizeof own_mix, mix, "mix"));
    LK_TRY(lk::validate_plan(plan->model));
    return lk::plan_chunk_prefill_bytes(plan->model, n_tokens, n_sequences, step_tokens, own_mix,
                                        budget_bytes);
}

}  // extern "C"
