// The tables of src/format/tables.h in device memory. They are read by words of 32 bits, 8 or 16
// bytes at once, so shaders need no arithmetic on narrow types and structures are plain values.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_TABLES_GLSL
#define LK_SHADERS_TABLES_GLSL

#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference_uvec2 : require

#include "format/format_const.h"
#include "format/widths.h"
#include "shaders/push.h"

#define LK_STAGED 0xFFFFFFFFu /* source_format of a job: staged tokens, not a page */

// count * size bytes after an address.
Address address_at(Address base, uint count, uint size) {
    uint high;
    uint low;
    umulExtended(count, size, high, low);
    uint carry;
    low = uaddCarry(base.x, low, carry);
    return Address(low, base.y + high + carry);
}
Address address_add(Address base, uint bytes) {
    uint carry;
    uint low = uaddCarry(base.x, bytes, carry);
    return Address(low, base.y + carry);
}
bool is_null(Address address) { return (address.x | address.y) == 0u; }

layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer ConstWords {
    uint at[];
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer ConstPairs {
    uvec2 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer ConstQuads {
    uvec4 at[];
};
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer ConstFloats {
    float at[];
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer StepTableAt {
    StepTable table;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer LayerInfoAt {
    LayerInfo layer;
};

uint low_half(uint word) { return word & 0xFFFFu; }
uint high_half(uint word) { return word >> 16; }
uint byte_of(uint word, uint i) { return word >> 8u * i & 0xFFu; }
// The channel of a stored channel by a permutation: docs/FORMAT.md, section 6.
uint load_channel(Address permutation, uint head_dim, uint slot) {
    if (head_dim > LK_BYTE_CHANNELS)
        return ConstWords(permutation).at[slot / 2u] >> 16u * (slot % 2u) & 0xFFFFu;
    return byte_of(ConstWords(permutation).at[slot / 4u], slot % 4u);
}

StepTable load_step(Address step) { return StepTableAt(step).table; }
LayerInfo load_layer(StepTable step, uint layer) {
    return LayerInfoAt(address_at(step.layers, layer, 80u)).layer;
}

struct StepHeader {
    uint n_sequences;
    uint n_tokens;
    uint serial;
};
StepHeader load_header(StepTable step) {
    const uvec4 words = ConstQuads(step.header).at[0];
    return StepHeader(words.x, words.y, words.z);
}

struct FormatInfo {
    Address permutation;  // of the format, slot -> channel; 0 = identity or the page's own
    uint payload_bytes;
    uint metadata_bytes;      // 0 when raw
    uint minima_offset;       // bytes into the metadata; ranges begin at 0
    uint permutation_offset;  // bytes into the metadata, when permutes
    uint head_dim;
    uint page_tokens;
    uint group;     // tokens (axis channel) or channels (axis token)
    uint n_groups;  // along tokens or channels
    uint n_shared;
    uint n_ranked;
    bool is_value;
    bool is_token_axis;
    uint parameter_bytes;  // of a range or a minimum: 2 = FP16, 1 = FP8
    bool permutes;
    uint ranking;  // 0 none, 1 key, 2 query range
    bool is_raw;
    uint strips[LK_PLANE_COUNT];
    bool is_native;
    bool by_deviation;  // groups of 1-bit codes are measured by mean and deviation
    uint form;          // of decode: pages of one number have one form; 0: raw
    float clip_margin;  // cut off the range of a group of 2-bit codes at each end, a share of it
};
FormatInfo load_format(Address formats, uint index) {
    ConstQuads quads = ConstQuads(address_at(formats, index, 64u));
    const uvec4 a = quads.at[0];
    const uvec4 b = quads.at[1];
    const uvec4 c = quads.at[2];
    const uvec4 d = quads.at[3];
    FormatInfo info;
    info.permutation = a.xy;
    info.payload_bytes = a.z;
    info.metadata_bytes = a.w;
    info.minima_offset = b.x;
    info.permutation_offset = b.y;
    info.head_dim = low_half(b.z);
    info.page_tokens = high_half(b.z);
    info.group = low_half(b.w);
    info.n_groups = high_half(b.w);
    info.n_shared = low_half(c.x);
    info.n_ranked = high_half(c.x);
    info.is_value = byte_of(c.y, 0u) != 0u;
    info.is_token_axis = byte_of(c.y, 1u) != 0u;
    info.parameter_bytes = byte_of(c.y, 2u);
    info.permutes = byte_of(c.y, 3u) != 0u;
    info.ranking = byte_of(c.z, 0u);
    info.is_raw = byte_of(c.z, 1u) != 0u;
    info.strips[0] = byte_of(c.z, 2u);
    info.strips[1] = byte_of(c.z, 3u);
    info.strips[2] = byte_of(c.w, 0u);
    info.strips[3] = byte_of(c.w, 1u);
    info.strips[4] = byte_of(c.w, 2u);
    info.strips[5] = byte_of(c.w, 3u);
    info.is_native = byte_of(d.x, 0u) != 0u;
    info.by_deviation = byte_of(d.x, 1u) != 0u;
    info.form = high_half(d.x);
    info.clip_margin = uintBitsToFloat(d.y);
    return info;
}

// The pages of one (layer, KV head) of a block.
struct Entry {
    Address key_payload;
    Address key_metadata;
    Address value_payload;
    Address value_metadata;
    uint key_format;
    uint value_format;
};
Entry load_entry(Address entries, uint index) {
    ConstPairs pairs = ConstPairs(address_at(entries, index, 40u));
    const uint formats = pairs.at[4].x;
    return Entry(pairs.at[0], pairs.at[1], pairs.at[2], pairs.at[3], low_half(formats),
                 high_half(formats));
}

struct BlockInfo {
    Address entries;  // Entry [entries of a block]
    uint first_token;
    uint capacity_tokens;
    bool is_packed_on_append;  // append stores none of its new tokens: they are packed
};
BlockInfo load_block(StepTable step, uint index) {
    const uvec4 words = ConstQuads(step.blocks).at[index];
    return BlockInfo(words.xy, words.z, low_half(words.w), high_half(words.w) != 0u);
}

struct SequenceInfo {
    uint first_block;   // in the step's blocks
    uint n_blocks;      // all, those of new tokens included
    uint n_attended;  // the first of them that attention reads
    uint n_history;   // committed tokens
    uint n_new;
    uint first_new;    // of the batch
    bool new_in_blocks;  // false: attention reads the new tokens from the staging area
    bool has_tree;     // ancestors and positions are set; else new token i follows i - 1
    uint has_spans;  // positions are set to those of the last tokens that new ones attend to:
                     // 1 = in layers with a window alone, 2 = in all
};
SequenceInfo load_sequence(StepTable step, uint index) {
    ConstQuads quads = ConstQuads(address_at(step.sequences, index, 48u));
    const uvec4 a = quads.at[0];
    const uvec4 b = quads.at[1];
    const uvec4 c = quads.at[2];
    return SequenceInfo(a.z, a.w, b.x, b.y, b.z, b.w, c.x != 0u, c.y != 0u,
                        c.z);
}

uvec2 load_ancestors(StepTable step, uint token) { return ConstPairs(step.ancestors).at[token]; }
uint load_position(StepTable step, uint token) { return ConstWords(step.positions).at[token]; }

struct PackJob {
    Address payload;
    Address metadata;
    Address source;      // raw page's payload, or staged FP16 [page_tokens][head_dim]
    Address query_stats;  // u64 [head_dim] for ranking 2
    uint target_format;
    uint source_format;  // LK_STAGED, or a raw format
};
PackJob load_pack_job(Address jobs, uint index) {
    ConstPairs pairs = ConstPairs(address_at(jobs, index, 40u));
    const uvec2 formats = pairs.at[4];
    return PackJob(pairs.at[0], pairs.at[1], pairs.at[2], pairs.at[3], formats.x, formats.y);
}

// Copy the first n_tokens of a page into a raw page, rounded to FP16.
struct DequantizeJob {
    Address payload;
    Address metadata;
    Address target;
    uint source_format;
    uint target_format;
    uint n_tokens;
};
DequantizeJob load_dequantize_job(Address jobs, uint index) {
    ConstPairs pairs = ConstPairs(address_at(jobs, index, 40u));
    const uvec2 formats = pairs.at[3];
    return DequantizeJob(pairs.at[0], pairs.at[1], pairs.at[2], formats.x, formats.y, pairs.at[4].x);
}

// Tokens first_source + i, for every bit i of mask, that go to first_target and the tokens after
// it.
struct MoveJob {
    Address source;
    Address target;
    uint source_format;
    uint target_format;
    uint first_source;
    uint first_target;
    uvec2 mask;
};
MoveJob load_move_job(Address jobs, uint index) {
    ConstPairs pairs = ConstPairs(address_at(jobs, index, 40u));
    const uvec2 formats = pairs.at[2];
    const uvec2 firsts = pairs.at[3];
    return MoveJob(pairs.at[0], pairs.at[1], formats.x, formats.y, firsts.x, firsts.y, pairs.at[4]);
}

// Payload bytes that get narrower, or move.
struct ShrinkJob {
    Address source;
    Address target;
    uint stride_bytes;
    uint tail_bytes;
    uint n_pages;
    uint n_strips;
    uint bits;
    uint page_tokens;
};
ShrinkJob load_shrink_job(Address jobs, uint index) {
    ConstQuads quads = ConstQuads(address_at(jobs, index, 32u));
    const uvec4 a = quads.at[0];
    const uvec4 b = quads.at[1];
    return ShrinkJob(a.xy, a.zw, b.x, b.y, low_half(b.z), high_half(b.z), low_half(b.w),
                     high_half(b.w));
}

// Sums of |Q| are two words, low word first.
uvec2 sum_add(uvec2 a, uvec2 b) {
    uint carry;
    const uint low = uaddCarry(a.x, b.x, carry);
    return uvec2(low, a.y + b.y + carry);
}

// Arithmetic on them.
struct StatItem {
    Address target;
    Address source;
    uvec2 mask;
    uint stride_bytes;  // the high word is 0
    uint n_channels;
    uint flags;
};
StatItem load_sum_item(Address items, uint index) {
    ConstPairs pairs = ConstPairs(address_at(items, index, 40u));
    const uvec2 last = pairs.at[4];
    return StatItem(pairs.at[0], pairs.at[1], pairs.at[2], pairs.at[3].x, last.x, last.y);
}

// A workgroup's share of decode attention: blocks of one KV head of one sequence, counted from its
// first block.
struct WorkItem {
    uint kv_head;
    uint column_tile;
    uint raw_begin[2];  // runs of blocks in which both pages are raw
    uint raw_count[2];
    uint packed_begin;
    uint packed_count;
    uint split;           // of n_splits that are merged
    uint n_splits;        // 1: written straight to the output
    uint first_partial;  // floats: of the work tile's splits in the partial results
    uint work_tile;
    uint sequence;
    uint first_block;
    uint first_new;
    uint n_new;
    bool new_in_blocks;
    bool has_tree;
};
WorkItem load_item(Address items, uint index) {
    ConstQuads quads = ConstQuads(address_at(items, index, 64u));
    const uvec4 a = quads.at[0];
    const uvec4 b = quads.at[1];
    const uvec4 c = quads.at[2];
    const uvec4 d = quads.at[3];
    WorkItem item;
    item.kv_head = low_half(a.x);
    item.column_tile = high_half(a.x);
    item.raw_begin[0] = a.y;
    item.raw_begin[1] = a.z;
    item.raw_count[0] = a.w;
    item.raw_count[1] = b.x;
    item.packed_begin = b.y;
    item.packed_count = b.z;
    item.split = low_half(b.w);
    item.n_splits = high_half(b.w);
    item.first_partial = c.x;
    item.work_tile = c.y;
    item.sequence = c.z;
    item.first_block = c.w;
    item.first_new = d.x;
    item.n_new = low_half(d.y);
    item.new_in_blocks = byte_of(d.y, 2u) != 0u;
    item.has_tree = byte_of(d.y, 3u) != 0u;
    return item;
}

#endif
