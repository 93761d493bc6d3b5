// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/slabs.h"

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

constexpr uint64_t kAlignment = 64;  // of a slab's address

}  // namespace

SlabPool::~SlabPool() { release_idle(); }

lk_status SlabPool::take(uint64_t bytes, SlabMemory *out) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Slab *slab = take_idle(bytes);
    LK_TRY(slab ? LK_OK : allocate(bytes, &slab));
    slab->next = used_;
    used_ = slab;
    *out = {round_up(slab->buffer.address(), kAlignment), bytes, slab};
    return LK_OK;
}

const Buffer &SlabPool::find(uint64_t address, uint64_t *offset_bytes) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Slab *slab = used_;
    while (address - slab->buffer.address() >= slab->buffer.bytes())
        slab = slab->next;
    *offset_bytes = address - slab->buffer.address();
    return slab->buffer;
}

SlabPool::Slab *SlabPool::take_idle(uint64_t bytes) {
    for (Slab **link = &idle_; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes) {
            Slab *found = *link;
            *link = found->next;
            return found;
        }
    return nullptr;
}

lk_status SlabPool::allocate(uint64_t bytes, Slab **out) {
    auto *slab = create<Slab>(allocator_);
    if (!slab)
        return fail(LK_E_NOMEM, "no memory for a slab's buffer");
    slab->bytes = bytes;
    lk_status status =
        slab->buffer.open(device_, MemoryKind::kDevice, bytes + kAlignment, "a slab");
    if (!status)
        status = clear(slab->buffer);
    if (status)
        destroy(allocator_, slab);
    else
        *out = slab;
    return status;
}

// Shaders read whole tiles, also those after the last token, and mask them: memory that was never
// written would be read. The zeros are visible to work that is queued later.
lk_status SlabPool::clear(const Buffer &buffer) {
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    recorder.fill(buffer, 0, round_up(buffer.bytes(), 4), 0);
    return commands_.end();
}

void SlabPool::give(const SlabMemory &memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto *slab = static_cast<Slab *>(memory.handle);
    Slab **link = &used_;
    while (*link != slab)
        link = &(*link)->next;
    *link = slab->next;
    if (n_caches_ && keeps_given_.load()) {
        slab->next = idle_;
        idle_ = slab;
    } else {
        release(slab);
    }
}

void SlabPool::release(Slab *slab) {
    (void)commands_.wait_for_queue();
    destroy(allocator_, slab);
}

void SlabPool::release_idle() {
    while (Slab *slab = idle_) {
        idle_ = slab->next;
        release(slab);
    }
}

void SlabPool::cache_opened() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++n_caches_;
}

void SlabPool::cache_closed() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--n_caches_ == 0)
        release_idle();
}

}  // namespace vulkan
}  // namespace lk
