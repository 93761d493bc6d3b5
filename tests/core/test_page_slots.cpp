// Which slots the pages of an entry take, and that a failure takes none.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/pages/page_slots.h"

#include "cache_rig.h"
#include "core/pages/ladders.h"

namespace {

constexpr uint64_t kRaw = 32 * 32 * 2;  // bytes of a page at 16 bits

void needs_follow_the_plan(void **) {
    CacheRig rig;
    const lk::Formats &formats = rig.cache->formats;
    const lk::PageInfo &key = formats.entries[0].key;
    const lk::PageNeed recent = lk::need_of(key, false);
    assert_int_equal(recent.page_format, key.recent_format);
    assert_int_equal(recent.payload, kRaw);
    assert_int_equal(recent.metadata, 0);
    const lk::PageNeed packed = lk::need_of(key, true);
    assert_int_equal(packed.page_format, key.packed_format);
    assert_int_equal(packed.payload, kRaw / 8);
    assert_int_equal(packed.metadata,
                     lk::slot_bytes(lk::metadata_bytes(formats[key.packed_format].layout)));
    const lk::PageNeed sink = lk::sink_need(formats, formats.layers[0].last_sink_key);
    assert_int_equal(sink.payload, kRaw / 2);
    assert_int_equal(sink.metadata, 0);
}

void raw_pages_need_the_same_packed(void **) {
    CacheRig rig("fp16");
    const lk::EntryInfo &entry = rig.cache->formats.entries[0];
    for (const bool is_value : {false, true}) {
        const lk::PageNeed need =
            lk::packed_need(rig.cache->formats, entry, is_value, LK_CHUNK_NONE);
        assert_int_equal(need.payload, kRaw);
        assert_int_equal(need.metadata, 0);
    }
}

// A page of a layer with a ladder has the metadata slot from the start, at every rung the same.
void ladders_keep_their_metadata_slot(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    const lk::PageInfo &key = rig.cache->formats.entries[0].key;
    const lk::PageNeed raw = lk::need_of(key, false);
    assert_int_not_equal(raw.metadata, 0);
    for (uint32_t rung = 1; rung < 4; ++rung) {
        lk::set_rung(rig.cache, 0, rung);
        const lk::PageNeed need = lk::need_of(key, true);
        assert_int_equal(need.payload, kRaw >> rung);
        assert_int_equal(need.metadata, raw.metadata);
    }
}

void classes_choose_the_width(void **) {
    CacheRig rig("cocktail", 16u << 20, chunk_by_16);
    const lk::EntryInfo &entry = rig.cache->formats.entries[1];
    const auto payload = [&](lk_chunk_class chunk_class) {
        return lk::packed_need(rig.cache->formats, entry, true, chunk_class).payload;
    };
    assert_int_equal(payload(LK_CHUNK_LOW), kRaw / 8);
    assert_int_equal(payload(LK_CHUNK_MIDDLE), kRaw / 4);
    assert_int_equal(payload(LK_CHUNK_HIGH), kRaw);
    assert_int_equal(payload(LK_CHUNK_NONE), kRaw);
}

void entries_are_taken_and_given(void **) {
    CacheRig rig;
    const Held before = rig.held();
    lk::PageEntry entries[3];
    assert_int_equal(lk::take_entry(rig.cache, 0, lk::BlockKind::kSink, true, &entries[0]), LK_OK);
    assert_int_equal(rig.counts().recent_bytes, kRaw);
    assert_int_equal(lk::take_entry(rig.cache, 0, lk::BlockKind::kRecent, false, &entries[1]),
                     LK_OK);
    assert_int_equal(rig.counts().recent_bytes, 3 * kRaw);
    assert_int_equal(entries[1].key_metadata, 0);
    assert_int_equal(
        lk::take_entry(rig.cache, 0, lk::BlockKind::kPackedOnAppend, false, &entries[2]), LK_OK);
    assert_int_equal(rig.counts().recent_bytes, 3 * kRaw);
    assert_int_equal(rig.counts().payload_bytes, 2 * kRaw / 8);
    assert_int_not_equal(entries[2].key_metadata, 0);
    assert_int_not_equal(entries[2].value_metadata, 0);
    for (const lk::PageEntry &entry : entries)
        lk::give_entry(rig.cache, entry);
    rig.assert_held(before);
    entries[0] = {};
    entries[0].is_absent = 1;
    lk::give_entry(rig.cache, entries[0]);
    rig.assert_held(before);
}

// What was taken before the budget ended comes back.
void a_refusal_takes_nothing(void **) {
    CacheRig rig;
    lk_cache *cache = rig.cache;
    const lk::EntryInfo &info = cache->formats.entries[0];
    const uint64_t limit = cache->ledger.limit_bytes;
    const uint64_t raw_slots = LK_EXTENT_BYTES / kRaw;
    std::vector<uint64_t> taken(raw_slots - 1);
    for (uint64_t &address : taken)
        assert_int_equal(cache->slots.take(kRaw, &address), LK_OK);
    cache->ledger.limit_bytes = cache->ledger.used_bytes();
    const Held before = rig.held();
    lk::PageEntry entry{};
    // One slot is left: the key's payload is taken, the value's is not.
    assert_int_equal(
        lk::take_pages(cache, lk::need_of(info.key, false), lk::need_of(info.value, false), &entry),
        LK_E_BUDGET);
    assert_int_equal(entry.key_payload, 0);
    rig.assert_held(before);
    assert_int_equal(
        lk::take_pages(cache, lk::need_of(info.key, true), lk::need_of(info.value, true), &entry),
        LK_E_BUDGET);
    rig.assert_held(before);
    cache->ledger.limit_bytes = limit;
    cache->slots.give(taken.data(), taken.size());
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(needs_follow_the_plan),
        cmocka_unit_test(raw_pages_need_the_same_packed),
        cmocka_unit_test(ladders_keep_their_metadata_slot),
        cmocka_unit_test(classes_choose_the_width),
        cmocka_unit_test(entries_are_taken_and_given),
        cmocka_unit_test(a_refusal_takes_nothing),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
