// Sums of |Q|: a page counts what came up to its own last token, and nothing later.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/step/query_stats.h"

#include <memory>
#include <vector>

#include "backend/cpu/cache_device.h"
#include "suite.h"

namespace {

using lk::QueryStats;

constexpr uint64_t kSlots = 70;  // more than a mask has

// Sums of `n` channels in memory of the CPU, whose arithmetic runs when it is flushed.
class Rig {
  public:
    explicit Rig(uint32_t n_channels)
        : n_(n_channels),
          engine_(lk::default_allocator(), nullptr),
          device_(&engine_, {}),
          queue_(lk::default_allocator()),
          scores(lk::default_allocator()) {
        queue_.use(&device_);
        assert_true(queue_.reserve(64));
        open(&scores);
        assert_int_equal(scores.start(&queue_), LK_OK);
        flush();
    }
    void open(QueryStats *opened) {
        assert_true(opened->open(n_, kSlots));
        memories_.emplace_back(QueryStats::bytes(n_, kSlots) / 8, 0x5555);
        opened->use({reinterpret_cast<uint64_t>(memories_.back().data()),
                     memories_.back().size() * 8, nullptr});
    }
    // One of each channel: 1, 100, 10000.
    lk::Increment one(uint64_t serial) {
        static const uint64_t values[] = {1, 100, 10000};
        return {reinterpret_cast<uint64_t>(values), 1, 0, serial, false};
    }
    void add(uint64_t block, bool is_gap, uint64_t serial) {
        assert_int_equal(scores.add(block, is_gap, one(serial), &queue_), LK_OK);
        flush();
    }
    void add_to_base(uint64_t serial) {
        assert_int_equal(scores.add_to_base(one(serial), &queue_), LK_OK);
        flush();
    }
    void fold(uint64_t block, uint32_t first, uint32_t n) {
        assert_int_equal(scores.fold(block, first, n, &queue_), LK_OK);
        flush();
    }
    void drop_folded(uint64_t block) {
        assert_int_equal(scores.drop_folded(block, &queue_), LK_OK);
        flush();
    }
    void flush() { assert_int_equal(queue_.flush(), LK_OK); }
    uint64_t base(const QueryStats &of, uint32_t channel) const {
        return reinterpret_cast<const uint64_t *>(of.base())[channel];
    }
    lk::StatQueue &queue() { return queue_; }

  private:
    const uint32_t n_;
    lk::cpu::Engine engine_;
    lk::cpu::CpuCacheDevice device_;
    lk::StatQueue queue_;
    std::vector<std::vector<uint64_t>> memories_;

  public:
    QueryStats scores;
};

void rows_fold_in_order(void **) {
    Rig rig(2);
    QueryStats &scores = rig.scores;
    rig.add_to_base(1);
    rig.add(3, false, 2);
    rig.add(5, false, 3);
    rig.add(4, true, 4);
    rig.add(3, false, 5);
    assert_int_equal(scores.n_items(), 3);
    assert_int_equal(scores.item_block(1), 4);
    for (int twice = 0; twice < 2; ++twice) {
        rig.fold(3, 0, 1);
        assert_int_equal(rig.base(scores, 0), 3);
        assert_int_equal(rig.base(scores, 1), 100);
    }
    rig.fold(3, 1, 1);
    assert_int_equal(rig.base(scores, 1), 300);
    rig.drop_folded(3);
    assert_int_equal(scores.n_items(), 2);
    rig.fold(5, 0, 2);
    assert_int_equal(rig.base(scores, 1), 500);
    rig.drop_folded(5);
    assert_int_equal(scores.n_items(), 0);
    assert_int_equal(rig.base(scores, 0), 5);
}

// Channels that no page folded go to the base with the rows.
void what_is_dropped_is_kept_in_the_base(void **) {
    Rig rig(3);
    for (uint64_t block = 1; block <= kSlots; ++block)
        rig.add(block, false, block);
    rig.fold(kSlots - 1, 1, 1);
    assert_int_equal(rig.base(rig.scores, 1), 100 * (kSlots - 1));
    rig.drop_folded(kSlots);
    assert_int_equal(rig.scores.n_items(), 0);
    for (uint32_t c = 0; c < 3; ++c)
        assert_int_equal(rig.base(rig.scores, c), kSlots * (c == 0 ? 1 : c == 1 ? 100 : 10000));
}

// When no slot is left, a block's sums are added to those of the block before it.
void slots_are_bounded(void **) {
    Rig rig(1);
    for (uint64_t block = 1; block <= kSlots + 2; ++block)
        rig.add(block, false, block);
    assert_int_equal(rig.scores.n_items(), kSlots);
    rig.fold(kSlots, 0, 1);
    assert_int_equal(rig.base(rig.scores, 0), kSlots + 2);
}

void truncation_drops_open_rows_alone(void **) {
    Rig rig(1);
    rig.add(1, false, 1);
    rig.add(2, true, 2);
    rig.add(8, false, 3);
    rig.scores.truncate(2);
    assert_int_equal(rig.scores.n_items(), 2);
    rig.fold(4, 0, 1);
    assert_int_equal(rig.base(rig.scores, 0), 2);
}

void a_sequence_that_never_packed_forgets_all(void **) {
    Rig rig(1);
    const uint64_t fresh = rig.scores.digest(9);
    rig.add_to_base(1);
    rig.add(1, false, 2);
    assert_true(rig.scores.digest(9) != fresh);
    // clear() also drops sums that are on their way.
    assert_int_equal(rig.scores.add_to_base(rig.one(3), &rig.queue()), LK_OK);
    assert_int_equal(rig.scores.clear(&rig.queue()), LK_OK);
    rig.flush();
    assert_int_equal(rig.scores.n_items(), 0);
    assert_int_equal(rig.base(rig.scores, 0), 0);
    assert_int_equal(rig.scores.digest(9), fresh);
}

// Digests are of what was added, up to a row, however it was folded, copied or saved.
void digests_tell_sums_apart(void **) {
    Rig rig(2);
    QueryStats &scores = rig.scores;
    rig.add_to_base(1);
    rig.add(1, false, 2);
    rig.add(2, false, 3);
    const uint64_t first = scores.digest(1), both = scores.digest(2);
    assert_true(first != both);
    QueryStats copy(lk::default_allocator());
    rig.open(&copy);
    assert_int_equal(copy.copy(scores, &rig.queue()), LK_OK);
    rig.flush();
    assert_int_equal(copy.digest(1), first);
    rig.fold(1, 0, 2);
    assert_int_equal(scores.digest(1), first);
    rig.drop_folded(1);
    assert_int_equal(scores.digest(1), first);
    assert_int_equal(scores.digest(2), both);
    assert_int_equal(rig.base(copy, 1), 100);
    const uint64_t values[2] = {100, 7}, sum[2] = {107, 14};
    const auto *bytes = reinterpret_cast<const uint8_t *>(values);
    QueryStats apart(lk::default_allocator()), folded(lk::default_allocator());
    rig.open(&apart);
    rig.open(&folded);
    const uint64_t other[2] = {7, 7};
    apart.restore_base(bytes, true);
    assert_true(apart.restore_item(4, false, reinterpret_cast<const uint8_t *>(other)));
    folded.restore_base(reinterpret_cast<const uint8_t *>(sum), true);
    assert_int_equal(apart.digest(4), folded.digest(4));
    assert_true(apart.digest(3) != folded.digest(3));
}

// What is forgotten takes nothing of what follows others with it.
void the_queue_forgets_what_is_freed(void **) {
    Rig rig(1);
    uint64_t x[4] = {1, 2, 4, 8};
    const auto at = [&](uint32_t i) { return reinterpret_cast<uint64_t>(&x[i]); };
    lk::StatQueue &queue = rig.queue();
    assert_int_equal(queue.add({at(1), at(0), 1, 0, 1, 0}), LK_OK);
    assert_int_equal(queue.add({at(2), at(0), 1, 0, 1, lk::kStatFollows}), LK_OK);
    assert_int_equal(queue.add({at(3), at(0), 1, 0, 1, lk::kStatFollows}), LK_OK);
    queue.forget(at(1), 16);
    rig.flush();
    assert_int_equal(x[1], 2);
    assert_int_equal(x[2], 4);
    assert_int_equal(x[3], 9);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_fold_in_order),
        cmocka_unit_test(what_is_dropped_is_kept_in_the_base),
        cmocka_unit_test(slots_are_bounded),
        cmocka_unit_test(truncation_drops_open_rows_alone),
        cmocka_unit_test(a_sequence_that_never_packed_forgets_all),
        cmocka_unit_test(digests_tell_sums_apart),
        cmocka_unit_test(the_queue_forgets_what_is_freed),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
