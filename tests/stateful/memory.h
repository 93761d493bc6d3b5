// Allocation hooks that count what a cache holds, apart from what lies outside of its budget
// (lk_cache_desc.budget_bytes): what its creation fixes and what attention computes with.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_STATEFUL_MEMORY_H
#define LK_TESTS_STATEFUL_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include <lowkey/context.h>

namespace stateful {

class Memory {
  public:
    void describe(lk_context_desc *desc) {
        desc->alloc = [](void *user, size_t bytes, size_t alignment) {
            return static_cast<Memory *>(user)->take(bytes, alignment);
        };
        desc->free = [](void *user, void *memory, size_t bytes, size_t alignment) {
            static_cast<Memory *>(user)->give(memory, bytes, alignment);
        };
        desc->alloc_user = this;
    }
    // Slabs, workspaces and whatever else was not allocated outside.
    uint64_t counted_bytes() const { return counted_bytes_; }
    uint64_t slab_bytes() const { return slab_bytes_; }

    // While it lives, only slabs count.
    class Outside {
      public:
        explicit Outside(Memory *memory) : memory_(memory) {
            if (memory_)
                ++memory_->n_outside_;
        }
        ~Outside() {
            if (memory_)
                --memory_->n_outside_;
        }
        Outside(const Outside &) = delete;
        Outside &operator=(const Outside &) = delete;

      private:
        Memory *const memory_;
    };

  private:
    static constexpr size_t kSlabAlignment = 4096;
    void *take(size_t bytes, size_t alignment);
    void give(void *memory, size_t bytes, size_t alignment);

    uint64_t counted_bytes_ = 0;
    uint64_t slab_bytes_ = 0;
    uint32_t n_outside_ = 0;
    std::unordered_set<void *> outside_;
};

}  // namespace stateful

#endif
