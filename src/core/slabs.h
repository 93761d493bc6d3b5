// Device memory of a cache: slabs, cut into extents, cut into slots, all charged to one ledger.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_SLABS_H
#define LK_CORE_SLABS_H

#include "backend/backend.h"
#include "base/memory.h"
#include "format/format_const.h"

namespace lk {

// The byte budget. What is charged never exceeds the limit.
struct Ledger {
    uint64_t limit_bytes = 0;
    uint64_t table_bytes = 0;   // workspace, sequences, rows, scores
    uint64_t extent_bytes = 0;  // extents in use
    uint64_t spare_bytes = 0;   // kept back for halves that move while they shrink
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

constexpr uint32_t kNoSize = UINT32_MAX;

// Slots of one size, each stride_bytes behind the one before.
struct SlotRun {
    uint64_t first;
    uint32_t stride_bytes;
    uint32_t n;
};

// Bytes of an extent that slots fill, or a part of one.
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

// Slots of a few fixed sizes. An extent serves one family of sizes: one size, or one and its
// halves, down to 64ths, which are buddies. It goes back to its slab when empty; partly used
// extents are filled before a new one is taken, smaller free slots before larger ones are divided.
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

    // Before the sizes: slots of `top` bytes shrink to halves, down to `least`, at most six times.
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
    // Give slots back; 0 is fine. Those that lie side by side are best given together.
    void give(const uint64_t *addresses, size_t n);
    void give(uint64_t address) { give(&address, 1); }
    // Keep the lower halves of slots and give the upper ones back.
    void halve(const SlotRun &run);
    uint64_t bytes_at(uint64_t address);

    // Extents to be taken for n [n_sizes] more slots, as they lie now.
    uint64_t extents_for(const uint64_t *n) const;
    // All extents that the slots in use and n more would be in, were they moved together.
    uint64_t extents_of_all(const uint64_t *n) const { return whole_extents(n, true); }
    // Extents that hold n slots alone.
    uint64_t extents_if(const uint64_t *n) const { return whole_extents(n, false); }

    // Compaction. Places where two free slots of a level could become one of twice the size; no
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

    // Give empty slabs back while slabs and tables together exceed the budget.
    void trim();

    uint64_t slab_bytes() const { return total_slab_bytes_; }
    uint64_t slot_bytes() const { return total_slot_bytes_; }

  private:
    static constexpr uint32_t kWords = LK_EXTENT_BYTES / LK_SLOT_ALIGN / 64;
    static constexpr uint32_t kMaxLevels = 7;  // of a family: a slot has at most 64 units

    struct Extent;
    struct Link {  // of the extents that have a free slot of a level
        Extent *next;
        Extent *previous;
    };
    // Units are slots of the family's least size. A free slot of level l is 2^(n_levels - 1 - l)
    // free units, so aligned, that are not half of a larger one.
    struct Word {
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
        Link links[kMaxLevels];
        Word words[kWords];  // as many as the family's units fill
    };
    struct Slab {
        SlabMemory memory;
        Extent *extents;
        uint32_t n_extents;
        uint32_t n_free;
        uint32_t hint;    // extents before it are in use
        uint64_t serial;  // what is chosen goes by it: addresses differ from run to run
    };
    struct Size {
        uint64_t bytes;
        uint32_t family;
        uint32_t level;
    };
    struct Family {
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
        // Of a unit that begins `offset` bytes behind the extent. Exact, since the error of the
        // inverse is less than unit_bytes in 2^32 and a product is less than LK_EXTENT_BYTES off.
        uint32_t unit_at(uint64_t offset) const {
            return static_cast<uint32_t>(offset * inverse >> 32);
        }
        uint32_t n_words() const { return static_cast<uint32_t>(ceil_div(extent_units(), 64)); }
    };
    struct Place {
        Slab *slab;
        Extent *extent;
        uint32_t unit;
    };

    uint64_t whole_extents(const uint64_t *n, bool with_used) const;
    lk_status take_extent(uint32_t family);
    uint32_t take_word(const Size &size, uint32_t n, uint64_t *addresses);
    void give_extent(Slab *slab, Extent *extent);
    lk_status add_slab();
    void drop_slab(size_t index);
    Slab *slab_of(uint64_t address);
    Place place_of(uint64_t address, const Place &near);
    uint32_t units_at(const Family &family, uint64_t ends, uint32_t unit) const;
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
    Array<Size> sizes_;
    Array<Family> families_;
    uint64_t total_slab_bytes_ = 0;
    uint64_t total_slot_bytes_ = 0;
    uint64_t n_free_extents_ = 0;
    uint64_t next_serial_ = 0;
};

}  // namespace lk

#endif
