// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <cstdlib>

namespace stateful {

void *Memory::take(size_t bytes, size_t alignment) {
    // aligned_alloc() takes whole multiples of the alignment.
    void *memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    if (!memory)
        return nullptr;
    const bool is_slab = alignment == kSlabAlignment;
    slab_bytes_ += is_slab ? bytes : 0;
    if (is_slab || !n_outside_)
        counted_bytes_ += bytes;
    else
        outside_.insert(memory);
    return memory;
}

void Memory::give(void *memory, size_t bytes, size_t alignment) {
    slab_bytes_ -= alignment == kSlabAlignment ? bytes : 0;
    if (!outside_.erase(memory))
        counted_bytes_ -= bytes;
    std::free(memory);
}

}  // namespace stateful
