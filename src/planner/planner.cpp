// Steps that all planners share.
//
// SPDX-License-Identifier: Apache-2.0
#include "planner/planner.h"

#include "base/status.h"
#include "plan/check.h"
#include "stats/sums.h"

namespace lk {

lk_status begin_plan(const Calibrator &calibrator, const char *name, uint32_t sink_tokens,
                     uint32_t recent_tokens, Plan *plan) {
    LK_TRY(set_layers(plan, calibrator.geometry));
    set_name(plan, name);
    set_pages(plan, kPageTokens);
    set_recent(plan, sink_tokens, recent_tokens);
    return LK_OK;
}

lk_status set_mean_centers(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head,
                           Plan *plan) {
    const uint32_t head_dim = calibrator.geometry[layer].head_dim;
    const LayerSamples &own = *calibrator.layers[layer];
    float centers[LK_MAX_HEAD_DIM];
    for (uint32_t c = 0; c < head_dim; ++c)
        centers[c] =
            channel_mean(own.keys[static_cast<size_t>(kv_head) * head_dim + c], own.n_keys);
    return set_key_centers(plan, layer, kv_head, centers, {"centers", false, LK_E_ARGUMENT});
}

}  // namespace lk
