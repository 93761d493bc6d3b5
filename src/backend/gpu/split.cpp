// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/split.h"

#include <algorithm>
#include <cmath>

namespace lk {
namespace gpu {

namespace {

constexpr uint32_t kMaxRounds = 6;  // items that a worker takes one after the other, at most
constexpr uint32_t kHeaderBytes = 16;
constexpr double kRangeGain = 0.92;    // the cost of ranges, next to rounds, from which they gain
constexpr uint32_t kFewRawBlocks = 8;  // that sinks and a recent window are

// An item that a worker does not begin with takes about twice item_bytes: nothing hides it.
double range_item_cost(const SplitShape &shape) { return 2.0 * shape.item_bytes; }

}  // namespace

Splits::Splits(const Allocator &allocator)
    : kinds_(allocator),
      kind_of_(allocator),
      block_(allocator),
      form_items_(allocator),
      work_tiles_(allocator),
      range_tiles_(allocator),
      worker_costs_(allocator),
      range_cut_(allocator),
      parts_(allocator),
      planned_(allocator),
      first_blocks_(allocator) {}

bool Splits::same_kind(uint32_t a, uint32_t b) const {
    const LayerView &x = layout_.layers[a];
    const LayerView &y = layout_.layers[b];
    const LayerFormats *formats = layout_.layer_formats;
    if (a != b && formats && (formats[a].shrinks || formats[b].shrinks))
        return false;
    if (formats && (formats[a].n_formats != formats[b].n_formats ||
                    !std::equal(formats[a].formats, formats[a].formats + formats[a].n_formats,
                                formats[b].formats)))
        return false;
    return x.n_query_heads == y.n_query_heads && x.n_kv_heads == y.n_kv_heads &&
           x.head_dim == y.head_dim && x.value_dim == y.value_dim &&
           x.window_tokens == y.window_tokens && x.window_sink_tokens == y.window_sink_tokens &&
           std::memcmp(layout_.entry_formats + layout_.first_entries[a],
                       layout_.entry_formats + layout_.first_entries[b],
                       x.n_kv_heads * sizeof *layout_.entry_formats) == 0;
}

bool Splits::add_kind(uint32_t layer) {
    Kind kind{};
    kind.layer = layer;
    has_window_ = has_window_ || layout_.layers[layer].window_tokens;
    return kinds_.push(kind);
}

bool Splits::open(const CacheLayout &layout, const SplitRules &rules) {
    layout_ = layout;
    rules_ = &rules;
    limits_ = rules.limits();
    if (!kind_of_.resize(layout.n_layers))
        return false;
    uint32_t heads = 0;
    uint32_t value_dim = 0;
    for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
        uint32_t k = 0;
        while (k < kinds_.size() && !same_kind(kinds_[k].layer, layer))
            ++k;
        if (k == kinds_.size() && !add_kind(layer))
            return false;
        kind_of_[layer] = k;
        heads = layout.layers[layer].n_kv_heads > heads ? layout.layers[layer].n_kv_heads : heads;
        value_dim = std::max(value_dim, layout.layers[layer].value_dim);
    }
    const uint32_t sequences = layout.max_sequences < layout.max_step_tokens
                                   ? layout.max_sequences
                                   : layout.max_step_tokens;
    const uint32_t split_items = kMaxRounds * limits_.max_workers;
    n_counters_ = sequences * heads * limits_.max_tiles;
    // Each form of a work tile has a split at least.
    max_items_ = split_items + (1 + limits_.max_forms) * n_counters_ + limits_.n_ahead;
    const uint64_t n_splits = split_items + uint64_t{limits_.max_forms - 1} * n_counters_;
    partial_floats_ = n_splits * tile_floats(value_dim);
    const uint64_t each = kHeaderBytes + uint64_t{max_items_} * sizeof(WorkItem);
    uint32_t n_forms = 0;  // of all kinds
    uint32_t n_parts = 0;  // of a work tile
    for (size_t k = 0; k < kinds_.size(); ++k) {
        kinds_[k].split.n_items_offset = k * each;
        kinds_[k].split.items_offset = k * each + kHeaderBytes;
        kinds_[k].split.n_forms = rules.n_forms(kinds_[k].layer);
        kinds_[k].split.first_form = n_forms;
        n_forms += kinds_[k].split.n_forms + 1;
        n_parts = std::max(n_parts, kinds_[k].split.n_forms + 1);
    }
    const uint64_t n_tiles = uint64_t{sequences} * heads;
    return block_.resize(kinds_.size() * each) && form_items_.resize(n_forms) &&
           work_tiles_.resize(n_tiles) && range_tiles_.resize(n_tiles) &&
           worker_costs_.resize(limits_.max_workers) &&
           range_cut_.open(sequences * heads, limits_.max_workers) &&
           parts_.resize(n_tiles * n_parts) && planned_.reserve(sequences) &&
           first_blocks_.reserve(sequences);
}

bool Splits::is_raw(const Block &block, uint32_t entry) const {
    const PageEntry &e = block.entries[entry];
    return layout_.formats[e.key_format].layout.is_raw() &&
           layout_.formats[e.value_format].layout.is_raw();
}

uint64_t Splits::block_bytes(const BatchSequence &sequence, const Block &block,
                             uint32_t entry) const {
    const PageLayout &key = layout_.formats[block.entries[entry].key_format].layout;
    const PageLayout &value = layout_.formats[block.entries[entry].value_format].layout;
    if (!is_raw(block, entry))
        return payload_bytes(key) + metadata_bytes(key) + payload_bytes(value) +
               metadata_bytes(value);
    const uint64_t rest = sequence.n_history + sequence.n_new - block.first_token;
    const uint64_t tokens = rest < block.capacity_tokens ? rest : block.capacity_tokens;
    return round_up(tokens, LK_TILE_TOKENS) * (key.head_dim + value.head_dim) * 2;
}

// Blocks visible to the step's tokens, in runs of raw and of packed ones. Raw blocks between packed
// ones are full pages and go with them.
Splits::WorkTileBlocks Splits::find_blocks(const BatchSequence &sequence, const LayerView &layer,
                                           uint32_t entry) const {
    const auto hidden = [&](uint32_t r) {
        const Block &block = *sequence.blocks[r];
        return is_outside_window(layer, block.first_token, block.capacity_tokens,
                                 sequence.n_history);
    };
    WorkTileBlocks work_tile{};
    uint32_t first = 0;
    const uint32_t n = sequence.n_attended;
    while (first < n && !hidden(first) && is_raw(*sequence.blocks[first], entry))
        ++first;
    work_tile.raw[0] = {0, first, 0};
    while (first < n && hidden(first))
        ++first;
    uint32_t last = n;
    while (last > first && is_raw(*sequence.blocks[last - 1], entry))
        --last;
    work_tile.packed = {first, last, 0};
    work_tile.raw[1] = {last, n, 0};
    return work_tile;
}

// Where nothing is packed, whole pages are better read a page at a time, once there are enough of
// them: from the last run of raw blocks, or after short blocks of sinks.
void Splits::read_by_pages(const BatchSequence &sequence, WorkTileBlocks *work_tile) {
    const auto is_page = [&](uint32_t r) {
        const Block &block = *sequence.blocks[r];
        return block.capacity_tokens == LK_MAX_PAGE_TOKENS &&
               block.first_token + LK_MAX_PAGE_TOKENS <= sequence.n_history;
    };
    BlockRun &from = work_tile->raw[work_tile->raw[1].size() ? 1 : 0];
    BlockRun pages = from;
    while (pages.size() && !is_page(pages.begin))
        ++pages.begin;
    while (pages.size() && !is_page(pages.end - 1))
        --pages.end;
    if (!pages.size())
        return;
    work_tile->packed = pages;
    const uint32_t end = from.end;
    from.end = pages.begin;
    if (&from == &work_tile->raw[1] && from.size())
        work_tile->packed = {};  // short blocks on both sides: left as they are
    else
        work_tile->raw[1] = {pages.end, end, 0};
    if (!work_tile->packed.size())
        from.end = end;
}

void Splits::count_bytes(const BatchSequence &sequence, uint32_t entry, WorkTileBlocks *work_tile) {
    work_tile->has_equal_pages = work_tile->packed.size() > 0;
    uint64_t page_bytes = 0;
    for (BlockRun *blocks : {&work_tile->raw[0], &work_tile->raw[1], &work_tile->packed})
        for (uint32_t r = blocks->begin; r < blocks->end; ++r) {
            const uint64_t bytes = block_bytes(sequence, *sequence.blocks[r], entry);
            blocks->bytes += bytes;
            if (blocks != &work_tile->packed)
                continue;
            work_tile->has_equal_pages &= r == blocks->begin || bytes == page_bytes;
            page_bytes = bytes;
        }
}

void Splits::measure(const Batch &batch, const Kind &kind) {
    const LayerView &layer = layout_.layers[kind.layer];
    const uint32_t first_entry = layout_.first_entries[kind.layer];
    n_parts_ = kind.split.shape.splits_packed_only ? kind.split.n_forms + 1 : 1;
    parts_.clear();
    (void)parts_.resize(work_tiles_.size() * n_parts_);
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        for (uint32_t head = 0; head < layer.n_kv_heads; ++head) {
            const BatchSequence &sequence = batch.sequences[s];
            WorkTileBlocks &work_tile = work_tiles_[uint64_t{s} * layer.n_kv_heads + head];
            work_tile = find_blocks(sequence, layer, first_entry + head);
            const uint64_t n_raw = work_tile.raw[0].size() + work_tile.raw[1].size();
            if (!kind.split.shape.splits_packed_only && !work_tile.packed.size() &&
                n_raw * work_tiles_.size() >= uint64_t{limits_.n_processors} * 16)
                read_by_pages(sequence, &work_tile);
            count_bytes(sequence, first_entry + head, &work_tile);
            add_parts(sequence, kind, first_entry + head, work_tile,
                      &parts_[(uint64_t{s} * layer.n_kv_heads + head) * n_parts_]);
        }
    weigh(kind.split.shape.byte_percent);
}

// Readers take pages in rounds. Where an even share ends just before a full round, all splits but
// the first, which has the raw blocks, take full rounds; 0 where it does not.
uint32_t Splits::quota_of(const WorkTileBlocks &work_tile, uint32_t n_splits, uint32_t n_readers) {
    const uint32_t n = work_tile.packed.size();
    const auto quota = static_cast<uint32_t>(round_up(n / n_splits, n_readers));
    const bool fits = quota * (n_splits - 1) <= n && n <= quota * n_splits;
    return fits && n * 16 >= quota * n_splits * 15 ? quota : 0;
}

void Splits::split_by_rounds(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                             uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                             uint32_t n_readers, WorkItem *items) const {
    const BlockRun *extents[3] = {&work_tile.raw[0], &work_tile.raw[1], &work_tile.packed};
    const uint32_t quota = quota_of(work_tile, n_splits, n_readers);
    const double each = static_cast<double>(work_tile.bytes()) / n_splits;
    double done = 0;
    uint32_t kind = 0;
    uint32_t block = extents[0]->begin;
    for (uint32_t split = 0; split < n_splits; ++split) {
        uint32_t begin[3] = {0, 0, 0};
        uint32_t count[3] = {0, 0, 0};
        const double limit = split + 1 == n_splits || quota ? HUGE_VAL : each * (split + 1);
        const uint32_t pages = !quota  ? work_tile.packed.size()
                               : split ? quota
                                       : work_tile.packed.size() - quota * (n_splits - 1);
        while (kind < 3) {
            if (block == extents[kind]->end) {
                if (++kind < 3)
                    block = extents[kind]->begin;
                continue;
            }
            const auto bytes =
                static_cast<double>(block_bytes(sequence, *sequence.blocks[block], entry));
            if (done + bytes / 2 > limit || (kind == 2 && count[2] == pages))
                break;
            begin[kind] = count[kind] ? begin[kind] : block;
            ++count[kind];
            ++block;
            done += bytes;
        }
        items[(*n_items)++] = item_of(item, split, begin, count);
    }
}

WorkItem Splits::item_of(WorkItem item, uint32_t split, const uint32_t (&begin)[3],
                         const uint32_t (&count)[3]) {
    for (uint32_t i = 0; i < 2; ++i) {
        item.raw_begin[i] = begin[i];
        item.raw_count[i] = count[i];
    }
    item.packed_begin = begin[2];
    item.packed_count = count[2];
    item.split = static_cast<uint16_t>(split);
    return item;
}

// Chunks that stay at 16 bits make raw blocks many, and long work for one split's readers.
bool Splits::has_many_raw(const WorkTileBlocks &work_tile, uint32_t n_readers) {
    return work_tile.packed.size() &&
           work_tile.raw[0].size() + work_tile.raw[1].size() > std::max(n_readers, kFewRawBlocks);
}

// Raw blocks in equal numbers, packed ones at equal cost: half of a page's bytes and half of those
// of the work tile's mean page, as weigh() has it.
void Splits::split_evenly(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                          uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                          WorkItem *items) const {
    const auto bytes = static_cast<double>(work_tile.packed.bytes);
    const double mean = bytes / work_tile.packed.size();
    double done = 0;
    uint32_t block = work_tile.packed.begin;
    for (uint32_t split = 0; split < n_splits; ++split) {
        for (uint32_t i = 0; i < 2; ++i) {
            const uint64_t n = work_tile.raw[i].size();
            const auto begin = static_cast<uint32_t>(n * split / n_splits);
            item.raw_begin[i] = work_tile.raw[i].begin + begin;
            item.raw_count[i] = static_cast<uint32_t>(n * (split + 1) / n_splits) - begin;
        }
        const double limit = split + 1 == n_splits ? HUGE_VAL : bytes * (split + 1) / n_splits;
        item.packed_begin = block;
        for (; block < work_tile.packed.end; ++block) {
            const auto own =
                static_cast<double>(block_bytes(sequence, *sequence.blocks[block], entry));
            const double cost = (own + mean) / 2;
            if (done + cost / 2 > limit)
                break;
            done += cost;
        }
        item.packed_count = block - item.packed_begin;
        item.split = static_cast<uint16_t>(split);
        items[(*n_items)++] = item;
    }
}

// How often loops over the KV tiles of an item run, of the item that has most.
void Splits::count_rounds(const WorkItem *items, const SplitShape &shape, bool is_raw,
                          FormItems *form) {
    form->n_kv_tiles = form->n_f16_rounds = form->n_own_f16_rounds = 0;
    const auto rounds = [&](uint64_t n_blocks, uint32_t n_splits) {
        return static_cast<uint32_t>(
            ceil_div(n_blocks * kBlockTiles, uint64_t{n_splits} * shape.n_readers));
    };
    for (uint32_t i = form->first_item; i < form->first_item + form->n_items; ++i) {
        const WorkItem &item = items[i];
        const uint32_t n_raw = item.raw_count[0] + item.raw_count[1];
        if (!shape.splits_packed_only) {
            form->n_kv_tiles = std::max(form->n_kv_tiles, item.packed_count + n_raw);
            continue;
        }
        form->n_f16_rounds = std::max(form->n_f16_rounds, rounds(n_raw, item.n_splits));
        if (is_raw)
            form->n_own_f16_rounds = std::max(form->n_own_f16_rounds, rounds(item.packed_count, 1));
        else
            form->n_kv_tiles = std::max(form->n_kv_tiles, item.packed_count);
    }
}

uint32_t Splits::copy_firsts(uint32_t n_items, WorkItem *items) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_items; ++i)
        if (items[i].split == 0 && items[i].n_splits > 1)
            items[n_items + n++] = items[i];
    return n;
}

// The item of a work tile's first column tile and first split, before the tile is split.
WorkItem Splits::first_item(const Batch &batch, const Kind &kind, uint32_t work_tile) const {
    const LayerView &layer = layout_.layers[kind.layer];
    const uint32_t s = work_tile / layer.n_kv_heads;
    const BatchSequence &sequence = batch.sequences[s];
    WorkItem item{};
    item.sequence = s;
    item.first_block = tile_first_blocks_[s];
    item.first_new = sequence.first_new;
    item.n_new = static_cast<uint16_t>(sequence.n_new);
    item.new_in_blocks = sequence.new_in_blocks != 0;
    item.has_tree = sequence.parent != nullptr;
    item.kv_head = static_cast<uint16_t>(work_tile % layer.n_kv_heads);
    return item;
}

// Work tiles whose pages differ in cost are cut into ranges where that is faster; a page then costs
// its bytes and page_bytes. Not for several column tiles.
bool Splits::find_ranges(const Kind &kind, uint64_t total, uint32_t n_rounds) {
    const SplitShape &shape = kind.split.shape;
    (void)range_tiles_.resize(work_tiles_.size());
    bool differs = false;
    for (size_t u = 0; u < work_tiles_.size(); ++u) {
        const WorkTileBlocks &work_tile = work_tiles_[u];
        const uint32_t n_pages = work_tile.packed.size();
        if (!n_pages || has_many_raw(work_tile, shape.n_readers))
            return false;
        range_tiles_[u] = {n_pages,
                           static_cast<double>(work_tile.packed.bytes) / n_pages + shape.page_bytes,
                           static_cast<double>(work_tile.raw[0].bytes + work_tile.raw[1].bytes)};
        differs = differs || range_tiles_[u].page_cost != range_tiles_[0].page_cost;
    }
    const RangeRules rules = {shape.n_workers, shape.n_readers, range_item_cost(shape)};
    return differs &&
           range_cut_.cut(range_tiles_.data(), static_cast<uint32_t>(range_tiles_.size()), rules) <
               kRangeGain * rounds_time(kind, total, n_rounds);
}

// The cost of the busiest worker's splits in the terms of ranges.
double Splits::rounds_time(const Kind &kind, uint64_t total, uint32_t n_rounds) {
    const SplitShape &shape = kind.split.shape;
    std::fill(worker_costs_.data(), worker_costs_.data() + shape.n_workers, 0.0);
    uint32_t at = 0;
    for (size_t u = 0; u < work_tiles_.size(); ++u) {
        const RangeTile &tile = range_tiles_[u];
        const uint32_t n_splits = n_splits_of(kind, u, total, n_rounds);
        const double each = range_item_cost(shape) + tile.first_cost / n_splits +
                            rounds_cost(tile, ceil_div(tile.n_pages, n_splits), shape.n_readers);
        for (uint32_t i = 0; i < n_splits; ++i)
            worker_costs_[at++ % shape.n_workers] += each;
    }
    return *std::max_element(worker_costs_.data(), worker_costs_.data() + shape.n_workers);
}

uint32_t Splits::write_ranges(const Batch &batch, const Kind &kind, WorkItem *items) {
    const LayerView &layer = layout_.layers[kind.layer];
    const Array<Range> &ranges = range_cut_.ranges();
    uint32_t partial = 0;
    for (size_t i = 0; i < ranges.size();) {
        const uint32_t u = ranges[i].tile;
        uint32_t n_splits = 0;
        while (i + n_splits < ranges.size() && ranges[i + n_splits].tile == u)
            ++n_splits;
        const WorkTileBlocks &work_tile = work_tiles_[u];
        WorkItem item = first_item(batch, kind, u);
        item.work_tile = u;
        item.n_splits = static_cast<uint16_t>(n_splits);
        item.first_partial = partial;
        if (n_splits > 1)
            partial += n_splits * tile_floats(layer.value_dim);
        item.packed_begin = work_tile.packed.begin;
        for (uint32_t split = 0; split < n_splits; ++split, ++i) {
            for (uint32_t k = 0; k < 2; ++k) {
                item.raw_begin[k] = work_tile.raw[k].begin;
                item.raw_count[k] = split ? 0 : work_tile.raw[k].size();
            }
            item.split = static_cast<uint16_t>(split);
            item.packed_count = ranges[i].n_pages;
            items[ranges[i].worker + ranges[i].turn * kind.split.shape.n_workers] = item;
            item.packed_begin += item.packed_count;
        }
    }
    const auto n_items = static_cast<uint32_t>(ranges.size());
    form_items_[kind.split.first_form] = {0, n_items, 0, 0, 0};
    count_rounds(items, kind.split.shape, false, &form_items_[kind.split.first_form]);
    for (uint32_t form = 1; form <= kind.split.n_forms; ++form)
        form_items_[kind.split.first_form + form] = {n_items, 0, 0, 0, 0};
    return n_items;
}

void Splits::write_part(const BatchSequence &sequence, const Kind &kind, uint32_t entry,
                        uint32_t form, WorkItem item, uint32_t *n_items, WorkItem *items) const {
    const LayerView &layer = layout_.layers[kind.layer];
    const SplitShape &shape = kind.split.shape;
    const uint64_t at = uint64_t{item.sequence} * layer.n_kv_heads + item.kv_head;
    const WorkTileBlocks &work_tile = work_tiles_[at];
    const Part &part = parts_[at * n_parts_ + form];
    const uint32_t columns = columns_of(sequence, layer);
    item.n_splits = static_cast<uint16_t>(work_tile.n_splits);
    for (uint32_t tile = 0; tile * shape.tile_columns < columns; ++tile) {
        item.column_tile = static_cast<uint16_t>(tile);
        item.work_tile = work_tile.tile_index + tile;
        item.first_partial = work_tile.first_partial + (work_tile.n_splits > 1 ? tile : 0) *
                                                           work_tile.n_splits *
                                                           tile_floats(layer.value_dim);
        if (shape.splits_packed_only) {
            split_packed_only(sequence, kind, entry, form, work_tile, part, item, n_items, items);
            split_raw(work_tile, part, item, n_items, items);
        } else if (has_many_raw(work_tile, shape.n_readers))
            split_evenly(work_tile, item, part.n_splits, n_items, sequence, entry, items);
        else if (shape.turn_bytes && work_tile.has_equal_pages)
            split_by_turns(work_tile, item, part.n_splits, n_items, kind, items);
        else if (shape.turn_bytes)
            split_by_cost(work_tile, item, part.n_splits, n_items, sequence, entry, shape, items);
        else
            split_by_rounds(work_tile, item, part.n_splits, n_items, sequence, entry,
                            shape.n_readers, items);
    }
}

// Items in the order of their forms.
uint32_t Splits::write_forms(const Batch &batch, const Kind &kind, WorkItem *items) {
    const SplitShape &shape = kind.split.shape;
    uint32_t n_items = 0;
    for (uint32_t form = 0; form <= kind.split.n_forms; ++form) {
        FormItems &of_form = form_items_[kind.split.first_form + form];
        of_form.first_item = n_items;
        for (size_t u = 0; form < n_parts_ && u < work_tiles_.size(); ++u) {
            if (!parts_[u * n_parts_ + form].has_items())
                continue;
            const WorkItem item = first_item(batch, kind, static_cast<uint32_t>(u));
            write_part(batch.sequences[item.sequence], kind,
                       layout_.first_entries[kind.layer] + item.kv_head, form, item, &n_items,
                       items);
        }
        of_form.n_items = n_items - of_form.first_item;
        count_rounds(items, shape, shape.splits_packed_only && form == kind.split.n_forms,
                     &of_form);
    }
    return n_items;
}

void Splits::write(const Batch &batch, Kind *kind, uint32_t n_tiles) {
    uint64_t total = 0;
    for (const Part &part : parts_)
        total += part.cost;
    total *= n_tiles;
    const SplitShape &shape = kind->split.shape;
    uint32_t best = 1;
    kind->split.variant = 0;
    for (uint32_t rounds = 2; rounds <= kMaxRounds; ++rounds)
        if (time_of(*kind, n_tiles, total, rounds) < time_of(*kind, n_tiles, total, best))
            best = rounds;
    use_idle_workers(kind, n_tiles, total, best);
    number_splits(batch, kind, total, best);
    auto *items = reinterpret_cast<WorkItem *>(block_.data() + kind->split.items_offset);
    const bool by_ranges =
        shape.page_bytes && n_parts_ == 1 && n_tiles == 1 && find_ranges(*kind, total, best);
    const uint32_t n_items =
        by_ranges ? write_ranges(batch, *kind, items) : write_forms(batch, *kind, items);
    kind->split.n_items = n_items;
    kind->split.n_merges = copy_firsts(n_items, items);
    std::memcpy(block_.data() + kind->split.n_items_offset, &n_items, sizeof n_items);
}

lk_status Splits::send(TableMemory *memory, uint64_t address) const {
    lk_status status = LK_OK;
    for (const Kind &kind : kinds_) {
        const uint64_t n_items =
            uint64_t{kind.split.n_items} + kind.split.n_merges + limits_.n_ahead;
        const uint64_t first = kind.split.n_items_offset;
        if (!status)
            status = memory->put(address + first, block_.data() + first,
                                 kHeaderBytes + n_items * sizeof(WorkItem));
    }
    return status;
}

bool Splits::plan(const Batch &batch, const BlockOrder &order, bool blocks_changed) {
    bool is_same = !blocks_changed && planned_.size() == batch.n_sequences;
    for (uint32_t s = 0; is_same && s < batch.n_sequences; ++s)
        is_same = planned_[s].id == batch.sequences[s].id &&
                  planned_[s].n_attended == batch.sequences[s].n_attended &&
                  planned_[s].n_new == batch.sequences[s].n_new &&
                  planned_[s].n_history <= batch.sequences[s].n_history &&
                  !planned_[s].parent == !batch.sequences[s].parent;
    if (is_same && !has_window_)
        return false;
    uint32_t n_blocks = 0;
    (void)first_blocks_.resize(batch.n_sequences);
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        first_blocks_[s] = n_blocks;
        n_blocks += batch.sequences[s].n_blocks;
    }
    for (Kind &kind : kinds_) {
        const LayerView &layer = layout_.layers[kind.layer];
        if (is_same && !layer.window_tokens)
            continue;
        uint32_t columns = 0;
        for (uint32_t s = 0; s < batch.n_sequences; ++s) {
            const uint32_t n = columns_of(batch.sequences[s], layer);
            columns = n > columns ? n : columns;
        }
        if (columns > limits_.max_columns)
            continue;
        const uint32_t n_work_tiles = batch.n_sequences * layer.n_kv_heads;
        const SplitShape shape = rules_->shape(kind.layer, n_work_tiles, columns);
        const auto n_tiles = static_cast<uint32_t>(ceil_div(columns, shape.tile_columns));
        if (n_tiles > limits_.max_tiles)
            continue;
        work_tiles_.clear();
        (void)work_tiles_.resize(n_work_tiles);
        kind.split.n_work_tiles = n_work_tiles;
        kind.split.shape = shape;
        const bool is_ordered = order.is_used() && BlockOrder::suits(layout_, *rules_, kind.layer);
        tile_first_blocks_ = is_ordered ? order.first_blocks() : first_blocks_.data();
        const Batch read = {is_ordered ? order.sequences() : batch.sequences, batch.n_sequences,
                            batch.n_tokens};
        measure(read, kind);
        write(read, &kind, n_tiles);
    }
    (void)planned_.assign(batch.sequences, batch.n_sequences);
    return true;
}

}  // namespace gpu
}  // namespace lk
