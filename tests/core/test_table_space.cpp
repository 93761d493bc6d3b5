// Space for tables next to the slabs: empty slabs give way first, then ones whose slots can be
// moved together.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/table_space.h"

#include "cache_rig.h"

#include <vector>

namespace {

constexpr uint64_t kExtent = LK_EXTENT_BYTES;

// The budget ends `more` bytes after what slabs and tables hold.
void leave(lk_cache *cache, uint64_t more) {
    cache->ledger.limit_bytes = cache->ledger.table_bytes + cache->slots.slab_bytes() + more;
}

// Three empty slabs of one extent each.
struct Empty {
    Empty() {
        cache->slots.trim(cache->ledger.limit_bytes);
        assert_int_equal(cache->slots.slab_bytes(), 0);
        const uint64_t size = cache->slots.size_of(0);
        std::vector<uint64_t> addresses;
        while (cache->ledger.extent_bytes < 3 * kExtent) {
            addresses.push_back(0);
            assert_int_equal(cache->slots.take(size, &addresses.back()), LK_OK);
        }
        cache->slots.give(addresses.data(), addresses.size());
        assert_int_equal(cache->slots.slab_bytes(), 3 * kExtent);
        cache->ledger.spare_bytes = 0;
    }
    CacheRig rig;
    lk_cache *cache = rig.cache;
};

void a_refusal_names_the_purpose(void **) {
    Empty empty;
    lk_cache *cache = empty.cache;
    leave(cache, 100);
    const Held before = empty.rig.held();
    assert_int_equal(lk::make_table_space(cache, 3 * kExtent + 101, "a list"), LK_E_BUDGET);
    sentence_has("is short of 1 bytes for a list");
    empty.rig.assert_held(before);
    assert_int_equal(cache->slots.slab_bytes(), 3 * kExtent);
}

void empty_slabs_are_given_back_as_needed(void **) {
    Empty empty;
    lk_cache *cache = empty.cache;
    leave(cache, 100);
    const uint64_t tables = cache->ledger.table_bytes;
    assert_int_equal(lk::make_table_space(cache, 100, "a list"), LK_OK);
    assert_int_equal(cache->slots.slab_bytes(), 3 * kExtent);
    assert_int_equal(lk::make_table_space(cache, 101, "a list"), LK_OK);
    assert_int_equal(cache->slots.slab_bytes(), 2 * kExtent);
    assert_int_equal(lk::make_table_space(cache, 3 * kExtent + 100, "a list"), LK_OK);
    assert_int_equal(cache->slots.slab_bytes(), 0);
    assert_int_equal(cache->ledger.table_bytes, tables);  // the caller adds them
}

void what_empty_slabs_cannot_give_is_missing(void **) {
    Empty empty;
    lk_cache *cache = empty.cache;
    leave(cache, 0);
    assert_int_equal(lk::give_slabs_back(cache, 0), 0);
    assert_int_equal(cache->slots.slab_bytes(), 3 * kExtent);
    assert_int_equal(lk::give_slabs_back(cache, 1), 0);
    assert_int_equal(cache->slots.slab_bytes(), 2 * kExtent);
    leave(cache, 0);
    assert_int_equal(lk::give_slabs_back(cache, 2 * kExtent + 5), 5);
    assert_int_equal(cache->slots.slab_bytes(), 0);
}

// Two slabs of four extents, each with pages in one extent alone.
struct Partial {
    static constexpr uint64_t kSlab = 4 * kExtent;

    Partial() : rig("kivi2", 256u << 20) {
        lk_cache_destroy(&rig.cache);
        rig.desc.slab_bytes = kSlab;
        assert_int_equal(rig.open(), LK_OK);
        cache = rig.cache;
        cache->slots.trim(cache->ledger.limit_bytes);
        assert_int_equal(cache->slots.slab_bytes(), 0);
        sequence = rig.add();
        std::vector<lk::CacheBlock *> all;
        while (cache->ledger.extent_bytes < kSlab + kExtent) {
            all.emplace_back();
            assert_int_equal(
                lk::create_block(cache, all.size(), lk::BlockKind::kRecent, &all.back()), LK_OK);
        }
        assert_int_equal(lk::reserve_table(cache, sequence, 2), LK_OK);
        for (lk::CacheBlock *block : all)
            if (block == all.front() || block == all.back())
                assert_true(sequence->block_table.push(block));
            else
                lk::release_block(cache, block);
        assert_int_equal(cache->slots.slab_bytes(), 2 * kSlab);
        assert_int_equal(cache->ledger.extent_bytes, 2 * kExtent);
        cache->ledger.spare_bytes = 0;
        leave(cache, 0);
        rig.device().shrinks = [this](const lk::ShrinkItem *, uint32_t n) {
            n_copies += n;
            return LK_OK;
        };
    }
    // Refused for all that is missing, with nothing moved or given back.
    void assert_refused() {
        const Held before = rig.held();
        assert_int_equal(lk::make_table_space(cache, kExtent, "a list"), LK_E_BUDGET);
        sentence_has(
            "is short of 262144 bytes for a list: slabs that are in use in part hold 2097152");
        rig.assert_held(before);
        assert_int_equal(cache->slots.slab_bytes(), 2 * kSlab);
        assert_int_equal(n_copies, 0);
    }

    CacheRig rig;
    lk_cache *cache;
    lk::Sequence *sequence;
    uint64_t n_copies = 0;
};

void slots_of_sparse_slabs_move_together(void **) {
    Partial partial;
    lk_cache *cache = partial.cache;
    const uint64_t slots = cache->slots.slot_bytes();
    assert_int_equal(lk::give_slabs_back(cache, 0), 0);
    assert_int_equal(partial.n_copies, 0);
    assert_int_equal(lk::make_table_space(cache, kExtent, "a list"), LK_OK);
    assert_true(partial.n_copies > 0);
    assert_int_equal(cache->slots.slab_bytes(), Partial::kSlab);
    assert_int_equal(cache->slots.slot_bytes(), slots);
}

void what_slots_cannot_give_is_missing(void **) {
    Partial partial;
    partial.rig.device().shrinks = kDeviceFails;
    partial.assert_refused();
    assert_int_equal(lk::give_slabs_back(partial.cache, kExtent), kExtent);
}

void pages_do_not_move_into_a_recording(void **) {
    Partial partial;
    lk_cache *cache = partial.cache;
    partial.rig.device().capturing = true;
    partial.assert_refused();
    partial.rig.device().capturing = false;
    partial.rig.backend.own_traits.recorded_queue = LK_QUEUE_VULKAN_RECORD;
    cache->step.queue = LK_QUEUE_VULKAN_RECORD;
    partial.assert_refused();
    cache->step.queue = LK_QUEUE_CUDA_STREAM;
    assert_int_equal(lk::make_table_space(cache, kExtent, "a list"), LK_OK);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(a_refusal_names_the_purpose),
        cmocka_unit_test(empty_slabs_are_given_back_as_needed),
        cmocka_unit_test(what_empty_slabs_cannot_give_is_missing),
        cmocka_unit_test(slots_of_sparse_slabs_move_together),
        cmocka_unit_test(what_slots_cannot_give_is_missing),
        cmocka_unit_test(pages_do_not_move_into_a_recording),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
