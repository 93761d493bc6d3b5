// SPDX-License-Identifier: Apache-2.0
#include "core/memory/slabs.h"

#include <algorithm>

#include "base/status.h"
#include "core/memory/extents.h"

namespace lk {

namespace {

// Bits at multiples of 2^log2.
constexpr uint64_t kAligned[] = {
    ~uint64_t{0},          0x5555555555555555ull, 0x1111111111111111ull, 0x0101010101010101ull,
    0x0001000100010001ull, 0x0000000100000001ull, 0x0000000000000001ull};

// The free slots in a word of free units, by the logarithm of their units: bits at their
// beginnings.
struct FreeSlots {
    uint64_t at[7];
};
FreeSlots free_slots(uint64_t free, uint32_t n_levels) {
    FreeSlots slots{};
    uint64_t whole = free;
    for (uint32_t log = 0; log < n_levels; ++log) {
        const uint32_t units = 1u << log;
        const uint64_t larger =
            log + 1 < n_levels ? whole & (whole >> units) & kAligned[log + 1] : 0;
        slots.at[log] = whole & ~(larger | larger << units);
        whole = larger;
    }
    return slots;
}

constexpr uint64_t kSlabShare = 64;  // a slab takes this part of what is left, at most

uint64_t bits_of(uint32_t first, uint32_t n) {
    return (n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1) << first;
}

uint32_t count_bits(uint64_t bits) { return static_cast<uint32_t>(__builtin_popcountll(bits)); }

}  // namespace

Slots::~Slots() {
    while (!slabs_.empty())
        drop_slab(slabs_.size() - 1);
}

bool Slots::add_family(uint64_t top, uint64_t least) {
    ExtentFamily family{};
    family.top_bytes = top;
    family.n_levels = 1 + static_cast<uint32_t>(__builtin_ctzll(top / least));
    family.n_tops = static_cast<uint32_t>(LK_EXTENT_BYTES / top);
    family.inverse = static_cast<uint32_t>(ceil_div(uint64_t{1} << 32, family.unit_bytes()));
    return families_.push(family);
}

bool Slots::add_size(uint64_t bytes) {
    if (size_index(bytes) != kNoSize)
        return true;
    for (uint32_t f = 0; f < families_.size(); ++f)
        for (uint32_t level = 0; level < families_[f].n_levels; ++level)
            if (families_[f].top_bytes >> level == bytes)
                return sizes_.push({bytes, f, level});
    const auto own = static_cast<uint32_t>(families_.size());
    return add_family(bytes, bytes) && sizes_.push({bytes, own, 0});
}

uint32_t Slots::size_index(uint64_t bytes) const {
    for (size_t i = 0; i < sizes_.size(); ++i)
        if (sizes_[i].bytes == bytes)
            return static_cast<uint32_t>(i);
    return kNoSize;
}

void Slots::link(Extent *extent, uint32_t level) {
    Extent **head = &families_[extent->family].partial[level];
    extent->links[level] = {*head, nullptr};
    if (*head)
        (*head)->links[level].previous = extent;
    *head = extent;
}

void Slots::unlink(Extent *extent, uint32_t level) {
    const ExtentLink &own = extent->links[level];
    if (own.previous)
        own.previous->links[level].next = own.next;
    else
        families_[extent->family].partial[level] = own.next;
    if (own.next)
        own.next->links[level].previous = own.previous;
}

// No slot crosses a word, so only its own free slots change.
void Slots::set_units(Extent *extent, uint32_t word, uint64_t units, bool is_free) {
    ExtentFamily &family = families_[extent->family];
    uint64_t &free = extent->words[word].free;
    const FreeSlots before = free_slots(free, family.n_levels);
    free = is_free ? free | units : free & ~units;
    const FreeSlots after = free_slots(free, family.n_levels);
    for (uint32_t level = 0; level < family.n_levels; ++level) {
        const uint64_t was = before.at[family.n_levels - 1 - level];
        const uint64_t is = after.at[family.n_levels - 1 - level];
        if (was == is)
            continue;
        const uint32_t n_before = extent->n_free_slots[level];
        const uint32_t n_after = n_before + count_bits(is) - count_bits(was);
        extent->n_free_slots[level] = n_after;
        if (extent->is_hidden)
            continue;
        family.n_free_slots[level] += uint64_t{n_after} - n_before;
        if (!n_before)
            link(extent, level);
        if (!n_after)
            unlink(extent, level);
    }
    if (is_free && word < extent->hint)
        extent->hint = word;
    const uint32_t n = count_bits(units);
    extent->n_used_units += is_free ? 0 - n : n;
    family.n_used_units += is_free ? uint64_t{0} - n : n;
    total_slot_bytes_ += is_free ? 0 - n * family.unit_bytes() : n * family.unit_bytes();
}

void Slots::hide(Extent *extent) {
    ExtentFamily &family = families_[extent->family];
    for (uint32_t level = 0; level < family.n_levels; ++level)
        if (extent->n_free_slots[level]) {
            unlink(extent, level);
            family.n_free_slots[level] -= extent->n_free_slots[level];
        }
    extent->is_hidden = true;
    extent->next_hidden = family.hidden;
    family.hidden = extent;
    ++family.n_hidden;
}

bool Slots::hide_sparsest(uint32_t index, SlotSpan *out) {
    ExtentFamily &family = families_[index];
    const uint64_t n_shown = family.n_extents - family.n_hidden;
    uint64_t n_free = 0;
    for (uint32_t level = 0; level < family.n_levels; ++level)
        n_free += family.n_free_slots[level] * family.units_of(level);
    if (n_free < family.extent_units() || n_shown < 2)
        return false;
    Extent *sparsest = nullptr;
    for (uint32_t level = 0; level < family.n_levels; ++level)
        for (Extent *e = family.partial[level]; e; e = e->links[level].next)
            if (!sparsest || e->n_used_units < sparsest->n_used_units)
                sparsest = e;
    hide(sparsest);
    *out = {sparsest->address, LK_EXTENT_BYTES, sparsest->n_used};
    return true;
}

// Emptied ones have left the list with their slab's.
void Slots::show_hidden(uint32_t index) {
    ExtentFamily &family = families_[index];
    while (Extent *extent = family.hidden) {
        family.hidden = extent->next_hidden;
        extent->is_hidden = false;
        for (uint32_t level = 0; level < family.n_levels; ++level)
            if (extent->n_free_slots[level]) {
                link(extent, level);
                family.n_free_slots[level] += extent->n_free_slots[level];
            }
    }
    family.n_hidden = 0;
}

// Slabs get smaller as the budget ends, so that tables which grow later find bytes too, and that
// small ones can be given back for them.
lk_status Slots::add_slab() {
    const uint64_t taken = ledger_.table_bytes + total_slab_bytes_;
    const uint64_t left = ledger_.limit_bytes > taken ? ledger_.limit_bytes - taken : 0;
    uint64_t bytes = slab_bytes_;
    if (bytes > left / kSlabShare)
        bytes = round_up(left / kSlabShare, LK_EXTENT_BYTES);
    if (bytes > slab_bytes_)
        bytes = slab_bytes_;
    if (bytes > left || !bytes)
        bytes = LK_EXTENT_BYTES;
    return add_slab(bytes);
}

lk_status Slots::add_slab(uint64_t bytes) {
    const uint64_t n_extents = bytes / LK_EXTENT_BYTES;
    Slab slab{};
    slab.n_extents = static_cast<uint32_t>(n_extents);
    slab.n_free = slab.n_extents;
    slab.serial = next_serial_++;
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
        slab.extents[i].family = kNoSize;
        slab.extents[i].n_used = 0;
        slab.extents[i].is_hidden = false;
    }
    size_t index = slabs_.size();
    slabs_.push(slab);
    for (; index && slabs_[index - 1].memory.address > slab.memory.address; --index)
        slabs_[index] = slabs_[index - 1];
    slabs_[index] = slab;
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

void Slots::trim(uint64_t more) {
    while (excess_bytes(more)) {
        size_t last = slabs_.size();
        for (size_t i = 0; i < slabs_.size(); ++i)
            if (slabs_[i].n_free == slabs_[i].n_extents &&
                (last == slabs_.size() || slabs_[i].serial > slabs_[last].serial))
                last = i;
        if (last == slabs_.size())
            return;
        drop_slab(last);
    }
}

lk_status Slots::take_extent(uint32_t index) {
    if (ledger_.left_bytes() < LK_EXTENT_BYTES)
        return fail(LK_E_BUDGET,
                    "the budget of %llu bytes is short of %llu bytes: %llu are reserved and %u "
                    "more are needed",
                    ull{ledger_.limit_bytes}, ull{LK_EXTENT_BYTES - ledger_.left_bytes()},
                    ull{ledger_.used_bytes()}, LK_EXTENT_BYTES);
    if (!n_free_extents_)
        LK_TRY(add_slab());
    Slab *slab = nullptr;
    for (Slab &each : slabs_)
        if (each.n_free && !each.is_closed && (!slab || each.serial < slab->serial))
            slab = &each;
    while (slab->extents[slab->hint].family != kNoSize)
        ++slab->hint;
    Extent *extent = &slab->extents[slab->hint];
    --slab->n_free;
    --n_free_extents_;
    ledger_.extent_bytes += LK_EXTENT_BYTES;
    ExtentFamily &family = families_[index];
    extent->family = index;
    extent->n_used = extent->n_used_units = extent->hint = 0;
    extent->is_hidden = false;
    const uint32_t n_units = family.extent_units();
    for (uint32_t word = 0; word < family.n_words(); ++word)
        extent->words[word] = {bits_of(0, n_units - word * 64), 0};
    for (uint32_t &n : extent->n_free_slots)
        n = 0;
    extent->n_free_slots[0] = family.n_tops;
    family.n_free_slots[0] += family.n_tops;
    ++family.n_extents;
    link(extent, 0);
    return LK_OK;
}

void Slots::give_extent(Slab *slab, Extent *extent) {
    ExtentFamily &family = families_[extent->family];
    if (extent->is_hidden) {
        Extent **at = &family.hidden;
        while (*at != extent)
            at = &(*at)->next_hidden;
        *at = extent->next_hidden;
        --family.n_hidden;
    } else {
        unlink(extent, 0);
        family.n_free_slots[0] -= family.n_tops;
    }
    --family.n_extents;
    extent->family = kNoSize;
    extent->is_hidden = false;
    slab->hint = std::min(slab->hint, static_cast<uint32_t>(extent - slab->extents));
    ++slab->n_free;
    n_free_extents_ += !slab->is_closed;
    ledger_.extent_bytes -= LK_EXTENT_BYTES;
}

// The first word of an extent that has free slots of the level, and these.
uint32_t Slots::find_word(const Extent &extent, uint32_t level, uint64_t *slots) const {
    const uint32_t n_levels = families_[extent.family].n_levels;
    for (uint32_t word = extent.hint;; ++word) {
        *slots = free_slots(extent.words[word].free, n_levels).at[n_levels - 1 - level];
        if (*slots)
            return word;
    }
}

// Up to n slots from one word of an extent in use: free ones of their size, or parts of the next
// larger ones. 0: there are none.
uint32_t Slots::take_word(const SlotSize &size, uint32_t n, uint64_t *addresses) {
    const ExtentFamily &family = families_[size.family];
    uint32_t level = size.level;
    while (level && !family.partial[level])
        --level;
    Extent *extent = family.partial[level];
    if (!extent)
        return 0;
    while (!extent->words[extent->hint].free)
        ++extent->hint;
    uint64_t slots;
    const uint32_t word = find_word(*extent, level, &slots);
    const uint32_t units = family.units_of(size.level);
    uint32_t n_taken = 0;
    uint64_t begins = 0;
    uint64_t used = 0;
    for (; slots && n_taken < n; slots &= slots - 1) {
        const auto first = static_cast<uint32_t>(__builtin_ctzll(slots));
        for (uint32_t part = 0; part < 1u << (size.level - level) && n_taken < n; ++part) {
            const uint32_t unit = first + part * units;
            begins |= uint64_t{1} << unit;
            used |= bits_of(unit, units);
            addresses[n_taken++] = extent->address + (word * 64 + unit) * family.unit_bytes();
        }
    }
    use_units(extent, word, used, begins);
    return n_taken;
}

bool Slots::take_existing(uint64_t bytes, uint64_t *address) {
    return take_word(sizes_[size_index(bytes)], 1, address) != 0;
}

uint32_t Slots::take_many(uint64_t bytes, uint32_t n, uint64_t *addresses) {
    const SlotSize &size = sizes_[size_index(bytes)];
    uint32_t n_taken = 0;
    while (n_taken < n) {
        const uint32_t n_more = take_word(size, n - n_taken, addresses + n_taken);
        n_taken += n_more;
        if (n_more)
            continue;
        if (!n_free_extents_ || ledger_.left_bytes() < LK_EXTENT_BYTES ||
            take_extent(size.family) != LK_OK)
            break;
    }
    return n_taken;
}

lk_status Slots::take(uint64_t bytes, uint64_t *address) {
    const uint32_t index = size_index(bytes);
    if (index == kNoSize)
        return fail(LK_E_INTERNAL, "no slots of %llu bytes", ull{bytes});
    if (take_existing(bytes, address))
        return LK_OK;
    const lk_status status = take_extent(sizes_[index].family);
    if (!status)
        (void)take_existing(bytes, address);
    return status;
}

Slab *Slots::slab_of(uint64_t address) {
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

// `near` is another one, or none.
SlotPosition Slots::position_of(uint64_t address, const SlotPosition &near) {
    SlotPosition at = near;
    if (!at.extent || address - at.extent->address >= LK_EXTENT_BYTES) {
        at.slab = slab_of(address);
        at.extent = &at.slab->extents[(address - at.slab->memory.address) / LK_EXTENT_BYTES];
    }
    at.unit = families_[at.extent->family].unit_at(address - at.extent->address);
    return at;
}

// A slot ends where a free unit, another slot or the next largest slot begins. `ends` are the bits
// of its word that are free or begin a slot.
uint32_t Slots::units_at(const ExtentFamily &family, uint64_t ends, uint32_t unit) const {
    const uint32_t most = family.units_of(0);
    const uint32_t left = most - (unit & (most - 1));
    ends = ends >> unit % 64 >> 1;
    const uint32_t n = ends ? 1 + static_cast<uint32_t>(__builtin_ctzll(ends)) : 64;
    return n < left ? n : left;
}

uint64_t Slots::bytes_at(uint64_t address) {
    const SlotPosition at = position_of(address, {});
    const ExtentFamily &family = families_[at.extent->family];
    return units_at(family, at.extent->words[at.unit / 64].ends(), at.unit) * family.unit_bytes();
}

void Slots::use_units(Extent *extent, uint32_t word, uint64_t units, uint64_t begins) {
    set_units(extent, word, units, false);
    extent->words[word].begin |= begins;
    extent->n_used += count_bits(begins);
}

void Slots::claim(uint64_t address, uint64_t bytes) {
    const SlotPosition at = position_of(address, {});
    const uint64_t units = bytes / families_[at.extent->family].unit_bytes();
    use_units(at.extent, at.unit / 64, bits_of(at.unit % 64, static_cast<uint32_t>(units)),
              uint64_t{1} << at.unit % 64);
}

// The bookkeeping of a word is done once for all of its slots that follow each other.
void Slots::give(const uint64_t *addresses, size_t n) {
    SlotPosition at{};
    for (size_t i = 0; i < n;) {
        if (!addresses[i]) {
            ++i;
            continue;
        }
        at = position_of(addresses[i], at);
        const uint32_t word = at.unit / 64;
        const ExtentFamily &family = families_[at.extent->family];
        const uint64_t ends = at.extent->words[word].ends();
        const uint64_t word_bytes = 64 * family.unit_bytes();
        const uint64_t first = at.extent->address + word * word_bytes;
        // An extent ends within its last word.
        const uint64_t left = at.extent->address + LK_EXTENT_BYTES - first;
        const uint64_t bytes = std::min(word_bytes, left);
        uint64_t units = 0;
        uint64_t begins = 0;
        for (; i < n && addresses[i] - first < bytes; ++i) {
            const uint32_t unit = family.unit_at(addresses[i] - first);
            units |= bits_of(unit, units_at(family, ends, unit));
            begins |= uint64_t{1} << unit;
        }
        at.extent->words[word].begin &= ~begins;
        at.extent->n_used -= count_bits(begins);
        set_units(at.extent, word, units, true);
        if (!at.extent->n_used)
            give_extent(at.slab, at.extent);
    }
}

// Likewise.
void Slots::halve(const SlotRun &run) {
    SlotPosition at{};
    for (uint32_t i = 0; i < run.n;) {
        at = position_of(run.first + uint64_t{i} * run.stride_bytes, at);
        const uint32_t word = at.unit / 64;
        const ExtentFamily &family = families_[at.extent->family];
        const uint32_t n_kept = units_at(family, at.extent->words[word].ends(), at.unit) / 2;
        const uint32_t stride = family.unit_at(run.stride_bytes);
        const uint32_t n_units = std::min(family.extent_units() - word * 64, 64u);
        uint64_t units = 0;
        uint32_t unit = at.unit % 64;
        do {
            units |= bits_of(unit + n_kept, n_kept);
            unit += stride;
        } while (++i < run.n && unit < n_units);
        set_units(at.extent, word, units, true);
    }
}

bool Slots::find_merges(uint32_t index, uint32_t level, Array<SlotMerge> *out) {
    const ExtentFamily &family = families_[index];
    const uint32_t units = family.units_of(level);
    const uint64_t bytes = units * family.unit_bytes();
    uint64_t hole = 0;
    for (const Extent *e = family.partial[level]; e; e = e->links[level].next)
        for (uint32_t word = 0; word < family.n_words(); ++word) {
            uint64_t at =
                free_slots(e->words[word].free, family.n_levels).at[family.n_levels - 1 - level];
            for (; at; at &= at - 1) {
                const uint32_t unit = word * 64 + static_cast<uint32_t>(__builtin_ctzll(at));
                if (!hole) {
                    hole = e->address + unit * family.unit_bytes();
                    continue;
                }
                const uint32_t buddy = unit ^ units;
                const uint64_t used = e->words[word].begin & bits_of(buddy % 64, units);
                const SlotSpan from = {e->address + buddy * family.unit_bytes(), bytes,
                                       count_bits(used)};
                if (!out->push({from, hole}))
                    return false;
                hole = 0;
            }
        }
    return true;
}

// Largest first: what is left of a slot that is divided serves the smaller ones.
uint64_t Slots::extents_for(const uint64_t *n) const {
    uint64_t extents = 0;
    for (uint32_t f = 0; f < families_.size(); ++f) {
        const ExtentFamily &family = families_[f];
        uint64_t left = 0;  // slots of the level
        uint64_t tops = 0;
        for (uint32_t level = 0; level < family.n_levels; ++level) {
            left = 2 * left + family.n_free_slots[level];
            uint64_t wanted = 0;
            for (size_t s = 0; s < sizes_.size(); ++s)
                wanted += sizes_[s].family == f && sizes_[s].level == level ? n[s] : 0;
            if (wanted > left) {
                const uint64_t more = ceil_div(wanted - left, uint64_t{1} << level);
                tops += more;
                left += more << level;
            }
            left -= wanted;
        }
        extents += ceil_div(tops, family.n_tops);
    }
    return extents;
}

uint64_t Slots::whole_extents(const uint64_t *n, bool with_used) const {
    uint64_t extents = 0;
    for (uint32_t f = 0; f < families_.size(); ++f) {
        const ExtentFamily &family = families_[f];
        uint64_t units = with_used ? family.n_used_units : 0;
        for (size_t s = 0; s < sizes_.size(); ++s)
            units += sizes_[s].family == f ? n[s] * family.units_of(sizes_[s].level) : 0;
        extents += ceil_div(ceil_div(units, family.units_of(0)), family.n_tops);
    }
    return extents;
}

}  // namespace lk
