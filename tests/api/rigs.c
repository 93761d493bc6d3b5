// SPDX-License-Identifier: Apache-2.0
#include "rigs.h"

void rigs_step(const rigs *all, const lk_sequence *ids, uint32_t n_sequences, uint32_t place,
               uint32_t n, const int32_t *parent, int32_t keep) {
    uint32_t counts[RIGS_SEQUENCES], kept[RIGS_SEQUENCES];
    assert_in_range(n_sequences, 1, RIGS_SEQUENCES);
    rig_token *tokens = calloc((size_t)n_sequences * n, sizeof *tokens);
    assert_non_null(tokens);
    for (uint32_t s = 0; s < n_sequences; ++s) {
        counts[s] = n;
        kept[s] = (uint32_t)keep;
        for (uint32_t t = 0; t < n; ++t)
            tokens[s * n + t] = (rig_token){s, place + t};
    }
    for (uint32_t i = 0; i < all->n; ++i) {
        rig *r = &all->rigs[i];
        rig_is_ok(rig_begin(r, n_sequences, ids, counts, parent));
        rig_is_ok(all->layers(r, tokens, n_sequences * n, all->out[i]));
        rig_is_ok(keep < 0 ? lk_step_discard(r->cache) : lk_step_commit(r->cache, kept));
    }
    free(tokens);
}

uint32_t rigs_keep_path(const rigs *all, lk_sequence id, uint32_t place) {
    static const int32_t tree[9] = {-1, 0, 1, 2, 2, 3, 0, -1, 7};
    static const uint32_t path[4] = {0, 1, 2, 4};
    rig_token tokens[9];
    const uint32_t n = 9, n_kept = 4;
    for (uint32_t t = 0; t < n; ++t)
        tokens[t] = (rig_token){0, place + t};
    for (uint32_t i = 0; i < all->n; ++i) {
        rig *r = &all->rigs[i];
        rig_is_ok(rig_begin(r, 1, &id, &n, tree));
        rig_is_ok(all->layers(r, tokens, n, all->out[i]));
        rig_is_ok(lk_step_commit_tokens(r->cache, &n_kept, path));
    }
    return n;
}
