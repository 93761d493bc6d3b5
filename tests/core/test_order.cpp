// The order of chunks: which blocks stay, and which chunks go a class up to fill a block.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/order.h"

#include "suite.h"

#include <vector>

namespace {

lk::ChunkShape shape(uint32_t chunk_tokens) {
    lk::Plan plan;
    plan.page_tokens = 128;
    plan.chunks.tokens = chunk_tokens;
    return lk::ChunkShape(plan);
}

struct Arranged {
    std::vector<uint32_t> order;
    std::vector<uint8_t> wanted;
    std::vector<uint8_t> block_classes;
};

Arranged arrange(uint32_t chunk_tokens, const std::vector<uint8_t> &kept_at,
                 const std::vector<uint8_t> &wanted, const float *scores, bool reorders = true) {
    lk::ChunkOrder order(lk::default_allocator());
    assert_true(order.open(static_cast<uint32_t>(wanted.size())));
    for (uint32_t i = 0; i < wanted.size(); ++i) {
        order.order[i] = i;
        order.kept_at[i] = kept_at[i];
        order.wanted[i] = wanted[i];
    }
    assert_int_equal(order.arrange(shape(chunk_tokens), reorders, scores, lk::default_allocator()),
                     LK_OK);
    return {{order.order.begin(), order.order.end()},
            {order.wanted.begin(), order.wanted.end()},
            {order.block_classes.begin(), order.block_classes.end()}};
}

constexpr uint8_t kLow = LK_CHUNK_LOW;
constexpr uint8_t kMiddle = LK_CHUNK_MIDDLE;
constexpr uint8_t kHigh = LK_CHUNK_HIGH;
constexpr uint8_t kRaw = lk::kAt16Bits;

void chunks_and_blocks_fit(void **) {
    const lk::ChunkShape small = shape(32);
    assert_int_equal(small.block_chunks, 4);
    assert_int_equal(small.chunk_blocks, 1);
    assert_int_equal(small.block_of_index(5), 1);
    assert_int_equal(small.token_of_index(5), 32);
    const lk::ChunkShape large = shape(256);
    assert_int_equal(large.block_chunks, 1);
    assert_int_equal(large.chunk_blocks, 2);
    assert_int_equal(large.block_of_index(3), 6);
    assert_int_equal(large.token_of_index(3), 0);
}

// Two chunks a block: three low ones leave one over, the best, which goes up.
void the_best_of_the_rest_is_widened(void **) {
    const float scores[] = {0.1f, 0.5f, 0.3f, 0.2f, 0.9f};
    const Arranged made =
        arrange(64, std::vector<uint8_t>(5, kRaw), {kLow, kLow, kMiddle, kLow, kHigh}, scores);
    const std::vector<uint32_t> order = {0, 3, 1, 2, 4};
    const std::vector<uint8_t> wanted = {kLow, kMiddle, kMiddle, kLow, kRaw};
    const std::vector<uint8_t> classes = {kLow, kMiddle};
    assert_true(made.order == order);
    assert_true(made.wanted == wanted);
    assert_true(made.block_classes == classes);
}

void without_scores_the_last_is_widened(void **) {
    const Arranged made = arrange(64, std::vector<uint8_t>(3, kRaw), {kLow, kLow, kLow}, nullptr);
    const std::vector<uint8_t> wanted = {kLow, kLow, kRaw};
    assert_true(made.wanted == wanted);
    assert_int_equal(made.block_classes.size(), 1);
}

// Chunks 2 and 3 are a low block already: it comes first in its class, as it is.
void blocks_that_fit_stay(void **) {
    const Arranged made = arrange(64, {kRaw, kRaw, kLow, kLow}, {kLow, kLow, kLow, kLow}, nullptr);
    const std::vector<uint32_t> order = {2, 3, 0, 1};
    assert_true(made.order == order);
    const std::vector<uint8_t> classes = {kLow, kLow};
    assert_true(made.block_classes == classes);
}

void without_reordering_each_chunk_keeps_its_index(void **) {
    const Arranged made = arrange(128, {kRaw, kRaw, kRaw}, {kHigh, kLow, kMiddle}, nullptr, false);
    const std::vector<uint32_t> order = {0, 1, 2};
    const std::vector<uint8_t> classes = {kHigh, kLow, kMiddle};
    assert_true(made.order == order);
    assert_true(made.block_classes == classes);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(chunks_and_blocks_fit),
        cmocka_unit_test(the_best_of_the_rest_is_widened),
        cmocka_unit_test(without_scores_the_last_is_widened),
        cmocka_unit_test(blocks_that_fit_stay),
        cmocka_unit_test(without_reordering_each_chunk_keeps_its_index),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
