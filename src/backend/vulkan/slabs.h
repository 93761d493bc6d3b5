// Memory that persists. Once work was recorded for the host, what is given back may be read by
// work that is submitted later, so it waits for the last cache to go, or for the next slab of its
// size.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_SLABS_H
#define LK_BACKEND_VULKAN_SLABS_H

#include "backend/backend.h"
#include "backend/vulkan/commands.h"

namespace lk {
namespace vulkan {

// Any thread.
class SlabPool {
  public:
    SlabPool(const Allocator &allocator, const Device &device)
        : allocator_(allocator), device_(device), commands_(device) {}
    ~SlabPool();
    SlabPool(const SlabPool &) = delete;
    SlabPool &operator=(const SlabPool &) = delete;

    lk_status open(VkPipelineLayout layout) { return commands_.open(layout); }

    lk_status take(uint64_t bytes, SlabMemory *out);
    void give(const SlabMemory &slab);
    // The buffer of a slab in use that holds an address, and where in it.
    const Buffer &find(uint64_t address, uint64_t *offset_bytes) const;
    void keep_given() { keeps_given_.store(true); }
    void cache_opened();
    void cache_closed();

  private:
    struct Slab {
        Buffer buffer;
        uint64_t bytes;
        Slab *next;  // of those in use, or of those that wait
    };
    lk_status allocate(uint64_t bytes, Slab **out);
    lk_status clear(const Buffer &buffer);
    Slab *take_idle(uint64_t bytes);
    void release(Slab *slab);
    void release_idle();

    const Allocator &allocator_;
    const Device &device_;
    std::atomic<bool> keeps_given_{false};
    mutable std::mutex mutex_;  // of all below
    Commands commands_;
    Slab *used_ = nullptr;
    Slab *idle_ = nullptr;
    uint32_t n_caches_ = 0;
};

}  // namespace vulkan
}  // namespace lk

#endif
