// Slabs that are emptied, so that tables find the bytes of their free extents.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/status.h"
#include "core/memory/slabs.h"

namespace lk {

uint64_t Slots::excess_bytes(uint64_t more) const {
    const uint64_t held = ledger_.table_bytes + total_slab_bytes_ + more;
    return held > ledger_.limit_bytes ? held - ledger_.limit_bytes : 0;
}

uint64_t Slots::slabs_for(const uint64_t *n) const {
    const uint64_t extents = extents_for(n);
    return extents > n_free_extents_ ? (extents - n_free_extents_) * LK_EXTENT_BYTES : 0;
}

// Extents in use of the slab that the free ones of the other slabs cannot take.
uint64_t Slots::missing_extents(const Slab &slab) const {
    const uint64_t n_used = slab.n_extents - slab.n_free;
    const uint64_t n_elsewhere = n_free_extents_ - slab.n_free;
    return n_used > n_elsewhere ? n_used - n_elsewhere : 0;
}

void Slots::hide_extents(Slab *slab) {
    for (uint32_t i = 0; i < slab->n_extents; ++i) {
        Extent *extent = &slab->extents[i];
        if (extent->family != kNoSize && !extent->is_hidden)
            hide(extent);
    }
}

bool Slots::close_slab(SlotSpan *out) {
    const uint64_t held = ledger_.table_bytes + total_slab_bytes_;
    const uint64_t space = ledger_.limit_bytes > held ? ledger_.limit_bytes - held : 0;
    const Slab *best = nullptr;
    uint64_t best_gain = 0;
    for (const Slab &slab : slabs_) {
        const uint64_t missing = missing_extents(slab);
        const uint64_t gain = slab.n_extents - missing;
        if (slab.n_free == slab.n_extents || missing * LK_EXTENT_BYTES > space)
            continue;
        // Of equal gains the one with less to move, then the youngest.
        const bool is_better =
            !best || gain > best_gain ||
            (gain == best_gain &&
             (slab.n_extents < best->n_extents ||
              (slab.n_extents == best->n_extents && slab.serial > best->serial)));
        if (gain && is_better) {
            best = &slab;
            best_gain = gain;
        }
    }
    if (!best)
        return false;
    const uint64_t serial = best->serial;
    const uint64_t missing = missing_extents(*best);
    if (missing && add_slab(missing * LK_EXTENT_BYTES) != LK_OK)
        return false;
    Slab *slab = slabs_.begin();  // adding one moves the others
    while (slab->serial != serial)
        ++slab;
    slab->is_closed = true;
    n_free_extents_ -= slab->n_free;
    hide_extents(slab);
    *out = {slab->memory.address, slab->n_extents * uint64_t{LK_EXTENT_BYTES}, 0};
    for (uint32_t i = 0; i < slab->n_extents; ++i)
        out->n_used += slab->extents[i].family == kNoSize ? 0 : slab->extents[i].n_used;
    return true;
}

void Slots::open_slab() {
    for (Slab &slab : slabs_) {
        n_free_extents_ += slab.is_closed ? slab.n_free : 0;
        slab.is_closed = false;
    }
    for (uint32_t family = 0; family < families_.size(); ++family)
        show_hidden(family);
}

}  // namespace lk
