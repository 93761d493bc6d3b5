// Ladders on a device that does no work: what the core requests of it, and what is left when it
// fails. --measure prints what a page costs the host, with the lists that devices read filled.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/shrink.h"

#include "backend/gpu/jobs.h"
#include "core/cache.h"
#include "core/pages/ladders.h"
#include "counted_memory.h"
#include "fake_device.h"
#include "suite.h"

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <memory>
#include <vector>

namespace {

constexpr uint32_t kHeads = 8;
constexpr uint32_t kHeadDim = 128;
constexpr uint32_t kPageTokens = 128;
constexpr uint32_t kStepTokens = 192;
constexpr uint8_t kRungs[] = {16, 8, 4, 2};

// One sequence of a layer that begins at 16 bits.
struct Rig {
    explicit Rig(uint64_t n_tokens, uint64_t budget_bytes = 0);
    ~Rig() { lk_cache_destroy(&cache); }
    lk_status step(uint32_t n);
    FakeDevice &device() { return *backend->device; }
    uint64_t n_shrunk() const { return cache->statistics.counts.pages_shrunk; }

    std::unique_ptr<FakeDeviceBackend> backend = std::make_unique<FakeDeviceBackend>();
    CountedMemory memory;
    lk_context context;
    lk_cache *cache = nullptr;
    lk_queue queue;
    lk_sequence id = 0;
};

Rig::Rig(uint64_t n_tokens, uint64_t budget_bytes) : context(memory.hooks()) {
    context.backend = backend.get();
    context.desc.backend = LK_BACKEND_CUDA;
    lk_layer layer;
    assert_int_equal(lk_layer_init(&layer, sizeof layer), LK_OK);
    layer.n_query_heads = layer.n_kv_heads = kHeads;
    layer.head_dim = kHeadDim;
    lk_geometry geometry;
    assert_int_equal(lk_geometry_init(&geometry, sizeof geometry), LK_OK);
    geometry.n_layers = 1;
    geometry.layers = &layer;
    lk_plan *plan;
    assert_int_equal(lk_plan_preset("pm-kvq", &geometry, &plan), LK_OK);
    assert_int_equal(lk_plan_set_ladder(plan, 0, kRungs, 4, 16), LK_OK);
    lk_plan_size size;
    assert_int_equal(lk_plan_size_init(&size, sizeof size), LK_OK);
    assert_int_equal(lk_plan_bytes(plan, std::max<uint64_t>(n_tokens, 1), 1, kStepTokens, &size),
                     LK_OK);
    lk_cache_desc desc;
    assert_int_equal(lk_cache_desc_init(&desc, sizeof desc), LK_OK);
    desc.max_sequences = 1;
    desc.max_step_tokens = kStepTokens;
    desc.budget_bytes = budget_bytes ? budget_bytes : size.cache_bytes + (uint64_t{128} << 20);
    assert_int_equal(lk_cache_create(&context, &geometry, plan, &desc, &cache), LK_OK);
    lk_plan_destroy(&plan);
    assert_int_equal(lk_queue_init(&queue, sizeof queue), LK_OK);
    queue.kind = LK_QUEUE_CUDA_STREAM;
    assert_int_equal(lk_sequence_add(cache, &id), LK_OK);
    for (uint64_t done = 0; !budget_bytes && done < n_tokens; done += kStepTokens)
        assert_int_equal(step(kStepTokens), LK_OK);
}

lk_status Rig::step(uint32_t n) {
    const lk_status status = lk_step_begin(cache, &queue, 1, &id, &n, nullptr);
    if (status)
        return status;
    lk_tensor kv;
    assert_int_equal(lk_tensor_init(&kv, sizeof kv), LK_OK);
    kv.dtype = LK_F16;
    kv.memory = LK_MEMORY_CUDA;
    kv.data = backend->tensors;
    kv.token_stride = kv.head_stride = kHeadDim;
    assert_int_equal(lk_append(cache, 0, &kv, &kv), LK_OK);
    return lk_step_commit(cache, nullptr);
}

// Tables that go nowhere: a ring of memory, as devices have it.
class RingMemory final : public lk::gpu::TableMemory {
  public:
    lk_status allocate(uint64_t, const char *, uint64_t *address) override {
        *address = 4096;
        return LK_OK;
    }
    void release(uint64_t) override {}
    lk_status put(uint64_t, const void *data, uint64_t bytes) override {
        if (used_ + bytes > ring_.size())
            used_ = 0;
        std::memcpy(ring_.data() + used_, data, bytes);
        used_ += bytes;
        return LK_OK;
    }

  private:
    std::vector<char> ring_ = std::vector<char>(2u << 20);
    size_t used_ = 0;
};

double median(std::vector<double> *samples) {
    std::sort(samples->begin(), samples->end());
    return (*samples)[samples->size() / 2];
}

// Of this thread alone, since others may have the core meanwhile.
double thread_ns() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void measure() {
    constexpr uint64_t kLayerTokens = 131072;
    constexpr uint32_t kRepeats = 9;
    std::vector<double> ns[3];
    for (uint32_t i = 0; i < kRepeats; ++i) {
        Rig rig(kLayerTokens);
        RingMemory memory;
        lk::gpu::JobList jobs;
        assert_int_equal(jobs.open(&memory), LK_OK);
        const lk::CacheLayout &layout = rig.backend->layout;
        rig.device().shrinks = [&](const lk::ShrinkItem *items, uint32_t n) {
            return jobs.run(layout, items, n,
                            [](const auto *, uint32_t) { return lk_status{LK_OK}; });
        };
        rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
            return jobs.run(layout, items, n,
                            [](const auto *, uint32_t) { return lk_status{LK_OK}; });
        };
        for (uint32_t rung = 1; rung < 4; ++rung) {
            const uint64_t before = rig.n_shrunk();
            const double start = thread_ns();
            assert_int_equal(lk_cache_shrink(rig.cache, 0, kRungs[rung]), LK_OK);
            const double spent = thread_ns() - start;
            ns[rung - 1].push_back(spent / static_cast<double>(rig.n_shrunk() - before));
        }
    }
    for (uint32_t rung = 1; rung < 4; ++rung)
        std::printf("%u to %u bits: %.1f ns a page on the host\n", kRungs[rung - 1], kRungs[rung],
                    median(&ns[rung - 1]));
}

// Everything that a refusal must leave as it was.
struct State {
    explicit State(Rig *rig) : stats(rig->cache->statistics.counts), ledger(rig->cache->ledger) {
        for (lk::Block *row : rig->cache->sequences[0]->block_table)
            entries.insert(entries.end(), row->entries, row->entries + row->n_entries);
        slot_bytes = rig->cache->slots.slot_bytes();
    }
    bool operator==(const State &other) const {
        return entries.size() == other.entries.size() &&
               std::memcmp(entries.data(), other.entries.data(),
                           entries.size() * sizeof entries[0]) == 0 &&
               std::memcmp(&stats, &other.stats, sizeof stats) == 0 &&
               ledger.extent_bytes == other.ledger.extent_bytes && slot_bytes == other.slot_bytes;
    }

    lk_cache_stats stats;
    lk::Ledger ledger;
    std::vector<lk::PageEntry> entries;
    uint64_t slot_bytes;
};

// Of all entries, as their classes have it.
void check_stats(const Rig &rig) {
    lk_cache_stats stats{};
    uint64_t payload_slots = 0;
    for (const lk::Block *row : rig.cache->sequences[0]->block_table)
        for (uint32_t e = 0; e < row->n_entries; ++e)
            for (const bool is_value : {false, true}) {
                const lk::PageEntry &entry = row->entries[e];
                const lk::PageFormat &half =
                    rig.cache->formats[is_value ? entry.value_format : entry.key_format];
                const lk::PageBytes bytes = lk::page_bytes(half);
                stats.payload_bytes += bytes.payload;
                stats.metadata_bytes += bytes.metadata;
                stats.recent_bytes += bytes.recent;
                const uint64_t address = is_value ? entry.value_payload : entry.key_payload;
                payload_slots += rig.cache->slots.bytes_at(address);
                assert_int_equal(rig.cache->slots.bytes_at(address),
                                 lk::slot_bytes(lk::payload_bytes(half.layout)));
            }
    assert_int_equal(rig.cache->statistics.counts.payload_bytes, stats.payload_bytes);
    assert_int_equal(rig.cache->statistics.counts.metadata_bytes, stats.metadata_bytes);
    assert_int_equal(rig.cache->statistics.counts.recent_bytes, stats.recent_bytes);
    assert_true(payload_slots < rig.cache->slots.slot_bytes());
}

constexpr uint64_t kTokens = 64 * kStepTokens;  // 94 blocks that shrink, 16 pages each

// A whole layer goes down in few calls of the device, without memory of the host; items of a call
// are apart.
void a_layer_goes_down_in_runs(void **) {
    Rig rig(kTokens);
    uint32_t n_calls = 0;
    uint64_t n_items = 0;
    std::vector<std::pair<uint64_t, uint64_t>> touched;
    const auto check = [&] {
        ++n_calls;
        std::sort(touched.begin(), touched.end());
        for (size_t i = 1; i < touched.size(); ++i)
            assert_true(touched[i - 1].first + touched[i - 1].second <= touched[i].first);
        touched.clear();
    };
    rig.device().packs = [&](const lk::PackItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) {
            touched.push_back({items[i].source, lk::payload_bytes(items[i].source_format->layout)});
            touched.push_back({items[i].payload, lk::payload_bytes(items[i].target->layout)});
        }
        n_items += n;
        check();
        return lk_status{LK_OK};
    };
    rig.device().shrinks = [&](const lk::ShrinkItem *items, uint32_t n) {
        for (uint32_t i = 0; i < n; ++i) {
            assert_true(items[i].source == items[i].target && !items[i].tail_bytes);
            for (uint32_t h = 0; h < items[i].n_pages; ++h)
                touched.push_back(
                    {items[i].source + uint64_t{h} * items[i].stride_bytes,
                     items[i].n_strips * lk::strip_bytes(items[i].page_tokens, 2 * items[i].bits)});
            n_items += items[i].n_pages;
        }
        check();
        return lk_status{LK_OK};
    };
    for (uint32_t rung = 1; rung < 4; ++rung) {
        n_calls = 0;
        n_items = 0;
        const uint64_t before = rig.n_shrunk();
        const uint64_t n_allocations = rig.memory.n_calls;
        assert_int_equal(lk_cache_shrink(rig.cache, 0, kRungs[rung]), LK_OK);
        assert_int_equal(n_items, rig.n_shrunk() - before);
        assert_true(n_items > 1400);
        // The slots that are given back have space for a run twice as long as the one before.
        assert_true(n_calls <= (rung == 1 ? 12u : 1u));
        if (rung > 1)
            assert_int_equal(rig.memory.n_calls, n_allocations);
        check_stats(rig);
    }
}

// Where the device fails, whatever was requested of it, pages and bytes are as before; then it
// works.
void a_failure_changes_nothing(void **) {
    Rig rig(kTokens);
    for (uint32_t rung = 1; rung < 4; ++rung) {
        rig.device().packs = kDeviceFails;
        rig.device().shrinks = kDeviceFails;
        const State before(&rig);
        assert_int_equal(lk_cache_shrink(rig.cache, 0, kRungs[rung]), LK_E_DEVICE);
        assert_true(State(&rig) == before);
        rig.device().packs = nullptr;
        rig.device().shrinks = nullptr;
        const uint64_t n_before = rig.n_shrunk();
        assert_int_equal(lk_cache_shrink(rig.cache, 0, kRungs[rung]), LK_OK);
        assert_true(rig.n_shrunk() - n_before > 1400);
        check_stats(rig);
    }
}

// Pages go down step by step, a bounded number at a time, until the budget ends at the last rung.
void a_generation_ends_at_its_budget(void **) {
    constexpr uint64_t kBudget = uint64_t{32} << 20;
    Rig rig(0, kBudget);
    uint64_t most = 0;
    uint64_t n_tokens = 0;
    for (;; n_tokens += 16) {
        const uint64_t before = rig.n_shrunk();
        if (rig.step(16))
            break;
        most = std::max(most, rig.n_shrunk() - before);
        assert_true(rig.cache->ledger.used_bytes() <= kBudget);
    }
    check_stats(rig);
    const uint64_t fp16_bytes = 2 * kHeads * kHeadDim * sizeof(uint16_t);  // of a token
    assert_true(n_tokens * fp16_bytes > 6 * kBudget);
    // What gives way at once, and what goes ahead of it.
    assert_true(most > 0 && most <= lk::kShrinkBatch + 2 * kHeads + 128 + 2 * kHeads);
    const State before(&rig);
    assert_int_equal(rig.step(16), LK_E_BUDGET);
    assert_true(State(&rig) == before);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc > 1 && !std::strcmp(argv[1], "--measure")) {
        measure();
        return 0;
    }
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_goes_down_in_runs),
        cmocka_unit_test(a_failure_changes_nothing),
        cmocka_unit_test(a_generation_ends_at_its_budget),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
