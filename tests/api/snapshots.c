// SPDX-License-Identifier: Apache-2.0
#include "snapshots.h"

#include "fuzz/restamp.h"

#define STEP 3

bytes snapshot_save(rig *r, const lk_snapshot_desc *desc) {
    bytes out = {NULL, 0};
    assert_int_equal(lk_snapshot_save_memory(r->cache, 0, NULL, desc, NULL, 0, &out.n), LK_OK);
    out.data = malloc(out.n);
    assert_non_null(out.data);
    assert_int_equal(lk_snapshot_save_memory(r->cache, 0, NULL, desc, out.data, out.n, &out.n),
                     LK_OK);
    return out;
}

void snapshot_same(bytes a, bytes b) {
    assert_true(a.n == b.n);
    for (uint64_t i = 0; i < a.n; ++i)
        if (a.data[i] != b.data[i])
            fail_msg("byte %llu of %llu is %u, not %u", (unsigned long long)i,
                     (unsigned long long)a.n, a.data[i], b.data[i]);
}

void snapshot_same_stats(const lk_cache_stats *a, const lk_cache_stats *b) {
    assert_int_equal(a->n_sequences, b->n_sequences);
    assert_true(a->n_tokens == b->n_tokens && a->payload_bytes == b->payload_bytes &&
                a->metadata_bytes == b->metadata_bytes && a->recent_bytes == b->recent_bytes &&
                a->table_bytes == b->table_bytes && a->reserved_bytes == b->reserved_bytes);
}

void snapshot_small_open(rig *r, const char *preset, uint32_t n_threads) {
    memset(r, 0, sizeof *r);
    rig_geometry(r, 1, 2, 1, 32);
    lk_context_desc desc;
    rig_context_desc(r, &desc);
    desc.n_threads = n_threads;
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &r->context), LK_OK);
    rig_preset(r, preset);
}

void snapshot_small_make(rig *r) { assert_int_equal(rig_cache(r, 3, 128, 8u << 20), LK_OK); }

bytes snapshot_small_take(rig *r, const lk_sequence *ids, uint32_t n) {
    const bytes saved = snapshot_save(r, NULL);
    for (uint32_t s = 0; s < n; ++s)
        assert_int_equal(lk_sequence_remove(r->cache, ids[s]), LK_OK);
    return saved;
}

static float *answers(rig *r, const lk_sequence *ids, uint32_t n) {
    float *out = calloc((size_t)n * STEP * rig_width(r), sizeof *out);
    assert_non_null(out);
    for (uint32_t s = 0; s < n; ++s) {
        const rig_token tokens[STEP] = {{s, 5000}, {s, 5001}, {s, 5002}};
        const uint32_t n_tokens = STEP;
        assert_int_equal(rig_begin(r, 1, &ids[s], &n_tokens, NULL), LK_OK);
        assert_int_equal(rig_layers(r, tokens, STEP, out + (size_t)s * STEP * rig_width(r)), LK_OK);
        assert_int_equal(lk_step_discard(r->cache), LK_OK);
    }
    return out;
}

float snapshot_distance(rig *a, const lk_sequence *of_a, rig *b, const lk_sequence *of_b,
                        uint32_t n) {
    float *x = answers(a, of_a, n);
    float *y = answers(b, of_b, n);
    const float distance = rig_distance(x, y, (size_t)n * STEP * rig_width(a));
    free(x);
    free(y);
    return distance;
}

// Classes for all that may still have some, and deferral.
static void use_chunks(rig *r, lk_sequence id) {
    lk_chunk_class classes[64];
    lk_chunks_info info;
    uint64_t length = 0;
    assert_int_equal(lk_chunks_info_init(&info, sizeof info), LK_OK);
    if (lk_chunks_get(r->cache, id, &info, 0, NULL, NULL, NULL) == LK_E_UNSUPPORTED)
        return;
    assert_int_equal(lk_sequence_length(r->cache, id, &length), LK_OK);
    const uint64_t n =
        length > info.first_token ? (length - info.first_token) / info.chunk_tokens : 0;
    assert_true(n <= 64);
    for (uint64_t c = 0; c < n; ++c)
        classes[c] = LK_CHUNK_LOW + (uint32_t)c % 3;
    const lk_status status = lk_chunks_assign(r->cache, id, length, (uint32_t)n, classes, NULL);
    assert_true(status == LK_OK || status == LK_E_STATE);
    assert_int_equal(lk_sequence_defer(r->cache, id, LK_DEFER_PACK), LK_OK);
    assert_int_equal(lk_chunks_get(r->cache, id, NULL, 64, classes, classes, NULL), LK_OK);
}

lk_status snapshot_try(rig *r, const uint8_t *data, size_t n) {
    uint8_t *exact = malloc(n ? n : 1);
    assert_non_null(exact);
    memcpy(exact, data, n);
    lk_sequence ids[N_SEQUENCES];
    uint32_t n_loaded = 0;
    const lk_status status =
        lk_snapshot_load_memory(r->cache, NULL, exact, n, N_SEQUENCES, ids, &n_loaded);
    lk_snapshot *snapshot = NULL;
    const lk_status opened = lk_snapshot_open_memory(exact, n, &snapshot);
    assert_true((opened == LK_OK) == (snapshot != NULL));
    lk_snapshot_close(&snapshot);
    free(exact);
    if (status) {
        assert_true(status == LK_E_CORRUPT || status == LK_E_MISMATCH || status == LK_E_ARGUMENT);
        assert_int_equal(rig_stats(r).n_sequences, 0);
        return status;
    }
    for (uint32_t s = 0; s < n_loaded; ++s) {
        uint64_t length = 0;
        assert_int_equal(lk_sequence_length(r->cache, ids[s], &length), LK_OK);
        assert_int_equal(rig_step(r, ids[s], s, 9000, 20, NULL), LK_OK);
        use_chunks(r, ids[s]);
        assert_int_equal(lk_sequence_truncate(r->cache, ids[s], length / 2), LK_OK);
        assert_int_equal(rig_step(r, ids[s], s, 9000, 40, NULL), LK_OK);
    }
    const bytes again = snapshot_save(r, NULL);
    free(again.data);
    for (uint32_t s = 0; s < n_loaded; ++s)
        assert_int_equal(lk_sequence_remove(r->cache, ids[s]), LK_OK);
    return LK_OK;
}

void snapshot_cut_everywhere(rig *r, bytes saved) {
    assert_int_equal(snapshot_try(r, saved.data, saved.n), LK_OK);
    uint8_t *copy = malloc(saved.n + 1);
    assert_non_null(copy);
    for (uint64_t n = 0; n < saved.n; ++n) {
        assert_int_equal(snapshot_try(r, saved.data, n), LK_E_CORRUPT);
        memcpy(copy, saved.data, n);
        snapshot_restamp(copy, n);
        assert_int_equal(snapshot_try(r, copy, n), LK_E_CORRUPT);
    }
    memcpy(copy, saved.data, saved.n);
    copy[saved.n] = 0;
    assert_int_equal(snapshot_try(r, copy, saved.n + 1), LK_E_CORRUPT);
    free(copy);
}

// Bytes of the frame: all but the pages, of which the first ones are enough.
static int is_frame(const uint8_t *data, uint64_t n, uint64_t i) {
    if (i < RESTAMP_HEADER)
        return 1;
    size_t at = RESTAMP_HEADER;
    for (size_t next; (next = snapshot_next_chunk(data, at, n)) <= i; at = next) {}
    const uint64_t within = i - at;
    return within < RESTAMP_CHUNK || memcmp(data + at, "ROWS", 4) != 0 ||
           within < RESTAMP_CHUNK + 40 + 16 + 4;
}

int snapshot_flip_frame(rig *r, bytes saved) {
    uint8_t *copy = malloc(saved.n);
    assert_non_null(copy);
    int n_accepted = 0;
    for (uint64_t i = 0; i < saved.n; ++i) {
        if (!is_frame(saved.data, saved.n, i))
            continue;
        for (int variant = 0; variant < 3; ++variant) {
            memcpy(copy, saved.data, saved.n);
            copy[i] = (uint8_t)(copy[i] ^ (variant == 2 ? 0xff : 1u << (variant ? 7 : i % 7)));
            assert_int_not_equal(snapshot_try(r, copy, saved.n), LK_OK);
            snapshot_restamp(copy, saved.n);
            n_accepted += snapshot_try(r, copy, saved.n) == LK_OK;
        }
    }
    free(copy);
    return n_accepted;
}
