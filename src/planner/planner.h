// Planners: a plan from statistics and checked options.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLANNER_PLANNER_H
#define LK_PLANNER_PLANNER_H

#include <lowkey/calibrate.h>

#include "base/status.h"
#include "plan/plan.h"
#include "stats/calibrator.h"

namespace lk {

constexpr uint32_t kPageTokens = 128;  // of the plans of all planners

// An empty plan gets layers, name, page_tokens, sinks and recent tokens. LK_E_NOMEM.
lk_status begin_plan(const Calibrator &calibrator, const char *name, uint32_t sink_tokens,
                     uint32_t recent_tokens, Plan *plan);
// The means of the channels become the centers of a head's keys. The layer has keys.
lk_status set_mean_centers(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                           Plan *plan);

// Each fills an empty plan.
lk_status make_chanmix(const Calibrator &calibrator, const lk_chanmix &options, Plan *plan);
lk_status make_auto(const Calibrator &calibrator, const lk_auto &options, Plan *plan);
// The sensitivity of the options is not 0.
lk_status make_pmkvq(const Calibrator &calibrator, const lk_pmkvq &options, Plan *plan);

// Raises *most, which fits the budget, as far as bytes_of(n, &bytes) allows, to within `step`;
// `above` does not fit.
template <class BytesOf>
lk_status most_within(uint64_t budget_bytes, uint64_t above, uint64_t step, const BytesOf &bytes_of,
                      uint64_t *most) {
    while (*most + step < above) {
        const uint64_t middle = *most + (above - *most) / 2;
        uint64_t bytes;
        LK_TRY(bytes_of(middle, &bytes));
        (bytes <= budget_bytes ? *most : above) = middle;
    }
    return LK_OK;
}

}  // namespace lk

#endif
