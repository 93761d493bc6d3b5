// A cache: its classes, its sequences, its ledger and the open step.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_CACHE_H
#define LK_CORE_CACHE_H

#include "core/context.h"
#include "core/scores.h"
#include "core/sequence.h"
#include "core/slabs.h"
#include "core/step.h"
#include "plan/footprint.h"
#include "plan/plan.h"

#include <lowkey/step.h>

#include <mutex>

namespace lk {

// One side, K or V, of a (layer, KV head).
struct HalfInfo {
    uint16_t recent_class;  // 16 bits, a page of tokens
    uint16_t packed_class;  // at the layer's rung; recent_class when the half stays at 16 bits
    PageSlots slots;        // as packed_class has them
    uint16_t rung_format[kMaxRungs];  // of a ladder: packed_class by rung
    // Of rows of chunks, by their class and the layer's rung; [0] without a ladder.
    uint16_t chunk_class[kChunkClasses][kMaxRungs];

    bool packs() const { return packed_class != recent_class; }
    // Size of the metadata slot of a packed half.
    uint64_t metadata_slot() const {
        return slots.recent_metadata ? slots.recent_metadata : slots.packed_metadata;
    }
};

struct EntryInfo {
    HalfInfo key;
    HalfInfo value;
    uint32_t layer;
    uint32_t kv_head;
    bool ranks_by_queries;
    uint32_t score_offset;  // among the channels that are ranked by queries
};

struct LayerInfo {
    LayerView view;
    uint32_t first_entry;
    uint16_t last_sink_key;  // classes of a sink row that is shorter than a page
    uint16_t last_sink_value;
    bool ranks_by_queries;
    uint32_t score_offset;       // of its first channel that is ranked by queries
    uint32_t n_ranked_channels;  // that follow each other
    // Of a layer with a ladder. Halves above its rung are looked for in the order of sequences and
    // rows.
    uint32_t rung;              // index in the plan's rungs
    bool is_unsettled;          // some may be above it
    bool has_more;              // some of those behind the search were, by more than a step
    lk_sequence next_sequence;  // where the search goes on
    uint64_t next_row;
};

// What a step down a ladder makes of a half of a class.
struct ShrinkStep {
    uint16_t bits;  // class_bits()
    // Below 16 bits: the class with the widest plane at half its width, 0 where that is no step of
    // a ladder. The plane's strips come first; what lies behind them makes the half move.
    uint16_t to;
    uint16_t n_strips;
    uint16_t page_tokens;
    uint32_t tail_bytes;
    uint16_t alike;  // the first class that a step does the same to

    bool moves() const { return bits == 16 || tail_bytes; }
};

// A half on its way a step down, into another slot.
struct MovedHalf {
    Row *row;
    PageEntry *page;
    uint64_t target;
    uint16_t from;  // classes
    uint16_t to;
    bool is_value;

    uint16_t &page_format() const { return is_value ? page->value_format : page->key_format; }
    uint64_t &payload() const { return is_value ? page->value_payload : page->key_payload; }
    uint64_t metadata() const { return is_value ? page->value_metadata : page->key_metadata; }
};

// Slots of one size that a row takes.
struct SlotCount {
    uint64_t slot_bytes;
    uint64_t n;
};

// Bytes that the statistics tell apart.
struct HalfBytes {
    uint64_t payload;
    uint64_t metadata;
    uint64_t recent;
};

constexpr uint32_t kBatch = 4096;       // items handed to the device at once; GPUs want many
constexpr uint32_t kShrinkBatch = 512;  // halves that give way when bytes are lacking
constexpr uint32_t kScoreBatch = 64;    // runs of sums of |Q| handed to the device at once

}  // namespace lk

struct lk_cache {
    lk_cache(lk_context *owner, const lk_cache_desc &from)
        : context(owner),
          desc(from),
          plan(owner->allocator),
          slots(owner->allocator, *owner->backend, ledger,
                from.slab_bytes ? from.slab_bytes : 64u << 20),
          classes(owner->allocator),
          permutations(owner->allocator),
          entries(owner->allocator),
          layers(owner->allocator),
          layer_views(owner->allocator),
          first_entries(owner->allocator),
          entry_formats(owner->allocator),
          shrink_steps(owner->allocator),
          lower_classes(owner->allocator),
          layer_formats(owner->allocator),
          sink_logits(owner->allocator),
          key_parameters(owner->allocator),
          recent_count(owner->allocator),
          direct_count(owner->allocator),
          sink_count(owner->allocator),
          last_sink_count(owner->allocator),
          sequences(owner->allocator),
          step(owner->allocator),
          packs(owner->allocator),
          reopens(owner->allocator),
          moves(owner->allocator),
          shrinks(owner->allocator),
          shrunk_rows(owner->allocator),
          moved_halves(owner->allocator),
          left_slots(owner->allocator),
          class_changes(owner->allocator),
          slot_needs(owner->allocator),
          query_stats(owner->allocator),
          sums(owner->allocator) {}

    lk_context *context;
    lk_cache_desc desc;
    lk_plan plan;  // a copy
    lk::Ledger ledger;
    lk::Slots slots;
    lk::SlabMemory workspace{};
    lk::CacheDevice *device = nullptr;

    lk::Array<lk::PageFormat> classes;
    lk::Array<uint8_t> permutations;  // of static classes, which point into it
    lk::Array<lk::EntryInfo> entries;
    lk::Array<lk::LayerInfo> layers;
    lk::Array<lk::LayerView> layer_views;  // as the device reads them
    lk::Array<uint32_t> first_entries;
    lk::Array<lk::EntryFormats> entry_formats;
    lk::Array<lk::ShrinkStep> shrink_steps;  // [classes]
    lk::Array<uint16_t> lower_classes;       // of all layers: by their ladders and chunks
    lk::Array<lk::LayerFormats> layer_formats;
    lk::Array<float> sink_logits;  // of all layers that have them
    // likewise: centers of keys, scales, inverse scales; heads without have 0, 1 and 1
    lk::Array<float> key_parameters;
    lk::Array<lk::SlotCount> recent_count;
    lk::Array<lk::SlotCount> direct_count;
    lk::Array<lk::SlotCount> sink_count;
    lk::Array<lk::SlotCount> last_sink_count;
    uint32_t n_ranked_channels = 0;

    lk::Array<lk::Sequence *> sequences;  // ascending ids
    lk_sequence next_id = 1;
    uint64_t next_mark = 1;  // of steps
    uint64_t next_walk = 1;  // over all rows, each of them once
    lk::Step step;

    lk::Array<lk::PackItem> packs;  // up to kBatch items on their way to the device
    lk::Array<lk::DequantizeItem> reopens;
    lk::Array<lk::MoveItem> moves;
    lk::Array<lk::ShrinkItem> shrinks;
    lk::Array<lk::Row *> shrunk_rows;  // that have halves in `shrinks`
    lk::Array<lk::MovedHalf> moved_halves;
    lk::Array<uint64_t> left_slots;           // that they moved from
    lk::Array<int32_t> class_changes;         // [classes] halves more than before
    lk::Array<uint64_t> slot_needs;           // [slot sizes] of a question to the slots
    lk::Array<lk::QueryStatRun> query_stats;  // up to kScoreBatch
    lk::SumQueue sums;                        // with room for what a commit queues
    uint64_t next_increment = 1;              // of sums of |Q|

    lk_cache_stats stats{};  // of the caller that has the cache
    mutable std::mutex published_mutex;
    lk_cache_stats published{};  // for every thread
};

namespace lk {

using ull = unsigned long long;

// Make the statistics of the finished call visible to other threads.
void publish(lk_cache *cache);

// A call of the interface on a cache: run(), then its statistics are published and what failed is
// logged.
template <class Run>
lk_status on_cache(lk_cache *cache, const Run &run) {
    if (!cache)
        return fail(LK_E_ARGUMENT, "cache is NULL");
    const lk_status status = run();
    publish(cache);
    return logged(cache->context, status);
}

// Fill classes, entries, layers and slot counts from the plan. LK_E_NOMEM, LK_E_UNSUPPORTED.
lk_status build_classes(lk_cache *cache, const Array<lk_layer> &geometry);

bool same_layout(const PageLayout &a, const PageLayout &b);
// Count again what a direct row takes, after a rung has changed.
void count_direct(lk_cache *cache);

// Bytes of a half of a class, for the statistics.
HalfBytes half_bytes(const PageFormat &half);
void count_halves(lk_cache *cache, uint16_t page_format, int64_t n_added);

// Hand the device what is queued to be reopened (tail.cpp), packed (pack.cpp) or moved
// (commit.cpp).
lk_status flush_reopens(lk_cache *cache);
lk_status flush_packs(lk_cache *cache);
lk_status flush_moves(lk_cache *cache);
// Copy the first n_tokens of all halves that the target row has at 16 bits.
lk_status copy_raw_halves(lk_cache *cache, const Row &from, const Row &to, uint32_t n_tokens);
// Put a row at 16 bits in the place of one that others have, with the first n_tokens of it, of what
// its codes stand for. The sequence still holds the old one, which the caller releases.
lk_status copy_shared_row(lk_cache *cache, Sequence *sequence, uint64_t index, uint32_t n_tokens);

// Move slots together until no family of sizes holds an extent too many; true when any moved.
bool compact(lk_cache *cache);

// Ladders (shrink.cpp). Width of the widest plane that a ladder can narrow: 16 of a raw half, 8, 4,
// or 0 of what is final.
uint32_t class_bits(const PageFormat &half);
// Fill shrink_steps, whose `to` are there.
void fill_shrink_steps(lk_cache *cache);
// Let a layer's next pages, and in time all others, be of a lower rung of its ladder.
void set_rung(lk_cache *cache, uint32_t layer, uint32_t rung);
// Search the layer from its first row on.
void unsettle(lk_cache *cache, uint32_t layer);
// Go on to bring halves of a layer down to its rung; *n_done is raised by how many went a step,
// n_halves or a row of heads more. LK_E_BUDGET, LK_E_DEVICE, LK_E_NOMEM.
lk_status settle_layer(lk_cache *cache, uint32_t layer, uint32_t n_halves, uint32_t *n_done);
// The same for the layers that are on the way to their rung; when there is none, the layer whose
// step costs least goes a rung down. 0 are done when the ladders have ended.
lk_status shrink_halves(lk_cache *cache, uint32_t n_halves, uint32_t *n_done);

// Room in the budget (room.cpp). For the rows of the step: LK_E_BUDGET with nothing changed but
// what the host let go of, shrinks and, where that was asked for, sequences that were removed.
lk_status make_room(lk_cache *cache);
// Add the slots of a row to slot_needs: at 16 bits, or of chunks.
void add_row_slots(lk_cache *cache, RowKind kind);
// For the slots in slot_needs and table_bytes more, which `what` takes, without anybody's help but
// that slots are moved together. LK_E_BUDGET with nothing changed.
lk_status check_room(lk_cache *cache, uint64_t table_bytes, const char *what);
// What a cache's first sequence takes for its first token.
uint64_t first_token_bytes(lk_cache *cache);
// Pack what is due of a sequence, with room made where that takes bytes. The same.
lk_status pack_with_room(lk_cache *cache, Sequence *sequence);

// Number of packed halves, K and V, among the entry's two.
inline uint32_t n_packing(const EntryInfo &info) {
    return uint32_t{info.key.packs()} + uint32_t{info.value.packs()};
}

}  // namespace lk

#endif
