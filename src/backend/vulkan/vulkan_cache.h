// The device state of a cache, and the commands of its work.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_VULKAN_VULKAN_CACHE_H
#define LK_BACKEND_VULKAN_VULKAN_CACHE_H

#include "backend/gpu/device_state.h"
#include "backend/gpu/new_block_table.h"
#include "backend/gpu/query_stats_area.h"
#include "backend/vulkan/cache_pipelines.h"
#include "backend/vulkan/host_tensors.h"
#include "backend/vulkan/prefill_slots.h"
#include "backend/vulkan/report_buffer.h"
#include "backend/vulkan/rotated_queries.h"
#include "backend/vulkan/table_buffers.h"
#include "backend/vulkan/transfer.h"

namespace lk {
namespace vulkan {

class VulkanCache final : public CacheDevice {
  public:
    VulkanCache(const Allocator &allocator, const Device &device, const CacheLayout &layout);
    ~VulkanCache() override;

    // LK_E_UNSUPPORTED: too many sequences or tokens.
    lk_status open(Pipelines *pipelines, const SlabPool *slabs);

    lk_status set_queue(const lk_queue *queue) override;
    bool is_capturing() const override { return false; }

    lk_status block_create(Block *block) override { return state_.block_create(block); }
    void block_destroy(Block *block) override { state_.block_destroy(block); }
    lk_status entries_changed(Block *block) override;

    lk_status begin(const Batch &batch) override;
    lk_status append(const AppendArgs &args) override;
    lk_status pack(const PackItem *items, uint32_t n_items) override;
    lk_status dequantize(const DequantizeItem *items, uint32_t n_items) override;
    lk_status download(const SlotCopy *items, uint32_t n_items) override {
        return transfer_.download(items, n_items);
    }
    lk_status upload(const SlotCopy *items, uint32_t n_items) override {
        return transfer_.upload(items, n_items);
    }
    lk_status copy(const MemoryCopy *items, uint32_t n_items) override {
        return transfer_.copy(items, n_items);
    }
    lk_status move(const MoveItem *items, uint32_t n_items) override;
    lk_status shrink(const ShrinkItem *items, uint32_t n_items) override;
    uint64_t query_stats() const override { return sums_.address(); }
    lk_status sum_queries(const QueryStatArgs &args) override;
    lk_status add_stats(const StatItem *items, uint32_t n_items) override;
    lk_status attend(const AttendArgs &args) override;

    void report(DataReport *out) const override { state_.report(out); }
    void clear_report() override { state_.clear_report(); }
    uint64_t fixed_bytes() const override;

  private:
    lk_status open_tables();
    lk_status put_constants();
    // Calls record(recorder), which returns a status, between the begin and the end of a verb.
    template <class Record>
    lk_status run(const Semaphores &semaphores, const Record &record);
    template <class Item>
    lk_status run_jobs(FixedKernel kernel, const Item *items, uint32_t n_items,
                       const gpu::PackExtent &extent);
    void record_sums(const Recorder &recorder, const QueryStatRun &run, QueryStatsPush push) const;
    void record_append(const Recorder &recorder, VkPipeline pipeline, const AppendArgs &args,
                       AppendPush push, uint32_t n_groups) const;
    void record_new_pages(const Recorder &recorder, VkPipeline append, const AppendArgs &args,
                          AppendPush push) const;
    lk_status pack_staged(const AppendArgs &args);
    bool is_decoded(uint32_t layer) const;  // in this step
    bool want_decode(uint32_t layer);
    lk_status make_attend_pipelines();
    // tensors: queries, outputs, LSEs.
    template <class Push>
    Push attend_push(uint32_t layer, const PushTensor *tensors) const;
    void record_decode(const Recorder &recorder, uint32_t layer, const PushTensor *tensors) const;
    void record_prefill(const Recorder &recorder, const AttendArgs &args,
                        const PushTensor *tensors) const;
    void record_tile(const Recorder &recorder, const AttendArgs &args,
                     const PushTensor *tensors) const;
    void record_slots(const Recorder &recorder, const AttendArgs &args,
                      const PushTensor *tensors) const;
    void record_attention_scores(const Recorder &recorder, const AttendArgs &args,
                                 const ChunkAttention &request,
                                 const AttentionScoresPipelines &pipelines,
                                 const PushTensor &q) const;
    PushTensor rotated(const Recorder &recorder, uint32_t layer, const PushTensor &q,
                       float query_limit) const;
    Address staged(const uint16_t *area) const;
    uint32_t n_tile_groups() const;
    uint64_t most_tile_floats(const LayerView &layer) const;
    Semaphores next_append();
    Semaphores next_attend();

    const Allocator &allocator_;
    const Device &device_;
    const CacheLayout layout_;

    TableBuffers tables_;
    ReportBuffer report_;
    DecodeRules rules_;
    CachePipelines pipelines_;
    gpu::DeviceState state_;
    PrefillSlots slots_;
    gpu::NewBlockTable new_blocks_;
    gpu::JobList jobs_;
    gpu::Table constants_;  // StepTable, then the layers' table
    gpu::Table partials_;   // of one call of attention
    gpu::QueryStatsArea sums_;
    RotatedQueries rotated_;

    lk_queue queue_{};
    uint32_t n_appends_ = 0;  // of the step
    uint32_t n_attends_ = 0;
    Commands commands_;
    HostTensors append_tensors_;
    HostTensors attend_tensors_;
    HostTensors sum_tensors_;
    Transfer transfer_;
};

}  // namespace vulkan
}  // namespace lk

#endif
