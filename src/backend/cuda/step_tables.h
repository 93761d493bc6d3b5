// What kernels read of a step, at addresses that stay the same for a cache's life.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_STEP_TABLES_H
#define LK_BACKEND_CUDA_STEP_TABLES_H

#include "backend/backend.h"
#include "backend/cuda/upload.h"
#include "cuda/types.h"

namespace lk {
namespace cuda {

class StepTables {
  public:
    explicit StepTables(const Allocator &allocator)
        : sequences_(allocator), rows_(allocator), ancestors_(allocator), positions_(allocator) {}

    // splits_bytes: the most that send() gets.
    lk_status open(const CacheLayout &layout, uint64_t splits_bytes);
    // rows_changed: rows came or went since the last send(). LK_E_UNSUPPORTED: a sequence of 2^32
    // tokens.
    lk_status fill(const Batch &batch, uint32_t serial, bool rows_changed);
    // The tables, and the splits of the batch.
    lk_status send(const void *splits, uint64_t splits_bytes, Upload *upload, cudaStream_t stream);

    // The tables of a step; classes and report are the caller's to set.
    StepView view() const;
    template <class T>
    const T *splits(uint64_t offset_bytes) const {
        return memory_.as<T>(splits_offset_ + offset_bytes);
    }
    uint64_t bytes() const { return memory_.bytes(); }

  private:
    bool has_same_rows(const Batch &batch) const;
    lk_status fill_sequences(const Batch &batch);
    lk_status fill_rows(const Batch &batch);
    void fill_trees(const Batch &batch);

    StepHeader header_{};
    Array<SequenceInfo> sequences_;  // [max_sequences]
    Array<RowInfo> rows_;
    Array<uint64_t> ancestors_;
    Array<uint32_t> positions_;
    uint64_t max_rows_ = 0;
    bool has_rows_ = false;    // the device has rows_, of header_.n_sequences sequences
    bool sends_rows_ = false;  // with the next send()
    bool has_direct_ = false;
    bool has_trees_ = false;

    DeviceMemory memory_;  // header, sequences, splits, rows, ancestors, positions
    uint64_t splits_offset_ = 0;
    uint64_t rows_offset_ = 0;
    uint64_t ancestors_offset_ = 0;
    uint64_t positions_offset_ = 0;
};

}  // namespace cuda
}  // namespace lk

#endif
