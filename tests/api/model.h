// A model of three unlike layers, and plans for it: what the tests of whole caches run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_MODEL_H
#define LK_TESTS_API_MODEL_H

#include "rig.h"

// NULL past the last. "mixed" has another plan in each layer.
extern const char *const kModelPlans[];

// A context on `device`, the model and its plan; rig_close() ends it.
void model_open(rig *r, const rig_device *device, const char *plan);
// An empty sequence.
lk_sequence model_add(rig *r);

#endif
