// SPDX-License-Identifier: Apache-2.0
#include "core/memory/ledger.h"

namespace lk {

lk_status check_table_bytes(const Ledger &ledger, uint64_t bytes, const char *purpose) {
    const uint64_t left = ledger.left_bytes();
    return bytes <= left
               ? LK_OK
               : fail(LK_E_BUDGET, "the budget of %llu bytes is short of %llu bytes for %s",
                      ull{ledger.limit_bytes}, ull{bytes - left}, purpose);
}

}  // namespace lk
