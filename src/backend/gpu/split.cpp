// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/split.h"

#include <algorithm>
#include <cmath>

namespace lk {
namespace gpu {

namespace {

constexpr uint32_t kMaxRounds = 6;  // items that a worker takes one after the other, at most
constexpr uint32_t kHeaderBytes = 16;
constexpr uint32_t kBlockTiles = LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS;  // of a block, at most
constexpr uint32_t kFewRawBlocks = 8;  // that sinks and a recent window are

uint32_t columns_of(const BatchSequence &sequence, const LayerView &layer) {
    return sequence.n_new * (layer.n_query_heads / layer.n_kv_heads);
}

}  // namespace

Splits::Splits(const Allocator &allocator)
    : kinds_(allocator),
      kind_of_(allocator),
      block_(allocator),
      work_tiles_(allocator),
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
           x.head_dim == y.head_dim && x.window_tokens == y.window_tokens &&
           x.window_sink_tokens == y.window_sink_tokens &&
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
    uint32_t head_dim = 0;
    for (uint32_t layer = 0; layer < layout.n_layers; ++layer) {
        uint32_t k = 0;
        while (k < kinds_.size() && !same_kind(kinds_[k].layer, layer))
            ++k;
        if (k == kinds_.size() && !add_kind(layer))
            return false;
        kind_of_[layer] = k;
        heads = layout.layers[layer].n_kv_heads > heads ? layout.layers[layer].n_kv_heads : heads;
        head_dim =
            layout.layers[layer].head_dim > head_dim ? layout.layers[layer].head_dim : head_dim;
    }
    const uint32_t sequences = layout.max_sequences < layout.max_step_tokens
                                   ? layout.max_sequences
                                   : layout.max_step_tokens;
    const uint32_t split_items = kMaxRounds * limits_.max_workers;
    n_counters_ = sequences * heads * limits_.max_tiles;
    max_items_ = split_items + 2 * n_counters_ + limits_.n_ahead;
    partial_floats_ = uint64_t{split_items} * limits_.max_tile_columns * (head_dim + 2);
    const uint64_t each = kHeaderBytes + uint64_t{max_items_} * sizeof(WorkItem);
    for (size_t k = 0; k < kinds_.size(); ++k) {
        kinds_[k].split.n_items_offset = k * each;
        kinds_[k].split.items_offset = k * each + kHeaderBytes;
    }
    return block_.resize(kinds_.size() * each) && work_tiles_.resize(uint64_t{sequences} * heads) &&
           planned_.reserve(sequences) && first_blocks_.reserve(sequences);
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
    return round_up(tokens, LK_TILE_TOKENS) * key.head_dim * 4;
}

// Blocks visible to the step's tokens, in runs of raw and of packed ones. Raw blocks between packed
// ones are full pages and go with them.
Splits::WorkTileBlocks Splits::find_blocks(const BatchSequence &sequence, const LayerView &layer,
                                           uint32_t entry) const {
    const auto hidden = [&](uint32_t r) {
        const Block &block = *sequence.blocks[r];
        return layer.window_tokens && block.first_token >= layer.window_sink_tokens &&
               block.first_token + block.capacity_tokens + layer.window_tokens <=
                   sequence.n_history + 1;
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
    for (BlockRun *blocks : {&work_tile->raw[0], &work_tile->raw[1], &work_tile->packed})
        for (uint32_t r = blocks->begin; r < blocks->end; ++r)
            blocks->bytes += block_bytes(sequence, *sequence.blocks[r], entry);
    for (uint32_t r = work_tile->packed.begin; r < work_tile->packed.end; ++r)
        has_raw_pages_ = has_raw_pages_ || is_raw(*sequence.blocks[r], entry);
}

uint64_t Splits::block_tiles(const WorkTileBlocks &work_tile) {
    return uint64_t{kBlockTiles} * (work_tile.raw[0].size() + work_tile.raw[1].size());
}

// Pages of few bits take almost as many instructions as those of many. So where heads differ, a
// page costs half of its bytes and half of those of the mean page.
void Splits::weigh() {
    uint64_t bytes = 0;
    uint64_t n_pages = 0;
    for (const WorkTileBlocks &work_tile : work_tiles_) {
        bytes += work_tile.packed.bytes;
        n_pages += work_tile.packed.size();
    }
    for (WorkTileBlocks &work_tile : work_tiles_) {
        const uint64_t mean = n_pages ? bytes * work_tile.packed.size() / n_pages : 0;
        work_tile.cost =
            work_tile.raw[0].bytes + work_tile.raw[1].bytes + (work_tile.packed.bytes + mean) / 2;
    }
}

void Splits::measure(const Batch &batch, const Kind &kind) {
    const LayerView &layer = layout_.layers[kind.layer];
    const uint32_t first_entry = layout_.first_entries[kind.layer];
    has_raw_pages_ = false;
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
        }
    weigh();
}

// As many times as each reader of n_splits items takes a KV tile, in the fewest items.
uint32_t Splits::fewest_splits(const WorkTileBlocks &work_tile, uint32_t n_splits,
                               uint32_t n_readers) {
    const uint32_t n_pages = work_tile.packed.size();
    const uint64_t n_kv_tiles = n_pages ? n_pages : block_tiles(work_tile);
    const uint64_t rounds = ceil_div(n_kv_tiles, uint64_t{n_splits} * n_readers);
    return rounds ? static_cast<uint32_t>(ceil_div(n_kv_tiles, rounds * n_readers)) : 1;
}

// n_slots: items that all workers together take.
uint32_t Splits::n_splits_of(const SplitShape &shape, const WorkTileBlocks &work_tile,
                             uint64_t total, uint32_t n_slots) {
    const double share =
        static_cast<double>(work_tile.cost) * n_slots / static_cast<double>(total ? total : 1);
    const uint32_t n_splits = share < 2 ? 1 : static_cast<uint32_t>(share);
    return shape.splits_packed_only ? fewest_splits(work_tile, n_splits, shape.n_readers)
                                    : n_splits;
}

// The cost of the busiest worker's items when work tiles are split for n_rounds items of each
// worker.
double Splits::time_of(const SplitShape &shape, uint32_t n_tiles, uint64_t total,
                       uint32_t n_rounds) const {
    double first = 0;  // of worker 0, which always has the most items
    double largest = 0;
    uint32_t at = 0;
    for (const WorkTileBlocks &work_tile : work_tiles_) {
        const uint32_t n_splits = n_splits_of(shape, work_tile, total, n_rounds * shape.n_workers);
        const double each = static_cast<double>(work_tile.cost) / n_splits + shape.item_bytes;
        largest = each > largest ? each : largest;
        for (uint32_t i = 0; i < n_splits * n_tiles; ++i, ++at)
            if (at % shape.n_workers == 0)
                first += each;
    }
    return first > largest ? first : largest;
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
        item.raw_begin[0] = begin[0];
        item.raw_begin[1] = begin[1];
        item.raw_count[0] = count[0];
        item.raw_count[1] = count[1];
        item.packed_begin = begin[2];
        item.packed_count = count[2];
        item.split = static_cast<uint16_t>(split);
        items[(*n_items)++] = item;
    }
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

// All raw blocks to each item, and packed ones in equal shares.
void Splits::split_packed_only(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                               uint32_t *n_items, WorkItem *items) {
    for (uint32_t i = 0; i < 2; ++i) {
        item.raw_begin[i] = work_tile.raw[i].begin;
        item.raw_count[i] = work_tile.raw[i].size();
    }
    for (uint32_t split = 0; split < n_splits; ++split) {
        const uint64_t n = work_tile.packed.size();
        const auto begin = static_cast<uint32_t>(n * split / n_splits);
        item.packed_begin = work_tile.packed.begin + begin;
        item.packed_count = static_cast<uint32_t>(n * (split + 1) / n_splits) - begin;
        item.split = static_cast<uint16_t>(split);
        items[(*n_items)++] = item;
    }
}

// How often loops over the KV tiles of an item run, of the item that has most.
void Splits::count_rounds(const WorkItem *items, Split *split) const {
    split->n_kv_tiles = split->n_f16_rounds = split->n_own_f16_rounds = 0;
    const SplitShape &shape = split->shape;
    for (uint32_t i = 0; i < split->n_items; ++i) {
        const WorkItem &item = items[i];
        const uint32_t n_raw = item.raw_count[0] + item.raw_count[1];
        split->n_kv_tiles =
            std::max(split->n_kv_tiles, item.packed_count + (shape.splits_packed_only ? 0 : n_raw));
        if (!shape.splits_packed_only)
            continue;
        const auto rounds = [&](uint64_t n_blocks, uint32_t n_splits) {
            return static_cast<uint32_t>(
                ceil_div(n_blocks * kBlockTiles, uint64_t{n_splits} * shape.n_readers));
        };
        split->n_f16_rounds = std::max(split->n_f16_rounds, rounds(n_raw, item.n_splits));
        if (has_raw_pages_)
            split->n_own_f16_rounds =
                std::max(split->n_own_f16_rounds, rounds(item.packed_count, 1));
    }
}

uint32_t Splits::copy_firsts(uint32_t n_items, WorkItem *items) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_items; ++i)
        if (items[i].split == 0 && items[i].n_splits > 1)
            items[n_items + n++] = items[i];
    return n;
}

void Splits::write(const Batch &batch, Kind *kind, uint32_t n_tiles) {
    const LayerView &layer = layout_.layers[kind->layer];
    uint64_t total = 0;
    for (uint64_t u = 0; u < uint64_t{batch.n_sequences} * layer.n_kv_heads; ++u)
        total += work_tiles_[u].cost;
    total *= n_tiles;
    const SplitShape &shape = kind->split.shape;
    uint32_t best = 1;
    for (uint32_t rounds = 2; rounds <= kMaxRounds; ++rounds)
        if (time_of(shape, n_tiles, total, rounds) < time_of(shape, n_tiles, total, best))
            best = rounds;
    auto *items = reinterpret_cast<WorkItem *>(block_.data() + kind->split.items_offset);
    uint32_t n_items = 0;
    uint32_t tile_index = 0;
    uint32_t partial = 0;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        for (uint32_t head = 0; head < layer.n_kv_heads; ++head) {
            const BatchSequence &sequence = batch.sequences[s];
            const WorkTileBlocks &work_tile = work_tiles_[uint64_t{s} * layer.n_kv_heads + head];
            const uint32_t n_splits = n_splits_of(shape, work_tile, total, best * shape.n_workers);
            const uint32_t columns = columns_of(sequence, layer);
            const uint32_t width = shape.tile_columns;
            for (uint32_t tile = 0; tile * width < columns; ++tile, ++tile_index) {
                WorkItem item{};
                item.sequence = s;
                item.first_block = first_blocks_[s];
                item.first_new = sequence.first_new;
                item.n_new = static_cast<uint16_t>(sequence.n_new);
                item.new_in_blocks = sequence.new_in_blocks != 0;
                item.has_tree = sequence.parent != nullptr;
                item.kv_head = static_cast<uint16_t>(head);
                item.column_tile = static_cast<uint16_t>(tile);
                item.n_splits = static_cast<uint16_t>(n_splits);
                item.work_tile = tile_index;
                item.first_partial = partial;
                if (n_splits > 1)
                    partial += n_splits * limits_.max_tile_columns * (layer.head_dim + 2);
                if (shape.splits_packed_only)
                    split_packed_only(work_tile, item, n_splits, &n_items, items);
                else if (has_many_raw(work_tile, shape.n_readers))
                    split_evenly(work_tile, item, n_splits, &n_items, sequence,
                                 layout_.first_entries[kind->layer] + head, items);
                else
                    split_by_rounds(work_tile, item, n_splits, &n_items, sequence,
                                    layout_.first_entries[kind->layer] + head, shape.n_readers,
                                    items);
            }
        }
    kind->split.n_items = n_items;
    count_rounds(items, &kind->split);
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

bool Splits::plan(const Batch &batch, bool blocks_changed) {
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
        work_tiles_.clear();
        (void)work_tiles_.resize(uint64_t{batch.n_sequences} * layer.n_kv_heads);
        kind.split.n_work_tiles = static_cast<uint32_t>(work_tiles_.size());
        kind.split.shape = rules_->shape(kind.layer, kind.split.n_work_tiles, columns);
        measure(batch, kind);
        write(batch, &kind,
              static_cast<uint32_t>(ceil_div(columns, kind.split.shape.tile_columns)));
    }
    (void)planned_.assign(batch.sequences, batch.n_sequences);
    return true;
}

}  // namespace gpu
}  // namespace lk
