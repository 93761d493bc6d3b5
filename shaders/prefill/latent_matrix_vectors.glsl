// Attention over latents by a tensor core: pages whose strips have whole vectors of words for a lane.
// Their codes become numbers by FP16 arithmetic.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_SHADERS_PREFILL_LATENT_MATRIX_VECTORS_GLSL
#define LK_SHADERS_PREFILL_LATENT_MATRIX_VECTORS_GLSL

#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

#include "shaders/prefill/latent_keys.glsl"

shared uint shared_channels[kHeadDim / 2u];  // of pairs of slots, in 16 bits each

// They are there after the next barrier.
void find_channels(Address permutation) {
    for (uint i = gl_LocalInvocationIndex; i < kHeadDim / 2u; i += kThreads)
        shared_channels[i] = slot_channel(permutation, 2u * i) |
                             slot_channel(permutation, 2u * i + 1u) << 16;
}

uvec4 lane_channels(Side keys, uint first) {
    const uvec2 pairs = uvec2(shared_channels[first / 2u], shared_channels[first / 2u + 4u]);
    return uvec4(pairs.x & 0xFFFFu, pairs.x >> 16, pairs.y & 0xFFFFu, pairs.y >> 16);
}

// Of the invocation's rounds, one strip each; what is loaded for a strip that is not there is not used.
const uint kMostRounds = LK_MAX_HEAD_DIM / LK_STRIP_CHANNELS / LK_LATENT_TEAMS + 1u;
uvec4 stage_vectors[kStageTiles * kMostRounds];
// FP16: ranges .xy, minima .zw. By channel those of the first two registers and of the last two; by
// row those of the lower row, then of the higher one, twice each.
uvec4 round_parameters[kMostRounds];
uint parameters_entry;  // tile_entry() of these
bool page_has_vectors;

uint strip_of_round(uint round) {
    return min(lane_of_round(0u, round).strip, kStrips - 1u);
}

// Tokens of a tile of the stage that exist.
uint tile_tokens(Stage stage, uint tile) {
    return max(stage.n_tokens, LK_TILE_TOKENS * tile) - LK_TILE_TOKENS * tile;
}

// Chunks of staged tokens, 3 bits, shared slots and narrow strips of short pages have none.
bool has_vectors(Side keys) {
    const FormatInfo c = keys.info;
    bool has = !keys.is_staged && c.n_shared == 0u;
    [[unroll]] for (uint plane = 0u; plane < LK_PLANE_COUNT; ++plane) {
        const uint bits = plane_bits(plane);
        const bool is_whole = bits != 3u && lane_words(c.page_tokens, bits) >= LK_VECTOR_WORDS;
        has = has && (is_whole || c.strips[plane] == 0u);
    }
    return has;
}

// Up to 8 bits a vector has the codes of two tiles or more.
void load_vectors(Side keys, uint first_tile) {
    [[unroll]] for (uint i = 0u; i < kStageTiles * kMostRounds; ++i) {
        const StripPosition position = shared_strips[0][strip_of_round(i % kMostRounds)];
        const uint vector = (first_tile + i / kMostRounds) * position.bits / (4u * LK_VECTOR_WORDS);
        stage_vectors[i] = ConstQuads(address_add(keys.payload, position.offset))
                               .at[vector * LK_LANES + gl_LocalInvocationIndex % LK_LANES];
    }
}

uint scale_f8s(uint pair) {
    return packFloat2x16(unpackFloat2x16(pair) * float16_t(kF8Scale));
}
uvec2 half_parameters(Address array, uint parameter_bytes, uint index, bool by_row) {
    uvec2 words = load_parameter_words(array, parameter_bytes, index, by_row);
    if (parameter_bytes == 1u) {
        const uvec2 pairs = f8_quad_bits(words.x >> 8u * (index % 4u));
        words = uvec2(scale_f8s(pairs.x), scale_f8s(pairs.y));
    }
    return by_row ? uvec2(words.x & 0xFFFFu | words.x << 16, words.x >> 16 | words.x & 0xFFFF0000u)
                  : words;
}

// Of the groups that a tile is in.
void load_parameters(Side keys, uint tile) {
    const FormatInfo c = keys.info;
    const bool by_row = scales_by_row(c);
    const uint first =
        tile_entry(c, tile) + lane_entry(by_row, gl_LocalInvocationIndex % LK_LANES);
    const Address minima = address_add(keys.metadata, c.minima_offset);
    [[unroll]] for (uint round = 0u; round < kMostRounds; ++round) {
        const uint index = shared_strips[0][strip_of_round(round)].first_entry + first;
        round_parameters[round] =
            uvec4(half_parameters(keys.metadata, c.parameter_bytes, index, by_row),
                  half_parameters(minima, c.parameter_bytes, index, by_row));
    }
}

// A vector's codes of a tile, in the low bits of each 16 bits of a register.
uvec4 vector_codes(uvec4 vector, uint bits, uint tile) {
    if (bits == 8u)
        return codes_of((tile & 1u) != 0u ? vector.zw : vector.xy, 8u, tile);
    const uint i = tile * bits / 4u;
    const uvec2 two = (i & 2u) != 0u ? vector.zw : vector.xy;
    return codes_of(uvec2((i & 1u) != 0u ? two.y : two.x, 0u), bits, tile);
}

// Two codes, which OR'd into 1024 are added to it.
uint scale_pair(uint codes, float16_t code_step, uint range, uint minimum) {
    const f16vec2 share = (unpackFloat2x16(codes | 0x64006400u) - float16_t(1024.0)) * code_step;
    const float16_t largest = float16_t(kLargestHalf);
    return packFloat2x16(clamp(fma(share, unpackFloat2x16(range), unpackFloat2x16(minimum)),
                               -largest, largest));
}
uvec4 scale_vector(bool by_row, uint bits, uvec4 codes, uvec4 parameters) {
    const float16_t code_step = float16_t(code_step(bits));
    const uvec4 ordered = by_row ? codes.xzyw : codes;
    const uvec4 numbers = uvec4(scale_pair(ordered.x, code_step, parameters.x, parameters.z),
                                scale_pair(ordered.y, code_step, parameters.x, parameters.z),
                                scale_pair(ordered.z, code_step, parameters.y, parameters.w),
                                scale_pair(ordered.w, code_step, parameters.y, parameters.w));
    return by_row ? numbers.xzyw : numbers;
}

void store_round(Side keys, TileLane at, uint n_tokens, bool permutes, uvec4 vector,
                 uvec4 parameters) {
    if (at.strip >= kStrips)
        return;
    const uint bits = shared_strips[0][at.strip].bits;
    uvec4 registers = vector;
    if (bits != 16u)
        registers = scale_vector(scales_by_row(keys.info), bits, vector_codes(vector, bits, at.tile),
                                 parameters);
    store_channels(keys, permutes, at,
                   pair_tokens(registers) & existing_halves(at.lane, n_tokens));
}

// Of a stage's first tile, of which n_tokens exist.
void store_vectors(Side keys, uint tile, uint n_tokens) {
    if (!keys.info.is_raw && tile_entry(keys.info, tile) != parameters_entry) {
        parameters_entry = tile_entry(keys.info, tile);
        load_parameters(keys, tile);
    }
    const bool permutes = !is_null(permutation_of(keys));
    [[unroll]] for (uint round = 0u; round < kMostRounds; ++round)
        store_round(keys, lane_of_round(tile, round), n_tokens, permutes, stage_vectors[round],
                    round_parameters[round]);
}

// The next tile's vectors become those of the first one: what an index chooses would lie in local
// memory.
void store_stage_vectors(Side keys, Stage stage) {
    load_vectors(keys, stage.first_tile);
    [[dont_unroll]] for (uint tile = 0u; tile < kStageTiles; ++tile) {
        tile_place = tile * kTilePairs;
        store_vectors(keys, stage.first_tile + tile, tile_tokens(stage, tile));
        [[unroll]] for (uint i = kMostRounds; i < kStageTiles * kMostRounds; ++i)
            stage_vectors[i - kMostRounds] = stage_vectors[i];
    }
}

#endif
