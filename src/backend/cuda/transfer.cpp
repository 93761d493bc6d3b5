// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/transfer.h"

#include <algorithm>
#include <cassert>

#include "base/status.h"

namespace lk {
namespace cuda {

lk_status Transfer::prepare(const SlotCopy *items, uint32_t n_items) {
    order_.clear();
    if (!order_.reserve(n_items))
        return fail(LK_E_NOMEM, "no memory for the order of %u slots", n_items);
    for (uint32_t i = 0; i < n_items; ++i)
        order_.push(i);
    std::sort(order_.begin(), order_.end(),
              [&](uint32_t a, uint32_t b) { return items[a].address < items[b].address; });
    return buffer_.data() ? LK_OK
                          : buffer_.open(kBufferBytes, cudaHostAllocDefault, "copies of slots");
}

uint32_t Transfer::window_end(const SlotCopy *items, uint32_t first) const {
    uint64_t bytes = 0;
    uint32_t end = first;
    for (; end < order_.size() && bytes + items[order_[end]].bytes <= kBufferBytes; ++end)
        bytes += items[order_[end]].bytes;
    assert(end > first);
    return end;
}

// Slabs never touch, so neighbours are of one allocation.
lk_status Transfer::copy_runs(const SlotCopy *items, uint32_t first, uint32_t end,
                              cudaMemcpyKind kind, cudaStream_t stream) {
    char *staged = buffer_.data();
    cudaError_t error = cudaSuccess;
    while (!error && first < end) {
        const uint64_t begin = items[order_[first]].address;
        uint64_t bytes = 0;
        for (; first < end && items[order_[first]].address == begin + bytes; ++first)
            bytes += items[order_[first]].bytes;
        auto *device = reinterpret_cast<void *>(begin);
        const bool is_upload = kind == cudaMemcpyHostToDevice;
        error = cudaMemcpyAsync(is_upload ? device : staged, is_upload ? staged : device, bytes,
                                kind, stream);
        staged += bytes;
    }
    if (!error)
        error = cudaStreamSynchronize(stream);
    return checked(error, "copying slots");
}

lk_status Transfer::download(const SlotCopy *items, uint32_t n_items, cudaStream_t stream) {
    lk_status status = prepare(items, n_items);
    for (uint32_t first = 0, end; !status && first < n_items; first = end) {
        end = window_end(items, first);
        status = copy_runs(items, first, end, cudaMemcpyDeviceToHost, stream);
        const char *staged = buffer_.data();
        for (uint32_t i = first; !status && i < end; staged += items[order_[i++]].bytes)
            std::memcpy(items[order_[i]].host, staged, items[order_[i]].bytes);
    }
    return status;
}

lk_status Transfer::upload(const SlotCopy *items, uint32_t n_items, cudaStream_t stream) {
    lk_status status = prepare(items, n_items);
    for (uint32_t first = 0, end; !status && first < n_items; first = end) {
        end = window_end(items, first);
        char *staged = buffer_.data();
        for (uint32_t i = first; i < end; staged += items[order_[i++]].bytes)
            std::memcpy(staged, items[order_[i]].host, items[order_[i]].bytes);
        status = copy_runs(items, first, end, cudaMemcpyHostToDevice, stream);
    }
    return status;
}

}  // namespace cuda
}  // namespace lk
