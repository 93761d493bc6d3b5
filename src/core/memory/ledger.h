// The ledger of a cache: what its budget counts.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_LEDGER_H
#define LK_CORE_MEMORY_LEDGER_H

#include "base/status.h"

#include <cstdint>

namespace lk {

// The byte budget. What is charged never exceeds the limit.
struct Ledger {
    uint64_t limit_bytes = 0;
    uint64_t table_bytes = 0;   // workspace, sequences, blocks and their tables, scores
    uint64_t extent_bytes = 0;  // extents in use
    uint64_t spare_bytes = 0;   // kept back for pages that move while they shrink
    bool spends_spare = false;

    uint64_t used_bytes() const { return table_bytes + extent_bytes; }
    uint64_t left_bytes() const {
        const uint64_t held = used_bytes() + (spends_spare ? 0 : spare_bytes);
        return limit_bytes > held ? limit_bytes - held : 0;
    }
};

// While it lives, slots may take the spare.
class SpareScope {
  public:
    explicit SpareScope(Ledger *ledger) : ledger_(ledger), before_(ledger->spends_spare) {
        ledger_->spends_spare = true;
    }
    ~SpareScope() { ledger_->spends_spare = before_; }
    SpareScope(const SpareScope &) = delete;
    SpareScope &operator=(const SpareScope &) = delete;

  private:
    Ledger *ledger_;
    const bool before_;
};

// Do tables of this many bytes fit in what the budget has left? LK_E_BUDGET names what they are
// for. The caller adds them to table_bytes.
lk_status check_table_bytes(const Ledger &ledger, uint64_t bytes, const char *purpose);

}  // namespace lk

#endif
