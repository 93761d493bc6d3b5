// Attention score of chunks (ChunkAttention of backend.h).
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_ATTENTION_SCORES_H
#define LK_BACKEND_CPU_ATTENTION_SCORES_H

#include "backend/cpu/attend.h"

namespace lk {
namespace cpu {

// LK_OK, LK_E_NOMEM or LK_E_DEVICE (HostThreads). Every bit of the result depends on shapes and
// numbers alone.
lk_status score_attention(const AttendCall &args, const ChunkAttention &request, ThreadPool *pool,
                          AttendScratch *scratch);

}  // namespace cpu
}  // namespace lk

#endif
