// Attention in double precision. It defines every answer; fast paths are compared with it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_REFERENCE_H
#define LK_BACKEND_CPU_REFERENCE_H

#include "backend/cpu/attend.h"

namespace lk {
namespace cpu {

// LK_OK, LK_E_NOMEM or LK_E_DEVICE (HostThreads).
lk_status reference_attend(const AttendCall &args, ThreadPool *pool, const Allocator &allocator);

}  // namespace cpu
}  // namespace lk

#endif
