// Bytes of slots to the host and back, through pinned memory: slots that follow each other on the
// device are one copy.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_TRANSFER_H
#define LK_BACKEND_CUDA_TRANSFER_H

#include "backend/backend.h"
#include "backend/cuda/runtime.h"

namespace lk {
namespace cuda {

class Transfer {
  public:
    explicit Transfer(const Allocator &allocator) : order_(allocator) {}

    // After the work of the stream; done when they return.
    lk_status download(const SlotCopy *items, uint32_t n_items, cudaStream_t stream);
    lk_status upload(const SlotCopy *items, uint32_t n_items, cudaStream_t stream);

    void abandon() { buffer_.abandon(); }

    static constexpr uint64_t kBufferBytes = 4u << 20;

  private:
    lk_status prepare(const SlotCopy *items, uint32_t n_items);
    // The items order_[first ..] that the buffer holds at once; the end of them.
    uint32_t window_end(const SlotCopy *items, uint32_t first) const;
    lk_status copy_runs(const SlotCopy *items, uint32_t first, uint32_t end, cudaMemcpyKind kind,
                        cudaStream_t stream);

    PinnedMemory buffer_;    // from the first use on
    Array<uint32_t> order_;  // by address
};

}  // namespace cuda
}  // namespace lk

#endif
