// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/memory.h"

#include "base/status.h"

namespace lk {
namespace gpu {

Table::~Table() {
    if (memory_)
        memory_->release(address_);
}

lk_status Table::open(TableMemory *memory, uint64_t bytes, const char *what) {
    if (!bytes)
        return LK_OK;
    LK_TRY(memory->allocate(bytes, what, &address_));
    memory_ = memory;
    bytes_ = bytes;
    return LK_OK;
}

}  // namespace gpu
}  // namespace lk
