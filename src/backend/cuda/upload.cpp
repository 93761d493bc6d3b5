// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/upload.h"

#include <cstring>

namespace lk {
namespace cuda {

lk_status Upload::open() {
    lk_status status = LK_OK;
    for (uint32_t b = 0; !status && b < kBuffers; ++b) {
        status = buffers_[b].open(kBufferBytes, cudaHostAllocDefault, "a buffer of uploads");
        if (!status)
            status = passed_[b].open();
    }
    return status;
}

lk_status Upload::allocate(uint64_t bytes, const char *what, uint64_t *address) {
    // A copy must not go from one allocation into the next, so they never touch.
    constexpr uint64_t kGap = 16;
    void *memory = nullptr;
    const lk_status status = cuda::allocate(bytes + kGap, what, &memory);
    if (!status)
        *address = reinterpret_cast<uint64_t>(memory);
    return status;
}

void Upload::abandon() {
    is_abandoned_ = true;
    for (uint32_t b = 0; b < kBuffers; ++b) {
        buffers_[b].abandon();
        passed_[b].abandon();
    }
}

// cudaFree() waits for what is queued.
void Upload::release(uint64_t address) {
    if (!is_abandoned_)
        (void)cudaFree(reinterpret_cast<void *>(address));
}

lk_status Upload::put(uint64_t address, const void *data, uint64_t bytes) {
    const char *from = static_cast<const char *>(data);
    lk_status status = LK_OK;
    while (!status && bytes) {
        if (used_ == kBufferBytes)
            status = turn();
        else if (used_ > sent_ && address != target_ + (used_ - sent_))
            status = send();
        if (!status && !used_)
            status = checked(cudaEventSynchronize(passed_[current_].get()), "waiting for uploads");
        if (status)
            return status;
        if (used_ == sent_)
            target_ = address;
        const uint64_t left_bytes = kBufferBytes - used_;
        const uint64_t n = bytes < left_bytes ? bytes : left_bytes;
        std::memcpy(buffers_[current_].data() + used_, from, n);
        used_ += n;
        from += n;
        address += n;
        bytes -= n;
    }
    return status;
}

lk_status Upload::send() {
    if (used_ == sent_)
        return LK_OK;
    const cudaError_t error =
        cudaMemcpyAsync(reinterpret_cast<void *>(target_), buffers_[current_].data() + sent_,
                        used_ - sent_, cudaMemcpyHostToDevice, stream_);
    sent_ = used_;
    return checked(error, "copying tables to the device");
}

lk_status Upload::turn() {
    const lk_status status = send();
    if (status)
        return status;
    const cudaError_t error = cudaEventRecord(passed_[current_].get(), stream_);
    current_ = (current_ + 1) % kBuffers;
    sent_ = used_ = 0;
    return checked(error, "marking the end of uploads");
}

}  // namespace cuda
}  // namespace lk
