/* The project's own model in C, but for its attention: a decoder of bytes in the form of Qwen2.
 * Knows nothing of lowkey.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DEMO_MODEL_H
#define DEMO_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    N_LAYERS = 8,
    N_QUERY_HEADS = 4,
    N_KV_HEADS = 2,
    HEAD_DIM = 128,
    MAX_TOKENS = 1024 /* of one step */
};

/* Attention of one layer over n_tokens new tokens and all before them: q and out
 * [n_tokens][N_QUERY_HEADS][HEAD_DIM], k and v [n_tokens][N_KV_HEADS][HEAD_DIM], q and k turned to
 * their positions. */
typedef void attention_fn(void *user, uint32_t layer, float *q, float *k, float *v, float *out);

/* Read the weights of a safetensors file. NULL, or what is wrong with it. */
const char *model_load(const char *path);

/* Run tokens at positions first, first + 1, ...; the one that most likely follows. */
unsigned char model_run(const unsigned char *tokens, size_t n_tokens, uint64_t first,
                        attention_fn *attention, void *user);

#endif
