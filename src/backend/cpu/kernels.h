// The interface of the SIMD files. Files compiled with wider instructions include this header and
// no other header of lowkey with inline functions: the linker keeps one copy of an inline function,
// which then must run on every CPU. So this header holds plain data alone.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CPU_KERNELS_H
#define LK_BACKEND_CPU_KERNELS_H

#include <cstdint>

#include "format/format_const.h"
#include "format/widths.h"

namespace lk {
namespace cpu {

constexpr uint32_t kKvTileTokens = LK_MAX_PAGE_TOKENS;
constexpr uint32_t kMaxStrips = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS;
// Rows are (query token, query head) pairs.
constexpr uint32_t kTileRows = 128;   // of a work tile on the tile path, at most
constexpr uint32_t kDecodeRows = 32;  // of a work tile on the decode path, at most

enum class PageKind : uint8_t {
    kRaw,     // 16 bits
    kPacked,  // packed, and read in place
    kOther    // unpacked before use
};

struct StripView {
    uint32_t offset_bytes;
    uint32_t high_offset_bytes;  // of the second part of a split plane
    uint32_t bits;               // of the plane
};

// A PageLayout, resolved.
struct PageView {
    PageKind kind;
    uint8_t is_value;
    uint8_t is_per_token;     // axis
    uint8_t parameter_bytes;  // of a range or a minimum: 2 = FP16, 1 = FP8
    uint32_t head_dim;
    uint32_t page_tokens;
    uint32_t n_strips;
    uint32_t group;
    uint32_t n_groups;
    uint32_t minima_offset_bytes;
    uint32_t payload_bytes;
    uint32_t metadata_bytes;
    uint32_t shared_first;  // stored channel of the first partner
    uint32_t n_shared;
    StripView strips[kMaxStrips];
};

struct PageBytes {
    const PageView *view;    // null = staged
    const uint8_t *payload;  // staged: u16 [n_tokens][channels]
    const uint8_t *metadata;
    const uint8_t *channels;  // stored channel -> channel, null = identity; a byte each, two above
                              // LK_BYTE_CHANNELS channels
};

// Up to kKvTileTokens keys and values of one KV head. In a latent layer `value` is not read.
struct KvTile {
    PageBytes key;
    PageBytes value;
    uint32_t first_token;  // in the pages, a multiple of 16; 0 unless raw
    uint32_t n_tokens;     // 1 .. kKvTileTokens
    // Tokens [0, n_linear) are at positions position + i. Those after them are new tokens
    // tree_first, tree_first + 1, .. of a draft tree.
    uint32_t n_linear;
    uint32_t tree_first;
    uint64_t position;
};

struct QueryToken {
    uint64_t position;
    uint64_t ancestors;  // bit i: new token i of the draft tree is visible
    uint64_t reach;      // position of the last visible token
};

// The KV tiles of a work tile, in order; false at the end. The memory that a KV tile points to is
// valid until the second next call.
struct KeySource {
    bool (*next)(void *state, KvTile *kv_tile);
    void *state;
};

// Some query tokens of one sequence under some query heads of a KV head, over some of its keys.
struct WorkTile {
    uint32_t n_queries;
    uint32_t group_size;  // query heads of the work tile
    uint32_t head_dim;
    uint32_t value_dim;
    bool is_latent;             // values are the first value_dim channels of the keys
    uint32_t n_rows;            // n_queries * group_size
    const QueryToken *queries;  // [n_queries]
    const uint64_t *tree_positions;
    uint64_t first_position;  // lowest of the queries, and highest that they attend to
    uint64_t last_position;
    uint32_t window_tokens;
    uint32_t window_sink_tokens;
    // q [n_rows][head_dim] is scaled so that a dot product is a logit times log2(e); under a
    // soft-cap it is logit / cap, and cap is the soft-cap times log2(e).
    float cap;
    const float *q;
    const float *starts;  // [n_rows] added to the dot products of a row, or null: zeros
    KeySource keys;
    // Result: sum of exp2(logit - row_max) * value, and of exp2(logit - row_max).
    float *output;   // [n_rows][value_dim]
    float *row_max;  // [n_rows]
    float *row_sum;  // [n_rows]
    float *scratch;  // LK_CPU_SCRATCH_FLOATS(larger dim), aligned to 64 bytes
};

// FP32 of a work tile's scratch. The decode path needs most: an unpacked page; for each row a query
// seven times, its result, and the factors of its channels sixteen times in words and eight times
// in groups; and rows of tokens. dim: the larger one of head_dim and value_dim.
#define LK_CPU_SCRATCH_FLOATS(dim)                                                          \
    ((kKvTileTokens + 16u + 32u * kDecodeRows) * (dim) + 8u * kDecodeRows * kKvTileTokens + \
     4u * LK_MAX_HEAD_DIM)

enum class Element : uint8_t { kF32, kF16, kBf16 };

// What becomes of a row of elements before it is rounded: (element - center), cut to the limit,
// times inverse.
struct RowChange {
    const float *centers;   // [n] or null
    const float *inverses;  // [n] or null
    float limit;            // infinity: nothing is cut
};

// How the FP16 values of a strip lie as rows and k of its tiles, keys by [token][channel] and
// values by [channel][token], and what quantizes them.
struct StripRules {
    uint64_t row_stride;
    uint64_t tile_stride;
    uint32_t n_tiles;
    bool is_by_row;  // ranges and minima are those of rows, else of k
    // 16 rows or k of a tile have those from first[tile] on.
    const float *minima;
    const float *ranges;
    const uint32_t *first;
    float tops[16];   // the highest code of each k
    float steps[16];  // code_step() of each k
};

struct Kernels {
    const char *name;
    void (*attend_tile)(const WorkTile &work);    // n_rows <= kTileRows
    void (*attend_decode)(const WorkTile &work);  // n_rows <= kDecodeRows, of no latent layer
    // What packing does in FP32, the same bits on every instruction set. n is a multiple of 16.
    // Returns whether all elements are finite.
    bool (*load_row)(const void *row, Element element, uint32_t n, const RowChange &change,
                     float *out);
    // To FP16, to the nearest, ties to even. Returns how many saturated.
    uint32_t (*round_row)(const float *values, uint32_t n, uint16_t *out);
    // Sums of the magnitudes of n columns of FP16 values, added up row by row.
    void (*sum_magnitudes)(const uint16_t *values, uint64_t row_stride, uint32_t n_rows, uint32_t n,
                           float *sums);
    // Mean of each of n columns of FP16 values, added up row by row, and the mean of their
    // distances from it.
    void (*find_deviations)(const uint16_t *values, uint64_t row_stride, uint32_t n_rows,
                            uint32_t n, float *means, float *deviations);
    // values: of row 0 and k 0. codes: [tile][row][k].
    void (*quantize_strip)(const StripRules &rules, const uint16_t *values, uint16_t *codes);
    // Back, rounded to FP16.
    void (*dequantize_strip)(const StripRules &rules, const uint16_t *codes, uint16_t *values);
};

extern const Kernels kGenericKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const Kernels kNeonKernels;

}  // namespace cpu
}  // namespace lk

#endif
