// Tables in device memory, and copies to them inside of command buffers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_TABLE_BUFFERS_H
#define LK_BACKEND_VULKAN_TABLE_BUFFERS_H

#include "backend/gpu/memory.h"
#include "backend/vulkan/recorder.h"

namespace lk {
namespace vulkan {

class TableBuffers final : public gpu::TableMemory {
  public:
    TableBuffers(const Allocator &allocator, const Device &device)
        : allocator_(allocator), device_(device), buffers_(allocator) {}
    ~TableBuffers();
    TableBuffers(const TableBuffers &) = delete;
    TableBuffers &operator=(const TableBuffers &) = delete;

    // Where put() records from now on.
    void use(const Recorder &recorder) { recorder_ = recorder; }

    lk_status allocate(uint64_t bytes, const char *what, uint64_t *address) override;
    void release(uint64_t address) override;
    lk_status put(uint64_t address, const void *data, uint64_t bytes) override;

  private:
    size_t find(uint64_t address) const;

    const Allocator &allocator_;
    const Device &device_;
    Recorder recorder_;
    Array<Buffer *> buffers_;  // by address
};

}  // namespace vulkan
}  // namespace lk

#endif
