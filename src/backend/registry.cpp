// SPDX-License-Identifier: Apache-2.0
#include "backend/backend.h"
#include "backend/cpu/cpu_backend.h"
#include "base/status.h"

namespace lk {

uint32_t registry_device_count() { return 1; }

lk_status registry_device(uint32_t ordinal, lk_device_info *info) {
    if (ordinal >= registry_device_count())
        return fail(LK_E_NOT_FOUND, "device %u of %u does not exist", ordinal,
                    registry_device_count());
    cpu::describe_cpu(0, info);
    return LK_OK;
}

lk_status backend_open(const lk_context_desc &desc, const Allocator &allocator, Backend **out) {
    *out = nullptr;
    if (desc.backend != LK_BACKEND_CPU)
        return fail(LK_E_UNSUPPORTED, "this build has the CPU backend (%u), not backend %u",
                    LK_BACKEND_CPU, desc.backend);
    return cpu::open_cpu(desc, allocator, out);
}

void backend_close(const Allocator &allocator, Backend *backend) {
    if (backend)
        cpu::close_cpu(allocator, backend);
}

}  // namespace lk
