// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/vulkan/vulkan_backend.h"
#include "base/signals.h"
#include "base/status.h"

namespace lk {

bool is_backend(lk_backend backend) {
    return backend == LK_BACKEND_CPU || backend == LK_BACKEND_CUDA || backend == LK_BACKEND_VULKAN;
}

bool takes_host_device(lk_backend backend) { return backend == LK_BACKEND_VULKAN; }

// Drivers start threads where devices are first looked at.
uint32_t registry_device_count() {
    const SignalBlock block;
    return 1 + cuda::device_count() + vulkan::device_count();
}

// The CPU is the first, CUDA devices follow in their order, then those of Vulkan.
lk_status registry_device(uint32_t ordinal, lk_device_info *info) {
    const SignalBlock block;
    if (ordinal == 0) {
        cpu::describe_cpu(0, info);
        return LK_OK;
    }
    const uint32_t n_cuda = cuda::device_count();
    if (ordinal <= n_cuda)
        return cuda::describe_device(ordinal - 1, info);
    const lk_status status = vulkan::describe_device(ordinal - 1 - n_cuda, info);
    return status == LK_E_NOT_FOUND
               ? fail(LK_E_NOT_FOUND, "there is no device %u, the machine has %u", ordinal,
                      registry_device_count())
               : status;
}

lk_status backend_open(const lk_context_desc &desc, const Allocator &allocator, Backend **out) {
    *out = nullptr;
    const SignalBlock block;
    switch (desc.backend) {
        case LK_BACKEND_CPU: return cpu::open_cpu(desc, allocator, out);
        case LK_BACKEND_CUDA: return cuda::open_cuda(desc, allocator, out);
        case LK_BACKEND_VULKAN: return vulkan::open_vulkan(desc, allocator, out);
        default: return fail(LK_E_UNSUPPORTED, "this build has no backend %u", desc.backend);
    }
}

void backend_close(const Allocator &allocator, Backend *backend) {
    if (!backend)
        return;
    switch (backend->traits().backend) {
        case LK_BACKEND_CUDA: return cuda::close_cuda(allocator, backend);
        case LK_BACKEND_VULKAN: return vulkan::close_vulkan(allocator, backend);
        default: return cpu::close_cpu(allocator, backend);
    }
}

}  // namespace lk
