// NVIDIA GPUs as a backend. A build without CUDA has these functions too, and no devices.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_CUDA_BACKEND_H
#define LK_BACKEND_CUDA_CUDA_BACKEND_H

#include "backend/backend.h"

namespace lk {
namespace cuda {

// 0 where there is no driver.
uint32_t device_count();
lk_status describe_device(uint32_t index, lk_device_info *info);
lk_status open_cuda(const lk_context_desc &desc, const Allocator &allocator, Backend **out);
void close_cuda(const Allocator &allocator, Backend *backend);

}  // namespace cuda
}  // namespace lk

#endif
