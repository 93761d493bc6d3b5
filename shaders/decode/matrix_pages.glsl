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

// Is an entry of the dispatch's form? Where all packed blocks of the items are, nothing is read.
bool is_of_form(WorkTile work_tile, Entry entry) {
    if (push.formats == 0u)
        return true;
#ifdef LK_FORMS
    return (load_format(work_tile.step.formats, entry.key_format).form |
            load_format(work_tile.step.formats, entry.value_format).form << 16) == push.formats;
#else
    return !load_format(work_tile.step.formats, entry.key_format).is_raw;
#endif
}

// Of the item's packed block `index`, BlockInfo; zeros after the last.
uvec4 load_page_block(WorkTile work_tile, uint index) {
    uvec4 block = uvec4(0u);
    if (index < work_tile.item.packed_count)
        block = ConstQuads(work_tile.step.blocks)
                    .at[work_tile.item.first_block + work_tile.item.packed_begin + index];
    return block;
}
Page find_page(WorkTile work_tile, uvec4 block) {
    Page page;
    page.key_payload = page.value_payload = page.key_metadata = page.value_metadata = uvec2(0u);
    page.permutation = uvec2(0u);
    page.first_token = block.z;
    page.is_there = false;
    if (!is_null(block.xy)) {
        const Entry entry =
            load_entry(block.xy, work_tile.layer.first_entry + work_tile.item.kv_head);
        page.key_payload = entry.key_payload;
        page.value_payload = entry.value_payload;
        page.key_metadata = entry.key_metadata;
        page.value_metadata = entry.value_metadata;
        page.permutation = address_add(entry.key_metadata, 2u * key_minima_bytes());
        if (kPermutation == LK_PERMUTATION_OF_FORMAT)
            page.permutation = load_format(work_tile.step.formats, entry.key_format).permutation;
        page.is_there = is_of_form(work_tile, entry);
    }
    return page;
}

uint key_bits(uint strip) { return strip < key_end8() ? 8u : strip < key_end4() ? 4u : 2u; }

// A lane's vectors of a page come in twos: those of the keys, those of the values, then those of the
// next page. Strips of 2 bits have one, of 1 bit half of one, of 4 bits two, of 8 bits four. Two twos
// are on their way.
const uint kValueVectors = kStrips * (kValueBits > 1u ? kValueBits / 2u : 1u);
#ifdef LK_FORMS
uint key_vectors() { return kStrips + 2u * key_end8() + key_end4(); }
// In two passes, keys come in words of half a page, 16 bytes of a lane: strips of 8 bits have two in a pass, of 4 bits
// one, two strips of 2 bits one.
uint pass_vectors() { return key_end8() + key_end4() + (kStrips - key_end4() + 1u) / 2u; }
uint key_twos() { return kPasses == 2u ? pass_vectors() : (key_vectors() + 1u) / 2u; }
// Where strips have one vector, a channel group of an odd number of strips begins with a two of its
// own, whose first vector the two before it had too.
uint group_twos() { return (value_group_strips() + 1u) / 2u; }
bool has_odd_groups() { return kValueBits <= 2u && (value_group_strips() & 1u) != 0u; }
// A group's number is a product with the inverse of its twos.
uint form_value_twos;
float form_group_share;  // of a two, 0 without odd groups
void find_form() {
    form_value_groups = (kStrips + value_group_strips() - 1u) / value_group_strips();
    const uint n_full = kStrips / value_group_strips();
    const uint rest = kStrips - n_full * value_group_strips();
    form_value_twos =
        has_odd_groups() ? n_full * group_twos() + (rest + 1u) / 2u : (kValueVectors + 1u) / 2u;
    form_group_share = has_odd_groups() ? 1.0 / float(group_twos()) : 0.0;
}
uint value_vector(uint two) {
    return 2u * two - uint((float(two) + 0.5) * form_group_share);
}
uint page_twos() { return key_twos() + form_value_twos; }
#else
const uint kKeyVectors = kStrips + 2u * kKeyEnd8 + kKeyEnd4;
const uint kKeyTwos = (kKeyVectors + 1u) / 2u;
const uint kPageTwos = kKeyTwos + (kValueVectors + 1u) / 2u;
uint key_vectors() { return kKeyVectors; }
uint key_twos() { return kKeyTwos; }
uint value_vector(uint two) { return 2u * two; }
uint page_twos() { return kPageTwos; }
#endif
struct TwoVectors {
    uvec4 first;
    uvec4 second;
};
TwoVectors coming[2];
uint next_two;  // of the page, to be loaded next

// A two of the keys or of the values.
TwoVectors load_vectors(bool is_there, Address payload, uint at, uint last, bool is_key) {
    TwoVectors vectors = TwoVectors(uvec4(0u), uvec4(0u));
#ifdef LK_FORMS
    if (kValueBits == 1u && !is_key) {
        if (is_there) {
            vectors.first.xy = ConstPairs(payload).at[at * LK_LANES + lane];
            vectors.second.xy = ConstPairs(payload).at[min(at + 1u, last) * LK_LANES + lane];
        }
        return vectors;
    }
#endif
    if (is_there) {
        vectors.first = ConstQuads(payload).at[at * LK_LANES + lane];
        vectors.second = ConstQuads(payload).at[min(at + 1u, last) * LK_LANES + lane];
    }
    return vectors;
}
#ifdef LK_FORMS
// Vector `at` of both passes over the keys: the words of a pass's tiles.
uvec4 load_pass_vector(bool is_there, Address payload, uint at) {
    uvec4 words = uvec4(0u);
    const uint pass = at >= pass_vectors() ? 1u : 0u;
    const uint of_pass = at - pass * pass_vectors();
    if (is_there) {
        if (of_pass < key_end8() + key_end4()) {
            const uint tiles = of_pass < 2u * key_end8() ? 2u * pass - (of_pass & 1u) : pass;
            words = ConstQuads(payload).at[(2u * of_pass + tiles) * LK_LANES + lane];
        } else {
            const uint second = min(2u * of_pass + 1u, key_vectors() - 1u);
            words.xy = ConstPairs(payload).at[2u * (2u * of_pass * LK_LANES + lane) + pass];
            words.zw = ConstPairs(payload).at[2u * (second * LK_LANES + lane) + pass];
        }
    }
    return words;
}
TwoVectors load_key_two(bool is_there, Address payload, uint two) {
    TwoVectors vectors;
    if (kPasses == 2u) {
        vectors.first = load_pass_vector(is_there, payload, 2u * two);
        vectors.second = load_pass_vector(is_there, payload, 2u * two + 1u);
    } else {
        vectors = load_vectors(is_there, payload, 2u * two, key_vectors() - 1u, true);
    }
    return vectors;
}
TwoVectors load_two(Page page, uint two) {
    TwoVectors vectors;
    if (two < key_twos())
        vectors = load_key_two(page.is_there, page.key_payload, two);
    else
        vectors = load_vectors(page.is_there, page.value_payload, value_vector(two - key_twos()),
                               kValueVectors - 1u, false);
    return vectors;
}
#else
TwoVectors load_two(Page page, uint two) {
    const bool is_key = two < key_twos();
    const Address payload = is_key ? page.key_payload : page.value_payload;
    const uint at = is_key ? 2u * two : value_vector(two - key_twos());
    return load_vectors(page.is_there, payload, at, (is_key ? key_vectors() : kValueVectors) - 1u, is_key);
}
#endif
// Do the two that come after a two of keys belong to the same page, and those after a two of values
// not to its keys?
const bool kHasManyTwos = kStrips >= 8u;

TwoVectors next_taken(TwoVectors loaded) {
    const TwoVectors taken = coming[0];
    coming[0] = coming[1];
    coming[1] = loaded;
    ++next_two;
    return taken;
}
TwoVectors take_any_two(Page page, Page next) {
    const bool is_next = next_two >= page_twos();
    Page from = page;
    if (is_next)
        from = next;
    return next_taken(load_two(from, is_next ? next_two - page_twos() : next_two));
}
TwoVectors take_key_two(Page page, Page next) {
    if (!kHasManyTwos)
        return take_any_two(page, next);
    return next_taken(load_two(page, next_two));
}
#ifdef LK_FORMS
// In two passes: the next words of keys. The four vectors that follow them are on their way.
uint next_vector;  // of the page, to be loaded next
uvec4 load_any_vector(Page page, Page next, uint at) {
    const bool is_next = !kHasManyTwos && at >= 2u * page_twos();
    Page from = page;
    if (is_next)
        from = next;
    const uint of_page = is_next ? at - 2u * page_twos() : at;
    uvec4 words;
    if (of_page < 2u * pass_vectors()) {
        words = load_pass_vector(from.is_there, from.key_payload, of_page);
    } else {
        const TwoVectors two = load_vectors(
            from.is_there, from.value_payload,
            min(value_vector(of_page / 2u - pass_vectors()) + (of_page & 1u), kValueVectors - 1u), 0u, false);
        words = two.first;
    }
    return words;
}
uvec4 take_pass_vector(Page page, Page next) {
    const uvec4 taken = coming[0].first;
    coming[0].first = coming[0].second;
    coming[0].second = coming[1].first;
    coming[1].first = coming[1].second;
    coming[1].second = load_any_vector(page, next, next_vector);
    ++next_vector;
    return taken;
}
#endif
TwoVectors take_value_two(Page page, Page next) {
    if (!kHasManyTwos)
        return take_any_two(page, next);
    const bool is_next = next_two >= page_twos();
    const Address payload = is_next ? next.key_payload : page.value_payload;
    const bool is_there = is_next ? next.is_there : page.is_there;
#ifdef LK_FORMS
    if (kValueBits == 1u || kPasses == 2u) {
        TwoVectors loaded;
        if (is_next)
            loaded = load_key_two(is_there, payload, next_two - page_twos());
        else
            loaded = load_vectors(is_there, payload, value_vector(next_two - key_twos()),
                                  kValueVectors - 1u, false);
        return next_taken(loaded);
    }
#endif
    const uint at =
        is_next ? 2u * (next_two - page_twos()) : value_vector(next_two - key_twos());
    return next_taken(load_vectors(is_there, payload, at,
                                   (is_next ? key_vectors() : kValueVectors) - 1u, true));
}

// Ranges and minima, four of each: of keys those of slots 2t, 2t + 1, 2t + 8 and 2t + 9 of a strip, of
// values those of tokens in the same order. In FP8 the first word has all four.
struct Parameters {
    uvec2 ranges;
    uvec2 minima;
};

float half_factor(uint bits) { return bits < 8u ? 16.0 : 1.0; }  // of k 8 to 15
// Tiles whose codes lie at other bits of their words are larger by this.
float tile_factor(uint bits, uint tile) {
    const float odd = (tile & 1u) != 0u ? 4.0 : 1.0;
#ifdef LK_FORMS
    if (bits == 1u && (tile & 2u) != 0u)
        return 2.0 * odd;
#endif
    return odd;
}
float step_of(uint bits) { return 1.0 / float((1u << bits) - 1u); }

// Registers R0 to R3 of a tile of a strip's vectors.
uvec4 code_registers(uvec4 words[4], uint bits, uint tile) {
    const uint shift = 2u * (tile & 1u);
    const uint mask = ((1u << bits) - 1u) * 0x10001u << shift;
#ifdef LK_FORMS
    if (bits == 1u) {
        const uint bit = mask << (tile >> 1 & 1u);
        const uvec2 codes = uvec2(words[0][tile / 4u], words[0][tile / 4u] >> 8);
        return uvec4(codes & bit, codes & bit << 4);
    }
#endif
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
