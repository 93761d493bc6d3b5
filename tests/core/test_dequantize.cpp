// Dequantizing a block: its pages come back to 16 bits, or all stays as it was.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/dequantize.h"

#include "cache_rig.h"
#include "core/pages/pack.h"

#include <vector>

namespace {

// A sequence whose second block is packed.
struct Packed {
    explicit Packed(const char *preset = "kivi2") : rig(preset) {
        sequence = rig.add();
        rig.grow(sequence, 16 + 32 + 32);
        assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
        block = sequence->block(1);
        assert_int_equal(block->n_packed, block->n_entries);
    }
    CacheRig rig;
    lk::Sequence *sequence;
    lk::CacheBlock *block;
};

void pages_come_back_to_16_bits(void **) {
    Packed packed;
    lk_cache *cache = packed.rig.cache;
    packed.block->chunk_class = LK_CHUNK_LOW;
    std::vector<lk::DequantizeItem> seen;
    packed.rig.device().dequantizes = [&](const lk::DequantizeItem *items, uint32_t n) {
        seen.insert(seen.end(), items, items + n);
        return LK_OK;
    };
    const uint64_t recent = packed.rig.counts().recent_bytes;
    assert_int_equal(lk::dequantize_block(cache, packed.block, nullptr, 20), LK_OK);
    assert_int_equal(seen.size(), 4);
    for (const lk::DequantizeItem &item : seen) {
        assert_int_equal(item.n_tokens, 20);
        assert_false(item.source->layout.is_raw());
        assert_true(item.target->layout.is_raw());
        assert_int_not_equal(item.source_payload, item.target_payload);
    }
    assert_true(lk::is_raw_block(cache->formats, *packed.block));
    assert_int_equal(packed.block->n_packed, 0);
    assert_int_equal(packed.block->chunk_class, LK_CHUNK_NONE);
    assert_int_equal(packed.rig.counts().pages_dequantized, 4);
    assert_int_equal(packed.rig.counts().payload_bytes, 0);
    assert_int_equal(packed.rig.counts().metadata_bytes, 0);
    assert_int_equal(packed.rig.counts().recent_bytes, recent + 2 * 2 * 32 * 32 * 2);
}

void a_failing_device_leaves_it_packed(void **) {
    Packed packed;
    const uint64_t slots = packed.rig.cache->slots.slot_bytes();
    packed.rig.device().dequantizes = kDeviceFails;
    assert_int_equal(lk::dequantize_block(packed.rig.cache, packed.block, nullptr, 20),
                     LK_E_DEVICE);
    assert_int_equal(packed.block->n_packed, packed.block->n_entries);
    assert_false(lk::is_raw_block(packed.rig.cache->formats, *packed.block));
    assert_int_equal(packed.rig.cache->slots.slot_bytes(), slots);
    assert_int_equal(packed.rig.counts().pages_dequantized, 0);
}

// Without a byte left, the slots of a block that is dropped next are taken.
void a_donor_gives_its_slots(void **) {
    Packed packed;
    lk_cache *cache = packed.rig.cache;
    lk::CacheBlock *donor = packed.sequence->block(2);
    // All free slots of extents in use, so that there is none for the pages.
    std::vector<uint64_t> taken;
    const uint64_t size = cache->formats.entries[0].key.slots.recent_payload;
    for (uint64_t address; cache->slots.take_existing(size, &address);)
        taken.push_back(address);
    const uint64_t limit = cache->ledger.limit_bytes;
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    assert_int_equal(lk::dequantize_block(cache, packed.block, nullptr, 20), LK_E_BUDGET);
    const uint64_t donated = donor->entries[0].key_payload;
    assert_int_equal(lk::dequantize_block(cache, packed.block, donor, 20), LK_OK);
    assert_int_equal(packed.block->entries[0].key_payload, donated);
    assert_int_equal(donor->entries[0].key_payload, 0);
    cache->ledger.limit_bytes = limit;
    lk::drop_blocks(cache, packed.sequence, 2);
    cache->slots.give(taken.data(), taken.size());
}

void copies_are_of_the_targets_16_bit_pages(void **) {
    Packed packed;
    std::vector<lk::DequantizeItem> seen;
    packed.rig.device().dequantizes = [&](const lk::DequantizeItem *items, uint32_t n) {
        seen.insert(seen.end(), items, items + n);
        return LK_OK;
    };
    const lk::CacheBlock &raw = *packed.sequence->block(2);
    assert_int_equal(lk::copy_raw_pages(packed.rig.cache, raw, *packed.block, 32), LK_OK);
    assert_int_equal(seen.size(), 0);
    assert_int_equal(lk::copy_raw_pages(packed.rig.cache, *packed.block, raw, 17), LK_OK);
    assert_int_equal(seen.size(), 4);
    assert_int_equal(seen[0].n_tokens, 17);
    assert_int_equal(seen[0].source_payload, packed.block->entries[0].key_payload);
    assert_int_equal(seen[3].target_payload, raw.entries[1].value_payload);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(pages_come_back_to_16_bits),
        cmocka_unit_test(a_failing_device_leaves_it_packed),
        cmocka_unit_test(a_donor_gives_its_slots),
        cmocka_unit_test(copies_are_of_the_targets_16_bit_pages),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
