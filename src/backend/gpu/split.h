// Which workgroup of decode attention reads which blocks: work items of equal bytes, made anew when
// pages were added or packed, and uploaded with the step's tables.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_GPU_SPLIT_H
#define LK_BACKEND_GPU_SPLIT_H

#include "backend/backend.h"
#include "backend/gpu/memory.h"
#include "format/tables.h"

namespace lk {
namespace gpu {

// How a layer's decode is cut.
struct SplitShape {
    uint32_t n_workers;       // workgroups that run side by side and take items in turn
    uint32_t n_readers;       // of a workgroup, which take pages in turn
    uint32_t tile_columns;    // of an item
    uint32_t item_bytes;      // cost of an item besides its bytes, in bytes that a worker reads
    bool splits_packed_only;  // all items of a work tile have its 16-bit blocks, and readers take
                              // tiles of them in turn
};

// The most that shapes can be. A work tile is a KV head of a sequence.
struct SplitLimits {
    uint32_t n_processors;
    uint32_t max_workers;
    uint32_t max_columns;  // query columns of a work tile that decode takes
    uint32_t max_tiles;    // of a work tile
    uint32_t max_tile_columns;
    uint32_t n_ahead;  // items after all of them that kernels load
};

// The rules of a device's kernels.
class SplitRules {
  public:
    virtual SplitLimits limits() const = 0;
    // Of a step with n_work_tiles work tiles of at most n_columns columns.
    virtual SplitShape shape(uint32_t layer, uint32_t n_work_tiles, uint32_t n_columns) const = 0;

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
    uint32_t n_kv_tiles;  // largest number of blocks of an item; only packed ones with
                          // splits_packed_only
    // With splits_packed_only: how many times each reader takes a tile of them, and of the raw
    // ones among the packed blocks of its own item.
    uint32_t n_f16_rounds;
    uint32_t n_own_f16_rounds;
    SplitShape shape;
};

class Splits {
  public:
    explicit Splits(const Allocator &allocator);

    // Sizes for the life of a cache; rules live as long. False without memory.
    bool open(const CacheLayout &layout, const SplitRules &rules);

    // The work items of a step; blocks_changed when blocks came, went or changed since the last
    // one. False when those in the block are right as they are.
    bool plan(const Batch &batch, bool blocks_changed);

    // The items are put to a device block of bytes(), whose address stays.
    uint64_t bytes() const { return block_.size(); }
    lk_status send(TableMemory *memory, uint64_t address) const;
    // Of the step that was planned; for layers and steps that decode takes.
    const Split &of(uint32_t layer) const { return kinds_[kind_of_[layer]].split; }

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
        uint64_t cost;  // as weigh() has it, in bytes
        uint64_t bytes() const { return raw[0].bytes + raw[1].bytes + packed.bytes; }
    };

    bool same_kind(uint32_t a, uint32_t b) const;
    bool add_kind(uint32_t layer);
    void measure(const Batch &batch, const Kind &kind);
    WorkTileBlocks find_blocks(const BatchSequence &sequence, const LayerView &layer,
                               uint32_t entry) const;
    void weigh();
    void count_bytes(const BatchSequence &sequence, uint32_t entry, WorkTileBlocks *work_tile);
    uint64_t block_bytes(const BatchSequence &sequence, const Block &block, uint32_t entry) const;
    bool is_raw(const Block &block, uint32_t entry) const;
    static void read_by_pages(const BatchSequence &sequence, WorkTileBlocks *work_tile);
    static uint64_t block_tiles(const WorkTileBlocks &work_tile);
    static uint32_t fewest_splits(const WorkTileBlocks &work_tile, uint32_t n_splits,
                                  uint32_t n_readers);
    static uint32_t n_splits_of(const SplitShape &shape, const WorkTileBlocks &work_tile,
                                uint64_t total, uint32_t n_slots);
    double time_of(const SplitShape &shape, uint32_t n_tiles, uint64_t total,
                   uint32_t n_rounds) const;
    void write(const Batch &batch, Kind *kind, uint32_t n_tiles);
    void split_by_rounds(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                         uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                         uint32_t n_readers, WorkItem *items) const;
    static bool has_many_raw(const WorkTileBlocks &work_tile, uint32_t n_readers);
    void split_evenly(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                      uint32_t *n_items, const BatchSequence &sequence, uint32_t entry,
                      WorkItem *items) const;
    static void split_packed_only(const WorkTileBlocks &work_tile, WorkItem item, uint32_t n_splits,
                                  uint32_t *n_items, WorkItem *items);
    void count_rounds(const WorkItem *items, Split *split) const;
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
    bool has_raw_pages_ = false;  // of the kind at work: among packed blocks
    Array<Kind> kinds_;
    Array<uint32_t> kind_of_;           // [layers]
    Array<uint8_t> block_;              // [kinds]: count, then items
    Array<WorkTileBlocks> work_tiles_;  // of the kind at work: [sequences][KV heads]
    Array<BatchSequence> planned_;      // the batch of the items in the block
    Array<uint32_t> first_blocks_;      // of its sequences, in the step's blocks
};

}  // namespace gpu
}  // namespace lk

#endif
