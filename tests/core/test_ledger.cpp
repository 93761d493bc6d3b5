// What a budget counts, and who may spend its spare.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/memory/ledger.h"

#include "suite.h"

namespace {

void the_spare_is_kept_back(void **) {
    lk::Ledger ledger;
    ledger.limit_bytes = 1000;
    ledger.table_bytes = 100;
    ledger.extent_bytes = 500;
    ledger.spare_bytes = 300;
    assert_int_equal(ledger.used_bytes(), 600);
    assert_int_equal(ledger.left_bytes(), 100);
    {
        const lk::SpareScope outer(&ledger);
        assert_int_equal(ledger.left_bytes(), 400);
        { const lk::SpareScope inner(&ledger); }
        assert_int_equal(ledger.left_bytes(), 400);
    }
    assert_int_equal(ledger.left_bytes(), 100);
    ledger.extent_bytes = 700;
    assert_int_equal(ledger.left_bytes(), 0);
}

void tables_are_refused_by_what_is_left(void **) {
    lk::Ledger ledger;
    ledger.limit_bytes = 100;
    ledger.table_bytes = 60;
    assert_int_equal(lk::check_table_bytes(ledger, 40, "a list"), LK_OK);
    assert_int_equal(lk::check_table_bytes(ledger, 41, "a list"), LK_E_BUDGET);
    assert_string_equal(lk::last_sentence(),
                        "the budget of 100 bytes is short of 1 bytes for a list");
    assert_int_equal(ledger.table_bytes, 60);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_spare_is_kept_back),
        cmocka_unit_test(tables_are_refused_by_what_is_left),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
