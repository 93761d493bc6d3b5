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

    uint64_t used_bytes() const { return table_bytes + extent_bytes; }
    uint64_t left_bytes() const { return limit_bytes - used_bytes(); }
};

constexpr uint32_t kNoSize = UINT32_MAX;

// An extent in use.
struct ExtentSpan {
    uint64_t first;
    uint32_t n_used;
};

// Slots of a few fixed sizes. An extent serves one size and goes back to its slab when empty;
// partly used extents are filled before a new one is taken.
class Slots {
  public:
    Slots(const Allocator &allocator, Backend &backend, Ledger &ledger, uint64_t slab_bytes)
        : allocator_(allocator),
          backend_(backend),
          ledger_(ledger),
          slab_bytes_(slab_bytes),
          slabs_(allocator),
          sizes_(allocator) {}
    ~Slots();
    Slots(const Slots &) = delete;
    Slots &operator=(const Slots &) = delete;

    // Make a slot size known; false when memory is exhausted. Index of a known size.
    bool add_size(uint64_t bytes);
    uint32_t size_index(uint64_t bytes) const;
    size_t n_sizes() const { return sizes_.size(); }
    uint64_t size_of(uint32_t index) const { return sizes_[index].bytes; }

    // A slot of a known size. LK_E_BUDGET, LK_E_NOMEM or LK_E_DEVICE with the sentence.
    lk_status take(uint64_t bytes, uint64_t *address);
    // Give a slot back; 0 is fine.
    void give(uint64_t address);

    // Extents to be taken for n more slots of a size.
    uint64_t extents_for(uint32_t size, uint64_t n) const;

    // While free slots of a size would fill an extent: keep the sparsest partly used one from being
    // filled, so that it can be emptied. False when there is none left.
    bool hide_sparsest(uint32_t size, ExtentSpan *out);
    // Fill again what was hidden and is still in use.
    void show_hidden(uint32_t size);

    // Give empty slabs back while slabs and tables together exceed the budget.
    void trim();

    uint64_t slab_bytes() const { return total_slab_bytes_; }
    uint64_t slot_bytes() const { return total_slot_bytes_; }

  private:
    static constexpr uint32_t kWords = LK_EXTENT_BYTES / LK_SLOT_ALIGN / 64;

    struct Extent {
        Extent *next;  // of the partly used ones of its size
        Extent *previous;
        uint64_t address;
        uint32_t size;  // index, kNoSize while in no use
        uint32_t n_used;
        uint32_t hint;  // words before it have no free slot
        bool is_hidden;
        uint64_t free[kWords];  // bit set = free
    };
    struct Slab {
        SlabMemory memory;
        Extent *extents;
        uint32_t n_extents;
        uint32_t n_free;
    };
    struct Size {
        uint64_t bytes;
        uint32_t n_slots;   // of an extent
        uint64_t n_unused;  // free slots in extents in use
        Extent *partial;
        Extent *hidden;
        uint64_t n_hidden;  // free slots in hidden extents
    };

    lk_status take_extent(uint32_t size);
    lk_status add_slab();
    void drop_slab(size_t index);
    Slab *slab_of(uint64_t address);
    void link(Extent *extent);
    void unlink(Extent *extent);

    const Allocator &allocator_;
    Backend &backend_;
    Ledger &ledger_;
    const uint64_t slab_bytes_;
    Array<Slab> slabs_;  // by address
    Array<Size> sizes_;
    uint64_t total_slab_bytes_ = 0;
    uint64_t total_slot_bytes_ = 0;
    uint64_t n_free_extents_ = 0;
};

}  // namespace lk

#endif
