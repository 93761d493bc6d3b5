// Outputs of attention over disjoint keys become one, in double precision.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_MERGE_H
#define LK_BACKEND_CPU_MERGE_H

#include "backend/backend.h"

namespace lk {
namespace cpu {

void merge(const MergeView &view);

}  // namespace cpu
}  // namespace lk

#endif
