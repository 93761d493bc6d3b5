// Hooks of host memory that count what they give, and run out when a test says so.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_COUNTED_MEMORY_H
#define LK_TESTS_CORE_COUNTED_MEMORY_H

#include "base/memory.h"

struct CountedMemory {
    lk::Allocator hooks() { return {alloc, free, this}; }

    static void *alloc(void *self, size_t bytes, size_t alignment) {
        auto *memory = static_cast<CountedMemory *>(self);
        if (memory->n_calls == memory->n_calls_left)
            return nullptr;
        ++memory->n_calls;
        ++memory->n_live;
        return lk::default_allocator().alloc(nullptr, bytes, alignment);
    }
    static void free(void *self, void *pointer, size_t bytes, size_t alignment) {
        --static_cast<CountedMemory *>(self)->n_live;
        lk::default_allocator().free(nullptr, pointer, bytes, alignment);
    }
    // Only n more allocations succeed.
    void give(uint64_t n) { n_calls_left = n_calls + n; }
    void give_all() { n_calls_left = UINT64_MAX; }

    uint64_t n_calls = 0;
    uint64_t n_calls_left = UINT64_MAX;
    uint64_t n_live = 0;
};

#endif
