// Attention in double precision. It defines every answer; fast paths are compared with it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_REFERENCE_H
#define LK_BACKEND_CPU_REFERENCE_H

#include "backend/cpu/attend.h"

namespace lk {
namespace cpu {

// LK_OK or LK_E_NOMEM.
lk_status reference_attend(const AttendCall &args, ThreadPool *pool, const Allocator &allocator);

}  // namespace cpu
}  // namespace lk

#endif
