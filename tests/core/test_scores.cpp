// Sums of |Q|: a page sees what came up to its own last token, and nothing later.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/scores.h"

#include "suite.h"

namespace {

using lk::Scores;

void rows_fold_in_order(void **) {
    Scores scores(lk::default_allocator());
    assert_true(scores.open(2, 8));
    const uint64_t one[2] = {1, 100};
    scores.add_to_base(one);
    scores.add(3, false, one);
    scores.add(5, false, one);
    scores.add(4, true, one);
    scores.add(3, false, one);
    assert_int_equal(scores.n_items(), 3);
    assert_int_equal(scores.item_row(1), 4);
    assert_int_equal(scores.fold(3, 0, 1)[0], 3);
    assert_int_equal(scores.fold(3, 0, 1)[0], 3);
    assert_int_equal(scores.fold(3, 1, 1)[0], 300);
    scores.drop_folded(3);
    assert_int_equal(scores.n_items(), 2);
    assert_int_equal(scores.fold(5, 0, 2)[1], 500);
    scores.drop_folded(5);
    assert_int_equal(scores.n_items(), 0);
    assert_int_equal(scores.base()[0], 5);
}

void truncation_drops_open_rows_alone(void **) {
    Scores scores(lk::default_allocator());
    assert_true(scores.open(1, 4));
    const uint64_t one[1] = {1};
    scores.add(1, false, one);
    scores.add(2, true, one);
    scores.add(8, false, one);
    scores.truncate(2);
    assert_int_equal(scores.n_items(), 2);
    assert_int_equal(scores.fold(4, 0, 1)[0], 2);
}

void a_sequence_that_never_packed_forgets_all(void **) {
    Scores scores(lk::default_allocator());
    assert_true(scores.open(1, 4));
    const uint64_t one[1] = {1};
    scores.add_to_base(one);
    scores.add(1, false, one);
    scores.clear();
    assert_int_equal(scores.n_items(), 0);
    assert_int_equal(scores.base()[0], 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(rows_fold_in_order),
        cmocka_unit_test(truncation_drops_open_rows_alone),
        cmocka_unit_test(a_sequence_that_never_packed_forgets_all),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
