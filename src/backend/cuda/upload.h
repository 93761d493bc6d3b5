// Copies from the host to the device in the order of a stream, without waiting: the bytes are kept
// in a ring of pinned buffers until the copies have run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_UPLOAD_H
#define LK_BACKEND_CUDA_UPLOAD_H

#include "backend/cuda/runtime.h"

namespace lk {
namespace cuda {

class Upload {
  public:
    lk_status open();

    // Take bytes for `device`. Pieces that follow each other on the device become one copy, so the
    // last one goes with send() or turn(). Waits when the ring is full of copies that did not run.
    lk_status put(uint64_t device, const void *data, uint64_t bytes, cudaStream_t stream);
    lk_status send(cudaStream_t stream);
    // Send, and take the next buffer. Between two calls the stream is at most kBuffers - 1 calls
    // behind.
    lk_status turn(cudaStream_t stream);
    static constexpr uint32_t kBuffers = 4;

  private:
    static constexpr uint64_t kBufferBytes = 512u << 10;

    PinnedMemory buffers_[kBuffers];
    Event passed_[kBuffers];
    uint32_t current_ = 0;
    uint64_t sent_ = 0;    // bytes of the current buffer
    uint64_t used_ = 0;    // those behind sent_ wait for send()
    uint64_t target_ = 0;  // where byte sent_ goes
};

}  // namespace cuda
}  // namespace lk

#endif
