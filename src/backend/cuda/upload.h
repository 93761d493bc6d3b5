// Tables in device memory, and copies to them in the order of a stream, without waiting: the bytes
// are kept in a ring of pinned buffers until the copies have run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_UPLOAD_H
#define LK_BACKEND_CUDA_UPLOAD_H

#include "backend/cuda/runtime.h"
#include "backend/gpu/memory.h"

namespace lk {
namespace cuda {

class Upload final : public gpu::TableMemory {
  public:
    lk_status open();
    // The stream of all further copies; what was put before is sent.
    void use(cudaStream_t stream) { stream_ = stream; }

    // Leave all memory to the process that opened it; release() then does nothing.
    void abandon();

    lk_status allocate(uint64_t bytes, const char *what, uint64_t *address) override;
    void release(uint64_t address) override;

    // Ranges that follow each other on the device become one copy, so the
    // last one goes with send() or turn(). Waits when the ring is full of copies that did not run.
    lk_status put(uint64_t address, const void *data, uint64_t bytes) override;
    lk_status send();
    // Send, and take the next buffer. Between two calls the stream is late by at most kBuffers - 1
    // calls.
    lk_status turn();
    static constexpr uint32_t kBuffers = 4;

  private:
    static constexpr uint64_t kBufferBytes = 512u << 10;

    cudaStream_t stream_ = nullptr;
    bool is_abandoned_ = false;
    PinnedMemory buffers_[kBuffers];
    Event passed_[kBuffers];
    uint32_t current_ = 0;
    uint64_t sent_ = 0;    // bytes of the current buffer
    uint64_t used_ = 0;    // bytes after sent_ wait for send()
    uint64_t target_ = 0;  // where byte sent_ goes
};

}  // namespace cuda
}  // namespace lk

#endif
