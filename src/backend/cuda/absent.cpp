// The CUDA backend of a build without one.
//
// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_backend.h"
#include "base/status.h"

namespace lk {
namespace cuda {

uint32_t device_count() { return 0; }

lk_status describe_device(uint32_t index, lk_device_info *) {
    return fail(LK_E_NOT_FOUND, "CUDA device %u does not exist: this build has no CUDA", index);
}

lk_status open_cuda(const lk_context_desc &, const Allocator &, Backend **) {
    return fail(
        LK_E_UNSUPPORTED,
        "this build has no CUDA backend: configure it with -Dcuda=enabled, which needs nvcc");
}

void close_cuda(const Allocator &, Backend *) {}

}  // namespace cuda
}  // namespace lk
