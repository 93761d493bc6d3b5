// Runs of KV heads with equal rules, and how a setter replaces them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_RUNS_H
#define LK_PLAN_RUNS_H

#include <cmath>

#include "plan/check.h"
#include "plan/plan.h"

namespace lk {

struct Range {
    uint32_t begin = 0;
    uint32_t end = 0;
};

// As the plan holds them; keys without numbers of channels.
KeyRule packed_key(const lk_key_rule &rule);
ValueRule packed_value(const lk_value_rule &rule);

// Constants of a head's key channels: where a rule has them, and what they must be.
struct KeyNumbers {
    const char *name;
    uint32_t KeyRule::*index;  // in Plan::key_parameters
    lk_status (*check)(const float *numbers, uint32_t head_dim, const Subject &subject);
    float least;  // lower magnitudes become 0
};
// k - c is then no subnormal number, which devices may flush, and k - 0 is k.
constexpr KeyNumbers kCenters = {"centers", &KeyRule::centers, check_centers, 0x1p-24f};
constexpr KeyNumbers kScales = {"scales", &KeyRule::scales, check_scales, 0};

inline void clear_small(const float *from, uint32_t head_dim, const KeyNumbers &kind, float *to) {
    for (uint32_t c = 0; c < head_dim; ++c)
        to[c] = std::fabs(from[c]) < kind.least ? 0.0f : from[c];
}

// Have two runs equal rules, as numbers of [head_dim]? Their ends do not matter.
bool same_rules(const Plan &plan, const HeadRun &a, const HeadRun &b, uint32_t head_dim);

// The run after the others of a list that begins at `first`; with may_be_equal, a longer last run
// if both are equal. The capacity is there.
void push_run(Plan *plan, uint32_t first, const HeadRun &run, bool may_be_equal, uint32_t head_dim);

// The capacity is there.
template <class Number>
uint32_t push_numbers(const Number *from, uint32_t head_dim, Array<Number> *numbers) {
    const auto index = static_cast<uint32_t>(numbers->size());
    std::memcpy(numbers->extend(head_dim), from, head_dim * sizeof(Number));
    return index;
}

// Room for a change of these layers that adds so many numbers; change_heads() and push_numbers()
// cannot fail after it. LK_E_NOMEM with nothing changed.
lk_status reserve_change(Plan *plan, Range layers, uint64_t n_classes, uint64_t n_parameters);

// Calls group(first, end) for the layers of a range that are neighbours and share their runs.
template <class Group>
void for_each_group(const Plan &plan, Range layers, const Group &group) {
    for (uint32_t l = layers.begin, end; l < layers.end; l = end) {
        for (end = l + 1;
             end < layers.end && plan.layers[end].first_run == plan.layers[l].first_run;)
            ++end;
        group(l, end);
    }
}

// New runs for these layers, in which change(run) was applied to these heads.
template <class Change>
void change_heads(Plan *plan, Range layers, uint32_t kv_head, const Change &change) {
    for_each_group(*plan, layers, [&](uint32_t l, uint32_t end) {
        const LayerPlan &own = plan->layers[l];
        const uint32_t head_dim = own.geometry.head_dim;
        const Range heads =
            kv_head == LK_ALL ? Range{0, own.geometry.n_kv_heads} : Range{kv_head, kv_head + 1};
        const uint32_t old_first = own.first_run;
        const uint32_t n_old = own.n_runs;
        const auto first = static_cast<uint32_t>(plan->runs.size());
        uint32_t begin = 0;
        for (uint32_t r = 0; r < n_old; ++r) {
            const HeadRun old = plan->runs[old_first + r];
            for (const uint32_t stop : {heads.begin, heads.end, old.end}) {
                if (stop <= begin || stop > old.end)
                    continue;
                HeadRun run = old;
                run.end = stop;
                const bool is_changed = begin >= heads.begin && begin < heads.end;
                if (is_changed)
                    change(&run);
                push_run(plan, first, run, is_changed || begin == heads.end, head_dim);
                begin = stop;
            }
        }
        for (uint32_t i = l; i < end; ++i) {
            plan->layers[i].first_run = first;
            plan->layers[i].n_runs = static_cast<uint32_t>(plan->runs.size()) - first;
        }
    });
}

}  // namespace lk

#endif
