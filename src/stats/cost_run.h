// A measurement of costs: its trials, what is known of them, and its sums.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_COST_RUN_H
#define LK_STATS_COST_RUN_H

#include <lowkey/costs.h>

#include "plan/plan.h"
#include "stats/calibrator.h"

namespace lk {

constexpr double kLeastDivergence = -1;  // rounding
constexpr double kMostDivergence = 1e9;  // so that a cost is at most kMaxCost
constexpr uint32_t kMaxKinds = 64;
constexpr uint32_t kMaxDocuments = 1000;  // of a kind
constexpr uint32_t kMaxTrials = 1u << 24;

struct CostRun {
    lk_cost_options options = {};
    Plan reference;               // nothing is packed
    Array<uint32_t> first_trial;  // of each layer in document 0, and the end of the last layer
    Array<double> bits;           // [n_trials] divergences; NaN = not measured
    Array<uint8_t> is_out;        // [n_trials] handed out
    uint32_t next_fresh = 0;      // all trials before it were handed out or are measured
    uint32_t n_measured = 0;

    uint32_t n_clips() const { return options.clips ? 1 + LK_COST_CLIPS : 1; }
    uint32_t n_trials() const { return static_cast<uint32_t>(bits.size()); }
    uint32_t per_document() const { return first_trial.data()[first_trial.size() - 1]; }
    bool is_measured(uint32_t trial) const { return bits[trial] == bits[trial]; }
};

// The options are checked. LK_E_ARGUMENT, LK_E_NOMEM.
lk_status begin_cost_run(CostRun *run, const Array<lk_layer> &layers,
                         const lk_cost_options &options);

// The trials below are within the run.
uint32_t hand_out(CostRun *run, uint32_t capacity, uint32_t *trials);
lk_cost_trial describe_trial(const CostRun &run, uint32_t trial);
// Fills an empty plan. LK_E_NOMEM.
lk_status make_trial_plan(const CostRun &run, uint32_t trial, Plan *plan);
inline bool is_divergence(double bits) {
    return bits >= kLeastDivergence && bits <= kMostDivergence;
}
void set_divergence(CostRun *run, uint32_t trial, double bits);

// Every trial is measured. LK_E_MISMATCH, LK_E_NOMEM.
lk_status finish_costs(const CostRun &run, Calibrator *calibrator);

uint64_t cost_run_bytes(const CostRun &run);
void write_cost_run(const CostRun &run, uint8_t *bytes);
// LK_E_CORRUPT, LK_E_MISMATCH.
lk_status read_cost_run(CostRun *run, const uint8_t *bytes, size_t n_bytes);

}  // namespace lk

// The public handle.
struct lk_cost_run {
    lk::CostRun model;
};

#endif
