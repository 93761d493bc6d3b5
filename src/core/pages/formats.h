// Page formats of a cache, and what follows from the plan for each layer and entry of a block.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CORE_PAGES_FORMATS_H
#define LK_CORE_PAGES_FORMATS_H

#include "backend/backend.h"
#include "base/status.h"
#include "plan/footprint.h"
#include "plan/plan.h"

#include <lowkey/cache.h>
#include <lowkey/chunks.h>

namespace lk {

// The K page or the V page of a (layer, KV head).
struct PageInfo {
    uint16_t recent_format;  // 16 bits, a page of tokens
    uint16_t packed_format;  // at the layer's rung; recent_format when the page stays at 16 bits
    PageSlots slots;         // as packed_format has them
    uint16_t rung_format[kMaxRungs];  // of a ladder: packed_format by rung
    // Of blocks of chunks, by chunk class and the layer's rung; [0] without a ladder.
    uint16_t chunk_format[kChunkClasses][kMaxRungs];

    bool packs() const { return packed_format != recent_format; }
    // Size of the metadata slot of a packed page.
    uint64_t metadata_slot() const {
        return slots.recent_metadata ? slots.recent_metadata : slots.packed_metadata;
    }
};

struct EntryInfo {
    PageInfo key;
    PageInfo value;
    uint32_t layer;
    uint32_t kv_head;
    bool ranks_by_queries;
    uint32_t stat_offset;  // among the channels that are ranked by queries
};

// Number of packed pages among an entry's two.
inline uint32_t n_packing(const EntryInfo &info) {
    return uint32_t{info.key.packs()} + uint32_t{info.value.packs()};
}

// Of a layer with a ladder: where the search for pages above its rung goes on, in the order of
// sequences and blocks.
struct LadderSearch {
    bool is_unsettled;  // some pages may be above the rung
    bool has_more;      // the search has passed some that were, by more than a step
    lk_sequence next_sequence;
    uint64_t next_block;
};

// A reading layer (lk_layer.kv_layer) has a view of its own and the entries of its KV layer; rung
// and search are those of layers with entries of their own.
struct LayerInfo {
    LayerView view;
    uint32_t kv_layer;       // its own index without another
    bool owns_kv;            // it has entries of its own
    uint64_t staging;        // bytes per token of the step's limit before its staging area
    uint32_t first_entry;    // of its KV layer
    uint16_t last_sink_key;  // formats of a sink block that is shorter than a page
    uint16_t last_sink_value;
    bool ranks_by_queries;
    uint32_t stat_offset;        // of its first channel that is ranked by queries
    uint32_t n_ranked_channels;  // that follow each other
    uint32_t rung;               // index in the plan's rungs
    LadderSearch search;
};

// What a step down a ladder makes of a page of a format.
struct ShrinkStep {
    uint16_t bits;  // format_bits()
    // Below 16 bits: the format with the widest plane at half its width, 0 where that is no step of
    // a ladder. The plane's strips come first; bytes after them make the page move.
    uint16_t to;
    uint16_t n_strips;
    uint16_t page_tokens;
    uint32_t tail_bytes;
    uint16_t alike;  // the first format that a step does the same to

    bool moves() const { return bits == 16 || tail_bytes; }
};

// The table of page formats, and what refers to it by index. Filled once; rungs change later.
struct Formats {
    explicit Formats(const Allocator &allocator)
        : table(allocator),
          permutations(allocator),
          entries(allocator),
          layers(allocator),
          layer_views(allocator),
          first_entries(allocator),
          entry_formats(allocator),
          shrink_steps(allocator),
          lower_formats(allocator),
          layer_formats(allocator),
          sink_logits(allocator),
          key_parameters(allocator) {}

    const PageFormat &operator[](size_t i) const { return table[i]; }
    bool is_raw(uint16_t format) const { return table[format].layout.is_raw(); }

    Array<PageFormat> table;
    Array<uint8_t> permutations;  // of static formats, which point into it
    Array<EntryInfo> entries;
    Array<LayerInfo> layers;
    Array<LayerView> layer_views;  // as the device reads them
    Array<uint32_t> first_entries;
    Array<EntryFormats> entry_formats;
    Array<ShrinkStep> shrink_steps;  // [formats]
    Array<uint16_t> lower_formats;   // of all layers: by their ladders and chunks
    Array<LayerFormats> layer_formats;
    Array<float> sink_logits;  // of all layers that have them
    // Likewise: centers of keys, scales, inverse scales; heads without have 0, 1 and 1.
    Array<float> key_parameters;
    uint32_t n_ranked_channels = 0;
};

bool same_layout(const PageLayout &a, const PageLayout &b);
// Width of the widest plane that a ladder can narrow: 16 of a raw page, 8, 4, or 0 of a final one.
uint32_t format_bits(const PageFormat &format);

// Fill the formats, layers and entries from the plan. LK_E_NOMEM, LK_E_UNSUPPORTED.
lk_status build_formats(const Plan &plan, const Array<lk_layer> &geometry,
                        const Allocator &allocator, Formats *formats);

}  // namespace lk

#endif
