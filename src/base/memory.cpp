// SPDX-License-Identifier: Apache-2.0
#include "base/memory.h"

#include <cstdlib>

namespace lk {

namespace {

void *libc_alloc(void *, size_t bytes, size_t alignment) {
    void *pointer = nullptr;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *);
    return posix_memalign(&pointer, alignment, bytes ? bytes : 1) == 0 ? pointer : nullptr;
}

void libc_free(void *, void *pointer, size_t, size_t) { std::free(pointer); }

const Allocator kLibc = {libc_alloc, libc_free, nullptr};

}  // namespace

const Allocator &default_allocator() { return kLibc; }

}  // namespace lk
