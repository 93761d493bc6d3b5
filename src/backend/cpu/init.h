// Which kernels a context uses.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_INIT_H
#define LK_BACKEND_CPU_INIT_H

#include "backend/cpu/kernels.h"

namespace lk {
namespace cpu {

// The widest that this build holds, this CPU runs and the mask (LK_CPU_* bits) leaves; null for
// the reference.
const Kernels *choose_kernels(uint32_t cpu_mask);
// Their instruction sets, for people.
const char *describe_kernels(uint32_t cpu_mask);

}  // namespace cpu
}  // namespace lk

#endif
