// SPDX-License-Identifier: Apache-2.0
#include "lowkey-trials.h"

#include <stdexcept>
#include <string>

#include "lowkey-options.h"

namespace lowkey {
namespace {

constexpr uint64_t kSlabBytes = 1 << 20;    // many caches, each of a few slabs
constexpr uint64_t kExtentBytes = 4 << 20;  // pages of each format begin an extent of their own

lk_cache_desc desc_of(const lk_plan *plan, uint32_t n_tokens) {
    lk_plan_size size;
    check(lk_plan_size_init(&size, sizeof size));
    check(lk_cache_bytes(plan, LK_CACHE_KEEP_WINDOWED, n_tokens, 1, n_tokens, &size));
    lk_cache_desc desc;
    check(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_step_tokens = n_tokens;
    desc.budget_bytes = size.cache_bytes + kExtentBytes;
    desc.slab_bytes = kSlabBytes;
    desc.flags = LK_CACHE_KEEP_WINDOWED;
    return desc;
}

}  // namespace

Trials::Trials(lk_context *context, const lk_geometry &geometry,
               const std::vector<const lk_plan *> &plans, uint32_t n_tokens)
    : trials_(plans.size()) {
    try {
        for (size_t i = 0; i < plans.size(); ++i) {
            const lk_cache_desc desc = desc_of(plans[i], n_tokens);
            check(lk_cache_create(context, &geometry, plans[i], &desc, &trials_[i].cache));
            check(lk_sequence_add(trials_[i].cache, &trials_[i].sequence));
        }
    } catch (...) {
        for (Trial &trial : trials_)
            lk_cache_destroy(&trial.cache);
        throw;
    }
}

Trials::~Trials() {
    finish(false);
    for (Trial &trial : trials_)
        lk_cache_destroy(&trial.cache);
}

void Trials::choose(uint32_t trial) {
    if (trial >= trials_.size())
        throw std::runtime_error("there is no trial " + std::to_string(trial) + ", only " +
                                 std::to_string(trials_.size()));
    chosen_ = trial;
    is_chosen_ = true;
}

void Trials::open(uint64_t first, uint32_t n_tokens) {
    if (first != n_tokens_)
        throw std::runtime_error("a batch at position " + std::to_string(first) +
                                 " has trials whose caches hold " + std::to_string(n_tokens_) +
                                 " tokens: a trial's batch is one micro-batch");
    is_open_ = true;
    n_step_tokens_ = n_tokens;
    for (size_t i = 0; i < trials_.size(); ++i) {
        if (!is_chosen_ || i == chosen_)
            check(lk_step_begin(trials_[i].cache, nullptr, 1, &trials_[i].sequence, &n_tokens,
                                nullptr));
    }
}

void Trials::attend(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                    const lk_tensor &out, uint64_t first, uint32_t n_tokens) {
    if (!is_open_)
        open(first, n_tokens);
    if (is_chosen_) {
        check(lk_append(trials_[chosen_].cache, layer, &k, &v));
        check(lk_attend(trials_[chosen_].cache, layer, &q, &out, nullptr));
        return;
    }
    for (const Trial &trial : trials_)
        check(lk_append(trial.cache, layer, &k, &v));
}

void Trials::finish(bool is_whole) {
    if (!is_open_)
        return;
    is_open_ = false;
    if (is_chosen_ || !is_whole) {
        for (const Trial &trial : trials_)
            (void)lk_step_discard(trial.cache);  // a cache without an open step refuses
        return;
    }
    for (const Trial &trial : trials_)
        check(lk_step_commit(trial.cache, nullptr));
    n_tokens_ += n_step_tokens_;
}

}  // namespace lowkey
