// Push constants, and tables that only the host side of the Vulkan backend and its shaders share.
// C++ and GLSL include it; a structure has the same bytes in both. How each dispatch is cut into
// workgroups is said where its push constants are.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PUSH_H
#define LK_SHADERS_PUSH_H

#ifdef __cplusplus
#include <cstdint>
namespace lk {
namespace vulkan {
using Address = uint64_t;
using uint = uint32_t;
#else
#define Address uvec2 /* low word first */
#endif

// Ids of specialisation constants, in every shader that has one.
#define LK_SPEC_THREADS 0u   /* of a workgroup: local_size_x_id */
#define LK_SPEC_HEAD_DIM 1u  /* of the dispatch; the largest where heads differ */
#define LK_SPEC_SUBGROUP 2u  /* invocations of a subgroup; 0 = no subgroup operations */
#define LK_SPEC_COLUMNS 3u   /* query columns of a work item or a tile */
#define LK_SPEC_VALUE_DIM 4u /* of values and outputs, in shaders that have one for keys too */
#define LK_SPEC_FIRST_OWN 8u /* from here on a shader's own */

#define LK_MATRIX_HEAD_DIM 256u /* of kernels of cooperative matrices, at most */

// dtype of PushTensor, as lk_dtype.
#define LK_DTYPE_F16 1u
#define LK_DTYPE_BF16 2u
#define LK_DTYPE_F32 3u

#define LK_NO_FAULT 0xFFFFFFFFu
#define LK_FAULT_STEPS 16u /* whose faults are distinguished */
#define LK_MERGE_SPLITS 16u
#define LK_MERGE_CHANNELS 128u         /* of a workgroup that merges splits of decode or prefill */
#define LK_ATTENTION_SCORE_COLUMNS 64u /* kAttentionScoreColumns of src/format/tables.h */
#define LK_ATTENTION_TOTAL_COLUMNS 8u  /* of a workgroup of attention_totals */
#define LK_ATTENTION_SCORE_THREADS 128 /* of a workgroup of attention_scores */
#define LK_PUSH_BYTES 128u             /* of push constants that every device has */

// A tensor [tokens][heads][channels] of the host. Element (t, h, c) lies token_stride * t +
// head_stride * h + c elements after data; the product needs 64 bits.
struct PushTensor {
    Address data;
    uint dtype;
    uint token_stride;  // elements
    uint head_stride;
    uint reserved;
};

// Everything that the shaders of a step read, in device memory at addresses that stay for a
// cache's life. The structures are those of src/format/tables.h.
struct StepTable {
    Address header;     // StepHeader
    Address sequences;  // SequenceInfo [n_sequences]
    Address blocks;     // BlockInfo
    Address ancestors;  // u64 [n_tokens], low word first: bit i: new token i of the sequence is
                        // visible; of trees alone
    Address positions;  // u32 [n_tokens] of trees; with spans the last that a token attends to
    Address formats;    // FormatInfo
    Address layers;     // LayerInfo [n_layers]; where keys are rotated [n_layers] once more, for
                        // shaders that read queries of rotate_queries
    Address report;     // FaultReport, in memory that the host reads
    uint n_layers;
    uint reserved[3];
};

struct LayerInfo {
    Address sink_logits;  // f32 [n_query_heads], or 0
    uint n_query_heads;
    uint n_kv_heads;
    uint head_dim;
    uint window_tokens;  // 0 = all
    uint window_sink_tokens;
    uint first_entry;  // of a block: that of the layer's first head
    float scale;
    float soft_cap;  // 0 = off
    // f32 [n_kv_heads][head_dim], or 0
    Address key_centers;
    Address key_scales;
    Address key_inverses;
    float query_limit;  // a query with a larger element, an infinity or a NaN has NaN for its rows
    uint key_rotation;  // channels of a block of keys that is rotated, a power of two; 0 = none
    uint value_dim;     // of values and outputs
    uint reserved;
};

// u32 faults [LK_FAULT_STEPS][n_layers] follow: atomicMin of
// (token of the batch * n_kv_heads + kv_head) * 2 + is_value at [serial % LK_FAULT_STEPS][layer],
// LK_NO_FAULT before. has_fault is set to 1 after that. n_saturated is two words, low first: add to
// the low one by atomicAdd, and 1 to the high one when it overflowed.
struct FaultReport {
    uint n_saturated[2];
    uint has_fault;
    uint n_clears;  // the host's
};

// append: rounds K and V of new tokens to FP16 into their 16-bit blocks and the staging area.
// Workgroups: x = groups of tokens from first_group on, y = KV heads; z = 0 keys, 1 values. Without
// a list group n is token_step tokens from token n * token_step of the batch on. append_pages:
// packs the tokens of blocks that they fill, but for keys that are ranked by queries. k and v are
// rows of FP16, at multiples of 16 bytes and less than 2^20 elements apart, which it checks and
// stages, or, without staging areas, rows of these. Workgroups: x = blocks of the list from
// first_group on; y, z likewise.
struct AppendPush {
    Address step;      // StepTable
    Address staged_k;  // f16 [n_kv_heads][n_tokens][head_dim], or 0: nothing is staged
    Address staged_v;  // f16 [n_kv_heads][n_tokens][value_dim], likewise
    Address list;      // of append: pairs of a first token and a number of tokens, or 0;
                       // of append_pages: NewBlock
    PushTensor k;
    PushTensor v;
    uint layer;
    uint n_sequences;
    uint n_tokens;  // of the batch
    uint first_group;
    uint token_step;
    uint reserved;
};

// A block that new tokens fill: its entries, and its first token in the batch.
struct NewBlock {
    Address entries;
    uint first_token;
    uint reserved;
};

// pack: PackJob to packed bytes. Workgroups: x = jobs.
// dequantize: DequantizeJob to a raw page. Workgroups: x = jobs.
// move: MoveJob within raw pages. Workgroups: x = jobs.
// shrink: ShrinkJob, pages narrower or elsewhere; formats is not read. Workgroups: x = pages of the
// longest run, y = jobs.
struct JobPush {
    Address jobs;     // PackJob, DequantizeJob, MoveJob or ShrinkJob [n_jobs]
    Address formats;  // FormatInfo
    uint n_jobs;
    uint head_dim;     // the largest of the jobs
    uint page_tokens;  // the largest of the jobs
    uint reserved;
};

// rotate_queries: FP32 queries, multiplied by the key scales and rotated, for shaders that read
// those of a token and head several times. A row with an element beyond query_limit becomes NaN.
// Workgroups: x = LK_ROTATE_THREADS / (head_dim / 8) rows (token * n_heads + head) each, from
// first_row on.
struct RotateQueriesPush {
    Address rotated;     // f32 [n_rows][head_dim]
    Address key_scales;  // f32 [n_kv_heads][head_dim], or 0
    PushTensor q;
    uint head_dim;
    uint key_rotation;  // not 0
    uint n_heads;
    uint group_size;
    uint first_row;
    uint n_rows;
    float query_limit;  // 0: none, elements are cut to kRotationLimit
    uint reserved;
};

// query_stats: a run of sums of |Q|, QueryStatRun of src/backend/backend.h. Workgroups: x = sums, y
// = KV heads from first_head on.
struct QueryStatsPush {
    Address sums;        // u64, low word first: of the first sum and the first head
    Address key_scales;  // f32 [n_kv_heads][head_dim], or 0
    PushTensor q;
    uint stride_bytes;  // from a sum to the next
    uint first_token;   // of the batch
    uint n_tokens;
    uint tokens_per_sum;
    uint first_head;
    uint head_dim;
    uint group_size;
    uint reserved;
};

// add_query_stats: arithmetic on sums, StatItem of src/backend/backend.h, of 40 bytes. Workgroups:
// x take the channels in turn, y = items. The first of items that follow each other does them all.
struct AddQueryStatsPush {
    Address items;
    uint n_items;
    uint reserved;
};
#define LK_QUERY_STATS_THREADS 64

// decode: attention of few query columns over blocks of native formats. Column c of a sequence is
// its new token c / group under head c % group of the KV head's group; an item has columns
// LK_SPEC_COLUMNS * column_tile and up, n of them, as many as the sequence has there, at most
// LK_SPEC_COLUMNS. Workgroups: x = items. An item with n_splits == 1 writes output and LSE. Others
// leave partial results at partials[first_partial], the same for all splits of a work tile:
//   f32 outputs [n_splits][n][value_dim], not divided by the sum,
//   f32 row_max [n_splits][n], the greatest score times log2(e) (or any reference),
//   f32 row_sum [n_splits][n] of exp2(score * log2(e) - row_max).
// attend_decode_matrix takes items of packed blocks of one shape, all of which share the work
// tile's 16-bit blocks; these are split evenly; same push constants, workgroups and results.
// decode_merge joins them and includes sink logits. Same push constants, but items are the first
// splits of work tiles that have several. Workgroups: x = items, y = LK_SPEC_COLUMNS, z = groups of
// LK_MERGE_CHANNELS channels.
struct DecodePush {
    Address step;
    Address items;     // WorkItem [n_items]
    Address partials;  // f32
    Address lse;       // f32, or 0
    PushTensor q;
    PushTensor outputs;
    uint lse_token_stride;  // elements
    uint lse_head_stride;
    uint layer;
    uint n_items;
    // Bounds of loops that all workgroups take alike, so that compilers see it and keep them loops.
    uint n_kv_tiles;      // of the item that has most
    uint n_value_strips;  // value_dim / 16
    uint n_key_groups;    // of tokens in a page of the layer's keys, at most
    uint n_value_steps;   // pairs of strips of the values, none in two groups, at most
    // Of attend_decode_matrix: rounds of tiles of 16-bit blocks that are split evenly, and rounds
    // of tiles of 16-bit blocks among an item's packed ones.
    uint n_f16_rounds;
    uint n_own_f16_rounds;
    uint form;     // the form of the pages, LK_FORM_*
    uint formats;  // FormatInfo.form of the keys that the dispatch reads, and of the values in the
                   // upper half; an item's other packed blocks are skipped. 0: all are alike
};

// Fields of a form: the first bit and how many.
#define LK_FORM_KEY_END8 0, 5      /* strips of keys before it have 8 bits */
#define LK_FORM_KEY_END4 5, 5      /* those from there up to it have 4, the others 2 */
#define LK_FORM_SHARED 10, 8       /* pairs of shared stored channels */
#define LK_FORM_KEY_GROUPS 18, 4   /* token groups: 1, 2, 4 or 8 */
#define LK_FORM_VALUE_STRIPS 22, 5 /* strips of a channel group */

// prefill: attention of any number of columns over blocks of any page format and over staged
// tokens; latent layers have it for every step.
// Workgroups: x = tiles of LK_SPEC_COLUMNS columns of the longest sequence from first_tile on, y =
// KV heads, z = sequence * n_splits + split. A split takes pages n * split / n_splits up to
// n * (split + 1) / n_splits of the n visible to the tile (blocks, then staged tokens in pages of
// 128); a page of latents counts as LK_LATENT_PAGE_PARTS, each with its share of the tiles.
// With n_splits > 1 each workgroup leaves at partials
//   [sequence][kv_head][tile of n_tiles][split]: f32 outputs [LK_SPEC_COLUMNS][value_dim], then
//   row_max and row_sum [LK_SPEC_COLUMNS] as decode's,
// and prefill_merge, with the same push constants, joins them. Workgroups: x = columns of the
// longest sequence, y = KV heads, z = sequence * n + part, of the n parts of value_dim that have up
// to LK_MERGE_CHANNELS channels.
struct TilePush {
    Address step;
    Address staged_k;  // f16 [n_kv_heads][n_tokens][head_dim], or 0
    Address staged_v;  // f16 [n_kv_heads][n_tokens][value_dim], or 0: latents have none
    Address partials;
    Address lse;  // f32, or 0
    PushTensor q;
    PushTensor outputs;
    uint lse_token_stride;  // elements
    uint lse_head_stride;
    uint layer;
    uint n_tokens;  // of the batch
    uint first_tile;
    uint n_tiles;
    uint n_splits;
    uint reserved;
};

// prefill_unpack: the keys and the values of all tokens of a sequence, for KV heads from first_head
// on, as FP16 to the slots: [head of the dispatch][keys, values][token][head_dim], as many tokens
// as slot_tokens(). Workgroups: x = blocks that attention reads, then runs of 128 tokens of the
// staging area; y = KV heads; z = 0 keys, 1 values.
// prefill_slots: attention of the sequence's columns over the slots, in layers without windows and
// of sequences without trees. Workgroups: x = tiles of LK_SPEC_COLUMNS columns, y = KV heads from
// first_head on, z = splits. A split takes stages of LK_SLOT_STAGE_TOKENS tokens, n * split /
// n_splits up to n * (split + 1) / n_splits of the n visible to the tile. With n_splits > 1 results
// are those of prefill: [head of the dispatch][tile][split]. prefill_slots_merge, with the same
// push constants, joins them. Workgroups: x = columns, y = KV heads from first_head on. It has most
// fields of TilePush; one struct for both would not fit.
struct SlotPush {
    Address step;
    Address slots;     // f16
    Address staged_k;  // f16 [n_kv_heads][n_tokens][head_dim]; read by prefill_unpack
    Address staged_v;  // the same
    Address partials;
    Address lse;  // f32, or 0
    PushTensor q;
    PushTensor outputs;
    uint lse_token_stride;  // elements
    uint lse_head_stride;
    uint layer;
    uint n_tokens;  // of the batch
    uint sequence;
    uint first_head;
    uint n_tiles;
    uint n_splits;
};

// attention_partials, attention_totals, attention_scores: attention scores of chunks,
// ChunkAttention of src/backend/backend.h, one after the other for each batch of work tiles.
// Workgroups of attention_partials: x = any number, which take chunks in turn; y = work tiles. Of
// attention_totals: x = LK_ATTENTION_SCORE_COLUMNS / LK_ATTENTION_TOTAL_COLUMNS, y = work tiles. Of
// attention_scores: x = any number, whose invocations take chunks.
struct AttentionScoresPush {
    Address step;
    Address scores;    // f32 [n_chunks]
    Address partials;  // f32 pairs [work tiles][n_chunks + 1][LK_ATTENTION_SCORE_COLUMNS]
    PushTensor q;
    uint layer;
    uint sequence;
    uint first_query;  // of the batch's tokens
    uint n_queries;
    uint first_block;  // of the sequence
    uint page_tokens;
    uint chunk_tokens;
    uint n_chunks;
    uint n_tiles;  // work tiles of a KV head
    uint first_work_tile;
    uint n_work_tiles;
    uint is_first;
    float weight;
    uint reserved;
};

// merge: outputs over disjoint sets of keys become one, by their LSEs. Workgroups: x = rows (token
// * n_heads + head) from first_row on.
struct MergePush {
    Address tensors;  // PushTensor splits [n_splits], lses [n_splits] (FP32), output, LSE (data 0:
                      // none)
    uint n_splits;    // at most LK_MERGE_SPLITS
    uint n_tokens;
    uint n_heads;
    uint head_dim;
    uint first_row;
    uint reserved;
};

// cosine: scores of embeddings by a query. Workgroups: x = any number, which take chunks in turn.
struct CosinePush {
    PushTensor embeddings;  // [n_chunks][1][n_channels]
    PushTensor query;       // [1][1][n_channels]
    PushTensor scores;      // FP32 [n_chunks][1][1]
    uint n_chunks;
    uint n_channels;
};

// matrix_probe: one workgroup; each lane reports whether its registers of cooperative matrices are
// those that decode makes.
struct MatrixProbePush {
    Address values;  // f16 [256]: 0, 1, ...
    Address sums;    // f32 [128]: 0, 1, ...
    Address fits;    // u32 [LK_LANES], 1 where it is
};

#ifdef __cplusplus
static_assert(sizeof(AppendPush) <= LK_PUSH_BYTES && sizeof(JobPush) <= LK_PUSH_BYTES &&
                  sizeof(DecodePush) <= LK_PUSH_BYTES && sizeof(TilePush) <= LK_PUSH_BYTES &&
                  sizeof(SlotPush) <= LK_PUSH_BYTES && sizeof(MergePush) <= LK_PUSH_BYTES &&
                  sizeof(AttentionScoresPush) <= LK_PUSH_BYTES &&
                  sizeof(RotateQueriesPush) <= LK_PUSH_BYTES && sizeof(CosinePush) <= LK_PUSH_BYTES,
              "push constants fit");
static_assert(sizeof(PushTensor) == 24 && sizeof(NewBlock) == 16 && sizeof(StepTable) == 80 &&
                  sizeof(LayerInfo) == 80 && sizeof(FaultReport) == 16,
              "as GLSL lays them out");
}  // namespace vulkan
}  // namespace lk
#endif

#endif
