// The quantization plan as the library holds it, and what it resolves to.
//
// Everything that turns a rule into widths, slots and bytes is here and in footprint.h; core and
// the backends only follow what resolve_key() and resolve_value() say.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_PLAN_PLAN_H
#define LK_PLAN_PLAN_H

#include <lowkey/plan.h>

#include <cstddef>

#include "base/memory.h"
#include "base/status.h"
#include "format/layout.h"
#include "format/quantize.h"

namespace lk {

constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxKvHeads = 1024;
constexpr uint32_t kMaxQueryGroup = 1024;  // with the tokens of a step, columns fit 32 bits
constexpr uint32_t kMaxSinkTokens = 1024;
constexpr uint32_t kMaxRecentTokens = 65536;
constexpr uint32_t kMaxRungs = 4;
constexpr uint32_t kMaxNameBytes = 63;
constexpr float kLeastScale = 1e-4f;  // that keys are divided by
constexpr float kMostScale = 1e4f;
constexpr uint32_t kNoIndex = UINT32_MAX;
constexpr uint32_t kNoRung = 0;  // the layer has no ladder
constexpr uint32_t kMinChunkTokens = 8;
constexpr uint32_t kMaxChunkTokens = 256;
constexpr uint32_t kChunkClasses = 3;

// Keys of a KV head, as lk_key_rule. Static classes are [head_dim] of Plan::classes, centers and
// scales of Plan::key_parameters, which heads may share.
struct KeyRule {
    uint8_t bits = 16;
    uint8_t boost_bits = 0;
    uint8_t axis = LK_AXIS_CHANNEL;
    uint8_t boost_ranking = 0;
    uint16_t group = 0;           // 0 = the whole page or head
    uint16_t boost_channels = 0;  // as set; boost_count() rounds it
    RangeRule ranges = {};
    uint32_t classes = kNoIndex;
    uint32_t centers = kNoIndex;
    uint32_t scales = kNoIndex;
};

struct ValueRule {
    uint8_t bits = 16;
    uint16_t group = 0;  // 0 = head
    RangeRule ranges = {};
};

// Neighbouring KV heads of a layer with equal rules. Runs are as long as they can be.
struct HeadRun {
    uint32_t end = 0;  // the first head after it; a run begins where the one before it ends
    KeyRule key;
    ValueRule value;
};

// Of a geometry that import_geometry() made.
constexpr bool owns_kv(const lk_layer &layer) { return layer.kv_layer == LK_OWN_KV; }
// Those that have pages and rules: none of a reading layer.
constexpr uint32_t own_kv_heads(const lk_layer &layer) {
    return owns_kv(layer) ? layer.n_kv_heads : 0;
}
constexpr bool is_latent(const lk_layer &layer) { return layer.flags & LK_LAYER_LATENT; }
// Channels of values and outputs.
constexpr uint32_t value_dim_of(const lk_layer &layer) {
    return layer.value_dim ? layer.value_dim : layer.head_dim;
}
// Channels of V pages.
constexpr uint32_t stored_value_dim(const lk_layer &layer) {
    return is_latent(layer) ? 0 : value_dim_of(layer);
}
// Do two layers have pages of equal shapes, so that rules of one fit the other?
constexpr bool same_pages(const lk_layer &a, const lk_layer &b) {
    return a.n_kv_heads == b.n_kv_heads && a.head_dim == b.head_dim &&
           value_dim_of(a) == value_dim_of(b) && is_latent(a) == is_latent(b);
}
// What lk_layer_init() gives.
lk_layer default_layer();
// The first layout that was published.
constexpr size_t kLeastLayerBytes = offsetof(lk_layer, kv_layer);

// A reading layer has its KV layer's: follow_kv_layers().
struct LayerPlan {
    lk_layer geometry;    // size of this build, sink_logits NULL; kv_layer is not its own number,
                          // value_dim is 0 where it is head_dim
    uint32_t first_head;  // of the KV layer, among the heads of all layers with their own
    uint32_t first_run;   // in Plan::runs, which layers may share
    uint32_t n_runs;      // that cover n_kv_heads
    Metadata metadata;
    lk_rotation key_rotation;
    uint8_t rungs[kMaxRungs];  // descending
    uint8_t n_rungs;           // 0 = no ladder
    uint8_t rung;              // kNoRung without a ladder
    uint16_t shrink_order;     // lower ones shrink first
    uint64_t budget_bytes;     // of the layer's slots in a cache; 0 = none
};

// As lk_chunk_rule; tokens 0 without chunks.
struct ChunkRule {
    uint32_t tokens = 0;
    uint8_t bits[kChunkClasses] = {};  // by lk_chunk_class - LK_CHUNK_LOW, ascending
    bool reorder = false;
    bool hold = false;
    float alpha = 0;
    float beta = 0;

    // The cap of a class, kNoRung for LK_CHUNK_NONE.
    uint32_t cap(lk_chunk_class chunk_class) const {
        return chunk_class ? bits[chunk_class - LK_CHUNK_LOW] : kNoRung;
    }
};

// Grows from the allocator it is made with. Not copied but by copy_plan(). Its bytes follow the
// rules that differ, not the heads that have them: equal heads share a run, equal layers their
// runs, and heads that were set together their numbers of channels. A setter writes new runs and
// numbers; what nothing refers to any more goes when an array is full.
struct Plan {
    explicit Plan(const Allocator &from = default_allocator())
        : allocator(&from), layers(from), runs(from), classes(from), key_parameters(from) {}

    const Allocator *allocator;
    char name[kMaxNameBytes + 1] = {};
    uint32_t page_tokens = 128;
    uint32_t sink_tokens = 0;
    uint32_t recent_tokens = 0;
    ChunkRule chunks;
    uint32_t n_heads = 0;  // KV heads of all layers with keys and values of their own
    Array<LayerPlan> layers;
    Array<HeadRun> runs;
    Array<uint8_t> classes;
    Array<float> key_parameters;

    // (layer, KV head) pairs of layers with keys and values of their own: the entries of a block.
    uint64_t n_entries() const { return n_heads; }
    bool owns_kv(uint32_t layer) const { return lk::owns_kv(layers[layer].geometry); }
    // Whose pages the layer's queries attend to: its own, or those of an earlier layer.
    uint32_t kv_layer(uint32_t layer) const {
        return owns_kv(layer) ? layer : layers[layer].geometry.kv_layer;
    }
    // [n_runs] of a layer.
    const HeadRun *runs_of(uint32_t layer) const { return runs.data() + layers[layer].first_run; }
    const HeadRun &run(uint32_t layer, uint32_t head) const {
        const HeadRun *first = runs_of(layer);
        uint32_t low = 0;
        for (uint32_t high = layers[layer].n_runs - 1; low < high;) {
            const uint32_t middle = (low + high) / 2;
            if (head < first[middle].end)
                high = middle;
            else
                low = middle + 1;
        }
        return first[low];
    }
    const KeyRule &key(uint32_t layer, uint32_t head) const { return run(layer, head).key; }
    const ValueRule &value(uint32_t layer, uint32_t head) const { return run(layer, head).value; }
    // [head_dim] static classes of a head, null without.
    const uint8_t *channel_bits(uint32_t layer, uint32_t head) const {
        const KeyRule &rule = key(layer, head);
        return rule.classes == kNoIndex ? nullptr : classes.data() + rule.classes;
    }
    // [head_dim] subtracted from the keys of a head, null without.
    const float *key_centers(uint32_t layer, uint32_t head) const {
        const KeyRule &rule = key(layer, head);
        return rule.centers == kNoIndex ? nullptr : key_parameters.data() + rule.centers;
    }
    // [head_dim] that the keys of a head are divided by, null without.
    const float *key_scales(uint32_t layer, uint32_t head) const {
        const KeyRule &rule = key(layer, head);
        return rule.scales == kNoIndex ? nullptr : key_parameters.data() + rule.scales;
    }
};

// Keys of a (layer, KV head) in a packed page, at the layer's rung.
struct KeyFormat {
    PageLayout layout;          // the raw layout of a page when every channel is at 16 bits
    bool raw;                   // never leaves its 16-bit page
    uint16_t boosted_channels;  // the first slots of a page, given to the channels that it ranks
                                // highest; 0 without boost (layout.permutes is 0 then)
    lk_ranking boost_ranking;   // 0 without boost
    RangeRule ranges;           // one_bit is kDeviation without channels at 1 bit
    bool has_permutation;       // of static classes; false = slot s holds channel s
    uint16_t permutation[LK_MAX_HEAD_DIM];  // [head_dim] slot -> channel; identity without classes
};
struct ValueFormat {
    PageLayout layout;
    bool raw;
    RangeRule ranges;  // as of keys
};

// What caps the widths of a block: the lower of the layer's rung and the cap of its chunk class
// (ChunkRule::cap()). kNoRung when there is neither.
constexpr uint32_t width_cap(uint32_t rung, uint32_t chunk_cap) {
    if (rung == kNoRung || chunk_cap == kNoRung)
        return rung + chunk_cap;
    return rung < chunk_cap ? rung : chunk_cap;
}
// The width of a channel of class `bits` in a packed page under a cap, a rung or width_cap(): only
// here ladder, chunks and classes meet (docs/PLAN.md).
constexpr uint32_t channel_width(uint32_t bits, uint32_t cap) {
    if (cap == kNoRung)
        return bits;
    if (cap == 16)
        return 16;
    return bits >= 4 && bits > cap ? cap : bits;
}
// Of a channel that a page boosts: never below the channels that it does not.
constexpr uint32_t boost_width(const KeyRule &rule, uint32_t cap) {
    const uint32_t ordinary = channel_width(rule.bits, cap);
    const uint32_t boosted = rule.boost_channels ? channel_width(rule.boost_bits, cap) : ordinary;
    return boosted > ordinary ? boosted : ordinary;
}
constexpr uint32_t boost_count(const KeyRule &rule) {
    return static_cast<uint32_t>(round_up(rule.boost_channels, LK_STRIP_CHANNELS));
}

// All caps that pages of a layer may be packed under: the rungs of its ladder (kNoRung without one)
// and the lower one of each rung and each chunk class. Descending, kNoRung first.
struct WidthCaps {
    uint32_t caps[5];
    uint32_t n;
    bool has(uint32_t cap) const;
};
WidthCaps width_caps(const Plan &plan, uint32_t layer);

// For a plan that validate_plan() accepts. resolve_*() take the layer's own rung, resolve_*_at()
// one of width_caps().
void resolve_key(const Plan &plan, uint32_t layer, uint32_t head, KeyFormat *out);
void resolve_value(const Plan &plan, uint32_t layer, uint32_t head, ValueFormat *out);
void resolve_key_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap, KeyFormat *out);
void resolve_value_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap,
                      ValueFormat *out);

// XXH3 (64 bits, seed 0) of the geometry's canonical bytes (docs/PLAN.md).
uint64_t geometry_hash(const Plan &plan);

// Check a caller's geometry and copy its layers, sink_logits pointers included.
lk_status import_geometry(const lk_geometry *geometry, Array<lk_layer> *layers);
// Give every reading layer the rules of its KV layer.
void follow_kv_layers(Plan *plan);
// Give an empty plan its layers, all rules at 16 bits. LK_E_NOMEM.
lk_status set_layers(Plan *plan, const Array<lk_layer> &layers);
bool copy_plan(const Plan &from, Plan *to);

// Are two neighbours equal, so that JSON writes them once?
bool same_geometry(const lk_layer &a, const lk_layer &b);
bool same_layer(const Plan &plan, uint32_t a, uint32_t b);

// LK_E_ARGUMENT; the sentence names the JSON path of what has no meaning.
lk_status validate_plan(const Plan &plan);
// LK_E_MISMATCH; the sentence names the first difference.
lk_status compare_geometry(const Plan &plan, const Array<lk_layer> &layers);

// Setters of checked values (check.h). layer and kv_head may be LK_ALL: LK_E_NOT_FOUND when there
// is no such one, LK_E_NOMEM. On failure nothing is changed. After the last one reading layers
// follow: follow_kv_layers().
lk_status set_key(Plan *plan, uint32_t layer, uint32_t kv_head, const lk_key_rule &rule);
lk_status set_value(Plan *plan, uint32_t layer, uint32_t kv_head, const lk_value_rule &rule);
// The subject names the numbers, which are checked once head_dim is known.
struct Subject;
lk_status set_key_centers(Plan *plan, uint32_t layer, uint32_t kv_head, const float *centers,
                          const Subject &subject);
lk_status set_key_scales(Plan *plan, uint32_t layer, uint32_t kv_head, const float *scales,
                         const Subject &subject);
lk_status set_metadata(Plan *plan, uint32_t layer, lk_metadata metadata);
// The subject names a latent layer's.
lk_status set_key_rotation(Plan *plan, uint32_t layer, lk_rotation rotation,
                           const Subject &subject);
lk_status set_ladder(Plan *plan, uint32_t layer, const uint8_t *rungs, uint32_t n_rungs,
                     uint32_t rung);
lk_status set_shrink_order(Plan *plan, uint32_t layer, uint32_t order);
// 0 removes it. LK_ALL: every layer with a ladder. LK_E_ARGUMENT for a layer without.
lk_status set_layer_budget(Plan *plan, uint32_t layer, uint64_t budget_bytes);
// Rules of a run of KV heads, checked but for the centers and scales, which are [head_dim] or null.
struct HeadRules {
    const lk_key_rule *key;
    const float *centers;
    const float *scales;
    const lk_value_rule *value;
};
// Give a layer its next run, which ends before head `end`: for a reader. The first one begins at
// head 0 and takes the place of all runs that the layer had. LK_E_NOMEM.
lk_status add_head_run(Plan *plan, uint32_t layer, bool is_first, uint32_t end,
                       const HeadRules &rules);
// Layers after `layer` take its runs too.
void share_runs(Plan *plan, uint32_t layer, uint32_t n_layers);
// All heads of a layer get these rules. LK_E_NOMEM.
lk_status set_rules(Plan *plan, uint32_t layer, const KeyRule &key, const ValueRule &value);
// Bits of the heads of a layer, [n_kv_heads] each, 0 = as they are. Keys that get bits lose their
// classes. LK_E_NOMEM with nothing changed.
lk_status set_head_bits(Plan *plan, uint32_t layer, const uint8_t *key_bits,
                        const uint8_t *value_bits);
void set_pages(Plan *plan, uint32_t page_tokens);
void set_chunks(Plan *plan, const lk_chunk_rule &rule);
void set_recent(Plan *plan, uint32_t sink_tokens, uint32_t recent_tokens);
void set_name(Plan *plan, const char *name);
// LK_E_NOT_FOUND, LK_E_NOMEM. The layers are set.
lk_status set_preset(Plan *plan, const char *name);
const char *preset_name(uint32_t index);
// The plan without statistics that lk_plan_default() describes; 0 bits = no limit. LK_E_BUDGET,
// LK_E_NOMEM. The layers are set.
lk_status set_default(Plan *plan, double bits_per_value);

// Read back; the index is in range.
void key_rule_of(const Plan &plan, uint32_t layer, uint32_t kv_head, lk_key_rule *out);
void value_rule_of(const Plan &plan, uint32_t layer, uint32_t kv_head, lk_value_rule *out);
void chunk_rule_of(const Plan &plan, lk_chunk_rule *out);
// What lk_chunk_rule_init() gives.
lk_chunk_rule default_chunk_rule();

// Of the keys of a head, whose index is in range. LK_E_ARGUMENT when its widths close no bytes.
lk_status chanmix_layout(const Plan &plan, uint32_t layer, uint32_t head, lk_chanmix_layout *out);

// Bytes (bytes.cpp) and text (json.cpp) of a validated plan. flags: of lk_cache_desc.
lk_status cache_bytes(const Plan &plan, uint32_t flags, uint64_t n_tokens, uint32_t n_sequences,
                      uint32_t step_tokens, lk_plan_size *out);
// Whether these counts are those of a cache whose bytes fit 64 bits, which cache_bytes() needs.
lk_status check_sizes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                      uint32_t step_tokens);
inline lk_status plan_bytes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                            uint32_t step_tokens, lk_plan_size *out) {
    return cache_bytes(plan, 0, n_tokens, n_sequences, step_tokens, out);
}
// Of a plan with chunks.
lk_status plan_chunk_bytes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                           uint32_t step_tokens, const lk_chunk_mix &mix, lk_plan_size *out);
lk_status plan_chunk_prefill_bytes(const Plan &plan, uint64_t n_tokens, uint32_t n_sequences,
                                   uint32_t step_tokens, const lk_chunk_mix &mix, uint64_t *out);
// The width of the rung at which a layer's budget leaves it with so many tokens (layer_budget.h).
lk_status plan_rung(const Plan &plan, uint32_t layer, uint64_t n_tokens, uint32_t n_sequences,
                    uint32_t step_tokens, uint32_t *rung);
lk_status plan_to_json(const Plan &plan, char *buffer, size_t capacity_bytes, size_t *needed_bytes);
lk_status plan_from_json(const char *text, size_t text_bytes, Plan *out);

}  // namespace lk

// The public handle. Core embeds one to answer lk_cache_plan().
struct lk_plan {
    explicit lk_plan(const lk::Allocator &allocator = lk::default_allocator()) : model(allocator) {}
    lk::Plan model;
};

#endif
