// A device that does no work: host memory, and what a test wants it to say.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_CORE_FAKE_DEVICE_H
#define LK_TESTS_CORE_FAKE_DEVICE_H

#include "backend/backend.h"
#include "base/status.h"

#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

class FakeDevice final : public lk::CacheDevice {
  public:
    lk_status set_queue(const lk_queue *queue) override {
        if (capturing)
            return lk::fail(LK_E_STATE, "queue is being captured");
        handle = queue ? queue->handle : nullptr;
        ++n_queues;
        return LK_OK;
    }
    bool is_capturing() const override { return capturing; }

    lk_status block_create(lk::Block *block) override {
        if (blocks.size() == max_blocks)
            return lk::fail(LK_E_NOMEM, "no space for a block");
        blocks.insert(block);
        stale.insert(block);
        return LK_OK;
    }
    void block_destroy(lk::Block *block) override {
        blocks.erase(block);
        stale.erase(block);
    }
    lk_status entries_changed(lk::Block *block) override {
        stale.erase(block);
        ++n_changes;
        return LK_OK;
    }
    lk_status begin(const lk::Batch &batch) override {
        n_stale += stale.size();
        last_begin = batch;
        return fails_begin ? lk::fail(LK_E_DEVICE, "no begin") : LK_OK;
    }
    lk_status append(const lk::AppendArgs &) override {
        ++n_appends;
        return LK_OK;
    }
    lk_status pack(const lk::PackItem *items, uint32_t n_items) override {
        return packs ? packs(items, n_items) : LK_OK;
    }
    lk_status dequantize(const lk::DequantizeItem *items, uint32_t n_items) override {
        return dequantizes ? dequantizes(items, n_items) : LK_OK;
    }
    lk_status download(const lk::SlotCopy *items, uint32_t n_items) override {
        if (fails_copies)
            return lk::fail(LK_E_DEVICE, "no download");
        for (uint32_t i = 0; i < n_items; ++i)
            std::memcpy(items[i].host, reinterpret_cast<void *>(items[i].address), items[i].bytes);
        return LK_OK;
    }
    lk_status upload(const lk::SlotCopy *items, uint32_t n_items) override {
        if (fails_copies)
            return lk::fail(LK_E_DEVICE, "no upload");
        for (uint32_t i = 0; i < n_items; ++i)
            std::memcpy(reinterpret_cast<void *>(items[i].address), items[i].host, items[i].bytes);
        return LK_OK;
    }
    lk_status copy(const lk::MemoryCopy *items, uint32_t n_items) override {
        if (fails_copies)
            return lk::fail(LK_E_DEVICE, "no copy");
        n_copies += n_items;
        for (uint32_t i = 0; i < n_items; ++i) {
            auto *target = reinterpret_cast<void *>(items[i].target);
            if (items[i].source)
                std::memcpy(target, reinterpret_cast<void *>(items[i].source), items[i].bytes);
            else
                std::memset(target, 0, items[i].bytes);
        }
        return LK_OK;
    }
    lk_status move(const lk::MoveItem *items, uint32_t n_items) override {
        n_moves += n_items;
        return moves ? moves(items, n_items) : LK_OK;
    }
    lk_status shrink(const lk::ShrinkItem *items, uint32_t n_items) override {
        return shrinks ? shrinks(items, n_items) : LK_OK;
    }
    uint64_t query_stats() const override { return 0; }
    lk_status sum_queries(const lk::QueryStatArgs &) override { return LK_OK; }
    lk_status add_stats(const lk::StatItem *items, uint32_t n_items) override {
        return adds_stats ? adds_stats(items, n_items) : LK_OK;
    }
    lk_status attend(const lk::AttendArgs &args) override {
        n_chunk_attentions += args.n_chunk_attentions;
        return LK_OK;
    }
    void report(lk::DataReport *out) const override { *out = data; }
    void clear_report() override {
        const uint64_t n_saturated = data.n_saturated;
        data = {};
        data.n_saturated = n_saturated;
        ++n_clears;
    }
    uint64_t fixed_bytes() const override { return 4321; }

    void *handle = nullptr;
    bool capturing = false;
    bool fails_begin = false;
    bool fails_copies = false;  // downloads, uploads, copies of memory
    uint32_t n_queues = 0;      // calls that set one, or none
    uint32_t n_chunk_attentions = 0;
    size_t max_blocks = SIZE_MAX;
    std::set<lk::Block *> blocks;
    std::set<lk::Block *> stale;  // created, without entries_changed() since
    size_t n_stale = 0;           // at a begin
    lk::Batch last_begin{};
    uint32_t n_changes = 0;
    uint32_t n_appends = 0;
    uint32_t n_moves = 0;   // of pages
    uint32_t n_copies = 0;  // of memory
    uint32_t n_clears = 0;
    lk::DataReport data{};
    // What a test makes of these calls; nothing when it is empty.
    std::function<lk_status(const lk::PackItem *items, uint32_t n_items)> packs;
    std::function<lk_status(const lk::ShrinkItem *items, uint32_t n_items)> shrinks;
    std::function<lk_status(const lk::DequantizeItem *items, uint32_t n_items)> dequantizes;
    std::function<lk_status(const lk::MoveItem *items, uint32_t n_items)> moves;
    std::function<lk_status(const lk::StatItem *items, uint32_t n_items)> adds_stats;
};

// fail() for tests, where cmocka has a macro of its name.
inline lk_status refuse(lk_status status, const char *sentence) {
    return lk::fail(status, "%s", sentence);
}
// A call of the device that fails.
constexpr auto kDeviceFails = [](const auto *, uint32_t) { return lk_status{LK_E_DEVICE}; };

// With one cache at a time.
class FakeDeviceBackend final : public lk::Backend {
  public:
    lk_status supports(const lk_capability &capability) const override {
        if (supported)
            return supported(capability);
        return capability.memory == LK_MEMORY_CUDA && capability.queue == LK_QUEUE_CUDA_STREAM
                   ? LK_OK
                   : lk::fail(LK_E_UNSUPPORTED, "memory %u, queue %u", capability.memory,
                              capability.queue);
    }
    const lk::BackendTraits &traits() const override { return own_traits; }
    void describe(lk_device_info *) const override {}
    lk_status slab_create(uint64_t bytes, lk::SlabMemory *out) override {
        void *memory = std::aligned_alloc(4096, lk::round_up(bytes, 4096));
        if (!memory)
            return LK_E_NOMEM;
        std::memset(memory, 0, bytes);  // sound pages of formats without a permutation
        *out = {reinterpret_cast<uint64_t>(memory), bytes, memory};
        return LK_OK;
    }
    void slab_destroy(const lk::SlabMemory &slab) override { std::free(slab.handle); }
    lk_status check_queue(const lk_queue *queue) const override {
        return queue ? LK_OK : lk::fail(LK_E_ARGUMENT, "queue is NULL");
    }
    lk_status resolve_tensor(const lk_tensor &tensor, uint64_t bytes, const char *name,
                             void **data) const override {
        const char *begin = static_cast<const char *>(tensor.data);
        *data = tensor.data;
        return begin >= tensors && begin + bytes <= tensors + sizeof tensors
                   ? LK_OK
                   : lk::fail(LK_E_ARGUMENT, "%s.data is a host pointer", name);
    }
    lk_status merge(const lk::MergeView &) const override { return LK_OK; }
    lk_status cosine(const lk::CosineView &) const override { return LK_OK; }
    lk_status cache_open(const lk::CacheLayout &from, lk::CacheDevice **out) override {
        layout = from;
        if (fails_open)
            return lk::fail(LK_E_NOMEM, "no memory for a cache of the device");
        device = new FakeDevice;
        *out = device;
        return LK_OK;
    }
    lk_status enter_child(bool) override { return LK_OK; }
    void cache_close(lk::CacheDevice *cache) override {
        n_blocks_at_close = static_cast<FakeDevice *>(cache)->blocks.size();
        delete static_cast<FakeDevice *>(cache);
    }

    char tensors[1 << 16];  // memory of the device
    lk::BackendTraits own_traits = {
        "a fake device", LK_MEMORY_CUDA, false, LK_QUEUE_CUDA_STREAM, 0, true};
    bool fails_open = false;
    FakeDevice *device = nullptr;
    lk::CacheLayout layout{};
    // What it supports; memory and queues of CUDA when it is empty.
    std::function<lk_status(const lk_capability &)> supported;
    size_t n_blocks_at_close = 0;
};

#endif
