// What C++ and CUDA derive from the table of widths. `strips` is the number of strips of each
// plane, as a PageLayout and a FormatInfo have it.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_FORMAT_PLANES_H
#define LK_FORMAT_PLANES_H

#include <cstdint>

#include "format/both.h"
#include "format/widths.h"

namespace lk {

struct PlaneWidth {
    uint8_t bits;
    uint8_t low_bits;
    uint8_t high_bits;  // 0 unless the plane is split
    uint8_t narrower;   // bits that a page of this width shrinks to, 0 = none
};

#define LK_LIST_WIDTH(plane, bits, low_bits, high_bits, narrower) \
    {bits, low_bits, high_bits, narrower},
constexpr PlaneWidth kPlaneWidths[] = {LK_PLANES(LK_LIST_WIDTH)};
#undef LK_LIST_WIDTH
#define LK_LIST_BITS(plane, bits, low_bits, high_bits, narrower) bits,
constexpr uint32_t kPlaneBits[] = {LK_PLANES(LK_LIST_BITS)};
#undef LK_LIST_BITS

// The plane of a width, kPlaneCount for none.
constexpr Plane plane_of(uint32_t bits) {
    for (uint32_t p = 0; p < kPlaneCount; ++p)
        if (kPlaneBits[p] == bits)
            return static_cast<Plane>(p);
    return kPlaneCount;
}
constexpr bool is_width(uint32_t bits) { return plane_of(bits) != kPlaneCount; }
constexpr bool is_split(uint32_t plane) { return kPlaneWidths[plane].high_bits != 0; }

// The bits that a page of `bits` shrinks to, 0 for none.
constexpr uint32_t narrower_width(uint32_t bits) {
    return is_width(bits) ? kPlaneWidths[plane_of(bits)].narrower : 0;
}
// Can a ladder have it? What shrinks, and what something shrinks to.
constexpr bool is_rung(uint32_t bits) {
    for (const PlaneWidth &w : kPlaneWidths)
        if (w.narrower && (w.bits == bits || w.narrower == bits))
            return true;
    return false;
}
// A lane has one word of a strip at least, so planes have a least page_tokens.
constexpr uint32_t least_page_tokens(uint32_t bits) {
    const PlaneWidth &w = kPlaneWidths[plane_of(bits)];
    return 64u / (w.high_bits && w.high_bits < w.low_bits ? w.high_bits : w.low_bits);
}

template <class Count, uint32_t kPlanes>
constexpr bool has_split_plane(const Count (&strips)[kPlanes]) {
    for (uint32_t p = 0; p < kPlanes; ++p)
        if (is_split(p) && strips[p])
            return true;
    return false;
}
// The width of a page whose strips have one width, 0 when they have several.
template <class Count, uint32_t kPlanes>
constexpr uint32_t only_width(const Count (&strips)[kPlanes]) {
    uint32_t bits = 0;
    for (uint32_t p = 0; p < kPlanes; ++p) {
        if (strips[p] && bits)
            return 0;
        bits = strips[p] ? kPlaneBits[p] : bits;
    }
    return bits;
}
// The bits of the first plane that has strips.
template <class Count, uint32_t kPlanes>
constexpr uint32_t widest_width(const Count (&strips)[kPlanes]) {
    for (uint32_t p = 0; p < kPlanes; ++p)
        if (strips[p])
            return kPlaneBits[p];
    return 0;
}
// The widest width from which a page of several widths shrinks, 0 for none.
template <class Count, uint32_t kPlanes>
constexpr uint32_t shrinking_width(const Count (&strips)[kPlanes]) {
    for (uint32_t p = 0; p < kPlanes; ++p)
        if (kPlaneBits[p] < 16 && kPlaneWidths[p].narrower && strips[p])
            return kPlaneBits[p];
    return 0;
}
// Strips of the planes before `plane`.
template <class Count, uint32_t kPlanes>
constexpr uint32_t strips_before(const Count (&strips)[kPlanes], uint32_t plane) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < plane; ++p)
        n += strips[p];
    return n;
}

// Widths for sentences: "1, 2, 3, 4, 8, 16".
struct WidthList {
    char text[48];
};
enum class WidthOrder { kAscending, kDescending };
constexpr WidthList list_widths(bool only_rungs, WidthOrder order) {
    WidthList list = {};
    uint32_t at = 0;
    for (uint32_t i = 0; i < kPlaneCount; ++i) {
        const uint32_t bits = kPlaneBits[order == WidthOrder::kAscending ? kPlaneCount - 1 - i : i];
        if (only_rungs && !is_rung(bits))
            continue;
        if (at) {
            list.text[at++] = ',';
            list.text[at++] = ' ';
        }
        if (bits >= 10)
            list.text[at++] = static_cast<char>('0' + bits / 10);
        list.text[at++] = static_cast<char>('0' + bits % 10);
    }
    return list;
}
constexpr WidthList kWidthList = list_widths(false, WidthOrder::kAscending);
constexpr WidthList kRungList = list_widths(true, WidthOrder::kAscending);
constexpr WidthList kLadderList = list_widths(true, WidthOrder::kDescending);

// The table is in order, and its closed forms agree with it.
constexpr bool is_consistent_table() {
#define LK_CHECK_PLANE(plane, bits_, low, high, narrower_)                                      \
    if (plane >= kPlaneCount || kPlaneWidths[plane].bits != bits_ || (low) + (high) != bits_ || \
        LK_PLANE_OF(bits_) != plane || LK_PLANE_BITS(uint32_t{plane}) != bits_ ||               \
        LK_LOW_BITS(uint32_t{bits_}) != (low) ||                                                \
        ((high) && LK_HIGH_BITS(uint32_t{bits_}) != (high)) ||                                  \
        ((narrower_) && (!is_width(narrower_) || 2 * (narrower_) != bits_)))                    \
        return false;
    LK_PLANES(LK_CHECK_PLANE)
#undef LK_CHECK_PLANE
    return true;
}
static_assert(kPlaneCount == LK_PLANE_COUNT && is_consistent_table(),
              "planes are numbered in their order");

}  // namespace lk

#endif
