// The reader of snapshots: its order of calls, and what it refuses on the way.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/reader.h"

#include "snapshot_rig.h"

namespace {

// Two sequences that share their first blocks: 16 sinks, two blocks, and a few tokens each.
struct Saved {
    Saved() {
        lk::Sequence *parent = rig.add();
        rig.grow(parent, 16 + 64 + 3);
        rig.fork(parent, 16 + 64);
        bytes = save_all(&rig);
    }
    CacheRig rig;
    std::vector<uint8_t> bytes;
};

// Blocks of the sequence that comes next; how many of them are new.
uint64_t read_sequence(const Saved &saved, lk::SnapshotReader *reader, uint64_t n_tokens) {
    const lk::SequencePart *part = nullptr;
    assert_int_equal(reader->next_sequence(saved.rig.cache->plan.model, &part), LK_OK);
    assert_int_equal(part->record.n_tokens, n_tokens);
    uint64_t n_new = 0;
    const uint64_t n_blocks = lk::block_count(saved.rig.cache->plan.model, n_tokens);
    lk::SnapshotBlocks blocks;
    for (uint64_t i = 0; i < n_blocks; i += blocks.n) {
        assert_int_equal(reader->next_blocks(&blocks), LK_OK);
        n_new += blocks.is_new;
        for (uint32_t entries = 0; blocks.is_new && entries < reader->header().n_entries;) {
            lk::BlockPart more;
            assert_int_equal(reader->next_part(&more), LK_OK);
            assert_int_equal(more.record.first_entry, entries);
            entries += more.record.n_entries;
        }
    }
    return n_new;
}

void shared_blocks_come_once(void **) {
    Saved saved;
    lk::MemorySource source(saved.bytes.data(), saved.bytes.size());
    lk::SnapshotReader reader(lk::default_allocator(), &source);
    assert_int_equal(reader.open(), LK_OK);
    assert_int_equal(reader.header().n_sequences, 2);
    assert_int_equal(reader.header().n_blocks, 4);
    assert_int_equal(read_sequence(saved, &reader, 16 + 64 + 3), 4);
    assert_int_equal(read_sequence(saved, &reader, 16 + 64), 0);
    assert_int_equal(reader.finish(), LK_OK);
    assert_int_equal(reader.done_bytes(), saved.bytes.size());
}

void an_early_finish_is_refused(void **) {
    Saved saved;
    lk::MemorySource source(saved.bytes.data(), saved.bytes.size());
    lk::SnapshotReader reader(lk::default_allocator(), &source);
    assert_int_equal(reader.open(), LK_OK);
    read_sequence(saved, &reader, 16 + 64 + 3);
    assert_int_equal(reader.finish(), LK_E_CORRUPT);
}

void every_missing_end_is_found(void **) {
    Saved saved;
    const size_t whole = saved.bytes.size();
    for (size_t n = 0; n < whole; n += 1 + whole / 200) {
        lk::MemorySource source(saved.bytes.data(), n);
        lk::SnapshotReader reader(lk::default_allocator(), &source);
        assert_int_equal(reader.open(), LK_E_CORRUPT);
    }
    saved.bytes.push_back(0);
    lk::MemorySource source(saved.bytes.data(), saved.bytes.size());
    lk::SnapshotReader reader(lk::default_allocator(), &source);
    assert_int_equal(reader.open(), LK_E_CORRUPT);
}

void looking_ahead_changes_nothing(void **) {
    Saved saved;
    for (const bool is_damaged : {false, true}) {
        if (is_damaged)
            saved.bytes.back() ^= 1;
        lk::MemorySource source(saved.bytes.data(), saved.bytes.size());
        lk::SnapshotReader reader(lk::default_allocator(), &source);
        assert_int_equal(reader.open(), LK_OK);
        const lk::SequencePart *part = nullptr;
        assert_int_equal(reader.next_sequence(saved.rig.cache->plan.model, &part), LK_OK);
        lk_status status = LK_OK;
        for (uint32_t i = 0; !status && i < 4; ++i) {
            lk::SnapshotBlocks block;
            lk::BlockPart more;
            assert_int_equal(reader.next_blocks(&block), LK_OK);
            reader.look_ahead();
            status = reader.next_part(&more);
        }
        const bool is_last = !status;
        if (is_last)
            status = reader.next_sequence(saved.rig.cache->plan.model, &part);
        assert_int_equal(status, is_damaged ? LK_E_CORRUPT : LK_OK);
    }
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(shared_blocks_come_once),
        cmocka_unit_test(an_early_finish_is_refused),
        cmocka_unit_test(every_missing_end_is_found),
        cmocka_unit_test(looking_ahead_changes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
