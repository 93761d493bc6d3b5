// Sliding windows: pages that no later query attends to are freed, and lengths that need them are
// refused.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/sequence/windows.h"

#include <algorithm>

#include "cache_rig.h"
#include "core/pages/pack.h"
#include "format/tables.h"

namespace {

// Every layer attends to the last 40 tokens and to the sinks.
void narrow(lk_layer *layer) {
    layer->window_tokens = 40;
    layer->window_sink_tokens = 16;
}

void hidden_pages_are_freed_when_packed(void **) {
    CacheRig rig("kivi2", 16u << 20, {}, narrow);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 4 * 32);
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
    lk::free_hidden_pages(rig.cache, sequence);
    // Token 144 comes next and attends to tokens from 105 on: block 4 begins at 112, block 3 at 80.
    assert_true(lk::has_absent_pages(*sequence->block(1)));
    assert_true(lk::has_absent_pages(*sequence->block(2)));
    assert_false(lk::has_absent_pages(*sequence->block(3)));
    assert_int_equal(sequence->block(1)->entries[0].key_payload, 0);
    assert_false(lk::has_absent_pages(*sequence->block(0)));
    assert_int_equal(lk::check_pages(rig.cache, *sequence, sequence->length), LK_OK);
    assert_int_equal(lk::check_pages(rig.cache, *sequence, sequence->length - 32),
                     LK_E_UNSUPPORTED);
    sentence_has("tokens 48 to 80 are gone");
    assert_int_equal(lk::check_pages(rig.cache, *sequence, 0), LK_OK);
}

// With LK_CACHE_KEEP_WINDOWED every length can come back.
void kept_pages_stay(void **) {
    CacheRig rig("kivi2", 16u << 20, {}, narrow);
    rig.cache->desc.flags = LK_CACHE_KEEP_WINDOWED;
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 4 * 32);
    assert_int_equal(lk::pack_due_blocks(rig.cache, sequence), LK_OK);
    lk::free_hidden_pages(rig.cache, sequence);
    for (uint64_t i = 0; i < sequence->block_table.size(); ++i)
        assert_false(lk::has_absent_pages(*sequence->block(i)));
    assert_int_equal(sequence->first_windowed, 0);
    for (uint64_t n = 0; n <= sequence->length; ++n)
        assert_int_equal(lk::check_pages(rig.cache, *sequence, n), LK_OK);
}

// The count of blocks that a cache frees is that of the blocks that kernels leave out.
void hidden_blocks_are_outside_of_windows(void **) {
    CacheRig rig("kivi2", 16u << 20, {}, narrow);
    lk::Plan &plan = rig.cache->plan.model;
    const uint32_t page_tokens = plan.page_tokens, sink_tokens = plan.sink_tokens;
    lk_layer layer = plan.layers[0].geometry;
    for (const uint32_t page : {32u, 64u, 128u})
        for (const uint32_t sinks : {0u, 16u, 32u, 160u})
            for (const uint32_t window : {1u, 31u, 32u, 33u, 40u, 128u, 300u}) {
                plan.page_tokens = page;
                plan.sink_tokens = sinks;
                layer.window_tokens = window;
                layer.window_sink_tokens = std::min(16u, sinks);
                for (uint64_t length = 0; length < 600; ++length) {
                    const uint64_t hidden = lk::hidden_blocks(plan, layer, length);
                    const uint64_t end = lk::block_of_token(plan, length);
                    assert_in_range(hidden, lk::sink_blocks(plan),
                                    std::max(end, lk::sink_blocks(plan)));
                    for (uint64_t block = lk::sink_blocks(plan); block <= end; ++block)
                        assert_int_equal(
                            block < hidden,
                            lk::is_outside_window(layer, lk::block_first_token(plan, block), page,
                                                  length));
                }
            }
    plan.page_tokens = page_tokens;
    plan.sink_tokens = sink_tokens;
}

// A packed copy stays for those who have its source and have not come so far.
void shared_pages_stay(void **) {
    CacheRig rig("kivi2", 16u << 20, {}, narrow);
    lk::Sequence *sequence = rig.add();
    rig.grow(sequence, 16 + 2 * 32);
    lk::CacheBlock *source = sequence->block(1);
    lk::hold_block(rig.cache, source);
    rig.grow(sequence, 2 * 32);
    rig.step(sequence, 1);
    assert_ptr_not_equal(sequence->block(1), source);
    assert_false(lk::has_absent_pages(*sequence->block(1)));
    assert_true(lk::has_absent_pages(*sequence->block(2)));
    assert_int_equal(sequence->first_windowed, 1);
    lk::release_block(rig.cache, source);
    lk::free_hidden_pages(rig.cache, sequence);
    assert_true(lk::has_absent_pages(*sequence->block(1)));
    assert_int_equal(sequence->first_windowed, 3);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(hidden_pages_are_freed_when_packed),
        cmocka_unit_test(kept_pages_stay),
        cmocka_unit_test(hidden_blocks_are_outside_of_windows),
        cmocka_unit_test(shared_pages_stay),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
