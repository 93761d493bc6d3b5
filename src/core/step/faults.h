// What a device found in the numbers of a step, as far as it knows by now; nothing waits.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_STEP_FAULTS_H
#define LK_CORE_STEP_FAULTS_H

#include "backend/backend.h"

#include <lowkey/cache.h>

namespace lk {

bool has_fault(const DataReport &report);
// LK_E_DATA with the sentence of a fault.
lk_status fail_data(const DataReport &report);
// Poison the open step when it has a fault. LK_E_DATA with the sentence.
lk_status find_fault(lk_cache *cache);
// Report the fault of a committed step, once. LK_E_DATA with the sentence.
lk_status take_late_fault(lk_cache *cache);
// Forget the faults of the open step.
void drop_fault(lk_cache *cache);

// LK_E_STATE or LK_E_DATA unless a sound step is open.
lk_status check_open(lk_cache *cache);
// Also LK_E_ARGUMENT unless `layer` is one.
lk_status check_step(lk_cache *cache, uint32_t layer);

}  // namespace lk

#endif
