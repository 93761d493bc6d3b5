// Extents: parts of a slab that serve slots of one family of sizes, and what is known of each.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_EXTENTS_H
#define LK_CORE_MEMORY_EXTENTS_H

#include "backend/backend.h"
#include "base/memory.h"
#include "format/format_const.h"

namespace lk {

constexpr uint32_t kExtentWords = LK_EXTENT_BYTES / LK_SLOT_ALIGN / 64;
constexpr uint32_t kMaxLevels = 7;  // of a family: a slot has at most 64 units

struct Extent;
struct ExtentLink {  // of the extents that have a free slot of a level
    Extent *next;
    Extent *previous;
};
// Units are slots of the family's least size. A free slot of level l is 2^(n_levels - 1 - l)
// free units, so aligned, that are no half of a larger one.
struct ExtentWord {
    uint64_t free;   // bit set = free
    uint64_t begin;  // of a slot in use

    uint64_t ends() const { return free | begin; }
};
// What every call reads comes first, in one cache line.
struct alignas(64) Extent {
    uint64_t address;
    uint32_t family;  // index, kNoSize while in no use
    uint32_t n_used;  // slots
    uint32_t n_used_units;
    uint32_t hint;  // words before it have no free unit
    uint32_t n_free_slots[kMaxLevels];
    bool is_hidden;
    Extent *next_hidden;
    ExtentLink links[kMaxLevels];
    ExtentWord words[kExtentWords];  // as many as the family's units fill
};
struct Slab {
    SlabMemory memory;
    Extent *extents;
    uint32_t n_extents;
    uint32_t n_free;
    uint32_t hint;    // extents before it are in use
    bool is_closed;   // about to be emptied: its free extents stay free
    uint64_t serial;  // what is chosen goes by it: addresses differ from run to run
};
struct SlotSize {
    uint64_t bytes;
    uint32_t family;
    uint32_t level;
};
struct ExtentFamily {
    uint64_t top_bytes;
    uint32_t n_levels;
    uint32_t n_tops;   // of an extent
    uint32_t inverse;  // 2^32 / unit_bytes, rounded up
    uint64_t n_extents;
    uint64_t n_used_units;
    uint64_t n_free_slots[kMaxLevels];  // hidden extents aside
    Extent *partial[kMaxLevels];
    Extent *hidden;
    uint64_t n_hidden;

    uint64_t unit_bytes() const { return top_bytes >> (n_levels - 1); }
    uint32_t units_of(uint32_t level) const { return 1u << (n_levels - 1 - level); }
    uint32_t extent_units() const { return n_tops * units_of(0); }
    // Of a unit that begins `offset` bytes into the extent. Exact, since the error of the
    // inverse is less than unit_bytes in 2^32 and a product is less than LK_EXTENT_BYTES off.
    uint32_t unit_at(uint64_t offset) const {
        return static_cast<uint32_t>(offset * inverse >> 32);
    }
    uint32_t n_words() const { return static_cast<uint32_t>(ceil_div(extent_units(), 64)); }
};
struct SlotPosition {
    Slab *slab;
    Extent *extent;
    uint32_t unit;
};

// A range of an extent, or of a slab, that slots may fill.
struct SlotSpan {
    uint64_t first;
    uint64_t bytes;
    uint32_t n_used;  // slots in it
};

// A free slot, and a span of its size that would fit there and whose going would make a free slot
// of twice the size.
struct SlotMerge {
    SlotSpan from;
    uint64_t to;
};

}  // namespace lk

#endif
