// Statistics: bytes of pages by kind, and what other threads read of them.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/statistics.h"

#include "cache_rig.h"

namespace {

void pages_count_by_kind(void **) {
    CacheRig rig;
    const lk::EntryInfo &entry = rig.cache->formats.entries[0];
    const lk::PageFormat &raw = rig.cache->formats[entry.key.recent_format];
    const lk::PageFormat &packed = rig.cache->formats[entry.key.packed_format];
    const lk::PageBytes own = lk::page_bytes(raw);
    assert_int_equal(own.recent, 32 * 32 * 2);
    assert_int_equal(own.payload + own.metadata, 0);
    const lk::PageBytes two_bits = lk::page_bytes(packed);
    assert_int_equal(two_bits.payload, 32 * 32 * 2 / 8);
    assert_int_equal(two_bits.metadata, lk::metadata_bytes(packed.layout));
    assert_int_equal(two_bits.recent, 0);
}

void counts_go_up_and_down(void **) {
    CacheRig rig("kitty");  // key channels at 4 and 2 bits
    const lk::EntryInfo &entry = rig.cache->formats.entries[0];
    const lk::PageFormat &packed = rig.cache->formats[entry.key.packed_format];
    const lk::PageFormat &raw = rig.cache->formats[entry.key.recent_format];
    lk::Statistics statistics;
    statistics.count_pages(packed, 3);
    statistics.count_pages(raw, 2);
    uint64_t planes = 0;
    uint32_t n_planes = 0;
    for (const uint64_t bytes : statistics.counts.plane_bytes) {
        planes += bytes;
        n_planes += bytes != 0;
    }
    assert_int_equal(n_planes, 3);
    assert_int_equal(statistics.counts.payload_bytes, 3 * lk::payload_bytes(packed.layout));
    assert_int_equal(planes, 3 * lk::payload_bytes(packed.layout) + 2 * 32 * 32 * 2);
    assert_int_equal(statistics.counts.metadata_bytes, 3 * lk::metadata_bytes(packed.layout));
    assert_int_equal(statistics.counts.recent_bytes, 2 * 32 * 32 * 2);
    statistics.count_pages(packed, -3);
    statistics.count_pages(raw, -2);
    const lk_cache_stats none{};
    assert_memory_equal(&statistics.counts, &none, sizeof none);
}

void readers_get_what_was_published(void **) {
    lk::Statistics statistics;
    statistics.counts.n_tokens = 7;
    assert_int_equal(statistics.read().n_tokens, 0);
    statistics.publish();
    statistics.counts.n_tokens = 8;
    assert_int_equal(statistics.read().n_tokens, 7);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(pages_count_by_kind),
        cmocka_unit_test(counts_go_up_and_down),
        cmocka_unit_test(readers_get_what_was_published),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
