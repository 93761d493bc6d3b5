// The CPU as a backend.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_CPU_BACKEND_H
#define LK_BACKEND_CPU_CPU_BACKEND_H

#include "backend/backend.h"

namespace lk {
namespace cpu {

void describe_cpu(uint32_t cpu_mask, lk_device_info *info);
lk_status open_cpu(const lk_context_desc &desc, const Allocator &allocator, Backend **out);
void close_cpu(const Allocator &allocator, Backend *backend);

}  // namespace cpu
}  // namespace lk

#endif
