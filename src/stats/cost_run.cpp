// SPDX-License-Identifier: Apache-2.0
#include "stats/cost_run.h"

#include <algorithm>
#include <limits>

#include "base/status.h"
#include "stats/sums.h"

namespace lk {

namespace {

constexpr uint32_t kBits = 2;  // of lk_calibrator_set_costs()
constexpr uint32_t kCostGroup = 128;

lk_status no_memory_for_run() { return fail(LK_E_NOMEM, "no memory for a cost run"); }

// The cost of a part with a clip, which is a trial of document 0.
double sum_cost(const CostRun &run, uint32_t trial) {
    double cost = 0;
    for (uint32_t kind = 0; kind < run.options.n_kinds; ++kind) {
        double sum = 0;
        for (uint32_t d = 0; d < run.options.n_documents; ++d) {
            const uint32_t document = kind * run.options.n_documents + d;
            sum += run.bits[document * run.per_document() + trial];
        }
        cost += std::max(0.0, sum);
    }
    return cost;
}

// Of document 0, the layer that a trial belongs to.
uint32_t layer_of(const CostRun &run, uint32_t trial) {
    const uint32_t *first = run.first_trial.begin();
    return static_cast<uint32_t>(std::upper_bound(first, run.first_trial.end(), trial) - first - 1);
}

// Trials from `begin` on that have no divergence, of one document; *end is the first one not seen.
uint32_t collect(CostRun *run, uint32_t begin, bool fresh, uint32_t capacity, uint32_t *trials,
                 uint32_t *end) {
    uint32_t n = 0;
    uint32_t t = begin;
    for (; t < run->n_trials() && n < capacity; ++t) {
        if (run->is_measured(t) || (fresh && run->is_out[t]))
            continue;
        if (n && t / run->per_document() != trials[0] / run->per_document())
            break;
        run->is_out[t] = 1;
        trials[n++] = t;
    }
    *end = t;
    return n;
}

}  // namespace

lk_status begin_cost_run(CostRun *run, const Array<lk_layer> &layers,
                         const lk_cost_options &options) {
    run->options = options;
    LK_TRY(set_layers(&run->reference, layers));
    LK_TRY(set_preset(&run->reference, "fp16"));
    uint64_t n = 0;
    for (const lk_layer &layer : layers) {
        if (!run->first_trial.push(static_cast<uint32_t>(n)))
            return no_memory_for_run();
        n += uint64_t{2} * own_kv_heads(layer) * run->n_clips();
    }
    const uint64_t n_documents = uint64_t{options.n_kinds} * options.n_documents;
    if (n * n_documents > kMaxTrials)
        return fail(LK_E_ARGUMENT,
                    "%llu documents of %llu trials each are more than %u trials: give fewer "
                    "documents, or no clips",
                    ull{n_documents}, ull{n}, kMaxTrials);
    if (!run->first_trial.push(static_cast<uint32_t>(n)) || !run->bits.resize(n * n_documents) ||
        !run->is_out.resize(n * n_documents))
        return no_memory_for_run();
    std::fill(run->bits.begin(), run->bits.end(), std::numeric_limits<double>::quiet_NaN());
    return LK_OK;
}

uint32_t hand_out(CostRun *run, uint32_t capacity, uint32_t *trials) {
    const uint32_t n = collect(run, run->next_fresh, true, capacity, trials, &run->next_fresh);
    uint32_t end;
    return n ? n : collect(run, 0, false, capacity, trials, &end);
}

lk_cost_trial describe_trial(const CostRun &run, uint32_t trial) {
    const uint32_t at = trial % run.per_document();
    const uint32_t layer = layer_of(run, at);
    const uint32_t in_layer = at - run.first_trial[layer];
    const uint32_t clip = in_layer % run.n_clips();
    lk_cost_trial out = {};
    out.size = sizeof out;
    out.document = trial / run.per_document();
    out.layer = layer;
    out.kv_head = in_layer / run.n_clips() / 2;
    out.is_value = in_layer / run.n_clips() % 2;
    out.clip = clip ? kCostClips[clip - 1] : 1;
    return out;
}

lk_status make_trial_plan(const CostRun &run, uint32_t trial, Plan *plan) {
    if (!copy_plan(run.reference, plan))
        return fail(LK_E_NOMEM, "no memory for a plan");
    if (trial == LK_COST_REFERENCE)
        return LK_OK;
    const lk_cost_trial own = describe_trial(run, trial);
    set_name(plan, "cost");
    set_recent(plan, run.options.sink_tokens, run.options.recent_tokens);
    if (own.is_value) {
        lk_value_rule rule;
        value_rule_of(*plan, own.layer, own.kv_head, &rule);
        rule.bits = kBits;
        rule.group = std::min(kCostGroup, plan->layers[own.layer].geometry.head_dim);
        rule.clip = own.clip;
        LK_TRY(set_value(plan, own.layer, own.kv_head, rule));
        follow_kv_layers(plan);
        return LK_OK;
    }
    lk_key_rule rule;
    key_rule_of(*plan, own.layer, own.kv_head, &rule);
    rule.bits = kBits;
    rule.group = kCostGroup;
    rule.clip = own.clip;
    LK_TRY(set_key(plan, own.layer, own.kv_head, rule));
    follow_kv_layers(plan);
    return LK_OK;
}

void set_divergence(CostRun *run, uint32_t trial, double bits) {
    run->n_measured += !run->is_measured(trial);
    run->bits[trial] = bits;
}

lk_status finish_costs(const CostRun &run, Calibrator *calibrator) {
    LK_TRY(compare_geometry(run.reference, calibrator->geometry));
    const auto n_layers = static_cast<uint32_t>(calibrator->geometry.size());
    Array<double> whole(*calibrator->allocator);
    Array<double> clipped(*calibrator->allocator);
    uint32_t most = 0;
    // Memory comes first, so that nothing fails once a layer has its costs.
    for (uint32_t l = 0; l < n_layers; ++l) {
        const uint32_t n = 2 * own_kv_heads(calibrator->geometry[l]);
        if (!n)
            continue;
        LayerSamples *own = samples_of(calibrator, l);
        if (!own || !own->costs.reserve(n) || !own->clip_costs.reserve(size_t{n} * LK_COST_CLIPS))
            return no_memory_for_run();
        most = std::max(most, n);
    }
    if (!whole.reserve(most) || !clipped.reserve(size_t{most} * LK_COST_CLIPS))
        return no_memory_for_run();
    for (uint32_t l = 0; l < n_layers; ++l) {
        if (!owns_kv(calibrator->geometry[l]))
            continue;
        whole.clear();
        clipped.clear();
        for (uint32_t t = run.first_trial[l]; t < run.first_trial[l + 1]; ++t) {
            const bool is_whole = (t - run.first_trial[l]) % run.n_clips() == 0;
            (void)(is_whole ? whole : clipped).push(sum_cost(run, t));
        }
        (void)set_costs(calibrator, l, &LayerSamples::costs, whole.data(), whole.size());
        if (run.options.clips)
            (void)set_costs(calibrator, l, &LayerSamples::clip_costs, clipped.data(),
                            clipped.size());
    }
    return LK_OK;
}

}  // namespace lk
