// The CacheDevice of the CPU: the formats of a cache and the open batch.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_CACHE_DEVICE_H
#define LK_BACKEND_CPU_CACHE_DEVICE_H

#include "backend/backend.h"
#include "backend/cpu/attend.h"
#include "backend/cpu/pack.h"
#include "backend/cpu/shrink.h"
#include "backend/cpu/threads.h"

namespace lk {
namespace cpu {

class Lock {
  public:
    explicit Lock(pthread_mutex_t *mutex) : mutex_(mutex) { pthread_mutex_lock(mutex_); }
    ~Lock() { pthread_mutex_unlock(mutex_); }
    Lock(const Lock &) = delete;
    Lock &operator=(const Lock &) = delete;

  private:
    pthread_mutex_t *mutex_;
};

// Threads and memory that the caches of a context share.
struct Engine {
    Engine(const Allocator &from, const Kernels *chosen)
        : allocator(from),
          kernels(chosen),
          pool(allocator),
          pack_scratch(allocator),
          attend_scratch(allocator) {}
    ~Engine() { pthread_mutex_destroy(&mutex); }
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // As Backend::enter_child(). The scratch that a call of the parent process was changing stays
    // in memory, unused.
    lk_status enter_child(bool was_in_use) {
        pthread_mutex_init(&mutex, nullptr);
        if (was_in_use)
            new (&attend_scratch) AttendScratch(allocator);
        return pool.enter_child();
    }

    uint16_t *scratch_of(uint32_t thread) { return pack_scratch.data() + thread * kPackScratch; }

    const Allocator allocator;
    const Kernels *const kernels;                       // null: the reference
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // the pool and the scratch serve one call
    ThreadPool pool;
    Array<uint16_t> pack_scratch;  // [threads][kPackScratch]
    AttendScratch attend_scratch;
};

class CpuCacheDevice final : public CacheDevice {
  public:
    CpuCacheDevice(Engine *engine, const CacheLayout &layout)
        : engine_(*engine),
          layout_(layout),
          parts_(engine->allocator),
          packed_parts_(engine->allocator),
          query_sums_(engine->allocator) {}
    ~CpuCacheDevice() override { pthread_mutex_destroy(&report_mutex_); }

    // Memory for the lists of the largest step; false when it is exhausted.
    bool reserve();
    lk_status set_queue(const lk_queue *) override { return LK_OK; }
    bool is_capturing() const override { return false; }

    lk_status block_create(Block *) override { return LK_OK; }
    void block_destroy(Block *) override {}
    lk_status entries_changed(Block *) override { return LK_OK; }

    lk_status begin(const Batch &batch) override;
    lk_status append(const AppendArgs &args) override;
    lk_status pack(const PackItem *items, uint32_t n_items) override;
    lk_status dequantize(const DequantizeItem *items, uint32_t n_items) override;
    lk_status download(const SlotCopy *items, uint32_t n_items) override;
    lk_status upload(const SlotCopy *items, uint32_t n_items) override;
    lk_status upload_with(const SlotCopy *items, uint32_t n_items, const SideWork &side) override;
    lk_status copy(const MemoryCopy *items, uint32_t n_items) override;
    lk_status move(const MoveItem *items, uint32_t n_items) override;
    lk_status shrink(const ShrinkItem *items, uint32_t n_items) override;
    uint64_t query_stats() const override { return reinterpret_cast<uint64_t>(query_sums_.data()); }
    lk_status sum_queries(const QueryStatArgs &args) override;
    lk_status add_stats(const StatItem *items, uint32_t n_items) override;
    lk_status attend(const AttendArgs &args) override;

    void report(DataReport *out) const override;
    void clear_report() override;
    uint64_t fixed_bytes() const override { return 0; }
    void enter_child() override { pthread_mutex_init(&report_mutex_, nullptr); }

  private:
    void note(const AppendArgs &args, uint64_t n_saturated, uint64_t first_bad);

    Engine &engine_;
    const CacheLayout layout_;
    Batch batch_{};
    Array<BlockPart> parts_;         // of the batch, in 16-bit blocks
    Array<BlockPart> packed_parts_;  // in blocks that are packed on append
    Array<uint64_t> query_sums_;
    mutable pthread_mutex_t report_mutex_ = PTHREAD_MUTEX_INITIALIZER;
    DataReport report_{};
};

}  // namespace cpu
}  // namespace lk

#endif
