// The device state of a cache, and the launches of its work.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_CUDA_CACHE_H
#define LK_BACKEND_CUDA_CUDA_CACHE_H

#include "backend/cuda/append_tables.h"
#include "backend/cuda/decode_rules.h"
#include "backend/cuda/kv_tile_templates.h"
#include "backend/cuda/mapped_report.h"
#include "backend/cuda/transfer.h"
#include "backend/cuda/upload.h"
#include "backend/gpu/device_state.h"
#include "backend/gpu/query_stats_area.h"

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

    lk_status block_create(Block *block) override;
    void block_destroy(Block *block) override;
    lk_status entries_changed(Block *block) override;

    lk_status begin(const Batch &batch) override;
    lk_status append(const AppendArgs &args) override;
    lk_status pack(const PackItem *items, uint32_t n_items) override;
    lk_status dequantize(const DequantizeItem *items, uint32_t n_items) override;
    lk_status download(const SlotCopy *items, uint32_t n_items) override;
    lk_status upload(const SlotCopy *items, uint32_t n_items) override;
    lk_status copy(const MemoryCopy *items, uint32_t n_items) override;
    lk_status move(const MoveItem *items, uint32_t n_items) override;
    lk_status shrink(const ShrinkItem *items, uint32_t n_items) override;
    uint64_t query_stats() const override { return sums_.address(); }
    lk_status sum_queries(const QueryStatArgs &args) override;
    lk_status add_stats(const StatItem *items, uint32_t n_items) override;
    lk_status attend(const AttendArgs &args) override;

    void report(DataReport *out) const override { state_.report(out); }
    void clear_report() override { state_.clear_report(); }
    uint64_t fixed_bytes() const override;
    void enter_child() override;

  private:
    lk_status open_tables();
    lk_status open_work();
    lk_status grow_sums(uint64_t n_bytes);
    void fill_view();
    lk_status change_stream(cudaStream_t stream);
    void use(cudaStream_t stream);
    LayerArg layer_arg(uint32_t index) const;
    StagingArg staging_arg(const Staging &staging) const;
    cudaError_t decode(const AttendArgs &args);
    cudaError_t prefill(const AttendArgs &args);
    TileArgs tile_args(const AttendArgs &args) const;
    cudaError_t attend_rows(const AttendArgs &args);
    bool is_long(uint32_t layer) const;
    bool must_stage(uint32_t layer) const;
    LongStep long_step(uint32_t layer) const;
    cudaError_t score_attention(const AttendArgs &args, const ChunkAttention &request);

    const Allocator &allocator_;
    const int device_;
    const CacheLayout layout_;
    bool is_abandoned_ = false;  // to the parent process
    uint32_t n_sms_ = 0;
    Stream first_;                   // until there is a queue
    cudaStream_t stream_ = nullptr;  // of the next work of the cache
    Event passed_;                   // the work of the stream when the cache leaves it

    Upload upload_;
    Transfer transfer_;
    MappedReport report_;
    DecodeRules rules_;
    gpu::DeviceState state_;
    StepView view_{};

    KvTileTemplates templates_;
    AppendTables append_tables_;
    // The layer whose new tokens are read from the host's tensors.
    struct {
        bool exists;
        uint32_t layer;
        TensorArg k;
        TensorArg v;
    } unstaged_{};
    gpu::JobList jobs_;
    gpu::Table counters_;  // of decode
    gpu::Table partials_;  // of one launch of attention
    gpu::Table slots_;     // of the pages of one pass of a long step
    gpu::QueryStatsArea sums_;
    gpu::Table query_stats_cell_;  // u64: their address, which graphs read
};

}  // namespace cuda
}  // namespace lk

#endif
