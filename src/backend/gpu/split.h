// Which workgroup of decode attention reads which blocks: work items of equal bytes, made anew when
// pages were added or packed, and uploaded with the step's tables.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_SPLIT_H
#define LK_BACKEND_GPU_SPLIT_H

#include "backend/backend.h"
#include "backend/gpu/block_order.h"
#include "backend/gpu/memory.h"
#include "backend/gpu/ranges.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

constexpr uint32_t kBlockTiles = LK_MAX_PAGE_TOKENS / LK_TILE_TOKENS;  // of a block, at most

// Workgroups for a step that leaves workers idle: all its items run at once, and each reader has
// one page at most.
struct IdleShape {
    uint32_t n_workers;
    uint32_t n_readers;   // of a workgroup
    uint32_t page_parts;  // readers that take a page together
};
constexpr uint32_t kMaxIdleShapes = 2;

// How a layer's decode is cut.
struct SplitShape {
    uint32_t n_workers;       // workgroups that run side by side and take items in turn
    uint32_t n_readers;       // of a workgroup, which take pages in turn
    uint32_t tile_columns;    // of an item
    uint32_t item_bytes;      // cost of an item besides its bytes, in bytes that a worker reads
    bool splits_packed_only;  // all items of a work tile have its 16-bit blocks, and readers take
                              // tiles of them in turn; or, where workers are left, none has them
                              // and each such block has an item
    uint32_t page_bytes;  // cost of a page besides its bytes; 0: heads of different widths are cut
                          // like equal ones
    uint32_t turn_bytes = 0;  // cost of a reader's packed page besides its bytes; 0: work tiles are
                              // cut by bytes alone
    uint32_t byte_percent = 50;  // of a page's cost, where pages of a layer differ in their bytes;
                                 // the rest is the same for all pages
    uint32_t n_idle = 0;         // with splits_packed_only: the last of them that fits is taken
    IdleShape idle[kMaxIdleShapes] = {};
};

// The most that shapes can be. A work tile is a KV head of a sequence.
struct SplitLimits {
    uint32_t n_processors;
    uint32_t max_workers;
    uint32_t max_columns;  // query columns of a work tile that decode takes
    uint32_t max_tiles;    // of a work tile
    uint32_t max_tile_columns;
    uint32_t n_ahead;    // items after all of them that kernels load
    uint32_t max_forms;  // of pages of a work tile, 16-bit ones among the packed ones included
};

// The rules of a device's kernels.
class SplitRules {
  public:
    virtual SplitLimits limits() const = 0;
    // Of a step with n_work_tiles work tiles of at most n_columns columns.
    virtual SplitShape shape(uint32_t layer, uint32_t n_work_tiles, uint32_t n_columns) const = 0;
    // Forms that packed pages of a layer may have, each of which has work items of its own, and the
    // form of a packed page with these formats.
    virtual uint32_t n_forms(uint32_t) const { return 1; }
    virtual uint32_t form_of(uint32_t, uint16_t, uint16_t) const { return 0; }
    // FormatInfo.form of a cache's page formats, or null.
    virtual const uint16_t *format_forms() const { return nullptr; }

  protected:
    ~SplitRules() = default;
};

// How a layer's decode was cut. Offsets are into the uploaded block.
struct Split {
    uint64_t items_offset;    // WorkItem []
    uint64_t n_items_offset;  // uint32_t
    uint32_t n_items;
    uint32_t n_merges;  // after the items: those again that are the first split of several
    uint32_t n_work_tiles;
    uint32_t n_forms;     // of the layer
    uint32_t first_form;  // in the FormItems of all layers
    bool has_mixed;       // an item may have packed blocks of several forms
    uint32_t variant;     // of the kernels: 0, or 1 + i of shape.idle[i], which is in shape then
    SplitShape shape;

    // Readers that take a page together.
    uint32_t page_parts() const { return variant ? shape.idle[variant - 1].page_parts : 1; }
};

// The items of the pages of one form, which follow each other. With splits_packed_only the form
// after the last one is that of 16-bit blocks among packed ones; without, there is one form.
struct FormItems {
    uint32_t first_item;
    uint32_t n_items;
    uint32_t n_kv_tiles;  // largest number of blocks of an item; only packed ones with
                          // splits_packed_only
    // With splits_packed_only: how many times each reader takes a tile of the raw blocks, and of
    // those among the packed blocks of its own item.
    uint32_t n_f16_rounds;
    uint32_t n_own_f16_rounds;
};

// Query columns of a KV head.
inline uint32_t columns_of(const BatchSequence &sequence, const LayerView &layer) {
    return sequence.n_new * (layer.n_query_heads / layer.n_kv_heads);
}

class Splits {
  public:
    explicit Splits(const Allocator &allocator);

    // Sizes for the life of a cache; rules live as long. False without memory.
    bool open(const CacheLayout &layout, const SplitRules &rules);

    // The work items of a step, which read blocks in the order of that step; blocks_changed when
    // blocks came, went or changed since the last one. False when those in the block are right as
    // they are.
    bool plan(const Batch &batch, const BlockOrder &order, bool blocks_changed);

    // The items are put to a device block of bytes(), whose address stays.
    uint64_t bytes() const { return block_.size(); }
    lk_status send(TableMemory *memory, uint64_t address) const;
    // Of the step that was planned; for layers and steps that decode takes.
    const Split &of(uint32_t layer) const { return kinds_[kind_of_[layer]].split; }
    // [n_forms + 1]
    const FormItems *forms_of(const Split &split) const { return &form_items_[split.first_form]; }

    uint64_t partial_floats() const { return partial_floats_; }
    uint32_t n_counters() const { return n_counters_; }

  private:
    // Layers that share their work items: of one geometry and with the same page formats, head by
    // head.
    struct Kind {
        uint32_t layer;  // one of them
        Split split;
    };
    // One (sequence, KV head, column tile) and the blocks that it reads.
    struct BlockRun {
        uint32_t begin;
        uint32_t end;
        uint64_t bytes;
        uint32_t size() const { return end - begin; }
    };
    struct WorkTileBlocks {
        BlockRun raw[2];
        BlockRun packed;
        uint32_t n_splits;
        uint32_t tile_index;     // of its first column tile
        uint32_t first_partial;  // likewise
        bool has_equal_pages;    // packed ones, of the same bytes
        uint64_t bytes() const { return raw[0].bytes + raw[1].bytes + packed.bytes; }
        uint32_t size() const { return raw[0].size() + raw[1].size() + packed.size(); }
    };
    // The packed pages of one form of a work tile; without splits_packed_only, all of its blocks.
    struct Part {
        uint32_t n_pages;
        uint32_t n_raw;   // of the last part: raw blocks that have splits, after those of its pages
        uint32_t n_runs;  // of pages that lie side by side
        bool is_used;
        uint64_t bytes;
        uint64_t cost;  // as weigh() has it, in bytes
        uint32_t n_splits;
        uint32_t first_split;  // of the work tile's
        bool has_items() const { return is_used || n_raw; }
    };

    bool same_kind(uint32_t a, uint32_t b) const;
    bool add_kind(uint32_t layer);
    void measure(const Batch &batch, const Kind &kind);
    WorkTileBlocks find_blocks(const BatchSequence &sequence, const LayerView &layer,
                               uint32_t entry) const;
    void add_parts(const BatchSequence &sequence, const Kind &kind, uint32_t entry,
                   const WorkTileBlocks &work_tile, Part *parts);
    void weigh(uint32_t byte_percent);
    void use_idle_workers(Kind *kind, uint32_t n_tiles, uint64_t total, uint32_t n_rounds);
    bool fits_at_once(const Kind &kind, uint32_t n_tiles, uint64_t total, uint32_t n_rounds) const;
    static uint32_t n_raw_of(const WorkTileBlocks &work_tile);
    bool is_raw_part(const Kind &kind, size_t part) const {
        return part % n_parts_ == kind.split.n_forms;
    }
    const Part &raw_part(const WorkTileBlocks &work_tile) const {
        return parts_[static_cast<size_t>(&work_tile - work_tiles_.data() + 1) * n_parts_ - 1];
    }
    void number_splits(const Batch &batch, Kind *kind, uint64_t total, uint32_t n_rounds);
    void write_part(const BatchSequence &sequence, const Kind &kind, uint32_t entry, uint32_t form,
                    WorkItem item, uint32_t *n_items, WorkItem *items) const;
    void count_bytes(const BatchSequence &sequence, uint32_t entry, WorkTileBlocks *work_tile);
    uint64_t block_bytes(const BatchSequence &sequence, const Block &block, uint32_t entry) const;
    bool is_raw(const Block &block, uint32_t entry) const;
    static void read_by_pages(const BatchSequence &sequence, WorkTileBlocks *work_tile);
    static uint64_t block_tiles(const WorkTileBlocks &work_tile);
    uint32_t part_form(const Kind &kind, const Block &block, uint32_t entry) const;
    uint32_t fewest_splits(const Kind &kind, size_t part, uint32_t n_splits) const;
    uint32_t n_splits_of(const Kind &kind, size_t part, uint64_t total, uint32_t n_rounds) const;
    double time_of(const Kind &kind, uint32_t n_tiles, uint64_t total, uint32_t n_rounds) const;
    void write(const Batch &batch, Kind *kind, uint32_t n_tiles);
    bool find_ranges(const Kind &kind, uint64_t total, uint32_t n_rounds);
    double rounds_time(const Kind &kind, uint64_t total, uint32_t n_rounds);
    WorkItem first_item(const Batch &batch, const Kind &kind, uint32_t work_tile) const;
    uint32_t write_forms(const Batch &batch, const Kind &kind, WorkItem *items);
    // Partial results of a split of a work tile: outputs, row_max and row_sum of each column.
    uint32_t tile_floats(uint32_t value_dim) const {
        return limits_.max_tile_columns * (value_dim + 2);
    }
    uint32_t write_ranges(const Batch &batch, const Kind &kind, WorkItem *items);
    void split_by_rounds(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                         uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                         uint32_t n_readers, WorkItem *items) const;
    // The item of a split that has count[i] blocks from begin[i] on: of both raw runs, then packed.
    static WorkItem item_of(WorkItem item, uint32_t split, const uint32_t (&begin)[3],
                            const uint32_t (&count)[3]);
    static bool has_many_raw(const WorkTileBlocks &work_tile, uint32_t n_readers);
    // How the 16-bit blocks and the equal pages of a work tile are shared out among splits.
    struct TurnCut {
        uint32_t n_with_raw;    // the first splits have 16-bit blocks
        uint32_t raw_blocks;    // of each of them
        uint32_t pages_of_raw;  // of each of them, at most
        uint32_t pages;         // of each other split
        double cost;            // of the busiest reader
        // Splits that n_pages fill.
        uint32_t n_splits(uint32_t n_pages) const;
    };
    TurnCut cut_turns(const Kind &kind, const WorkTileBlocks &work_tile, uint32_t n_splits) const;
    uint32_t few_splits(const Kind &kind, const WorkTileBlocks &work_tile, uint32_t n_splits) const;
    double split_cost(const Kind &kind, size_t part, uint32_t n_splits) const;
    void split_by_turns(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                        uint32_t *n_items, const Kind &kind, WorkItem *items) const;
    void split_by_cost(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                       uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                       const SplitShape &shape, WorkItem *items) const;
    void split_evenly(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                      uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                      WorkItem *items) const;
    void split_packed_only(const BatchSequence &sequence, const Kind &kind, uint32_t entry,
                           uint32_t form, const WorkTileBlocks &work_tile, const Part &part,
                           WorkItem item, uint32_t *n_items, WorkItem *items) const;
    static void split_raw(const WorkTileBlocks &work_tile, const Part &part, WorkItem item,
                          uint32_t *n_items, WorkItem *items);
    static void count_rounds(const WorkItem *items, const SplitShape &shape, bool is_raw,
                             FormItems *form);
    static uint32_t copy_firsts(uint32_t n_items, WorkItem *items);
    static uint32_t quota_of(const WorkTileBlocks &work_tile, uint32_t n_splits,
                             uint32_t n_readers);

    CacheLayout layout_{};
    const SplitRules *rules_ = nullptr;
    SplitLimits limits_{};
    uint32_t max_items_ = 0;
    uint64_t partial_floats_ = 0;
    uint32_t n_counters_ = 0;
    bool has_window_ = false;
    Array<Kind> kinds_;
    Array<uint32_t> kind_of_;           // [layers]
    Array<uint8_t> block_;              // [kinds]: count, then items
    Array<FormItems> form_items_;       // [kinds][n_forms + 1]
    Array<WorkTileBlocks> work_tiles_;  // of the kind at work: [sequences][KV heads]
    Array<RangeTile> range_tiles_;      // the same
    Array<double> worker_costs_;        // [workers]
    RangeCut range_cut_;
    uint32_t n_parts_ = 1;          // of each of its work tiles
    Array<Part> parts_;             // [work tiles][n_parts_]
    bool has_equal_heads_ = true;   // all packed pages of its work tiles have the same bytes
    Array<BatchSequence> planned_;  // the batch of the items in the block
    Array<uint32_t> first_blocks_;  // of its sequences, in the step's blocks
    const uint32_t *tile_first_blocks_ = nullptr;  // those of the kind at work
};

}  // namespace gpu
}  // namespace lk

#endif
