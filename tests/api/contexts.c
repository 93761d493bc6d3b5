// SPDX-License-Identifier: Apache-2.0
#include "contexts.h"

context context_make(shape s, uint32_t n_chunks, uint32_t n_after, uint32_t seed) {
    context c = {s, n_chunks, SINKS + n_chunks * s.chunk_tokens + n_after, {0}, {0}};
    chunked_classes(&seed, n_chunks, c.classes);
    for (uint32_t i = 0; i < n_chunks; ++i)
        c.scores[i] = (float)(chunked_random(&seed) % 100);
    return c;
}

lk_status context_assign(rig *r, lk_sequence id, const context *c, int has_scores) {
    return lk_chunks_assign(r->cache, id, c->n_tokens, c->n_chunks, c->classes,
                            has_scores ? c->scores : NULL);
}

lk_sequence context_add(rig *r) {
    lk_sequence id;
    rig_is_ok(lk_sequence_add(r->cache, &id));
    return id;
}

lk_status context_feed(rig *r, lk_sequence id, uint32_t chain, uint32_t from, uint32_t to,
                       uint32_t step) {
    lk_status status = LK_OK;
    for (uint32_t at = from; !status && at < to; at += step)
        status = rig_append_step(r, id, chain, at, to - at < step ? to - at : step);
    return status;
}

void context_touch(rig *r, lk_sequence id) {
    const uint32_t one = 1;
    rig_is_ok(rig_begin(r, 1, &id, &one, NULL));
    rig_is_ok(lk_step_discard(r->cache));
}

void context_same(rig *a, rig *b) {
    const bytes x = snapshot_save(a, NULL), y = snapshot_save(b, NULL);
    snapshot_same(x, y);
    free(x.data);
    free(y.data);
}

void context_open(rig *first, rig *last, shape s, uint32_t reorder, uint32_t recent) {
    rig *const both[] = {first, last};
    for (int i = 0; i < 2; ++i) {
        chunked_open(both[i], rig_default(), 0, s, reorder);
        rig_recent(both[i], s.page_tokens, SINKS, recent);
        rig_is_ok(rig_cache(both[i], 3, 512, CONTEXT_BUDGET));
    }
}
