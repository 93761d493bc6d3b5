/* Queries, keys and values of one pass of a layer.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef PASS_H
#define PASS_H

#include "stats/stats_test.h"

enum { D = 64, T = 24 };

struct pass {
    float *q, *k, *v;
    lk_tensor queries, keys, values;
};

/* Channel 5 of the keys is `outlier` times as large as the others, that of the queries as much
 * smaller, so that the products are of one size. */
static inline struct pass make_pass(uint32_t n_query_heads, uint32_t n_kv_heads, uint32_t n_tokens,
                                    float outlier, uint32_t seed) {
    struct pass p;
    p.q = random_values((size_t)n_tokens * n_query_heads * D, seed);
    p.k = random_values((size_t)n_tokens * n_kv_heads * D, seed + 100);
    p.v = random_values((size_t)n_tokens * n_kv_heads * D, seed + 200);
    for (uint32_t i = 0; i < n_tokens * n_kv_heads; ++i)
        p.k[i * D + 5] *= outlier;
    for (uint32_t i = 0; i < n_tokens * n_query_heads; ++i)
        p.q[i * D + 5] /= outlier;
    p.queries = host_tensor(LK_F32, p.q, n_query_heads, D);
    p.keys = host_tensor(LK_F32, p.k, n_kv_heads, D);
    p.values = host_tensor(LK_F32, p.v, n_kv_heads, D);
    return p;
}

static inline void free_pass(struct pass *p) {
    free(p->q);
    free(p->k);
    free(p->v);
}

#endif
