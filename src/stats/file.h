// Statistics as bytes of a safetensors file (docs/CALIBRATION.md).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_STATS_FILE_H
#define LK_STATS_FILE_H

#include "stats/calibrator.h"

namespace lk {

// LK_E_ARGUMENT for a capacity that is not 0 and too small; *needed_bytes is set then.
lk_status stats_to_bytes(const Calibrator &calibrator, void *buffer, size_t capacity_bytes,
                         size_t *needed_bytes);
// From untrusted bytes.
lk_status stats_from_bytes(const uint8_t *bytes, size_t n_bytes, Calibrator *out);

}  // namespace lk

#endif
