// Blocks in which tokens wait to be packed: how many there are, and that moves come before the
// packs that read them.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/staged_blocks.h"

#include <map>

#include "chunk_rig.h"
#include "core/memory/reserve.h"

namespace {

constexpr uint32_t kChunks = 16;
constexpr uint32_t kPages = 4;  // of a block: keys and values of two layers

// Every second chunk is low, so that no block of low chunks lies as it shall: four are collected.
std::vector<lk_chunk_class> every_second_low() {
    std::vector<lk_chunk_class> classes;
    for (uint32_t c = 0; c < kChunks; ++c)
        classes.push_back(c % 2 ? LK_CHUNK_HIGH : LK_CHUNK_LOW);
    return classes;
}

// Counts launches of packs, and fails where one reads a page whose tokens are not moved yet.
struct Launches {
    explicit Launches(ChunkRig &rig) {
        rig.device().moves = [this](const lk::MoveItem *items, uint32_t n) {
            for (uint32_t i = 0; i < n; ++i)
                n_waiting[items[i].target] += ChunkRig::kChunkTokens;
            return LK_OK;
        };
        rig.device().packs = [this](const lk::PackItem *items, uint32_t n) {
            for (uint32_t i = 0; i < n; ++i) {
                assert_int_equal(n_waiting[items[i].source], ChunkRig::kPageTokens);
                n_waiting[items[i].source] = 0;
            }
            n_packed += n;
            ++n_packs;
            return LK_OK;
        };
    }
    std::map<uint64_t, uint32_t> n_waiting;  // tokens by page
    uint32_t n_packed = 0;
    uint32_t n_packs = 0;
};

void blocks_share_launches(void **) {
    ChunkRig rig(16 + kChunks * 16);
    Launches launches(rig);
    const Held before = rig.held();
    assert_int_equal(rig.assign(every_second_low()), LK_OK);
    assert_int_equal(launches.n_packed, kChunks / 4 * kPages);
    assert_int_equal(launches.n_packs, 1);
    assert_int_equal(rig.held().n_blocks, before.n_blocks);  // the staged ones are gone
}

void one_block_serves_where_work_is_done_at_once(void **) {
    ChunkRig rig(16 + kChunks * 16);
    Launches launches(rig);
    rig.backend.own_traits.queue = 0;
    assert_int_equal(rig.assign(every_second_low()), LK_OK);
    assert_int_equal(launches.n_packed, kChunks / 4 * kPages);
    assert_int_equal(launches.n_packs, kChunks / 4);
}

// The least budget in which the context can be laid out is that of one staged block.
void a_short_budget_gets_one_block(void **) {
    uint32_t n_most = 0;
    for (uint64_t more_bytes = 0; n_most < kChunks / 4; more_bytes += LK_EXTENT_BYTES) {
        ChunkRig rig(16 + kChunks * 16);
        Launches launches(rig);
        rig.cache->ledger.limit_bytes = rig.cache->ledger.used_bytes() + more_bytes;
        const Held before = rig.held();
        const lk_status status = rig.assign(every_second_low());
        if (status) {
            assert_int_equal(status, LK_E_BUDGET);
            assert_int_equal(n_most, 0);
            rig.assert_held(before);
            continue;
        }
        // More bytes, fewer launches.
        const uint32_t n_blocks = kChunks / 4 / launches.n_packs;
        assert_int_equal(launches.n_packed, kChunks / 4 * kPages);
        assert_true(n_blocks >= n_most);
        n_most = n_blocks;
    }
}

void what_is_queued_is_dropped(void **) {
    ChunkRig rig(16 + kChunks * 16);
    lk::StagedBlocks staged(rig.cache);
    rig.cache->block_slots.clear_needs();
    lk::add_block_slots(rig.cache, lk::BlockKind::kRecent);
    assert_int_equal(staged.open(1, 2, 1024), LK_OK);
    lk::CacheBlock *first;
    lk::CacheBlock *second;
    lk::CacheBlock *third;
    assert_int_equal(staged.take(&first), LK_OK);
    assert_int_equal(staged.take(&second), LK_OK);
    assert_ptr_not_equal(first, second);
    (void)rig.cache->work.moves.push({});
    (void)rig.cache->work.packs.push({});
    rig.device().moves = kDeviceFails;
    assert_int_equal(staged.take(&third), LK_E_DEVICE);  // both are taken: what waits goes first
    (void)rig.cache->work.moves.push({});
    staged.drop();
    assert_int_equal(rig.cache->work.moves.size(), 0);
    assert_int_equal(rig.cache->work.packs.size(), 0);
    assert_int_equal(staged.flush(), LK_OK);
    assert_int_equal(staged.take(&third), LK_OK);
    assert_ptr_equal(third, first);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(blocks_share_launches),
        cmocka_unit_test(one_block_serves_where_work_is_done_at_once),
        cmocka_unit_test(a_short_budget_gets_one_block),
        cmocka_unit_test(what_is_queued_is_dropped),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
