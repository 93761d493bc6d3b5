// Sink logits, centers and scales of keys that layer views point to: copies that a cache keeps.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_PARAMETERS_H
#define LK_CORE_PAGES_PARAMETERS_H

#include "core/pages/formats.h"

namespace lk {

// The layers are there. LK_E_NOMEM.
lk_status copy_parameters(const Plan &plan, Formats *formats);

}  // namespace lk

#endif
