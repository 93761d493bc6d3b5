/* Geometry of packed pages: the only place where these numbers are written down. C++, CUDA
 * and GLSL include this file, so it holds #define and comments alone. A changed value is a
 * new format version: see docs/FORMAT.md.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_FORMAT_CONST_H
#define LK_FORMAT_CONST_H

#define LK_FORMAT_VERSION 2u /* that is read: LK_FORMAT_VERSION_OF(head_dim) is written */
#define LK_FORMAT_VERSION_OF(head_dim) ((head_dim) > LK_BYTE_CHANNELS ? 2u : 1u)

#define LK_STRIP_CHANNELS 16u /* channels of a strip: the k (keys) or rows (values) of a tile */
#define LK_TILE_TOKENS 16u    /* tokens of a tile */
#define LK_LANES 32u          /* lanes that hold a tile as mma m16n8k16 A registers */
#define LK_TILE_WORDS 4u      /* 32-bit words of a lane per tile at 16 bits: R0 .. R3 */
#define LK_VECTOR_WORDS 4u    /* words that a lane reads at once */

#define LK_MAX_HEAD_DIM 576u  /* of keys of latent layers */
#define LK_MAX_PLAIN_DIM 512u /* of other keys, and of values */
#define LK_BYTE_CHANNELS 256u /* a permutation of more channels has two bytes for each */
#define LK_MAX_PAGE_TOKENS 128u
#define LK_MAX_RAW_TOKENS 1024u /* of a page that is 16 bits throughout */
#define LK_MIN_GROUP 16u        /* tokens or channels that share a range and a minimum */
#define LK_MAX_RUNS 16u         /* runs of consecutive tokens in a page */

#define LK_EXTENT_BYTES 262144u /* memory that serves one slot size */
#define LK_SLOT_ALIGN 64u       /* slots are multiples of this */
#define LK_ARRAY_ALIGN 16u      /* arrays inside a slot start at multiples of this */

/* Lane and register of an element of a 16 x 16 tile: row and k in 0..15. */
#define LK_TILE_LANE(row, k) ((((row)&7u) << 2) | (((k)&7u) >> 1))
#define LK_TILE_REGISTER(row, k) ((((row) >> 3) & 1u) | ((((k) >> 3) & 1u) << 1))
#define LK_TILE_HALF(k) ((k)&1u)

/* The same backwards: row and even k of lane and register. */
#define LK_TILE_ROW(lane, r) (((lane) >> 2) + (((r)&1u) << 3))
#define LK_TILE_K(lane, r) ((((lane)&3u) << 1) + ((((r) >> 1) & 1u) << 3))

/* The equivalent right shift within words: every field of 2b bits becomes the b-bit code at its
 * lowest bits (docs/FORMAT.md, section 11). w is evaluated twice. */
#define LK_SHRINK_8_TO_4(w)                                         \
    (((((w)&0x00FF00FFu) * 15u + 0x00870087u) >> 8 & 0x000F000Fu) | \
     (((((w) >> 8) & 0x00FF00FFu) * 15u + 0x00870087u) & 0x0F000F00u))
#define LK_SHRINK_4_TO_2(w)                                        \
    (((((w)&0x0F0F0F0Fu) * 3u + 0x09090909u) >> 4 & 0x03030303u) | \
     (((((w) >> 4) & 0x0F0F0F0Fu) * 3u + 0x09090909u) & 0x30303030u))
/* Words 2w and 2w + 1 of a lane make word w of the narrower strip. */
#define LK_MERGE_8_TO_4(even, odd) (LK_SHRINK_8_TO_4(even) | LK_SHRINK_8_TO_4(odd) << 4)
#define LK_MERGE_4_TO_2(even, odd) (LK_SHRINK_4_TO_2(even) | LK_SHRINK_4_TO_2(odd) << 2)

/* Index of element k of 16 in the order in which a lane of a B fragment (or a row of A)
 * reads: 2t, 2t+1, 2t+8, 2t+9 are neighbours for t = 0..3. */
#define LK_K_ORDER(k) (((((k)&7u) >> 1) << 2) | ((k)&1u) | ((((k) >> 3) & 1u) << 1))
/* Index of row i of 16 in the order of a C fragment: i and i+8 are neighbours. */
#define LK_ROW_ORDER(i) ((((i)&7u) << 1) | (((i) >> 3) & 1u))

/* Not of the format: flags of arithmetic on sums, which host and device share (StatItem of
 * src/backend/backend.h). */
#define LK_STAT_REPLACES 1u
#define LK_STAT_CLEARS 2u
#define LK_STAT_FOLLOWS 4u

#endif
