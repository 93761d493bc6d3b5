// One choice for each item at the least total cost within a byte budget.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLANNER_SOLVE_WIDTHS_H
#define LK_PLANNER_SOLVE_WIDTHS_H

#include <cstdint>

#include "base/status.h"

namespace lk {

// Items with the cost and the bytes of each choice, [n_items][n_choices].
struct WidthProblem {
    uint32_t n_items;
    uint32_t n_choices;
    const double *costs;
    const uint64_t *bytes;
    uint64_t budget_bytes;
};
// The choices of the least total cost within the budget, [n_items]. LK_E_BUDGET, LK_E_NOMEM.
lk_status solve_widths(const WidthProblem &problem, uint32_t *choices);

}  // namespace lk

#endif
