// What the device keeps for a cache, and the launches of its work.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_CUDA_CACHE_H
#define LK_BACKEND_CUDA_CUDA_CACHE_H

#include "backend/cuda/cache_tables.h"
#include "backend/cuda/fault_log.h"
#include "backend/cuda/row_tables.h"
#include "backend/cuda/split.h"
#include "backend/cuda/step_tables.h"
#include "backend/cuda/upload.h"

namespace lk {
namespace cuda {

// As kernels read it.
TensorArg tensor_arg(const TensorView &view);

class CudaCache final : public CacheDevice {
  public:
    CudaCache(const Allocator &allocator, int device, const CacheLayout &layout);
    ~CudaCache() override;

    lk_status open();

    lk_status set_queue(const lk_queue *queue) override;
    bool is_capturing() const override;

    lk_status row_create(PageRow *row) override;
    void row_destroy(PageRow *row) override;
    lk_status entries_changed(PageRow *row) override;

    lk_status begin(const Batch &batch) override;
    lk_status append(const AppendArgs &args) override;
    lk_status pack(const PackItem *items, uint32_t n_items) override;
    lk_status reopen(const ReopenItem *items, uint32_t n_items) override;
    lk_status sum_queries(const QuerySumArgs *items, uint32_t n_items) override;
    lk_status attend(const AttendArgs &args) override;

    void report(DataReport *out) const override { faults_.read(out); }
    void clear_report() override { faults_.clear(); }
    uint64_t fixed_bytes() const override;

  private:
    // What launches of a step depend on, beside the tables.
    struct Shape {
        uint32_t n_sequences;
        uint32_t n_tokens;
        uint32_t max_new;  // of a sequence
        bool is_staged;    // a sequence has its new tokens in the staging area
    };

    lk_status open_work(const SplitLimits &limits);
    lk_status fill_constants();
    lk_status change_stream(cudaStream_t stream);
    StagingArg staging_arg(const Staging &staging) const;
    cudaError_t decode(const LayerArg &layer, const AttendArgs &args);
    cudaError_t tile(const LayerArg &layer, const AttendArgs &args);
    // Upload up to kCopiedJobs, the first of them number `first` of a launch.
    template <class Job, class Item>
    lk_status put_jobs(const Item *items, uint32_t n, uint32_t first);
    template <class Job, class Item, class Launch>
    lk_status run_jobs(const Item *items, uint32_t n_items, const char *action,
                       const Launch &launch);
    PackJob job_of(const PackItem &item) const;
    ReopenJob job_of(const ReopenItem &item) const;
    uint32_t class_index(const HalfClass *half) const;

    const Allocator &allocator_;
    const int device_;
    const CacheLayout layout_;
    uint32_t n_sms_ = 0;
    cudaStream_t stream_ = nullptr;
    bool has_stream_ = false;
    Event passed_;  // what the stream has when the cache leaves it

    Upload upload_;
    CacheTables tables_;
    RowTables rows_;
    StepTables step_;
    Splits splits_;
    FaultLog faults_;
    StepView view_{};
    Shape shape_{};
    uint32_t serial_ = 0;
    bool rows_changed_ = true;     // since the last begin(): rows came, went or have other entries
    bool splits_changed_ = false;  // since they were sent

    DeviceMemory jobs_;
    DeviceMemory counters_;  // of decode
    DeviceMemory partials_;  // of one launch of attention
};

}  // namespace cuda
}  // namespace lk

#endif
