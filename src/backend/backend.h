// What a device does for the core. core validates every argument before it calls in here, so a
// backend asserts at most; what it cannot run it refuses in supports().
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_BACKEND_H
#define LK_BACKEND_BACKEND_H

#include "base/memory.h"
#include "format/page.h"

#include <lowkey/context.h>

namespace lk {

struct SlabMemory {
    uint64_t address;  // 64-byte aligned; the device's
    uint64_t bytes;
    void *handle;  // the backend's
};

// A tensor of lk_tensor that core has checked.
struct TensorView {
    void *data;
    lk_dtype dtype;
    int64_t token_stride;  // elements
    int64_t head_stride;
};

// One attention layer, constant for the cache's life.
struct LayerView {
    uint32_t n_query_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    uint32_t window_tokens;  // 0 = all
    uint32_t window_sink_tokens;
    float scale;               // never 0
    float soft_cap;            // 0 = off
    const float *sink_logits;  // [n_query_heads] or null
};

// FP16 of a layer's new tokens: keys, then values, each [n_kv_heads][n_tokens][head_dim].
struct Staging {
    uint16_t *keys;
    uint16_t *values;
    uint32_t n_tokens;  // of the batch
};

struct ConvertArgs {
    TensorView k;
    TensorView v;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    Staging staging;
};
struct ConvertResult {
    uint64_t n_saturated;
    int32_t is_finite;   // 0: the first infinity or NaN in token order, then head, K before V
    uint32_t bad_token;  // of the batch
    uint32_t bad_head;
    int32_t bad_is_value;
};

// Copy n_tokens staged tokens of one head, K and V, into a row's 16-bit halves at token_in_row.
struct StoreArgs {
    const PageEntry *entry;
    const HalfClass *classes;
    Staging staging;
    uint32_t kv_head;
    uint32_t head_dim;
    uint32_t first_staged;
    uint32_t token_in_row;
    uint32_t n_tokens;
};

// One half to pack from 16 bits. The source is either a 16-bit half page or staged tokens.
struct PackItem {
    const HalfClass *target;
    uint64_t payload;
    uint64_t metadata;
    const HalfClass *source_class;  // raw; null = staged
    uint64_t source_payload;
    const uint16_t *staged;      // [page_tokens][head_dim] of one head
    const uint64_t *query_sums;  // [head_dim] for Ranking::kQueryRange
};

// Copy the first n_tokens of a packed half into a 16-bit half, rounded to FP16.
struct ReopenItem {
    const HalfClass *source;
    uint64_t source_payload;
    uint64_t source_metadata;
    const HalfClass *target;  // raw
    uint64_t target_payload;
    uint32_t n_tokens;
};

// Add |Q| of tokens [first_token, first_token + n_tokens) of the batch, in units of 2^-24 after
// rounding to FP16, over the query heads of kv_head, to sums [head_dim].
struct QuerySumArgs {
    TensorView q;
    uint32_t kv_head;
    uint32_t group_size;
    uint32_t head_dim;
    uint32_t first_token;
    uint32_t n_tokens;
    uint64_t *sums;
};

// One sequence of an attend call. Keys and values of committed tokens, positions
// 0 .. n_history-1, are in rows (contiguous, ascending). The new tokens are in the rows behind
// them when new_in_rows, else in the staging area; rows may reach further than what is visible.
struct AttendSequence {
    const PageRow *const *rows;
    uint32_t n_rows;
    uint32_t n_new;
    uint64_t n_history;
    uint32_t first_new;  // index of its first new token in the batch
    int32_t new_in_rows;
    const int32_t *parent;  // [n_new] or null, as lk_step_begin(); only when new_in_rows
};

struct AttendArgs {
    LayerView layer;
    uint32_t first_entry;  // index in a row of the layer's first head
    const HalfClass *classes;
    TensorView q;
    TensorView out;
    float *lse;  // or null
    int64_t lse_token_stride;
    int64_t lse_head_stride;
    const AttendSequence *sequences;
    uint32_t n_sequences;
    Staging staging;
};

class Backend {
  public:
    virtual ~Backend() = default;
    // LK_OK, or LK_E_UNSUPPORTED with the sentence. The capability is valid.
    virtual lk_status supports(const lk_capability &capability) const = 0;
    virtual void describe(lk_device_info *info) const = 0;
    // Memory that persists: slabs.
    virtual lk_status slab_create(uint64_t bytes, SlabMemory *out) = 0;
    virtual void slab_destroy(const SlabMemory &slab) = 0;
    // Work. LK_OK, LK_E_NOMEM or LK_E_DEVICE.
    virtual lk_status convert(const ConvertArgs &args, ConvertResult *result) = 0;
    virtual lk_status store(const StoreArgs *items, uint32_t n_items) = 0;
    virtual lk_status pack(const PackItem *items, uint32_t n_items) = 0;
    virtual lk_status reopen(const ReopenItem *items, uint32_t n_items) = 0;
    virtual lk_status sum_queries(const QuerySumArgs *items, uint32_t n_items) = 0;
    virtual lk_status attend(const AttendArgs &args) = 0;
};

// The backends of this build. kind has been opened through desc; *out is owned by the caller and
// ended with destroy(allocator, ...)-like backend_close().
uint32_t registry_device_count();
lk_status registry_device(uint32_t ordinal, lk_device_info *info);
lk_status backend_open(const lk_context_desc &desc, const Allocator &allocator, Backend **out);
void backend_close(const Allocator &allocator, Backend *backend);

}  // namespace lk

#endif
