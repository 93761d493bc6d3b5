// What a backend has to support, and what it gets to know of a cache before it opens it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache_layout.h"

#include "cache_rig.h"

#include <set>
#include <utility>

namespace {

using Widths = std::set<std::pair<uint32_t, uint32_t>>;  // of keys, of values

Widths supported(CacheRig *rig) {
    Widths widths;
    rig->backend.supported = [&](const lk_capability &capability) {
        assert_int_equal(capability.page_tokens, CacheRig::kPageTokens);
        assert_int_equal(capability.head_dim, CacheRig::kHeadDim);
        assert_int_equal(capability.group_size, 1);
        assert_int_equal(capability.memory, LK_MEMORY_CUDA);
        assert_int_equal(capability.queue, LK_QUEUE_CUDA_STREAM);
        widths.insert({capability.key_bits, capability.value_bits});
        return lk_status{LK_OK};
    };
    assert_int_equal(lk::check_support(*rig->cache), LK_OK);
    rig->backend.supported = {};
    return widths;
}

void every_pair_of_widths_is_checked(void **) {
    CacheRig mixed("kitty");
    assert_true((supported(&mixed) == Widths{{4, 2}, {2, 2}}));
    CacheRig ladder("pm-kvq", 16u << 20, give_ladders);
    assert_true((supported(&ladder) == Widths{{16, 16}, {8, 8}, {4, 4}, {2, 2}}));
    CacheRig chunks("cocktail", 16u << 20, chunk_by_16);
    assert_true((supported(&chunks) == Widths{{16, 16}, {4, 4}, {2, 2}}));
}

// Each of the pairs alone is refused.
void a_refusal_is_handed_on(void **) {
    CacheRig rig("pm-kvq", 16u << 20, give_ladders);
    for (const uint32_t bits : {16u, 8u, 4u, 2u}) {
        rig.backend.supported = [bits](const lk_capability &capability) {
            return capability.value_bits == bits ? refuse(LK_E_UNSUPPORTED, "not this width")
                                                 : lk_status{LK_OK};
        };
        assert_int_equal(lk::check_support(*rig.cache), LK_E_UNSUPPORTED);
    }
    lk_cache_destroy(&rig.cache);
    assert_int_equal(rig.open(), LK_E_UNSUPPORTED);
    sentence_has("not this width");
    assert_null(rig.cache);
    assert_int_equal(rig.memory.n_live, 0);
}

void the_layout_is_the_caches(void **) {
    CacheRig rig;
    const lk::CacheLayout &layout = rig.backend.layout;
    const lk::Formats &formats = rig.cache->formats;
    assert_int_equal(layout.n_layers, CacheRig::kLayers);
    assert_int_equal(layout.n_entries, CacheRig::kLayers);
    assert_int_equal(layout.first_entries[1], 1);
    assert_int_equal(layout.layers[1].head_dim, CacheRig::kHeadDim);
    assert_ptr_equal(layout.formats, formats.table.data());
    assert_int_equal(layout.n_formats, formats.table.size());
    assert_int_equal(layout.page_tokens, 32);
    assert_int_equal(layout.sink_tokens, 16);
    assert_int_equal(layout.max_sequences, 4);
    assert_int_equal(layout.max_step_tokens, 512);
    assert_int_equal(layout.n_ranked_channels, 0);
    const lk::EntryFormats &entry = layout.entry_formats[1];
    assert_int_equal(entry.recent_key, formats.entries[1].key.recent_format);
    assert_int_equal(entry.packed_key, formats.entries[1].key.packed_format);
    assert_int_equal(entry.recent_value, formats.entries[1].value.recent_format);
    assert_int_equal(entry.packed_value, formats.entries[1].value.packed_format);
    assert_int_equal(entry.ordered_key, entry.packed_key);
    assert_int_equal(layout.max_step_blocks, 4 * layout.max_blocks);
}

// As many as the budget could hold of the smallest ones.
void blocks_are_bounded_by_the_budget(void **) {
    CacheRig rig;
    const uint64_t left = rig.cache->desc.max_budget_bytes - rig.cache->ledger.table_bytes;
    const uint64_t packed = lk::total_bytes(rig.cache->block_slots.on_append);
    const uint64_t each = lk::block_bytes(rig.plan()) + packed;
    assert_int_equal(rig.backend.layout.max_blocks, left / each);
    // Pages that windows free leave their table alone.
    CacheRig narrow("kivi2", 16u << 20, {}, [](lk_layer *layer) { layer->window_tokens = 40; });
    assert_int_equal(narrow.backend.layout.max_blocks, left / lk::block_bytes(narrow.plan()));
    CacheRig more("kivi2", 16u << 20, {}, {});
    lk_cache_destroy(&more.cache);
    more.desc.max_budget_bytes = 32u << 20;
    assert_int_equal(more.open(), LK_OK);
    assert_int_equal(more.backend.layout.max_blocks, (left + (16u << 20)) / each);
}

// Without packing of its own, a plan with chunks has the lowest class for its common format.
void chunks_determine_the_common_format(void **) {
    CacheRig rig("cocktail", 16u << 20, chunk_by_16);
    const lk::EntryFormats &entry = rig.backend.layout.entry_formats[0];
    assert_int_equal(entry.packed_key, rig.cache->formats.entries[0].key.chunk_format[0][0]);
    assert_false(rig.cache->formats.is_raw(entry.packed_key));
    assert_true(rig.cache->formats.is_raw(entry.recent_key));
}

void a_device_that_does_not_open_leaves_no_cache(void **) {
    CacheRig rig;
    lk_cache_destroy(&rig.cache);
    rig.backend.fails_open = true;
    assert_int_equal(rig.open(), LK_E_NOMEM);
    sentence_has("of the device");
    assert_null(rig.cache);
    assert_int_equal(rig.memory.n_live, 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_widths_is_checked),
        cmocka_unit_test(a_refusal_is_handed_on),
        cmocka_unit_test(the_layout_is_the_caches),
        cmocka_unit_test(blocks_are_bounded_by_the_budget),
        cmocka_unit_test(chunks_determine_the_common_format),
        cmocka_unit_test(a_device_that_does_not_open_leaves_no_cache),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
