// Decode attention on a tensor core: packed pages, and the factors of their codes.
//
// A masked word has codes in the low bits of its two FP16 numbers, which are subnormal, exactly
// code x 2^(bit - 24). Codes of k 8 to 15 lie 4 bits higher (not at 8 bits), so their factors are
// divided by 2^4; those of odd tiles are taken 2 bits higher, and their scores, or weights, divided
// by 2^2. Ranges, divided by a power of two above the largest of the page, are multiplied into
// queries and weights, and codes are taken around their midpoint: a product of the same columns
// with the midpoints alone is taken off. So keys and values begin at minimum + range / 2, whose
// products are made in FP32.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_DECODE_MATRIX_PAGES_GLSL
#define LK_SHADERS_DECODE_MATRIX_PAGES_GLSL

#extension GL_EXT_control_flow_attributes : require

#include "shaders/decode/matrix_f16_tiles.glsl"

const int kLargeExponent = 14;  // of factors of codes, at most
const uint kFoldTasks = (4u * kStrips + LK_LANES - 1u) / LK_LANES;

struct Page {
    Address key_payload;
    Address value_payload;
    Address key_metadata;
    Address value_metadata;
    Address permutation;
    uint first_token;
    bool is_there;
};

void store_page(WorkTile work_tile, uint row_index, uint at) {
    const BlockInfo info = load_block(work_tile.step, work_tile.item.first_block + row_index);
    const Entry entry = load_entry(info.entries, work_tile.layer.first_entry + work_tile.item.kv_head);
    Address permutation = address_add(entry.key_metadata, push.permutation_bytes);
    if (kPermutation == LK_PERMUTATION_OF_FORMAT)
        permutation = load_format(work_tile.step.formats, entry.key_format).permutation;
    shared_addresses[at * kAddressQuads] = uvec4(entry.key_payload, entry.value_payload);
    shared_addresses[at * kAddressQuads + 1u] = uvec4(entry.key_metadata, entry.value_metadata);
    shared_addresses[at * kAddressQuads + 2u] =
        uvec4(permutation, info.first_token, is_row(work_tile, entry) ? 0u : 1u);
}
// The item's packed blocks first and up.
void find_pages(WorkTile work_tile, uint first) {
    barrier();
    for (uint at = gl_LocalInvocationIndex; at < kLookups; at += kThreads) {
        shared_addresses[at * kAddressQuads + 2u] = uvec4(0u);
        if (first + at < work_tile.item.packed_count)
            store_page(work_tile, work_tile.item.packed_begin + first + at, at);
    }
    barrier();
}
// 0 after the last page that was looked up.
Page load_page(uint at) {
    const uint position = min(at, kLookups - 1u) * kAddressQuads;
    const uvec4 payloads = shared_addresses[position];
    const uvec4 metadata = shared_addresses[position + 1u];
    const uvec4 rest = shared_addresses[position + 2u];
    return Page(payloads.xy, payloads.zw, metadata.xy, metadata.zw, rest.xy, rest.z,
                at < kLookups && rest.w != 0u);
}

uint key_bits(uint strip) { return strip < kKeyEnd8 ? 8u : strip < kKeyEnd4 ? 4u : 2u; }

// A lane's vectors of a page come in twos: those of the keys, those of the values, then those of the
// next page. Strips of 2 bits have one, of 4 bits two, of 8 bits four. Two twos are on their way.
const uint kKeyVectors = kStrips + 3u * kKeyEnd8 + (kKeyEnd4 - kKeyEnd8);
const uint kValueVectors = kStrips * (kValueBits / 2u);
const uint kKeyTwos = (kKeyVectors + 1u) / 2u;
const uint kPageTwos = kKeyTwos + (kValueVectors + 1u) / 2u;
struct TwoVectors {
    uvec4 first;
    uvec4 second;
};
TwoVectors coming[2];
uint next_two;  // of the page, to be loaded next

TwoVectors load_two(Page page, uint two) {
    const bool is_key = two < kKeyTwos;
    const Address payload = is_key ? page.key_payload : page.value_payload;
    const uint at = 2u * (is_key ? two : two - kKeyTwos);
    const uint last = (is_key ? kKeyVectors : kValueVectors) - 1u;
    TwoVectors vectors = TwoVectors(uvec4(0u), uvec4(0u));
    if (page.is_there) {
        vectors.first = ConstQuads(payload).at[at * LK_LANES + lane];
        vectors.second = ConstQuads(payload).at[min(at + 1u, last) * LK_LANES + lane];
    }
    return vectors;
}
TwoVectors take_two(Page page, Page next) {
    const TwoVectors taken = coming[0];
    const bool is_next = next_two >= kPageTwos;
    Page from = page;
    if (is_next)
        from = next;
    coming[0] = coming[1];
    coming[1] = load_two(from, is_next ? next_two - kPageTwos : next_two);
    ++next_two;
    return taken;
}

// Ranges and minima of a page, four of each a lane: of keys those of slots 2t, 2t + 1, 2t + 8 and
// 2t + 9 of strip task / 4, t = task % 4, of values those of tokens in the same order.
struct Parameters {
    uvec2 ranges;
    uvec2 minima;
};
struct PageParameters {
    Parameters keys[kFoldTasks];
    uvec2 channels[kFoldTasks];  // words with those of the slots
    Parameters values;
};
PageParameters page_parameters;

Parameters load_page_parameters(Address metadata, uint at, uint minima_bytes) {
    return Parameters(ConstPairs(metadata).at[at],
                   ConstPairs(address_add(metadata, minima_bytes)).at[at]);
}
void load_metadata(Page page) {
    const Parameters none = Parameters(uvec2(0u), uvec2(0u));
    page_parameters.values = none;
    if (page.is_there)
        page_parameters.values =
            load_page_parameters(page.value_metadata, lane, 2u * LK_MAX_PAGE_TOKENS);
    [[unroll]] for (uint i = 0u; i < kFoldTasks; ++i) {
        const uint task = lane + i * LK_LANES;
        page_parameters.keys[i] = none;
        page_parameters.channels[i] = uvec2(0u);
        if (page.is_there && task < 4u * kStrips) {
            page_parameters.keys[i] = load_page_parameters(page.key_metadata, task, 2u * kHeadDim);
            if (kPermutation != LK_PERMUTATION_NONE) {
                const uint at = task / 4u * 4u + task % 4u / 2u;
                page_parameters.channels[i] = uvec2(ConstWords(page.permutation).at[at],
                                                 ConstWords(page.permutation).at[at + 2u]);
            }
        }
    }
}
// The loads that the first page needs first.
void begin_page(Page page) {
    load_metadata(page);
    coming[0] = load_two(page, 0u);
    coming[1] = load_two(page, 1u);
    next_two = 2u;
}

vec4 parameters_of(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
float largest_of(uvec2 words) {
    const vec4 x = parameters_of(words);
    return max(max(x.x, x.y), max(x.z, x.w));
}
int exponent_of_keys() {
    float most = largest_of(page_parameters.keys[0].ranges);
    if (kFoldTasks > 1u)
        most = max(most, largest_of(page_parameters.keys[kFoldTasks - 1u].ranges));
    return exponent_above(team_max(most));
}

float half_factor(uint bits) { return bits < 8u ? 16.0 : 1.0; }  // of k 8 to 15
float tile_factor(uint tile) { return (tile & 1u) != 0u ? 4.0 : 1.0; }
float step_of(uint bits) { return bits == 2u ? 1.0 / 3.0 : bits == 4u ? 1.0 / 15.0 : 1.0 / 255.0; }
// The midpoint of the codes as they are multiplied, of all rows.
Matrix midpoint_matrix(uint bits, float factor) {
    const float midpoint = 0.5 * float((1u << bits) - 1u) * factor;
    const uint low = pack_pair(vec2(midpoint));
    const uint high = pack_pair(vec2(midpoint * half_factor(bits)));
    return matrix_of(uvec4(low, low, high, high));
}

// Registers R0 to R3 of a tile of a strip's vectors.
uvec4 code_registers(uvec4 words[4], uint bits, uint tile) {
    const uint shift = 2u * (tile & 1u);
    const uint mask = ((1u << bits) - 1u) * 0x10001u << shift;
    if (bits == 2u) {
        const uint word = words[0][tile / 2u];
        const uvec2 codes = uvec2(word, word >> 8);
        return uvec4(codes & mask, codes & mask << 4);
    }
    if (bits == 4u) {
        const uint word = words[tile / 4u][tile % 4u];
        const uvec2 codes = uvec2(word << shift, word >> 8u - shift);
        return uvec4(codes & mask, codes & mask << 4);
    }
    const uint word = words[tile / 2u][2u * (tile % 2u)];
    const uint next = words[tile / 2u][2u * (tile % 2u) + 1u];
    return uvec4(word << shift, word >> 8u - shift, next << shift, next >> 8u - shift) & mask;
}

#endif
