// Work items of readers whose pages cost more than the bytes that they read: a workgroup is as slow
// as the reader with most pages and tiles of 16-bit blocks.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "backend/gpu/split.h"

namespace lk {
namespace gpu {

uint32_t Splits::TurnCut::n_splits(uint32_t n_pages) const {
    const uint32_t of_raw = std::min(n_pages, n_with_raw * pages_of_raw);
    return n_with_raw + static_cast<uint32_t>(ceil_div(n_pages - of_raw, pages));
}

// The most pages of a split, in rounds of all readers. 16-bit blocks lie in as many of the first
// splits as make the busiest reader's time least, in place of so many rounds of pages as they take,
// or of one less.
Splits::TurnCut Splits::cut_turns(const Kind &kind, const WorkTileBlocks &work_tile,
                                  uint32_t n_splits) const {
    const SplitShape &shape = kind.split.shape;
    const uint32_t n = shape.n_readers;
    const uint32_t n_pages = work_tile.packed.size();
    const double page = static_cast<double>(work_tile.packed.bytes) / n_pages + shape.turn_bytes;
    const LayerView &layer = layout_.layers[kind.layer];
    const uint64_t tile_bytes =
        uint64_t{2} * LK_TILE_TOKENS * (layer.head_dim + layer.stored_value_dim());
    const uint32_t n_raw = work_tile.raw[0].size() + work_tile.raw[1].size();
    const auto raw_tiles =
        static_cast<uint32_t>((work_tile.raw[0].bytes + work_tile.raw[1].bytes) / tile_bytes);
    TurnCut best{};
    best.cost = HUGE_VAL;
    for (uint32_t k = 1; k <= std::max(n_raw, 1u); ++k) {
        const auto n_with_raw = static_cast<uint32_t>(ceil_div(n_raw, k));
        if (n_with_raw > n_splits)
            continue;
        const double raw =
            static_cast<double>(ceil_div(std::min(k * kBlockTiles, raw_tiles), n) * tile_bytes);
        const auto whole = static_cast<uint32_t>(raw / page);
        const double rest = raw - whole * page;
        bool fits = false;
        for (uint32_t rounds = n_pages / (n_splits * n); !fits; ++rounds)
            for (const bool is_longer : {false, true}) {
                const uint32_t lost = whole + (rest > 0 && !is_longer);
                const uint32_t pages_of_raw = (rounds - std::min(rounds, lost)) * n;
                if (n_with_raw * pages_of_raw + (n_splits - n_with_raw) * rounds * n < n_pages)
                    continue;
                const double cost = std::max(rounds * page + (is_longer ? rest : 0), raw);
                if (cost < best.cost)
                    best = {n_with_raw, k, pages_of_raw, rounds * n, cost};
                fits = true;
            }
    }
    return best;
}

// Without a split that has nothing; where one round takes all of equal pages, no more than fill it:
// partial results cost more than readers that share a processor.
uint32_t Splits::few_splits(const Kind &kind, const WorkTileBlocks &work_tile,
                            uint32_t n_splits) const {
    const uint32_t n_readers = kind.split.shape.n_readers;
    if (work_tile.has_equal_pages && !has_many_raw(work_tile, n_readers)) {
        const TurnCut cut = cut_turns(kind, work_tile, n_splits);
        if (cut.pages == n_readers)
            return cut.n_splits(work_tile.packed.size());
    }
    return std::max(std::min(n_splits, work_tile.size()), 1u);
}

// In bytes that a worker reads. Rounds of heads of different widths do not compare: a page of few
// bits takes almost as long as one of many.
double Splits::split_cost(const Kind &kind, size_t part, uint32_t n_splits) const {
    const SplitShape &shape = kind.split.shape;
    const WorkTileBlocks &work_tile = work_tiles_[part / n_parts_];
    const bool is_by_turns = shape.turn_bytes && has_equal_heads_ && work_tile.has_equal_pages;
    if (is_by_turns && !has_many_raw(work_tile, shape.n_readers))
        return cut_turns(kind, work_tile, n_splits).cost * shape.n_readers;
    return static_cast<double>(parts_[part].cost) / n_splits;
}

void Splits::split_by_turns(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                            uint32_t *n_items, const Kind &kind, WorkItem *items) const {
    const TurnCut cut = cut_turns(kind, work_tile, n_splits);
    uint32_t raw[2] = {work_tile.raw[0].begin, work_tile.raw[1].begin};
    uint32_t page = work_tile.packed.begin;
    for (uint32_t split = 0; split < n_splits; ++split) {
        const bool has_raw = split < cut.n_with_raw;
        uint32_t n_raw = has_raw ? cut.raw_blocks : 0;
        for (uint32_t i = 0; i < 2; ++i) {
            item.raw_begin[i] = raw[i];
            item.raw_count[i] = std::min(n_raw, work_tile.raw[i].end - raw[i]);
            raw[i] += item.raw_count[i];
            n_raw -= item.raw_count[i];
        }
        const auto share =
            static_cast<uint32_t>(ceil_div(work_tile.packed.end - page, n_splits - split));
        item.packed_begin = page;
        item.packed_count = std::min(share, has_raw ? cut.pages_of_raw : cut.pages);
        page += item.packed_count;
        item.split = static_cast<uint16_t>(split);
        items[(*n_items)++] = item;
    }
}

// Each split takes blocks until it has its share of the cost of those that are left, and leaves a
// block at least to each of the others.
void Splits::split_by_cost(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                           uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                           const SplitShape &shape, WorkItem *items) const {
    const BlockRun *runs[3] = {&work_tile.raw[0], &work_tile.raw[1], &work_tile.packed};
    auto left = static_cast<double>(work_tile.bytes()) +
                static_cast<double>(work_tile.packed.size()) * shape.turn_bytes;
    uint32_t n_left = work_tile.size();
    uint32_t run = 0;
    uint32_t block = runs[0]->begin;
    for (uint32_t split = 0; split < n_splits; ++split) {
        uint32_t begin[3] = {0, 0, 0};
        uint32_t count[3] = {0, 0, 0};
        const uint32_t n_later = n_splits - split - 1;
        const double share = left / (n_later + 1);
        double done = 0;
        while (n_left) {
            if (block == runs[run]->end) {
                block = runs[++run]->begin;
                continue;
            }
            const Block &next = *sequence.blocks[block];
            const double cost = static_cast<double>(block_bytes(sequence, next, entry)) +
                                (run == 2 ? shape.turn_bytes : 0u);
            if (done > 0 && (n_left <= n_later || (n_later && done + cost / 2 > share)))
                break;
            begin[run] = count[run] ? begin[run] : block;
            ++count[run];
            ++block;
            --n_left;
            done += cost;
        }
        left -= done;
        items[(*n_items)++] = item_of(item, split, begin, count);
    }
}

}  // namespace gpu
}  // namespace lk
