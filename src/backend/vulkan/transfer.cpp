// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/transfer.h"

#include <cassert>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

// The items from `first` on that a buffer holds at once; the end of them.
uint32_t window_end(const SlotCopy *items, uint32_t first, uint32_t n_items) {
    uint64_t bytes = 0;
    uint32_t end = first;
    for (; end < n_items && bytes + items[end].bytes <= Transfer::kBufferBytes; ++end)
        bytes += items[end].bytes;
    assert(end > first);
    return end;
}

}  // namespace

lk_status Transfer::copy(const SlotCopy *items, uint32_t first, uint32_t end, const Buffer &staged,
                         bool is_upload) {
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    uint64_t at = 0;
    for (uint32_t i = first; i < end; at += items[i++].bytes) {
        uint64_t offset = 0;
        const Buffer &slab = slabs_->find(items[i].address, &offset);
        if (is_upload)
            recorder.copy(staged, at, slab, offset, items[i].bytes);
        else
            recorder.copy(slab, offset, staged, at, items[i].bytes);
    }
    lk_status status = commands_.end();
    return status ? status : commands_.wait();
}

lk_status Transfer::copy(const MemoryCopy *items, uint32_t n_items) {
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    for (uint32_t i = 0; i < n_items; ++i) {
        uint64_t target = 0;
        const Buffer &to = slabs_->find(items[i].target, &target);
        if (!items[i].source) {
            recorder.fill(to, target, items[i].bytes, 0);
            continue;
        }
        uint64_t source = 0;
        const Buffer &from = slabs_->find(items[i].source, &source);
        recorder.copy(from, source, to, target, items[i].bytes);
    }
    return commands_.end();
}

lk_status Transfer::download(const SlotCopy *items, uint32_t n_items) {
    lk_status status = LK_OK;
    if (!to_host_.bytes())
        status = to_host_.open(device_, MemoryKind::kReadback, kBufferBytes, "copies of slots");
    for (uint32_t first = 0, end; !status && first < n_items; first = end) {
        end = window_end(items, first, n_items);
        status = copy(items, first, end, to_host_, false);
        uint64_t at = 0;
        for (uint32_t i = first; !status && i < end; at += items[i++].bytes)
            std::memcpy(items[i].host, to_host_.as<char>(at), items[i].bytes);
    }
    return status;
}

lk_status Transfer::upload(const SlotCopy *items, uint32_t n_items) {
    lk_status status = LK_OK;
    if (!to_device_.bytes())
        status = to_device_.open(device_, MemoryKind::kUpload, kBufferBytes, "copies of slots");
    for (uint32_t first = 0, end; !status && first < n_items; first = end) {
        end = window_end(items, first, n_items);
        uint64_t at = 0;
        for (uint32_t i = first; i < end; at += items[i++].bytes)
            std::memcpy(to_device_.as<char>(at), items[i].host, items[i].bytes);
        status = copy(items, first, end, to_device_, true);
    }
    return status;
}

}  // namespace vulkan
}  // namespace lk
