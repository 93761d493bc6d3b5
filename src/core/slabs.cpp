// SPDX-License-Identifier: Apache-2.0
#include "core/slabs.h"

#include "base/status.h"

namespace lk {

namespace {

using ull = unsigned long long;

}  // namespace

Slots::~Slots() {
    while (!slabs_.empty())
        drop_slab(slabs_.size() - 1);
}

bool Slots::add_size(uint64_t bytes) {
    if (size_index(bytes) != kNoSize)
        return true;
    return sizes_.push(
        {bytes, static_cast<uint32_t>(LK_EXTENT_BYTES / bytes), 0, nullptr, nullptr, 0});
}

uint32_t Slots::size_index(uint64_t bytes) const {
    for (size_t i = 0; i < sizes_.size(); ++i)
        if (sizes_[i].bytes == bytes)
            return static_cast<uint32_t>(i);
    return kNoSize;
}

void Slots::link(Extent *extent) {
    Size &size = sizes_[extent->size];
    Extent **head = extent->is_hidden ? &size.hidden : &size.partial;
    extent->previous = nullptr;
    extent->next = *head;
    if (*head)
        (*head)->previous = extent;
    *head = extent;
}

void Slots::unlink(Extent *extent) {
    Size &size = sizes_[extent->size];
    if (extent->previous)
        extent->previous->next = extent->next;
    else
        *(extent->is_hidden ? &size.hidden : &size.partial) = extent->next;
    if (extent->next)
        extent->next->previous = extent->previous;
}

bool Slots::hide_sparsest(uint32_t index, ExtentSpan *out) {
    Size &size = sizes_[index];
    Extent *sparsest = size.partial;
    for (Extent *extent = size.partial; extent; extent = extent->next)
        if (extent->n_used < sparsest->n_used)
            sparsest = extent;
    if (!sparsest || size.n_unused - size.n_hidden < size.n_slots)
        return false;
    unlink(sparsest);
    sparsest->is_hidden = true;
    link(sparsest);
    size.n_hidden += size.n_slots - sparsest->n_used;
    *out = {sparsest->address, sparsest->n_used};
    return true;
}

void Slots::show_hidden(uint32_t index) {
    while (Extent *extent = sizes_[index].hidden) {
        unlink(extent);
        extent->is_hidden = false;
        link(extent);
    }
    sizes_[index].n_hidden = 0;
}

// Slabs get smaller as the budget ends, so that tables which grow later find room beside them.
lk_status Slots::add_slab() {
    const uint64_t taken = ledger_.table_bytes + total_slab_bytes_;
    const uint64_t left = ledger_.limit_bytes > taken ? ledger_.limit_bytes - taken : 0;
    uint64_t bytes = slab_bytes_;
    if (bytes > left / 2)
        bytes = round_up(left / 2, LK_EXTENT_BYTES);
    if (bytes > slab_bytes_)
        bytes = slab_bytes_;
    if (bytes > left || !bytes)
        bytes = LK_EXTENT_BYTES;
    const uint64_t n_extents = bytes / LK_EXTENT_BYTES;
    Slab slab{};
    slab.n_extents = static_cast<uint32_t>(n_extents);
    slab.n_free = slab.n_extents;
    const size_t table = n_extents * sizeof(Extent);
    if (slabs_.size() == slabs_.capacity() && !slabs_.reserve(slabs_.size() * 2 + 8))
        return fail(LK_E_NOMEM, "no memory for the list of %zu slabs", slabs_.size() + 1);
    slab.extents = static_cast<Extent *>(allocator_.alloc(allocator_.user, table, alignof(Extent)));
    if (!slab.extents)
        return fail(LK_E_NOMEM, "no memory for the extent table of %zu bytes", table);
    const lk_status status = backend_.slab_create(bytes, &slab.memory);
    if (status) {
        allocator_.free(allocator_.user, slab.extents, table, alignof(Extent));
        return status == LK_E_NOMEM ? fail(status, "no memory for a slab of %llu bytes", ull{bytes})
                                    : status;
    }
    for (uint64_t i = 0; i < n_extents; ++i) {
        slab.extents[i].address = slab.memory.address + i * LK_EXTENT_BYTES;
        slab.extents[i].size = kNoSize;
        slab.extents[i].n_used = 0;
        slab.extents[i].is_hidden = false;
    }
    size_t place = slabs_.size();
    slabs_.push(slab);
    for (; place && slabs_[place - 1].memory.address > slab.memory.address; --place)
        slabs_[place] = slabs_[place - 1];
    slabs_[place] = slab;
    total_slab_bytes_ += bytes;
    n_free_extents_ += n_extents;
    return LK_OK;
}

void Slots::drop_slab(size_t index) {
    const Slab slab = slabs_[index];
    for (size_t i = index + 1; i < slabs_.size(); ++i)
        slabs_[i - 1] = slabs_[i];
    slabs_.pop();
    total_slab_bytes_ -= uint64_t{slab.n_extents} * LK_EXTENT_BYTES;
    n_free_extents_ -= slab.n_free;
    backend_.slab_destroy(slab.memory);
    allocator_.free(allocator_.user, slab.extents, slab.n_extents * sizeof(Extent),
                    alignof(Extent));
}

void Slots::trim() {
    for (size_t i = slabs_.size();
         i && ledger_.table_bytes + total_slab_bytes_ > ledger_.limit_bytes; --i)
        if (slabs_[i - 1].n_free == slabs_[i - 1].n_extents)
            drop_slab(i - 1);
}

lk_status Slots::take_extent(uint32_t size) {
    if (ledger_.left_bytes() < LK_EXTENT_BYTES)
        return fail(
            LK_E_BUDGET,
            "the budget of %llu bytes lacks %llu bytes: %llu are reserved and %u more are needed",
            ull{ledger_.limit_bytes}, ull{LK_EXTENT_BYTES - ledger_.left_bytes()},
            ull{ledger_.used_bytes()}, LK_EXTENT_BYTES);
    if (!n_free_extents_) {
        const lk_status status = add_slab();
        if (status)
            return status;
    }
    Slab *slab = slabs_.begin();
    while (!slab->n_free)
        ++slab;
    Extent *extent = slab->extents;
    while (extent->size != kNoSize)
        ++extent;
    --slab->n_free;
    --n_free_extents_;
    ledger_.extent_bytes += LK_EXTENT_BYTES;
    Size &served = sizes_[size];
    extent->size = size;
    extent->is_hidden = false;
    extent->hint = 0;
    for (uint32_t w = 0; w < kWords; ++w) {
        const uint32_t first = w * 64;
        const uint32_t n = served.n_slots > first ? served.n_slots - first : 0;
        extent->free[w] = n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    }
    served.n_unused += served.n_slots;
    link(extent);
    return LK_OK;
}

lk_status Slots::take(uint64_t bytes, uint64_t *address) {
    const uint32_t index = size_index(bytes);
    if (index == kNoSize)
        return fail(LK_E_INTERNAL, "no slots of %llu bytes", ull{bytes});
    Size &size = sizes_[index];
    if (!size.partial) {
        const lk_status status = take_extent(index);
        if (status)
            return status;
    }
    Extent *extent = size.partial;
    while (!extent->free[extent->hint])
        ++extent->hint;
    const auto bit = static_cast<uint32_t>(__builtin_ctzll(extent->free[extent->hint]));
    extent->free[extent->hint] &= extent->free[extent->hint] - 1;
    *address = extent->address + (extent->hint * 64 + bit) * size.bytes;
    --size.n_unused;
    total_slot_bytes_ += size.bytes;
    if (++extent->n_used == size.n_slots)
        unlink(extent);
    return LK_OK;
}

Slots::Slab *Slots::slab_of(uint64_t address) {
    size_t low = 0;
    size_t high = slabs_.size();
    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (slabs_[middle].memory.address <= address)
            low = middle;
        else
            high = middle;
    }
    return &slabs_[low];
}

void Slots::give(uint64_t address) {
    if (!address)
        return;
    Slab *slab = slab_of(address);
    const uint64_t offset = address - slab->memory.address;
    Extent *extent = &slab->extents[offset / LK_EXTENT_BYTES];
    Size &size = sizes_[extent->size];
    const auto slot = static_cast<uint32_t>(offset % LK_EXTENT_BYTES / size.bytes);
    extent->free[slot / 64] |= uint64_t{1} << slot % 64;
    if (slot / 64 < extent->hint)
        extent->hint = slot / 64;
    if (extent->n_used == size.n_slots)
        link(extent);
    --extent->n_used;
    ++size.n_unused;
    size.n_hidden += extent->is_hidden;
    total_slot_bytes_ -= size.bytes;
    if (extent->n_used)
        return;
    unlink(extent);
    size.n_hidden -= extent->is_hidden ? size.n_slots : 0;
    size.n_unused -= size.n_slots;
    extent->size = kNoSize;
    ++slab->n_free;
    ++n_free_extents_;
    ledger_.extent_bytes -= LK_EXTENT_BYTES;
}

uint64_t Slots::extents_for(uint32_t index, uint64_t n) const {
    const Size &size = sizes_[index];
    return n > size.n_unused ? ceil_div(n - size.n_unused, size.n_slots) : 0;
}

}  // namespace lk
