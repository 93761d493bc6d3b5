/* Limits of the workgroups of decode attention, for the host and the shaders. C++ and GLSL
 * include it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_SHADERS_DECODE_LIMITS_H
#define LK_SHADERS_DECODE_LIMITS_H

#define LK_SPEC_GROUPED 8u   /* 0: all page formats have FP16 numbers and one group in a page */
#define LK_SPEC_KEY_END8 9u  /* of attend_decode_matrix: strips of keys before it have 8 bits */
#define LK_SPEC_KEY_END4 10u /* and those from there up to it 4 */
#define LK_SPEC_VALUE_BITS 11u
#define LK_SPEC_SOFT_CAP 12u    /* 0: scores have no soft-cap */
#define LK_SPEC_PERMUTATION 13u /* of keys: one of these */
#define LK_SPEC_KEY_FOLDS 14u   /* token groups of keys, at most: of forms 1, 4, 8 */
#define LK_MAX_KEY_GROUPS 8u
/* Of a range or a minimum: 2 = FP16, 1 = FP8; without matrices 0 = pages of a layer have either. */
#define LK_SPEC_PARAMETER_BYTES 15u
#define LK_SPEC_SHARED 16u /* 1: keys of the layer may have pairs of shared stored channels */
/* Likewise: slots of keys whose codes have a higher bit of its own query. */
#define LK_SPEC_HIGH_SLOTS 17u
/* Of attend_decode: a bit for each width of codes that a packed page may have, LK_KEYS_OF and
 * LK_VALUES_OF of bits. Code for other widths is left out. */
#define LK_SPEC_WIDTHS 18u
#define LK_KEYS_OF(bits) (1u << (bits))
#define LK_VALUES_OF(bits) (1u << ((bits) + 16u))
/* Of attend_decode_few_forms: LK_FORM_* of all pages of a dispatch. */
#define LK_SPEC_FORM 19u
/* Likewise: 2 where keys are folded and multiplied in two passes of half a page, else 1. */
#define LK_SPEC_PASSES 20u
/* Of attend_decode_matrix: teams that take a page together, each a part of its tokens: 1 or 2. */
#define LK_SPEC_PAGE_PARTS 22u
/* Of attend_decode: teams that share a page, each of which has strips of its own: 1, or all. */
#define LK_SPEC_PAGE_TEAMS 21u
#define LK_SPEC_ROTATION 23u /* LayerInfo.key_rotation */
#define LK_PERMUTATION_NONE 0u
#define LK_PERMUTATION_OF_PAGE 1u
#define LK_PERMUTATION_OF_FORMAT 2u
#define LK_DECODE_ROUNDS 6u      /* KV tiles of a team that are looked up at once */
#define LK_DECODE_MAX_TEAMS 4u   /* of 32 invocations */
#define LK_DECODE_MAX_COLUMNS 8u /* of a work item: a power of two */

#ifdef __cplusplus
#include <cstdint>
namespace lk {
namespace vulkan {

// The arithmetic of products with codes.
enum class DecodeArithmetic { kFloat32, kFloat16, kMatrix };

// Channels of a head. With matrices keys and values have as many.
struct DecodeDims {
    uint32_t keys;
    uint32_t values;
    constexpr uint32_t most() const { return keys > values ? keys : values; }
};

// Do the teams of a workgroup share each page? Then they share its accumulator too.
constexpr bool decode_shares_pages(DecodeDims dims, DecodeArithmetic arithmetic) {
    return dims.most() > 256 && arithmetic != DecodeArithmetic::kMatrix;
}

// Shared memory of a workgroup of decode, a little more than it takes. key_folds: token groups that
// are folded at once, LK_SPEC_KEY_FOLDS / LK_SPEC_PASSES, 0 of plain forms. higher_slots:
// LK_SPEC_HIGH_SLOTS.
constexpr uint32_t decode_shared_bytes(DecodeDims dims, uint32_t columns, uint32_t n_teams,
                                       DecodeArithmetic arithmetic, bool has_subgroups,
                                       uint32_t key_folds, uint32_t higher_slots) {
    const uint32_t pairs = (columns + 1) / 2;
    if (arithmetic == DecodeArithmetic::kMatrix) {
        const uint32_t parameters = 256;
        const uint32_t folded = (key_folds ? key_folds : 1) * (dims.keys + higher_slots) * pairs;
        return n_teams * (dims.keys * pairs * 8 + (folded > parameters ? folded : parameters) * 4 +
                          LK_DECODE_ROUNDS * 32 + columns * 8) +
               dims.keys * pairs * 4 + columns * 40 + 64;
    }
    const bool is_half = arithmetic == DecodeArithmetic::kFloat16;
    const uint32_t quads = is_half ? pairs : columns;
    const uint32_t page_teams = decode_shares_pages(dims, arithmetic) ? n_teams : 1;
    const uint32_t slots = dims.keys > page_teams * 128 ? dims.keys : page_teams * 128;
    const uint32_t folded = slots / 4 * quads * 16;
    const uint32_t ranges = key_folds * dims.keys * 2;
    const uint32_t value_parameters = page_teams * 512;
    const uint32_t page = dims.values * columns * 4 + folded +
                          (ranges > value_parameters ? ranges : value_parameters) +
                          LK_DECODE_ROUNDS * 64 + columns * 8;
    const uint32_t team = (page_teams > 1 ? columns * 512 + 4 : 0) + (has_subgroups ? 0 : 32 * 16);
    return n_teams / page_teams * page + n_teams * team + dims.keys * columns * (is_half ? 2 : 4) +
           columns * 40 + 64;
}

// The columns of a work item that suit `columns` of a KV head: registers decide, and matrices have
// 8 columns.
constexpr uint32_t decode_columns(DecodeDims dims, uint32_t columns, DecodeArithmetic arithmetic) {
    const uint32_t wide = arithmetic == DecodeArithmetic::kMatrix ? 8 : 4;
    const bool is_few = dims.most() > 256 || arithmetic == DecodeArithmetic::kFloat32;
    const uint32_t most = dims.most() <= 128 ? wide : is_few ? 2 : 4;
    uint32_t n = 1;
    while (n < columns && n < most)
        n *= 2;
    return n;
}

// As many as fit into shared_bytes.
constexpr uint32_t decode_threads(DecodeDims dims, uint32_t columns, DecodeArithmetic arithmetic,
                                  bool has_subgroups, uint32_t key_folds, uint32_t higher_slots,
                                  uint32_t shared_bytes) {
    uint32_t n_teams = LK_DECODE_MAX_TEAMS;
    while (n_teams > 1 && decode_shared_bytes(dims, columns, n_teams, arithmetic, has_subgroups,
                                              key_folds, higher_slots) > shared_bytes)
        n_teams /= 2;
    return n_teams * 32;
}

}  // namespace vulkan
}  // namespace lk
#endif

#endif
