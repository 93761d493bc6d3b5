// Slots of device memory: slabs are cut into extents, extents into slots; the ledger counts
// extents.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_MEMORY_SLABS_H
#define LK_CORE_MEMORY_SLABS_H

#include "backend/backend.h"
#include "core/memory/extents.h"
#include "core/memory/ledger.h"

namespace lk {

constexpr uint32_t kNoSize = UINT32_MAX;

// Slots of one size, each stride_bytes after the one before.
struct SlotRun {
    uint64_t first;
    uint32_t stride_bytes;
    uint32_t n;
};

// Slots of a few fixed sizes. An extent serves one family of sizes: one size, or one and
// that size divided by powers of two, down to 64ths, which are buddies. It goes back to its slab
// when empty; partly used extents are filled before a new one is taken, smaller free slots before
// larger ones are divided.
class Slots {
  public:
    Slots(const Allocator &allocator, Backend &backend, Ledger &ledger, uint64_t slab_bytes)
        : allocator_(allocator),
          backend_(backend),
          ledger_(ledger),
          slab_bytes_(slab_bytes),
          slabs_(allocator),
          sizes_(allocator),
          families_(allocator) {}
    ~Slots();
    Slots(const Slots &) = delete;
    Slots &operator=(const Slots &) = delete;

    // Before the sizes: slots of `top` bytes are halved, down to `least`, at most six times.
    // False when memory is exhausted.
    bool add_family(uint64_t top, uint64_t least);
    // Make a slot size known; false when memory is exhausted. Index of a known size.
    bool add_size(uint64_t bytes);
    uint32_t size_index(uint64_t bytes) const;
    size_t n_sizes() const { return sizes_.size(); }
    uint64_t size_of(uint32_t index) const { return sizes_[index].bytes; }

    // A slot of a known size. LK_E_BUDGET, LK_E_NOMEM or LK_E_DEVICE with the sentence.
    lk_status take(uint64_t bytes, uint64_t *address);
    // The same from extents in use; false when they have none.
    bool take_existing(uint64_t bytes, uint64_t *address);
    // Up to n slots of a known size, from slabs that are there. Returns how many.
    uint32_t take_many(uint64_t bytes, uint32_t n, uint64_t *addresses);
    // Give slots back; 0 is fine. Neighbours are best given together.
    void give(const uint64_t *addresses, size_t n);
    void give(uint64_t address) { give(&address, 1); }
    // Keep the lower half of each slot and give the upper one back.
    void halve(const SlotRun &run);
    uint64_t bytes_at(uint64_t address);

    // Extents to be taken for n [n_sizes] more slots, as they lie now.
    uint64_t extents_for(const uint64_t *n) const;
    // All extents that the slots in use and n more would be in, were they moved together.
    uint64_t extents_of_all(const uint64_t *n) const { return whole_extents(n, true); }
    // Extents that hold n slots alone.
    uint64_t extents_if(const uint64_t *n) const { return whole_extents(n, false); }

    // Compaction. Pairs of free slots of a level that could become one of twice the size; no
    // two of them touch the same slots. Levels: 0 is a family's largest size. False when memory is
    // exhausted.
    uint32_t n_families() const { return static_cast<uint32_t>(families_.size()); }
    uint32_t n_levels(uint32_t family) const { return families_[family].n_levels; }
    bool find_merges(uint32_t family, uint32_t level, Array<SlotMerge> *out);
    // Take a slot of a free span.
    void claim(uint64_t address, uint64_t bytes);
    // While free slots of a family would fill an extent: keep the sparsest partly used one from
    // being filled, so that it can be emptied. False when there is none left.
    bool hide_sparsest(uint32_t family, SlotSpan *out);
    // Fill again what was hidden and is still in use.
    void show_hidden(uint32_t family);

    // Slabs and tables together, with more bytes of either, beyond the budget. The ledger counts
    // extents in use; the others of a slab are held as well.
    uint64_t excess_bytes(uint64_t more) const;
    // Bytes of slabs that n [n_sizes] more slots take.
    uint64_t slabs_for(const uint64_t *n) const;
    // Give empty slabs back while there is an excess.
    void trim(uint64_t more = 0);

    // A slab whose slots fit elsewhere is not filled any more, so that it can be emptied: the one
    // that gives back most. If the other slabs have too few free extents for it, one of the
    // missing extents comes first. False when there is none; else its range and slots, and
    // open_slab() follows.
    bool close_slab(SlotSpan *out);
    void open_slab();

    uint64_t slab_bytes() const { return total_slab_bytes_; }
    uint64_t slot_bytes() const { return total_slot_bytes_; }

  private:
    uint64_t whole_extents(const uint64_t *n, bool with_used) const;
    lk_status take_extent(uint32_t family);
    uint32_t take_word(const SlotSize &size, uint32_t n, uint64_t *addresses);
    void give_extent(Slab *slab, Extent *extent);
    lk_status add_slab();
    lk_status add_slab(uint64_t bytes);
    uint64_t missing_extents(const Slab &slab) const;
    // Its free slots are taken by nobody until show_hidden().
    void hide(Extent *extent);
    void hide_extents(Slab *slab);
    void drop_slab(size_t index);
    Slab *slab_of(uint64_t address);
    SlotPosition position_of(uint64_t address, const SlotPosition &near);
    uint32_t units_at(const ExtentFamily &family, uint64_t ends, uint32_t unit) const;
    uint32_t find_word(const Extent &extent, uint32_t level, uint64_t *slots) const;
    void use_units(Extent *extent, uint32_t word, uint64_t units, uint64_t begins);
    void set_units(Extent *extent, uint32_t word, uint64_t units, bool is_free);
    void link(Extent *extent, uint32_t level);
    void unlink(Extent *extent, uint32_t level);

    const Allocator &allocator_;
    Backend &backend_;
    Ledger &ledger_;
    const uint64_t slab_bytes_;
    Array<Slab> slabs_;  // by address
    Array<SlotSize> sizes_;
    Array<ExtentFamily> families_;
    uint64_t total_slab_bytes_ = 0;
    uint64_t total_slot_bytes_ = 0;
    uint64_t n_free_extents_ = 0;  // of slabs that are not closed
    uint64_t next_serial_ = 0;
};

}  // namespace lk

#endif
