/* lowkey: RoPE on samples, for statistics of positions that a text does not reach.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LOWKEY_ROPE_H
#define LOWKEY_ROPE_H

#include <lowkey/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Channels that RoPE rotates together. At position p, pair i is rotated by the angle
 * p * frequency i. */
typedef uint32_t lk_rope_pairing;
enum {
    LK_ROPE_HALVES = 1,     /* channels i and i + channels / 2 (Llama and Qwen in transformers) */
    LK_ROPE_INTERLEAVED = 2 /* channels 2 i and 2 i + 1 (GPT-J, Llama as published) */
};

/* RoPE of a model. Start from lk_rope_init(). */
typedef struct lk_rope {
    uint32_t size;             /* sizeof(lk_rope) */
    lk_rope_pairing pairing;   /* LK_ROPE_HALVES from init */
    uint32_t channels;         /* first channels of a head that are rotated, even; 0, from init:
                                * all of them */
    uint32_t reserved;         /* 0 */
    double base;               /* theta: frequency i is base^(-2 i / channels); 10000 from init */
    const double *frequencies; /* [channels / 2] instead of base, for models that scale their
                                * frequencies; NULL from init. Read during the call. */
} lk_rope;
/* Set the defaults above. Errors: LK_E_ARGUMENT. */
LK_API lk_status lk_rope_init(lk_rope *rope, size_t struct_bytes);

/* PM-KVQ's positional interpolation: token t of a calibration text is at position
 * t * LK_POSITION_SCALE, so that texts of 2048 tokens reach the angles of 8192. */
#define LK_POSITION_SCALE 4

/* Rotate the samples of each token by the angles of its position. Any thread.
 *
 * samples         [n_tokens][n_heads][head_dim] in host memory, of any element type; not rounded
 * first_position  of token 0; token t is at (first_position + t) * position_scale
 * position_scale  finite, above 0; 1 = the model's own positions
 * values          [n_tokens][n_heads][head_dim] written; may be the memory of the samples if they
 *                 are F32 in the same order
 *
 * Errors, nothing is written: LK_E_ARGUMENT (rope, shapes, positions beyond 2^53). */
LK_API lk_status lk_rope_apply(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                               uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                               double position_scale, float *values);

/* Rotate the samples back; arguments and errors as lk_rope_apply(). This call at scale 1, followed
 * by lk_rope_apply() at LK_POSITION_SCALE, moves keys that the model has rotated to the stretched
 * positions. */
LK_API lk_status lk_rope_invert(const lk_rope *rope, const lk_tensor *samples, uint32_t n_tokens,
                                uint32_t n_heads, uint32_t head_dim, uint64_t first_position,
                                double position_scale, float *values);

#ifdef __cplusplus
}
#endif
#endif
