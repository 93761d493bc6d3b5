// The parts of work tiles: the packed pages of one form, what they cost, and how many splits they
// have.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "backend/gpu/split.h"

namespace lk {
namespace gpu {

uint32_t Splits::part_form(const Kind &kind, const Block &block, uint32_t entry) const {
    if (is_raw(block, entry))
        return kind.split.n_forms;
    const PageEntry &e = block.entries[entry];
    return rules_->form_of(kind.layer, e.key_format, e.value_format);
}

void Splits::add_parts(const BatchSequence &sequence, const Kind &kind, uint32_t entry,
                       const WorkTileBlocks &work_tile, Part *parts) {
    if (!kind.split.shape.splits_packed_only) {
        parts[0].is_used = true;
        parts[0].n_pages = work_tile.packed.size();
        parts[0].bytes = work_tile.packed.bytes;
        return;
    }
    const Part *last = nullptr;
    for (uint32_t r = work_tile.packed.begin; r < work_tile.packed.end; ++r) {
        const Block &block = *sequence.blocks[r];
        Part &part = parts[part_form(kind, block, entry)];
        part.is_used = true;
        ++part.n_pages;
        part.n_runs += &part != last;
        last = &part;
        part.bytes += block_bytes(sequence, block, entry);
    }
    if (!work_tile.packed.size()) {
        const EntryFormats &formats = layout_.entry_formats[entry];
        const bool is_raw_head = layout_.formats[formats.packed_key].layout.is_raw() &&
                                 layout_.formats[formats.packed_value].layout.is_raw();
        parts[is_raw_head ? 0
                          : rules_->form_of(kind.layer, formats.packed_key, formats.packed_value)]
            .is_used = true;
    }
}

uint64_t Splits::block_tiles(const WorkTileBlocks &work_tile) {
    return uint64_t{kBlockTiles} * (work_tile.raw[0].size() + work_tile.raw[1].size());
}

// Pages of few bits take almost as many instructions as those of many. So where heads differ, a
// part of a page's cost are its bytes, and the rest those of the mean page.
void Splits::weigh(uint32_t byte_percent) {
    has_equal_heads_ = true;
    const BlockRun *of_pages = nullptr;
    for (const WorkTileBlocks &work_tile : work_tiles_) {
        const BlockRun &packed = work_tile.packed;
        if (!packed.size())
            continue;
        of_pages = of_pages ? of_pages : &packed;
        has_equal_heads_ &= packed.bytes * of_pages->size() == of_pages->bytes * packed.size();
    }
    uint64_t bytes = 0;
    uint64_t n_pages = 0;
    for (const Part &part : parts_) {
        bytes += part.bytes;
        n_pages += part.n_pages;
    }
    for (size_t p = 0; p < parts_.size(); ++p) {
        Part &part = parts_[p];
        if (!part.is_used)
            continue;
        const WorkTileBlocks &work_tile = work_tiles_[p / n_parts_];
        const uint64_t raw = work_tile.raw[0].bytes + work_tile.raw[1].bytes;
        const uint64_t mean = n_pages ? bytes * part.n_pages / n_pages : 0;
        const uint64_t n_all = work_tile.packed.size();
        part.cost = (n_all ? raw * part.n_pages / n_all : raw) +
                    (part.bytes * byte_percent + mean * (100 - byte_percent)) / 100;
    }
}

// As many times as each reader of n_splits items takes a KV tile, in the fewest items.
uint32_t Splits::fewest_splits(const Kind &kind, size_t part, uint32_t n_splits) const {
    const bool is_raw = is_raw_part(kind, part);
    const uint32_t n_pages = parts_[part].n_pages;
    const uint32_t n_readers =
        kind.split.shape.n_readers / (is_raw || !n_pages ? 1 : kind.split.page_parts());
    const uint64_t n_kv_tiles = is_raw    ? uint64_t{kBlockTiles} * n_pages
                                : n_pages ? n_pages
                                          : block_tiles(work_tiles_[part / n_parts_]);
    const uint64_t rounds = ceil_div(n_kv_tiles, uint64_t{n_splits} * n_readers);
    return rounds ? static_cast<uint32_t>(ceil_div(n_kv_tiles, rounds * n_readers)) : 1;
}

// Of n_rounds items for each worker.
uint32_t Splits::n_splits_of(const Kind &kind, size_t part, uint64_t total,
                             uint32_t n_rounds) const {
    const SplitShape &shape = kind.split.shape;
    const double share = static_cast<double>(parts_[part].cost) * n_rounds * shape.n_workers /
                         static_cast<double>(total ? total : 1);
    const uint32_t n_splits = share < 2 ? 1 : static_cast<uint32_t>(share);
    return shape.splits_packed_only ? fewest_splits(kind, part, n_splits)
           : shape.turn_bytes       ? few_splits(kind, work_tiles_[part], n_splits)
                                    : n_splits;
}

// The cost of the busiest worker's items when work tiles are split for n_rounds items of each
// worker.
double Splits::time_of(const Kind &kind, uint32_t n_tiles, uint64_t total,
                       uint32_t n_rounds) const {
    const SplitShape &shape = kind.split.shape;
    double first = 0;  // of worker 0, which always has the most items
    double largest = 0;
    uint32_t at = 0;
    for (uint32_t form = 0; form < n_parts_; ++form)
        for (size_t p = form; p < parts_.size(); p += n_parts_) {
            if (!parts_[p].is_used)
                continue;
            const uint32_t n_splits = n_splits_of(kind, p, total, n_rounds);
            const double each = split_cost(kind, p, n_splits) + shape.item_bytes;
            largest = each > largest ? each : largest;
            for (uint32_t i = 0; i < n_splits * n_tiles; ++i, ++at)
                if (at % shape.n_workers == 0)
                    first += each;
        }
    return first > largest ? first : largest;
}

// Raw blocks that could have items of their own.
uint32_t Splits::n_raw_of(const WorkTileBlocks &work_tile) {
    return work_tile.packed.size() ? work_tile.raw[0].size() + work_tile.raw[1].size() : 0;
}

// Are there workers for all items at once, those of raw blocks included? In an idle shape each
// reader has one page at most, which is packed.
bool Splits::fits_at_once(const Kind &kind, uint32_t n_tiles, uint64_t total,
                          uint32_t n_rounds) const {
    const SplitShape &shape = kind.split.shape;
    const uint32_t most_pages = shape.n_readers / kind.split.page_parts();  // of an item
    uint64_t n_items = 0;
    for (size_t p = 0; p < parts_.size(); ++p) {
        if (!parts_[p].is_used)
            continue;
        if (kind.split.variant && parts_[p].n_pages && is_raw_part(kind, p))
            return false;
        n_items += kind.split.variant
                       ? std::max<uint64_t>(ceil_div(parts_[p].n_pages, most_pages), 1)
                       : n_splits_of(kind, p, total, n_rounds);
    }
    for (const WorkTileBlocks &work_tile : work_tiles_)
        n_items += n_raw_of(work_tile);
    return n_items * n_tiles <= shape.n_workers;
}

// A workgroup is as slow as a team that takes a page after tiles of raw blocks. Where workers are
// left, raw blocks have items of their own, and an idle shape is taken if one fits.
void Splits::use_idle_workers(Kind *kind, uint32_t n_tiles, uint64_t total, uint32_t n_rounds) {
    const SplitShape shape = kind->split.shape;
    if (!shape.splits_packed_only)
        return;
    bool is_apart = fits_at_once(*kind, n_tiles, total, n_rounds);
    for (uint32_t i = shape.n_idle; i > 0 && !kind->split.variant; --i) {
        Kind idle = *kind;
        idle.split.variant = i;
        idle.split.shape.n_workers = shape.idle[i - 1].n_workers;
        idle.split.shape.n_readers = shape.idle[i - 1].n_readers;
        if (fits_at_once(idle, n_tiles, total, n_rounds)) {
            *kind = idle;
            is_apart = true;
        }
    }
    for (size_t u = 0; is_apart && u < work_tiles_.size(); ++u)
        parts_[(u + 1) * n_parts_ - 1].n_raw = n_raw_of(work_tiles_[u]);
}

// All raw blocks to each item, unless they have their own, and the pages of its form in equal
// shares: each share is a run of packed blocks, of which an item's readers skip those of other
// forms.
void Splits::split_packed_only(const BatchSequence &sequence, const Kind &kind, uint32_t entry,
                               uint32_t form, const WorkTileBlocks &work_tile, const Part &part,
                               WorkItem item, uint32_t *n_items, WorkItem *items) const {
    for (uint32_t i = 0; i < 2 && !raw_part(work_tile).n_raw; ++i) {
        item.raw_begin[i] = work_tile.raw[i].begin;
        item.raw_count[i] = work_tile.raw[i].size();
    }
    const bool is_mixed = part.n_pages != work_tile.packed.size();
    const auto skip = [&](uint32_t block) {
        while (is_mixed && block < work_tile.packed.end &&
               part_form(kind, *sequence.blocks[block], entry) != form)
            ++block;
        return block;
    };
    uint32_t block = work_tile.packed.begin;
    uint64_t n_done = 0;
    for (uint32_t split = 0; split < part.n_splits; ++split) {
        const uint64_t end = uint64_t{part.n_pages} * (split + 1) / part.n_splits;
        if (n_done < end)
            block = skip(block);
        item.packed_begin = block;
        while (n_done < end) {
            block = skip(block) + 1;
            ++n_done;
        }
        item.packed_count = block - item.packed_begin;
        item.split = static_cast<uint16_t>(part.first_split + split);
        items[(*n_items)++] = item;
    }
}

// A raw block to each item, as a run of packed blocks that are at 16 bits.
void Splits::split_raw(const WorkTileBlocks &work_tile, const Part &part, WorkItem item,
                       uint32_t *n_items, WorkItem *items) {
    uint32_t split = part.first_split + part.n_splits;
    for (uint32_t i = 0; part.n_raw && i < 2; ++i)
        for (uint32_t block = work_tile.raw[i].begin; block < work_tile.raw[i].end; ++block) {
            item.packed_begin = block;
            item.packed_count = 1;
            item.split = static_cast<uint16_t>(split++);
            items[(*n_items)++] = item;
        }
}

// How many splits each part has, and where those of a work tile leave their results.
void Splits::number_splits(const Batch &batch, Kind *kind, uint64_t total, uint32_t n_rounds) {
    const LayerView &layer = layout_.layers[kind->layer];
    uint32_t tile_index = 0;
    uint32_t partial = 0;
    kind->split.has_mixed = false;
    for (size_t u = 0; u < work_tiles_.size(); ++u) {
        WorkTileBlocks &work_tile = work_tiles_[u];
        work_tile.n_splits = 0;
        for (size_t p = u * n_parts_; p < (u + 1) * n_parts_; ++p) {
            if (!parts_[p].has_items())
                continue;
            parts_[p].first_split = work_tile.n_splits;
            parts_[p].n_splits = parts_[p].is_used ? n_splits_of(*kind, p, total, n_rounds) : 0;
            work_tile.n_splits += parts_[p].n_splits + parts_[p].n_raw;
            kind->split.has_mixed = kind->split.has_mixed || parts_[p].n_runs > 1;
        }
        const auto n_tiles =
            static_cast<uint32_t>(ceil_div(columns_of(batch.sequences[u / layer.n_kv_heads], layer),
                                           kind->split.shape.tile_columns));
        work_tile.tile_index = tile_index;
        work_tile.first_partial = partial;
        tile_index += n_tiles;
        if (work_tile.n_splits > 1)
            partial += n_tiles * work_tile.n_splits * tile_floats(layer.value_dim);
    }
}

}  // namespace gpu
}  // namespace lk
