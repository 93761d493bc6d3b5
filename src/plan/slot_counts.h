// Slots in use by size, and the extents that hold them.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_SLOT_COUNTS_H
#define LK_PLAN_SLOT_COUNTS_H

#include <cstring>

#include "plan/footprint.h"

namespace lk {

// Slots are multiples of 64 bytes and at most those of a 16-bit page, so a size is an index.
constexpr uint32_t kMostSlot = 2 * LK_MAX_HEAD_DIM * LK_MAX_PAGE_TOKENS;
constexpr uint32_t kSlotSizes = kMostSlot / LK_SLOT_ALIGN + 1;
static_assert(kMostSlot <= LK_EXTENT_BYTES, "an extent has slots of each size");
constexpr uint32_t kNoSlot = 0;

inline uint32_t size_index(uint64_t slot) { return static_cast<uint32_t>(slot / LK_SLOT_ALIGN); }

// The families of the sizes, each named by its largest. A size has units of the family's least.
class SizeFamilies {
  public:
    explicit SizeFamilies(const Plan &plan) {
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            of_[s] = {s, 1, 1};
        SlotFamily families[kMaxFamilies];
        const uint32_t n = slot_families(plan, families);
        for (uint32_t f = 0; f < n; ++f)
            for (uint64_t bytes = families[f].top; bytes >= families[f].least; bytes /= 2)
                of_[size_index(bytes)] = {
                    size_index(families[f].top), static_cast<uint32_t>(bytes / families[f].least),
                    static_cast<uint32_t>(families[f].top / families[f].least)};
    }
    uint32_t top(uint32_t size) const { return of_[size].top; }
    uint32_t units(uint32_t size) const { return of_[size].units; }
    uint64_t extent_units(uint32_t size) const { return of_[size].top_units * n_tops(size); }
    // Extents that hold n_units of the family of a size. A plan has slots of few sizes.
    uint64_t extents(uint32_t size, uint64_t n_units) const {
        return n_units ? ceil_div(ceil_div(n_units, of_[size].top_units), n_tops(size)) : 0;
    }

  private:
    struct Size {
        uint32_t top;
        uint32_t units;
        uint32_t top_units;
    };
    uint64_t n_tops(uint32_t size) const {
        return slots_per_extent(uint64_t{of_[size].top} * LK_SLOT_ALIGN);
    }
    Size of_[kSlotSizes] = {};
};

// Slots in use by size, and the extents that hold them.
struct SlotCounts {
    uint64_t used[kSlotSizes] = {};

    void clear() { std::memset(used, 0, sizeof used); }
    void add(const SlotCounts &other, uint64_t times) {
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            used[s] += other.used[s] * times;
    }
    void remove(const SlotCounts &other, uint64_t times) {
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            used[s] -= other.used[s] * times;
    }
    // Units by the family's largest size, [kSizes].
    void count_units(const SizeFamilies &families, uint64_t *units) const {
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            units[families.top(s)] += used[s] * families.units(s);
    }
    uint64_t extents(const SizeFamilies &families) const {
        uint64_t n = 0;
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            if (families.top(s) == s)
                n += families.extents(s, family_units(families, s));
        return n;
    }
    uint64_t bytes() const {
        uint64_t n = 0;
        for (uint32_t s = 1; s < kSlotSizes; ++s)
            n += used[s] * s * LK_SLOT_ALIGN;
        return n;
    }

  private:
    // Sizes of a family are its largest, half of it, and so on.
    uint64_t family_units(const SizeFamilies &families, uint32_t top) const {
        uint64_t units = used[top] * families.units(top);
        for (uint32_t size = top; size % 2 == 0 && families.top(size / 2) == top; size /= 2)
            units += used[size / 2] * families.units(size / 2);
        return units;
    }
};

// Slots in use that change one by one.
class RunningSlots {
  public:
    explicit RunningSlots(const SizeFamilies &families) : families_(families) {}
    void start(const SlotCounts &slots) {
        extents_ = slots.extents(families_);
        std::memset(units_, 0, sizeof units_);
        slots.count_units(families_, units_);
    }
    void take(uint32_t size) { change(size, families_.units(size)); }
    void give(uint32_t size) { change(size, uint64_t{0} - families_.units(size)); }
    uint64_t extents() const { return extents_; }

  private:
    void change(uint32_t size, uint64_t n_units) {
        if (size == kNoSlot)
            return;
        const uint32_t top = families_.top(size);
        extents_ -= families_.extents(top, units_[top]);
        units_[top] += n_units;
        extents_ += families_.extents(top, units_[top]);
    }
    const SizeFamilies &families_;
    uint64_t units_[kSlotSizes] = {};
    uint64_t extents_ = 0;
};

}  // namespace lk

#endif
