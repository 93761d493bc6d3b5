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
    for (size_t i = 0; i < idle_.size(); ++i)
        if (idle_[i].bytes == bytes) {
            *out = idle_[i];
            idle_.swap_remove(i);
            return LK_OK;
        }
    return allocate(bytes, out);
}

lk_status SlabPool::allocate(uint64_t bytes, SlabMemory *out) {
    if (!idle_.reserve(n_slabs_ + 1))
        return fail(LK_E_NOMEM, "no memory for the list of %u slabs", n_slabs_ + 1);
    auto *buffer = create<Buffer>(allocator_);
    if (!buffer)
        return fail(LK_E_NOMEM, "no memory for a slab's buffer");
    lk_status status = buffer->open(device_, MemoryKind::kDevice, bytes + kAlignment, "a slab");
    if (!status)
        status = clear(*buffer);
    if (status) {
        destroy(allocator_, buffer);
        return status;
    }
    ++n_slabs_;
    *out = {round_up(buffer->address(), kAlignment), bytes, buffer};
    return LK_OK;
}

// Shaders read whole tiles, those behind the last token too, and mask them: memory that was never
// written would be read. What is queued later sees the zeros.
lk_status SlabPool::clear(const Buffer &buffer) {
    Recorder recorder;
    const lk_status status = commands_.begin(&recorder);
    if (status)
        return status;
    recorder.fill(buffer, 0, round_up(buffer.bytes(), 4), 0);
    return commands_.end();
}

void SlabPool::give(const SlabMemory &slab) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (n_caches_ && keeps_given_.load())
        idle_.push(slab);  // never grows
    else
        release(slab);
}

void SlabPool::release(const SlabMemory &slab) {
    (void)commands_.wait_for_queue();
    destroy(allocator_, static_cast<Buffer *>(slab.handle));
    --n_slabs_;
}

void SlabPool::release_idle() {
    for (const SlabMemory &slab : idle_)
        release(slab);
    idle_.clear();
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
