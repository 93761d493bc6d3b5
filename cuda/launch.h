// Launches of the kernels. All are asynchronous on the stream; a launch that cannot be made returns
// the runtime's error. Tables and jobs are in device memory and stay until the stream has passed.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_LAUNCH_H
#define LK_CUDA_LAUNCH_H

#include <driver_types.h>
#include <vector_types.h>

#include "cuda/instances.h"
#include "cuda/kv_tile.h"

namespace lk {
namespace cuda {

// Is there code for the current device in this build? cudaErrorNoKernelImageForDevice and the like.
cudaError_t kernels_present();

// Round K and V of a step's new tokens to FP16, report infinities and NaNs (stored as 0) and
// saturated values, and put each token into its 16-bit block, unless the block is packed on append,
// and into the staging area when staging.k is not null. n_sequences and n_tokens are those of
// the step, or of the step that a graph was captured from: another one is reported as kShapeFault.
cudaError_t launch_append(const StepView &step, const LayerArg &layer, const TensorArg &k,
                          const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                          uint32_t n_tokens, cudaStream_t stream);

// Pack pages; bytes as docs/FORMAT.md has them. head_dim, page_tokens and n_parameters, the pairs
// of a range and a minimum: the largest of the jobs.
cudaError_t launch_pack(const PackJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters,
                        cudaStream_t stream);
// Shared memory of its thread blocks.
uint32_t pack_shared_bytes(uint32_t head_dim, uint32_t page_tokens, uint32_t n_parameters);
cudaError_t launch_dequantize(const DequantizeJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                              cudaStream_t stream);
// Move chosen tokens of 16-bit pages to earlier positions.
cudaError_t launch_move(const MoveJob *jobs, uint32_t n_jobs, const FormatInfo *formats,
                        cudaStream_t stream);
// Shrink pages by one step of the ladder, in place or to another slot, or copy them.
cudaError_t launch_shrink(const ShrinkJob *jobs, uint32_t n_jobs, uint32_t most_pages,
                          cudaStream_t stream);

// Attention of few query columns (new tokens x heads of a group) over blocks: split over the
// sequence, merged by the last thread block of each work tile. n_sequences and n_tokens are those
// of the step, or of the step that a graph was captured from: in another one the kernels do
// nothing, as launch_append() reports it.
struct DecodeArgs {
    StepView step;
    LayerArg layer;
    uint32_t n_sequences;
    uint32_t n_tokens;
    TensorArg q;
    TensorArg out;
    float *lse;  // or null
    int64_t lse_token_stride;
    int64_t lse_head_stride;
    const uint32_t *n_items;
    const WorkItem *items;
    const KvTileTemplate *templates;  // [n_kv_heads] of the layer
    float *partials;
    uint32_t *counters;  // [work tiles][kTileCounters], zero before the first launch and left zero
    uint32_t n_warps;    // of a thread block
    uint32_t n_blocks;
    uint32_t tile_columns;        // query columns of an item at most: 4, 8 or 16
    uint32_t key_metadata_bytes;  // of the layer's largest packed pages, rounded up to 16
    uint32_t value_metadata_bytes;
    // decode_own_query_bytes() where pages have orders of their own, and decode_widened_bytes()
    // where a kind of FP16 parameters reads FP8 ones
    uint32_t own_bytes;
    uint32_t kind;  // DecodeKind of the layer's page formats
};
// Splits of a work tile may be added up in groups: counts of the groups' splits, after that of the
// work tile's.
constexpr uint32_t kMergeGroups = 12;
constexpr uint32_t kTileCounters = 1 + kMergeGroups;
enum DecodeKind : uint32_t {
    // Native formats; one group in a page and no shared slots.
    kDecodePlain,        // FP16 parameters
    kDecodePlainNarrow,  // the same, items of 16 columns, 4 and 2 bits, keys of at most kChunkBytes
    kDecodeF8Plain,      // FP8 parameters, values of 1 bit too
    // Native formats, FP8 parameters; heads with shared slots have one format of keys.
    kDecodeF8By32,    // groups of 32
    kDecodeF8Narrow,  // one group in a page or groups of multiples of 32, no keys of 8 bits nor
                      // values of 8 and 4
    kDecodeF8Wide,    // the same with keys of 8 bits and values of 8 and 4
    // All native formats.
    kDecodeF8,          // FP8 parameters
    kDecodeF16,         // FP16 parameters; keys of 1 bit, under FP8 parameters too
    kDecodeF16Pages64,  // in shorter pages, FP16 and FP8 parameters
    kDecodeF16Pages32,
    kDecodeNone  // others: left to launch_tile()
};
// The tokens of a packed page.
constexpr uint32_t decode_page_tokens(uint32_t kind) {
    return kind == kDecodeF16Pages64 ? 64 : kind == kDecodeF16Pages32 ? 32 : 128;
}
constexpr bool reads_all_formats(uint32_t kind) {
    return kind == kDecodeF8 || kind == kDecodeF16 || decode_page_tokens(kind) < 128;
}
// FP8 parameters are made FP16 numbers for these.
constexpr bool widens_parameters(uint32_t kind) {
    return kind == kDecodeF8Plain || kind == kDecodeF16 || decode_page_tokens(kind) < 128;
}
constexpr bool has_bit_keys(uint32_t kind) { return kind == kDecodeF16; }
cudaError_t launch_decode(const DecodeArgs &args, cudaStream_t stream);
// Was it built for this head dim?
bool decode_has_instance(uint32_t head_dim);
// Warps that read a page together. Plain pages of 256 channels and four columns are left to single
// warps: teams take a fifth less for short sequences there, but 16 % more on an H200 for 8 of 32768
// tokens.
constexpr uint32_t decode_team(uint32_t head_dim, uint32_t tile_columns, uint32_t kind) {
    const bool is_plain = kind == kDecodePlain && (head_dim > 256 || tile_columns > 4);
    const bool is_read = is_plain || (kind > kDecodePlainNarrow && kind < kDecodeF16Pages64);
    return has_teams(head_dim) && is_read ? head_dim / kTeamChannels : 1;
}
// Ranges of outliers that a member of a team has next to its own at most: FP8 in four groups, or in
// eight of 16 tokens, or FP16.
constexpr uint32_t decode_outlier_bytes(uint32_t kind) {
    return (kTeamChannels / 16 + 1) * (kind == kDecodeF16 ? 256 : kind == kDecodeF8 ? 128 : 64);
}
// Warps that a multiprocessor runs at once: registers decide, of a team's those of kTeamChannels.
// At head dim 128, 12 warps of 16 columns spill, which on an H100 slows 16-bit pages by 16 % and
// speeds pages of 2 bits by 5 %. At head dim 256, 12 warps of 4 columns spill 68 bytes and are 3 to
// 5 % faster than 8. Teams of FP16 parameters spill 384 bytes with 12 warps.
constexpr uint32_t decode_warps(uint32_t head_dim, uint32_t tile_columns, uint32_t kind) {
    if (kind == kDecodePlainNarrow)
        return 12;
    const bool is_team = decode_team(head_dim, tile_columns, kind) > 1;
    if (head_dim > 128 && !is_team)
        return tile_columns == 4 && kind == kDecodePlain ? 12 : 8;
    if (tile_columns > 8)
        return head_dim > 64 ? 8 : 12;
    if (is_team && kind == kDecodeF16)
        return 8;
    const bool is_wide = kind == kDecodeF8Wide || kind == kDecodeF8 || kind == kDecodeF16;
    const bool is_eight = is_team && tile_columns == 8 && kind != kDecodePlain;
    return is_wide || is_eight ? 12 : 16;
}
// The thread blocks that they make, and the warps of each. Two smaller thread blocks hide each
// other's beginnings and ends, but leave more splits to merge.
struct DecodeShape {
    uint32_t n_warps;
    uint32_t n_blocks;
};
constexpr DecodeShape decode_shape(uint32_t head_dim, uint32_t tile_columns, uint32_t kind,
                                   bool has_many_work_tiles) {
    const uint32_t n_warps = decode_warps(head_dim, tile_columns, kind);
    const bool is_team = decode_team(head_dim, tile_columns, kind) > 1;
    return n_warps == 16 && has_many_work_tiles && !is_team ? DecodeShape{8, 2}
                                                            : DecodeShape{n_warps, 1};
}
// Before sm_90 the shared memory of a multiprocessor admits this many warps: kernels are compiled
// for no more, which leaves each of them more registers.
constexpr uint32_t kSmallSharedWarps = 12;
constexpr uint32_t kSmallSharedBytes = 164 * 1024;
// Are there kernels of split-k columns, for up to four query columns? Kinds of all formats have no
// others.
constexpr bool has_split_k(uint32_t head_dim, uint32_t kind) {
    return reads_all_formats(kind) || (kind != kDecodePlain && head_dim <= 128);
}
// Shared memory of a thread block.
constexpr uint32_t kQueryCopies = 2;
// Four columns have the bytes of kinds with split-k columns: two copies of these, and two of column
// pairs, of which the last has half of the channels.
constexpr uint32_t split_k_query_bytes(uint32_t head_dim) {
    const uint32_t strips = head_dim / 16;
    return (4 * strips + 2 * ((strips + 1) / 2)) * 128;
}
constexpr uint32_t decode_query_bytes(uint32_t head_dim, uint32_t tile_columns) {
    return tile_columns == 4 ? split_k_query_bytes(head_dim)
                             : kQueryCopies * head_dim * tile_columns * 2;
}
constexpr uint32_t kPad = 4;  // floats after a warp's outputs of a column, against bank conflicts
// FP16 numbers made of a page's FP8 parameters, for each warp.
constexpr uint32_t decode_widened_bytes(uint32_t key_metadata_bytes,
                                        uint32_t value_metadata_bytes) {
    return 2 * (key_metadata_bytes + value_metadata_bytes);
}
// The copies of four columns but for the first, for each warp: pages of kinds of all formats whose
// order of channels or shared slots are not those of their head. All strips of a team's member may
// have partners.
constexpr uint32_t decode_own_query_bytes(uint32_t head_dim, uint32_t team) {
    return team > 1 ? 5 * (head_dim / team) * 4 * 2
                    : split_k_query_bytes(head_dim) - head_dim * 4 * 2;
}
constexpr uint32_t decode_ring_bytes(uint32_t key_metadata_bytes, uint32_t value_metadata_bytes,
                                     uint32_t own_bytes) {
    return 2 * kChunkBytes + key_metadata_bytes + value_metadata_bytes + own_bytes;
}
constexpr uint32_t decode_shared_bytes(uint32_t head_dim, uint32_t tile_columns, uint32_t kind,
                                       uint32_t n_warps, uint32_t ring_bytes) {
    const uint32_t rings = n_warps * ring_bytes;
    const uint32_t n_results = n_warps / decode_team(head_dim, tile_columns, kind);
    const uint32_t results = n_results * tile_columns * (head_dim + kPad + 2) * 4;
    return decode_query_bytes(head_dim, tile_columns) + n_warps * kWarpKvTiles * kKvTileBytes +
           (rings > results ? rings : results);
}

// Attention of many query columns, of formats or of head dims that decode has no kernel for: tiles
// of columns over blocks and staged tokens.
struct TileArgs {
    StepView step;
    LayerArg layer;
    TensorArg q;
    TensorArg out;
    float *lse;
    int64_t lse_token_stride;
    int64_t lse_head_stride;
    StagingArg staging;
    uint32_t n_sequences;
    uint32_t n_tokens;
    uint32_t max_new;  // the most new tokens of a sequence
    uint32_t
        n_splits;  // of the pages visible to a thread block's columns, from tile_splits(); 1 = none
    float *partials;  // see tile_partial_floats(); not needed without splits
};
// How many splits keep n_blocks thread blocks busy; 1 when the columns alone do. n_splits and
// partials of args are not read.
uint32_t tile_splits(const TileArgs &args, uint32_t n_blocks);
// Floats of TileArgs.partials for every launch with n_splits of tile_splits(args, n_blocks).
uint64_t tile_partial_floats(uint32_t head_dim, uint32_t n_blocks);
// A second kernel merges the splits.
cudaError_t launch_tile(const TileArgs &args, cudaStream_t stream);
// Has the current device the shared memory for this head dim? cudaErrorInvalidConfiguration if not.
cudaError_t tile_fits(uint32_t head_dim);

// The width of a latent page whose codes are multiplied: one width of 8, 4 or 2 bits, a range for
// each channel, channels in their own order. Else 0.
LK_BOTH uint32_t latent_code_bits(const FormatInfo &c) {
    const bool is_plain = !c.is_token_axis && c.n_groups == 1 &&
                          c.parameter_bytes == bytes_of_parameter(Metadata::kF16) && !c.n_shared &&
                          !c.permutes && !c.permutation;
    const uint32_t n_strips = c.head_dim / LK_STRIP_CHANNELS;
    return !is_plain                       ? 0
           : c.strips[kPlane8] == n_strips ? 8
           : c.strips[kPlane4] == n_strips ? 4
           : c.strips[kPlane2] == n_strips ? 2
                                           : 0;
}

// A layer's pages for launch_rows().
struct RowsPages {
    uint32_t coded_bytes;  // of the largest packed page, if the codes of all are multiplied, else 0
    uint32_t packed_bytes;  // of the largest packed pages of keys and of values, with permutations
                            // that a plan fixes; 0 without any
    uint32_t page_tokens;   // of packed pages, which a cache has of one length
};
// Attention of layers whose values are channels of their keys or of another dim, for any number of
// query columns (is_uneven() of cuda/types.h).
cudaError_t launch_rows(const TileArgs &args, const RowsPages &pages, cudaStream_t stream);
// As tile_splits(), tile_partial_floats() and tile_fits().
uint32_t rows_splits(const TileArgs &args, const RowsPages &pages, uint32_t n_sms);
uint64_t rows_floats(const LayerArg &layer, uint32_t n_sms);
cudaError_t rows_fit(const LayerArg &layer);

// Attention of a step whose sequences have more new tokens than drafts have, which no graph
// captures: pages are dequantized once for all query columns, in passes of so many as slots hold.
struct LongStep {
    uint32_t n_sms;
    uint32_t n_blocks;        // most of a sequence
    uint32_t n_staged_pages;  // long_staged_pages() of a sequence, at most
    uint32_t blocks_are_raw;  // they need no slots where the kernel reads tiles
    uint8_t *slots;
    uint64_t slots_bytes;  // long_slots_bytes()
    TensorArg k;           // the new tokens, read where the arguments have no staging area
    TensorArg v;
};
bool long_has_instance(uint32_t head_dim);
constexpr uint32_t long_staged_pages(uint32_t n_tokens) { return (n_tokens + 127) / 128; }
uint64_t long_slots_bytes(uint32_t head_dim, uint32_t n_sms);
// As tile_splits() and tile_partial_floats().
uint32_t long_splits(const TileArgs &args, uint32_t n_sms);
cudaError_t launch_long(const TileArgs &args, const LongStep &step, cudaStream_t stream);

// Attention scores of chunks, ChunkAttention of src/backend/backend.h.
struct AttentionScoresArgs {
    StepView step;
    LayerArg layer;
    TensorArg q;
    uint32_t sequence;
    uint32_t first_query;  // of the batch's tokens
    uint32_t n_queries;
    uint32_t n_tiles;      // attention_score_tiles()
    uint32_t first_block;  // of the sequence
    uint32_t page_tokens;
    uint32_t chunk_tokens;
    uint32_t n_chunks;
    uint32_t max_work_tiles;
    uint32_t is_first;
    float weight;
    float *scores;     // [n_chunks]
    float2 *partials;  // [max_tiles][n_chunks + 1][kAttentionScoreColumns]
};
cudaError_t launch_attention_scores(const AttentionScoresArgs &args, cudaStream_t stream);

// Cosines of embeddings and a query; NaN where one has no direction.
struct CosineArgs {
    TensorArg embeddings;  // [n_chunks][1][n_channels]
    TensorArg query;       // [1][1][n_channels]
    TensorArg scores;      // F32 [n_chunks][1][1]
    uint32_t n_chunks;     // at least 1
    uint32_t n_channels;
};
cudaError_t launch_cosine(const CosineArgs &args, cudaStream_t stream);

// out = sum of the splits weighted by exp(lse_i - lse), lse = log of the sum of exp(lse_i).
struct MergeArgs {
    const TensorArg *parts;  // host [n_splits], at most kMergeSplits
    const TensorArg *lses;   // host [n_splits], F32
    uint32_t n_splits;
    uint32_t n_tokens;
    uint32_t n_heads;
    uint32_t head_dim;
    TensorArg out;
    TensorArg lse;  // data may be null
};
constexpr uint32_t kMergeSplits = 16;
cudaError_t launch_merge(const MergeArgs &args, cudaStream_t stream);

}  // namespace cuda
}  // namespace lk

#endif
