// The slot allocator over a backend that only hands out addresses.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/slabs.h"

#include "suite.h"

namespace {

using lk::Array;
using lk::Ledger;
using lk::Slots;

class FakeBackend final : public lk::Backend {
  public:
    const lk::BackendTraits &traits() const override {
        static constexpr lk::BackendTraits kTraits = {"a fake", LK_MEMORY_HOST, false, 0, 0, false};
        return kTraits;
    }
    lk_status supports(const lk_capability &) const override { return LK_OK; }
    void describe(lk_device_info *) const override {}
    lk_status slab_create(uint64_t bytes, lk::SlabMemory *out) override {
        if (refuses)
            return LK_E_NOMEM;
        // Downwards, so that slabs do not come in the order of their addresses.
        next -= bytes;
        *out = {next, bytes, nullptr};
        live_bytes += bytes;
        return LK_OK;
    }
    void slab_destroy(const lk::SlabMemory &slab) override { live_bytes -= slab.bytes; }
    lk_status check_queue(const lk_queue *) const override { return LK_OK; }
    lk_status resolve_tensor(const lk_tensor &, uint64_t, const char *, void **) const override {
        return LK_OK;
    }
    lk_status merge(const lk::MergeView &) const override { return LK_OK; }
    lk_status cosine(const lk::CosineView &) const override { return LK_OK; }
    lk_status cache_open(const lk::CacheLayout &, lk::CacheDevice **) override { return LK_OK; }
    lk_status enter_child(bool) override { return LK_OK; }
    void cache_close(lk::CacheDevice *) override {}

    uint64_t next = uint64_t{1} << 40;
    uint64_t live_bytes = 0;
    bool refuses = false;
};

struct Held {
    uint64_t address;
    uint64_t bytes;
};

const uint64_t kSizes[] = {64, 192, 1088, 4096, 32768, 65536};
constexpr uint32_t kSizeCount = sizeof kSizes / sizeof *kSizes;

bool apart(const Array<Held> &held, const Held &fresh) {
    for (const Held &other : held)
        if (fresh.address < other.address + other.bytes &&
            other.address < fresh.address + fresh.bytes)
            return false;
    return true;
}

void slots_are_apart_and_come_back(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 12 * LK_EXTENT_BYTES + 1000;
    ledger.table_bytes = 1000;
    {
        Slots slots(lk::default_allocator(), backend, ledger, 4 * LK_EXTENT_BYTES);
        for (const uint64_t size : kSizes)
            assert_true(slots.add_size(size));
        Array<Held> held;
        uint64_t seed = 1;
        uint32_t n_refused = 0;
        for (int i = 0; i < 6000; ++i) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const auto pick = static_cast<uint32_t>(seed >> 33);
            if (pick % 5 < 3) {
                Held fresh = {0, kSizes[pick / 8 % kSizeCount]};
                const lk_status status = slots.take(fresh.bytes, &fresh.address);
                if (status) {
                    assert_int_equal(status, LK_E_BUDGET);
                    ++n_refused;
                    continue;
                }
                assert_int_equal(fresh.address % 64, 0);
                assert_true(apart(held, fresh));
                assert_true(held.push(fresh));
            } else if (!held.empty()) {
                const size_t at = pick % held.size();
                slots.give(held[at].address);
                held.swap_remove(at);
            }
            assert_true(ledger.used_bytes() <= ledger.limit_bytes);
            assert_true(backend.live_bytes + ledger.table_bytes <= ledger.limit_bytes);
            assert_int_equal(backend.live_bytes, slots.slab_bytes());
        }
        assert_true(n_refused > 0);
        uint64_t bytes = 0;
        for (const Held &one : held)
            bytes += one.bytes;
        assert_int_equal(bytes, slots.slot_bytes());
        for (const Held &one : held)
            slots.give(one.address);
        assert_int_equal(ledger.extent_bytes, 0);
        assert_int_equal(slots.slot_bytes(), 0);
        ledger.table_bytes = ledger.limit_bytes;
        slots.trim();
        assert_int_equal(backend.live_bytes, 0);
    }
    assert_int_equal(backend.live_bytes, 0);
}

// The extents that n slots of the first size take.
uint64_t extents_for(const Slots &slots, uint64_t n) {
    uint64_t counts[8] = {n};
    return slots.extents_for(counts);
}

void extents_are_filled_before_new_ones(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 64 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, 64 * LK_EXTENT_BYTES);
    assert_true(slots.add_size(65536));
    uint64_t addresses[20];
    for (uint32_t i = 0; i < 20; ++i) {
        assert_int_equal(extents_for(slots, 1), i % 4 == 0);
        assert_int_equal(slots.take(65536, &addresses[i]), LK_OK);
        assert_int_equal(ledger.extent_bytes, (i / 4 + 1) * uint64_t{LK_EXTENT_BYTES});
    }
    for (uint32_t i = 0; i < 20; i += 2)
        slots.give(addresses[i]);
    assert_int_equal(extents_for(slots, 10), 0);
    assert_int_equal(extents_for(slots, 11), 1);
    for (uint32_t i = 0; i < 20; i += 2)
        assert_int_equal(slots.take(65536, &addresses[i]), LK_OK);
    assert_int_equal(ledger.extent_bytes, 5 * uint64_t{LK_EXTENT_BYTES});
}

void hidden_extents_are_emptied(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 64 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, 64 * LK_EXTENT_BYTES);
    assert_true(slots.add_size(65536));
    uint64_t addresses[12];
    for (uint64_t &address : addresses)
        assert_int_equal(slots.take(65536, &address), LK_OK);
    for (uint32_t i = 0; i < 12; i += 2)
        slots.give(addresses[i]);
    lk::SlotSpan span;
    uint32_t n_hidden = 0;
    while (slots.hide_sparsest(0, &span)) {
        ++n_hidden;
        assert_int_equal(span.n_used, 2);
        for (uint32_t i = 1; i < 12; i += 2)
            if (addresses[i] >= span.first && addresses[i] < span.first + LK_EXTENT_BYTES) {
                uint64_t fresh;
                assert_int_equal(slots.take(65536, &fresh), LK_OK);
                assert_false(fresh >= span.first && fresh < span.first + LK_EXTENT_BYTES);
                slots.give(addresses[i]);
                addresses[i] = fresh;
            }
    }
    slots.show_hidden(0);
    assert_int_equal(n_hidden, 1);
    assert_int_equal(ledger.extent_bytes, 2 * uint64_t{LK_EXTENT_BYTES});
    assert_int_equal(extents_for(slots, 2), 0);
    assert_int_equal(extents_for(slots, 3), 1);
}

// A family of sizes: slots of all of them, taken, halved and given back at random.
void buddies_are_apart_and_come_back(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 9 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, 4 * LK_EXTENT_BYTES);
    constexpr uint64_t kTop = 24576;  // ten in an extent
    assert_true(slots.add_family(kTop, kTop / 8));
    for (uint32_t level = 0; level < 4; ++level)
        assert_true(slots.add_size(kTop >> level));
    assert_true(slots.add_size(4608));
    assert_int_equal(slots.n_families(), 2);
    Array<Held> held;
    uint64_t seed = 3;
    uint32_t n_refused = 0, n_halved = 0;
    for (int i = 0; i < 20000; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const auto pick = static_cast<uint32_t>(seed >> 33);
        const size_t at = held.empty() ? 0 : pick / 16 % held.size();
        if (pick % 16 < 8) {
            Held fresh = {0, pick % 5 == 4 ? 4608 : kTop >> pick / 32 % 4};
            uint64_t counts[5] = {};
            counts[slots.size_index(fresh.bytes)] = 1;
            const uint64_t n = slots.extents_for(counts);
            const uint64_t before = ledger.extent_bytes;
            const lk_status status = slots.take(fresh.bytes, &fresh.address);
            if (status) {
                assert_int_equal(n, 1);
                ++n_refused;
                continue;
            }
            assert_int_equal(ledger.extent_bytes, before + n * LK_EXTENT_BYTES);
            assert_int_equal(slots.bytes_at(fresh.address), fresh.bytes);
            assert_true(apart(held, fresh));
            assert_true(held.push(fresh));
        } else if (!held.empty() && pick % 16 < 12) {
            slots.give(held[at].address);
            held.swap_remove(at);
        } else if (!held.empty() && held[at].bytes != 4608 && held[at].bytes > kTop / 8) {
            slots.halve({held[at].address, 0, 1});
            held[at].bytes /= 2;
            ++n_halved;
            assert_int_equal(slots.bytes_at(held[at].address), held[at].bytes);
        }
        uint64_t bytes = 0;
        for (const Held &one : held)
            bytes += one.bytes;
        assert_int_equal(bytes, slots.slot_bytes());
    }
    assert_true(n_refused > 100 && n_halved > 1000);
    for (const Held &one : held)
        slots.give(one.address);
    assert_int_equal(ledger.extent_bytes, 0);
}

// Every pair of free slots that is found becomes a larger one, until at most one of each size is
// left and extents are as few as their bytes need.
void merges_leave_one_free_slot_of_a_size(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 64 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, 64 * LK_EXTENT_BYTES);
    assert_true(slots.add_family(32768, 4096));
    for (uint32_t level = 0; level < 4; ++level)
        assert_true(slots.add_size(32768u >> level));
    Array<uint64_t> held(lk::default_allocator());
    for (uint32_t i = 0; i < 160; ++i) {
        uint64_t address;
        assert_int_equal(slots.take(32768, &address), LK_OK);
        for (uint32_t n = 0; n < i % 4; ++n)
            slots.halve({address, 0, 1});
        assert_true(held.push(address));
    }
    for (uint32_t level = 3; level; --level) {
        Array<lk::SlotMerge> merges(lk::default_allocator());
        do {
            merges.clear();
            assert_true(slots.find_merges(0, level, &merges));
            for (const lk::SlotMerge &merge : merges) {
                uint32_t n_found = 0;
                for (uint64_t &address : held)
                    if (address >= merge.from.first &&
                        address < merge.from.first + merge.from.bytes) {
                        const uint64_t to = merge.to + (address - merge.from.first);
                        slots.claim(to, slots.bytes_at(address));
                        slots.give(address);
                        address = to;
                        ++n_found;
                    }
                assert_int_equal(n_found, merge.from.n_used);
            }
        } while (!merges.empty());
    }
    const uint64_t none[4] = {};
    lk::SlotSpan span;
    while (slots.hide_sparsest(0, &span))
        for (uint64_t &address : held)
            if (address >= span.first && address < span.first + LK_EXTENT_BYTES) {
                uint64_t to;
                assert_true(slots.take_existing(slots.bytes_at(address), &to));
                slots.give(address);
                address = to;
            }
    slots.show_hidden(0);
    assert_int_equal(ledger.extent_bytes, slots.extents_of_all(none) * LK_EXTENT_BYTES);
    assert_int_equal(slots.extents_of_all(none), 160 * 15 / 8 / 4 / 8 + 1);
    const uint64_t top[4] = {1};
    assert_int_equal(slots.extents_for(top), 0);
}

void a_refused_slab_changes_nothing(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 8 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, LK_EXTENT_BYTES);
    assert_true(slots.add_size(4096));
    backend.refuses = true;
    uint64_t address;
    assert_int_equal(slots.take(4096, &address), LK_E_NOMEM);
    assert_int_equal(ledger.extent_bytes, 0);
    backend.refuses = false;
    assert_int_equal(slots.take(4096, &address), LK_OK);
}

// Slots that are given or halved together may lie in neighbouring extents, which end within a word.
void runs_of_slots_end_with_an_extent(void **) {
    FakeBackend backend;
    Ledger ledger;
    ledger.limit_bytes = 4 * LK_EXTENT_BYTES;
    Slots slots(lk::default_allocator(), backend, ledger, 4 * LK_EXTENT_BYTES);
    constexpr uint64_t kTop = 6144;  // 42 in an extent: 64 units and 20
    constexpr uint32_t kCount = 4 * (LK_EXTENT_BYTES / kTop);
    assert_true(slots.add_family(kTop, kTop / 2));
    assert_true(slots.add_size(kTop));
    assert_true(slots.add_size(kTop / 2));
    Array<uint64_t> taken;
    assert_true(taken.resize(kCount));
    for (const bool is_halved : {false, true}) {
        for (uint64_t &address : taken)
            assert_int_equal(slots.take(kTop, &address), LK_OK);
        assert_int_equal(ledger.extent_bytes, 4 * LK_EXTENT_BYTES);
        if (is_halved) {
            for (uint32_t i = 0; i < kCount; i += kCount / 4)
                slots.halve({taken[i], kTop, kCount / 4});
            assert_int_equal(slots.slot_bytes(), kCount * kTop / 2);
            for (const uint64_t address : taken)
                assert_int_equal(slots.bytes_at(address), kTop / 2);
        }
        slots.give(taken.data(), kCount);
        assert_int_equal(slots.slot_bytes(), 0);
        assert_int_equal(ledger.extent_bytes, 0);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_apart_and_come_back),
        cmocka_unit_test(extents_are_filled_before_new_ones),
        cmocka_unit_test(hidden_extents_are_emptied),
        cmocka_unit_test(buddies_are_apart_and_come_back),
        cmocka_unit_test(runs_of_slots_end_with_an_extent),
        cmocka_unit_test(merges_leave_one_free_slot_of_a_size),
        cmocka_unit_test(a_refused_slab_changes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
