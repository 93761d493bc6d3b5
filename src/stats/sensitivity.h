// Sensitivities: the loss that a width causes for the keys, or the values, of a KV head.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_SENSITIVITY_H
#define LK_STATS_SENSITIVITY_H

#include "stats/samples.h"

namespace lk {

// The layer exists, samples have its shape. On failure nothing is changed.
lk_status add_gradients(Calibrator *calibrator, uint32_t layer, bool is_value,
                        const Samples &samples, const Samples &gradients);
lk_status add_attention(Calibrator *calibrator, uint32_t layer, const Samples &queries,
                        const Samples &keys, const Samples &values);

// The kind for options with a kind of 0: gradients where all layers have them, else outputs.
lk_sensitivity known_sensitivity(const Calibrator &calibrator);
// Has the layer had samples of this kind? LK_E_STATE.
lk_status check_sensitivity(const Calibrator &calibrator, uint32_t layer, bool is_value,
                            lk_sensitivity kind);
// The layer has passed check_sensitivity(); bits are 16 or one of kWidthBits.
double sensitivity_of(const Calibrator &calibrator, uint32_t layer, uint32_t kv_head, bool is_value,
                      lk_sensitivity kind, uint32_t bits);

}  // namespace lk

#endif
