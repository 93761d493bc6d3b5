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
    uint16_t packed_class;  // recent_class when the half stays at 16 bits
    HalfSlots slots;

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

constexpr uint32_t kBatch = 4096;     // items handed to the device at once; GPUs want many
constexpr uint32_t kScoreBatch = 64;  // sums of |Q| made at once

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
          entry_classes(owner->allocator),
          sink_logits(owner->allocator),
          key_centers(owner->allocator),
          recent_count(owner->allocator),
          direct_count(owner->allocator),
          sink_count(owner->allocator),
          last_sink_count(owner->allocator),
          sequences(owner->allocator),
          step(owner->allocator),
          packs(owner->allocator),
          reopens(owner->allocator),
          moves(owner->allocator),
          query_sums(owner->allocator),
          scratch(owner->allocator) {}

    lk_context *context;
    lk_cache_desc desc;
    lk_plan plan;  // a copy
    lk::Ledger ledger;
    lk::Slots slots;
    lk::SlabMemory workspace{};
    lk::CacheDevice *device = nullptr;

    lk::Array<lk::HalfClass> classes;
    lk::Array<uint8_t> permutations;  // of static classes, which point into it
    lk::Array<lk::EntryInfo> entries;
    lk::Array<lk::LayerInfo> layers;
    lk::Array<lk::LayerView> layer_views;  // as the device reads them
    lk::Array<uint32_t> first_entries;
    lk::Array<lk::EntryClasses> entry_classes;
    lk::Array<float> sink_logits;  // of all layers that have them
    lk::Array<float> key_centers;  // likewise; heads without have zeros
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
    lk::Array<lk::ReopenItem> reopens;
    lk::Array<lk::MoveItem> moves;
    lk::Array<lk::QuerySumArgs> query_sums;  // up to kScoreBatch
    lk::Array<uint64_t> scratch;             // [2][kScoreBatch][LK_MAX_HEAD_DIM] when a layer ranks

    lk_cache_stats stats{};  // of the caller that has the cache
    mutable std::mutex published_mutex;
    lk_cache_stats published{};  // for every thread
};

namespace lk {

using ull = unsigned long long;

// Make the statistics of the finished call visible to other threads.
void publish(lk_cache *cache);

// Fill classes, entries, layers and slot counts from the plan. LK_E_NOMEM, LK_E_UNSUPPORTED.
lk_status build_classes(lk_cache *cache, const Array<lk_layer> &geometry);

bool same_shape(const HalfShape &a, const HalfShape &b);

// Bytes of a half of a class, for the statistics.
HalfBytes half_bytes(const HalfClass &half);
void count_half(lk_cache *cache, uint16_t half_class, bool is_added);

// Hand the device what is queued to be reopened (tail.cpp).
lk_status flush_reopens(lk_cache *cache);
// Copy the first n_tokens of all halves that the target row has at 16 bits.
lk_status copy_raw_halves(lk_cache *cache, const Row &from, const Row &to, uint32_t n_tokens);

// Move 16-bit halves together until no size holds an extent too many; true when that freed one.
bool compact(lk_cache *cache);

// Number of packed halves, K and V, among the entry's two.
inline uint32_t n_packing(const EntryInfo &info) {
    return uint32_t{info.key.packs()} + uint32_t{info.value.packs()};
}

}  // namespace lk

#endif
