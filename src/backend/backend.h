// The interface of the backends. The core validates every argument before a call, so a backend
// asserts at most; supports() refuses plans that it cannot run.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_BACKEND_H
#define LK_BACKEND_BACKEND_H

#include "base/memory.h"
#include "format/format_const.h"
#include "format/page.h"
#include "format/tables.h"

#include <lowkey/context.h>

namespace lk {

struct SlabMemory {
    uint64_t address;  // 64-byte aligned; the device's
    uint64_t bytes;
    void *handle;  // the backend's
};

// A tensor of lk_tensor that core has checked.
struct TensorView {
    void *data;  // as Backend::resolve_tensor() gave it
    lk_dtype dtype;
    int64_t token_stride;  // elements
    int64_t head_stride;
    bool is_host = false;  // memory of the host: always on the CPU, and where a device takes both
};

// One attention layer, constant for the cache's life.
struct LayerView {
    uint32_t n_query_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;       // of queries and keys
    uint32_t window_tokens;  // 0 = all
    uint32_t window_sink_tokens;
    float scale;               // never 0
    float soft_cap;            // 0 = off
    const float *sink_logits;  // [n_query_heads] or null, finite
    // [n_kv_heads][head_dim] or null: append stores k - c, and attend adds scale * (q . c) to each
    // logit, before the soft-cap.
    const float *key_centers;
    // Both [n_kv_heads][head_dim], or both null: append stores RN16(RN32(RN32(k - c) * inverse)),
    // inverse being RN32(1 / scale), and attend and sum_queries() read RN32(q * scale) for q, but
    // for q . c.
    const float *key_scales = nullptr;
    const float *key_inverses = nullptr;
    // The largest magnitude of an element of a query. A query with a larger one, an infinity or a
    // NaN has NaN for its outputs and its LSE, and does not change those of other queries.
    float query_limit = 0;
    uint32_t value_dim = 0;  // of values and outputs
    // Values are the first value_dim channels of the keys, which have neither centers nor scales
    // nor a rotation. V pages have no channels (PageLayout::is_absent()), append has no v, and
    // staging none.
    bool is_latent = false;
    // Channels of a block of the rotation, a power of two from 16 to 512; 0 = none. Append rotates
    // what it would round; attend and sum_queries() rotate the scaled q, but for q . c
    // (format/rotation.h).
    uint32_t key_rotation = 0;

    uint32_t stored_value_dim() const { return is_latent ? 0 : value_dim; }
    uint32_t n_stored_sides() const { return is_latent ? 1 : 2; }  // keys, values
    // Do values come from elsewhere, or in another dim, than attention of most layers has them?
    bool is_uneven() const { return is_latent || value_dim != head_dim; }
};

// FP16 of a layer's new tokens: K [n_kv_heads][n_tokens][head_dim], then V
// [n_kv_heads][n_tokens][stored_value_dim()].
struct Staging {
    uint16_t *k;
    uint16_t *v;
    uint32_t n_tokens;  // of the batch
};

// New tokens of a layer: to FP16 (keys less their centers and divided by their scales; infinities
// and NaNs of k are reported), into the blocks of their sequences and, when the step has a
// sequence of more than LK_DRAFT_TOKENS, into the staging area (the CPU always fills it; a device
// leaves it out where its attention reads k and v, which stay until then). Blocks
// that are packed on append get their pages at once, but for keys that are ranked by queries: the
// core packs those from the staging area. On the CPU no page is written when a value is reported.
struct AppendArgs {
    LayerView layer;
    uint32_t layer_index;
    uint32_t first_entry;  // index in a block of the layer's first head
    TensorView k;
    TensorView v;  // data is null in a latent layer
    Staging staging;
};

// What went wrong with the numbers of a step, and what was counted since the cache was opened.
struct DataReport {
    uint64_t n_saturated;
    int32_t has_fault;   // the first infinity or NaN by layer, token, head, K before V
    int32_t is_earlier;  // in a batch before the one of the last begin()
    uint32_t layer;
    uint32_t token;  // of its sequence's new tokens
    uint32_t kv_head;
    int32_t is_value;
    uint64_t sequence;       // id
    int32_t is_wrong_shape;  // a graph was replayed in a step of another shape; the rest is 0
};

// A page to pack from 16 bits. The source is the payload of a 16-bit page, or staged K or V.
struct PackItem {
    const PageFormat *target;
    uint64_t payload;
    uint64_t metadata;
    const PageFormat *source_format;  // raw; null = staged, [page_tokens][channels] of one head
    uint64_t source;                  // address
    uint64_t query_stats;             // address of u64 [head_dim] for Ranking::kQueryRange
};
inline uint64_t address_of(const uint16_t *staged) { return reinterpret_cast<uint64_t>(staged); }
// The keys or the values of a head in a block that is packed on append, from the staging area.
// first_token: that of the block, in the batch.
inline PackItem staged_page(const AppendArgs &args, const PageFormat *formats,
                            const PageEntry &entry, uint32_t head, uint32_t first_token,
                            bool is_value) {
    const uint64_t row = uint64_t{head} * args.staging.n_tokens + first_token;
    const uint16_t *area = is_value ? args.staging.v : args.staging.k;
    return {&formats[is_value ? entry.value_format : entry.key_format],
            is_value ? entry.value_payload : entry.key_payload,
            is_value ? entry.value_metadata : entry.key_metadata,
            nullptr,
            address_of(area + row * (is_value ? args.layer.value_dim : args.layer.head_dim)),
            0};
}
// Such a page comes with the queries' sums.
inline bool is_ranked_by_queries(const PackItem &item) {
    return item.target->ranking == Ranking::kQueryRange;
}

// Copy the first n_tokens of a page, packed or at 16 bits, into a 16-bit page, rounded to FP16.
struct DequantizeItem {
    const PageFormat *source;
    uint64_t source_payload;
    uint64_t source_metadata;
    const PageFormat *target;  // raw
    uint64_t target_payload;
    uint32_t n_tokens;
};

// Bytes of slots and the host's memory that they go to or come from. Both are multiples of 16.
struct SlotCopy {
    uint64_t address;
    uint8_t *host;
    uint64_t bytes;
};

// Bytes that go from one place in slabs to another; source 0 = zeros. bytes is a multiple of 16.
struct MemoryCopy {
    uint64_t source;
    uint64_t target;
    uint64_t bytes;
};

// How the host reaches memory of a slab.
struct MemoryView {
    void *data;       // null where it is a buffer
    uint64_t buffer;  // Vulkan's, else 0
    uint64_t offset_bytes;
};

// Tokens of a 16-bit page that go to earlier positions: token first_source + i of the source for
// every bit i of mask, ascending, to tokens first_target and up of the target. Source and target
// may be the same page; then no token goes to a later position.
struct MoveItem {
    const PageFormat *source_format;  // raw, as is the target's, and of the same side and head dim
    uint64_t source;
    const PageFormat *target_format;
    uint64_t target;
    uint32_t first_source;
    uint32_t first_target;
    uint64_t mask;
};

// A run of payloads that get narrower, or move. The first n_strips strips of each, all of 2 * bits,
// become strips of `bits` by the equivalent right shift (docs/FORMAT.md, section 11); tail_bytes
// after them are copied. With target == source there is no tail: a page shrinks into the beginning
// of its own bytes. Else no source overlaps a target.
struct ShrinkItem {
    uint64_t source;
    uint64_t target;
    uint32_t stride_bytes;  // from a page to the next, of sources and of targets
    uint32_t tail_bytes;    // a multiple of 16
    uint16_t n_pages;       // 1 to kRunPages
    uint16_t n_strips;      // 0: a copy
    uint16_t bits;          // 4 or 2
    uint16_t page_tokens;
};
constexpr uint32_t kRunPages = 16;

// A run that moves n_bytes unchanged, at most the bytes of a slot.
inline ShrinkItem copy_item(uint64_t source, uint64_t target, uint64_t n_bytes) {
    return {source, target, 0, static_cast<uint32_t>(n_bytes), 1, 0, 2, 0};
}

// Sums of |Q|, in units of 2^-24 after rounding to FP16, over the query heads of a KV head. Sum i
// of a run covers tokens_per_sum tokens of the batch from first_token + i * tokens_per_sum on, the
// last sum the remaining ones of n_tokens: u64 [n_heads][head_dim] for KV heads from first_head
// on, at offset_bytes + i * stride_bytes after CacheDevice::query_stats().
struct QueryStatRun {
    uint64_t offset_bytes;
    uint64_t stride_bytes;
    uint32_t first_token;
    uint32_t n_tokens;
    uint32_t tokens_per_sum;
    uint32_t first_head;
    uint32_t n_heads;
};
inline uint32_t n_query_stats(const QueryStatRun &run) {
    return static_cast<uint32_t>(ceil_div(run.n_tokens, run.tokens_per_sum));
}
struct QueryStatArgs {
    LayerView layer;
    uint32_t layer_index;
    TensorView q;
    const QueryStatRun *runs;
    uint32_t n_runs;
};

// Arithmetic on sums where they lie. For each channel c < n_channels, as u64:
//   target[c] = (kStatReplaces ? 0 : target[c]) + the sum of source[c] over the bits i of mask,
// the source of bit i lying i * stride_bytes after `source`; with kStatClears the sources are
// zeros afterwards. An item with kStatFollows has the n_channels of the one before and comes after
// it; no other item touches memory that another one writes.
enum : uint32_t {
    kStatReplaces = LK_STAT_REPLACES,
    kStatClears = LK_STAT_CLEARS,
    kStatFollows = LK_STAT_FOLLOWS
};
struct StatItem {
    uint64_t target;
    uint64_t source;
    uint64_t mask;
    uint64_t stride_bytes;
    uint32_t n_channels;
    uint32_t flags;
};

// One sequence of a step. Keys and values of committed tokens, positions 0 .. n_history-1, are in
// blocks (contiguous, ascending). With new_in_blocks the new tokens are in the blocks after them,
// else attention takes them from the staging area; blocks may reach further than the visible
// tokens.
struct BatchSequence {
    const Block *const *blocks;  // all, those of the new tokens included
    uint32_t n_blocks;
    uint32_t n_attended;  // the first of them, which attention reads
    uint64_t id;
    uint64_t n_history;
    uint32_t n_new;
    uint32_t first_new;  // index of its first new token in the batch
    int32_t new_in_blocks;
    const int32_t *parent;  // [n_new] or null, as lk_step_begin(); only when new_in_blocks
    // [n_new] or null, without a parent: the last new token that each attends to, itself or a later
    // one of its span. Ascending.
    const uint32_t *reach = nullptr;
    bool reach_is_windowed = false;  // in layers with a window alone; others are causal
};
// The reach of a sequence's new tokens in a layer, or null.
inline const uint32_t *layer_reach(const LayerView &layer, const BatchSequence &sequence) {
    return layer.window_tokens || !sequence.reach_is_windowed ? sequence.reach : nullptr;
}
struct Batch {
    const BatchSequence *sequences;
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint64_t query_stat_bytes = 0;  // that the step writes after CacheDevice::query_stats()
};

// Attention scores of chunks, equation by equation: for a query column (a query token under one
// query head) and the context's tokens t, p_t = exp(logit_t) / sum over the context of exp(logit);
// the score of a chunk is the sum of p_t over its tokens, times `weight`, over all columns. Keys
// are read from blocks of any page format; logits are the layer's without the term that all tokens
// of a column share (q . c, unless it goes through a soft-cap). All query tokens come after the
// context.
//
// Work is cut into work tiles: kAttentionScoreColumns columns of a KV head. Column c of a KV head
// is query token first_query + c / group under head c % group of its group; work tile u has KV head
// u / n and columns from kAttentionScoreColumns * (u % n) on, n = attention_score_tiles(). Work
// tiles go in batches of max_tiles, each with an index in `partials`: FP32 pairs (row_max, sum of
// exp2(logit - row_max)) [n_chunks][kAttentionScoreColumns], logits times log2(e), then the same
// over the whole context [kAttentionScoreColumns]. Scores are sums of columns in an order that
// depends on the shape alone.
struct ChunkAttention {
    uint32_t sequence;     // of the batch
    uint32_t first_query;  // of the batch's tokens
    uint32_t n_queries;
    uint32_t first_block;  // of the sequence: its first token is that of the first chunk
    uint32_t chunk_tokens;
    uint32_t n_chunks;
    uint32_t max_tiles;
    float weight;
    uint64_t scores;    // f32 [n_chunks], overwritten with is_first, else added to
    uint64_t partials;  // max_tiles times attention_score_tile_bytes()
    int32_t is_first;
};
inline uint32_t attention_score_tiles(const LayerView &layer, uint32_t n_queries) {
    const uint32_t group = layer.n_query_heads / layer.n_kv_heads;
    return static_cast<uint32_t>(ceil_div(uint64_t{n_queries} * group, kAttentionScoreColumns));
}
constexpr uint64_t attention_score_tile_bytes(uint32_t n_chunks) {
    return (uint64_t{n_chunks} + 1) * kAttentionScoreColumns * 2 * sizeof(float);
}

struct AttendArgs {
    LayerView layer;
    uint32_t first_entry;  // index in a block of the layer's first head
    uint32_t layer_index;
    TensorView q;
    TensorView out;
    float *lse;  // or null
    int64_t lse_token_stride;
    int64_t lse_head_stride;
    Staging staging;
    bool lse_is_host = false;
    const ChunkAttention *chunk_attentions = nullptr;  // of the same queries
    uint32_t n_chunk_attentions = 0;
};

// Outputs of attention over disjoint sets of keys, joined by their LSEs: lk_merge().
constexpr uint32_t kMergeSplits = 16;
struct MergeView {
    const TensorView *parts;  // [n_splits]
    const TensorView *lses;   // [n_splits] FP32
    uint32_t n_splits;        // at most kMergeSplits
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;
    TensorView out;
    TensorView lse;         // data may be null
    const lk_queue *queue;  // of a kind that Backend::check_queue() took
};

// Cosines of embeddings and a query: lk_chunks_score_cosine().
struct CosineView {
    TensorView embeddings;  // [n_chunks][1][n_channels]
    TensorView query;       // [1][1][n_channels]
    TensorView scores;      // FP32 [n_chunks][1][1]; devices: NaN where one has no direction
    uint32_t n_chunks;      // at least 1
    uint32_t n_channels;
    const lk_queue *queue;  // of a kind that Backend::check_queue() took
};

// The formats that an entry of a block goes through; with chunks, `packed` is one of several.
struct EntryFormats {
    uint16_t recent_key;  // at 16 bits
    uint16_t packed_key;
    uint16_t recent_value;
    uint16_t packed_value;
    // Whose fixed permutation all formats of the key have that are not raw; kNoFormat: they differ.
    uint16_t ordered_key;
};
constexpr uint16_t kNoFormat = UINT16_MAX;

// All formats below 16 bits that pages of a layer may have.
struct LayerFormats {
    const uint16_t *formats;
    uint32_t n_formats;
    int32_t shrinks;  // has rungs: its pages may have other formats than another layer's. Without
                      // rungs, layers of the same formats have them in the same blocks
    int32_t has_half_raw;  // some pages have packed keys and values at 16 bits, or the reverse
};

// Constants of a cache. All that the pointers name lives as long.
struct CacheLayout {
    const PageFormat *formats;
    uint32_t n_formats;
    const LayerView *layers;
    const uint32_t *first_entries;  // [n_layers] in a block
    uint32_t n_layers;
    uint32_t n_entries;                 // of a block
    const EntryFormats *entry_formats;  // [n_entries], at the beginning
    const LayerFormats *layer_formats;  // [n_layers], or null: those of its entries
    uint32_t page_tokens;
    uint32_t sink_tokens;
    uint32_t max_sequences;
    uint32_t max_step_tokens;
    uint64_t max_blocks;         // that the budget can hold at once, over all sequences
    uint64_t max_step_blocks;    // of a step's sequences together, each with all of its own
    uint64_t n_ranked_channels;  // of a block, by queries; 0: no query statistics
};

// Work of the caller's that another thread may do during a call.
struct SideWork {
    void (*run)(void *context);
    void *context;
};

// The state of a cache on a device, and the work for it. Used by one thread at a time, but for
// report(). Work runs in the order of the calls: on the CPU before they return, on a device on the
// queue. LK_OK, LK_E_NOMEM or LK_E_DEVICE unless said otherwise.
class CacheDevice {
  public:
    virtual ~CacheDevice() = default;  // waits for queued work

    // The queue of all further work, of a kind that Backend::check_queue() took; a change makes the
    // new one wait for the work of the old one. LK_E_ARGUMENT (no queue of this device), LK_E_STATE
    // (it is being captured).
    virtual lk_status set_queue(const lk_queue *queue) = 0;
    // Is the queue being captured into a graph now?
    virtual bool is_capturing() const = 0;

    // Blocks come and go with their entries, of which a device has copies. entries_changed() after
    // their entries were changed: LK_OK or LK_E_DEVICE. Later work may use freed memory again.
    virtual lk_status block_create(Block *block) = 0;
    virtual void block_destroy(Block *block) = 0;
    virtual lk_status entries_changed(Block *block) = 0;

    // The tables of a step, once its blocks exist. Valid until the next one: append and attend mean
    // this batch. Sequences may share blocks, but not those of their new tokens. LK_E_NOMEM beyond
    // max_step_blocks.
    virtual lk_status begin(const Batch &batch) = 0;
    virtual lk_status append(const AppendArgs &args) = 0;
    virtual lk_status pack(const PackItem *items, uint32_t n_items) = 0;
    virtual lk_status dequantize(const DequantizeItem *items, uint32_t n_items) = 0;
    // Between slots and the host, after the queued work, and done when they return. The host has
    // submitted all recorded work, and the queue is not being captured.
    virtual lk_status download(const SlotCopy *items, uint32_t n_items) = 0;
    virtual lk_status upload(const SlotCopy *items, uint32_t n_items) = 0;
    // upload(), and where there are several threads of the CPU, the side work meanwhile: it has run
    // when this returns. Elsewhere it does not run.
    virtual lk_status upload_with(const SlotCopy *items, uint32_t n_items, const SideWork &) {
        return upload(items, n_items);
    }
    // Items of one call run at once: none reads memory that another one writes.
    virtual lk_status copy(const MemoryCopy *items, uint32_t n_items) = 0;
    virtual lk_status move(const MoveItem *items, uint32_t n_items) = 0;
    virtual lk_status shrink(const ShrinkItem *items, uint32_t n_items) = 0;
    // Where the step's sums of |Q| lie: from begin() to the next one with more of them. A graph
    // finds those of the step that it replays in.
    virtual uint64_t query_stats() const = 0;
    virtual lk_status sum_queries(const QueryStatArgs &args) = 0;
    virtual lk_status add_stats(const StatItem *items, uint32_t n_items) = 0;
    virtual lk_status attend(const AttendArgs &args) = 0;

    // The report as known by now, without waiting; any thread. The CPU knows when append() returns.
    // clear_report() forgets the fault, also one of a begun batch that is not known yet.
    virtual void report(DataReport *out) const = 0;
    virtual void clear_report() = 0;

    // Device memory that it holds in addition to slabs.
    virtual uint64_t fixed_bytes() const = 0;

    // Called first in a process that fork() made, after Backend::enter_child(). A cache that a call
    // ran on at the fork gets no call afterwards.
    virtual void enter_child() {}
};

// Buffers of the host that tensors name by handle. Arguments are not 0.
class HostBuffers {
  public:
    virtual lk_status add(uint64_t buffer, uint64_t bytes, uint32_t usage) = 0;
    virtual lk_status remove(uint64_t buffer) = 0;

  protected:
    ~HostBuffers() = default;
};

// Compiled pipelines that a host may keep from run to run.
class PipelineStore {
  public:
    // As lk_vulkan_pipeline_cache().
    virtual lk_status save(void *buffer, uint64_t capacity_bytes, uint64_t *needed_bytes) const = 0;

  protected:
    ~PipelineStore() = default;
};

// What the core's rules depend on.
struct BackendTraits {
    const char *name;              // in sentences
    lk_memory_kind memory;         // of tensors
    bool takes_host_tensors;       // next to those
    lk_queue_kind queue;           // of work on a device; 0 = work is done when a call returns
    lk_queue_kind recorded_queue;  // whose work the host submits later; 0 = there is none
    bool replays_graphs;           // lk_step_replay()
    lk_backend backend = LK_BACKEND_CPU;
    bool changes_queues = false;  // of an open step: lk_step_set_queue()
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual const BackendTraits &traits() const = 0;
    // LK_OK, or LK_E_UNSUPPORTED with the sentence. The capability is valid.
    virtual lk_status supports(const lk_capability &capability) const = 0;
    virtual void describe(lk_device_info *info) const = 0;
    // Memory that persists: slabs.
    virtual lk_status slab_create(uint64_t bytes, SlabMemory *out) = 0;
    virtual void slab_destroy(const SlabMemory &slab) = 0;
    // For an address in a slab. LK_E_UNSUPPORTED: the host cannot reach it.
    virtual lk_status view_memory(uint64_t address, MemoryView *out) const {
        *out = {reinterpret_cast<void *>(address), 0, 0};
        return LK_OK;
    }
    // Would a cache or a merge take this queue? null is one too. LK_E_ARGUMENT, LK_E_UNSUPPORTED.
    virtual lk_status check_queue(const lk_queue *queue) const = 0;
    // Where the tensor's first element is, as this device reaches it, for `bytes` from there on.
    // LK_E_ARGUMENT, LK_E_UNSUPPORTED with the sentence.
    virtual lk_status resolve_tensor(const lk_tensor &tensor, uint64_t bytes, const char *name,
                                     void **data) const = 0;
    virtual lk_status merge(const MergeView &view) const = 0;
    // The CPU also returns LK_E_DATA and LK_E_NOMEM.
    virtual lk_status cosine(const CosineView &view) const = 0;
    virtual lk_status cache_open(const CacheLayout &layout, CacheDevice **out) = 0;
    virtual void cache_close(CacheDevice *cache) = 0;
    // Called first in a process that fork() made; was_in_use: a call ran on another thread, whose
    // locks are held and whose lists are as it left them. LK_OK: all works as in the parent
    // process. LK_E_DEVICE: the device stayed there, and closing frees host memory alone; with
    // was_in_use nothing is closed. LK_E_NOMEM: another call may succeed.
    virtual lk_status enter_child(bool was_in_use) = 0;
    // Capabilities that some backends have; null = not this one.
    virtual HostBuffers *host_buffers() { return nullptr; }
    virtual const PipelineStore *pipeline_store() const { return nullptr; }
};

constexpr lk_backend kDefaultBackend = LK_BACKEND_CPU;
// Is there such a backend, in this build or another?
bool is_backend(lk_backend backend);
// Does it take a device that the host describes (lk_context_desc.vulkan)?
bool takes_host_device(lk_backend backend);

// The backends of this build. desc.vulkan is this library's, and not null where the
// backend takes a device of the host. *out is owned by the caller and ended with backend_close().
uint32_t registry_device_count();
// LK_E_NOT_FOUND from the count on.
lk_status registry_device(uint32_t ordinal, lk_device_info *info);
lk_status backend_open(const lk_context_desc &desc, const Allocator &allocator, Backend **out);
void backend_close(const Allocator &allocator, Backend *backend);

}  // namespace lk

#endif
