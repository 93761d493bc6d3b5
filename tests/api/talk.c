// SPDX-License-Identifier: Apache-2.0
#include "talk.h"

const uint64_t talk_bytes[TALK_N_STATES] = {16, 4112, 272};

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

uint32_t talk_below(talk *t, uint32_t n) {
    t->state = t->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(t->state >> 33) % n;
}

// A state after n tokens, zeros after none.
static void fill_state(const talk *t, const uint32_t *tokens, uint32_t n, uint32_t state,
                       uint64_t *out) {
    uint64_t hash = state + 1;
    for (uint32_t i = 0; i < n; ++i)
        hash = mix(hash + tokens[i] + 0x9E3779B97F4A7C15u);
    for (uint64_t w = 0; w < t->bytes[state] / 8; ++w)
        out[w] = n ? mix(hash + w) : 0;
}

void talk_describe(const talk *t, uint64_t budget, lk_cache_desc *desc) {
    rig_is_ok(lk_cache_desc_init(desc, sizeof *desc));
    desc->max_sequences = TALK_MAX_CHATS;
    desc->max_step_tokens = TALK_STEP_TOKENS;
    desc->budget_bytes = budget;
    desc->slab_bytes = 1u << 20;
    desc->state_bytes = t->bytes;
    desc->n_states = t->n_states;
    desc->state_versions = TALK_KEPT;
    desc->state_interval_tokens = TALK_INTERVAL;
}

lk_status talk_make(talk *t, const lk_cache_desc *desc) {
    t->r.max_step_tokens = desc->max_step_tokens;
    return lk_cache_create(t->r.context, &t->r.geometry, t->r.plan, desc, &t->r.cache);
}

talk *talk_model(uint64_t seed, const char *preset) {
    talk *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->state = seed;
    t->bytes = talk_bytes;
    t->n_states = TALK_N_STATES;
    rig_geometry(&t->r, 1, 2, 1, 32);
    rig_open(&t->r);
    rig_preset(&t->r, preset);
    rig_recent(&t->r, 32, 16, 32);
    return t;
}

talk *talk_open(uint64_t seed, const char *preset) {
    talk *t = talk_model(seed, preset);
    lk_cache_desc desc;
    talk_describe(t, TALK_BUDGET, &desc);
    rig_is_ok(talk_make(t, &desc));
    return t;
}

void talk_close(talk *t) {
    rig_close(&t->r);
    free(t);
}

chat *talk_add(talk *t) {
    chat *own = &t->chats[t->n_chats++];
    memset(own, 0, sizeof *own);
    rig_is_ok(lk_sequence_add(t->r.cache, &own->id));
    return own;
}

void talk_remove(talk *t, uint32_t index) {
    rig_is_ok(lk_sequence_remove(t->r.cache, t->chats[index].id));
    t->chats[index] = t->chats[--t->n_chats];
}

// All states of the sequence at an index of the step are those after the chat's first n tokens.
static void check_states(talk *t, const chat *own, uint32_t index, uint32_t n, const char *what) {
    for (uint32_t s = 0; s < t->n_states; ++s) {
        const uint64_t n_bytes = t->bytes[s];
        uint64_t *wanted = malloc(n_bytes);
        uint64_t *got = malloc(n_bytes);
        assert_true(wanted && got);
        fill_state(t, own->tokens, n, s, wanted);
        rig_is_ok(lk_step_read_state(t->r.cache, index, s, got, n_bytes));
        if (memcmp(wanted, got, n_bytes))
            fail_msg("%s: state %u of %u tokens is another", what, s, n);
        free(wanted);
        free(got);
    }
}

static void write_states(talk *t, const chat *own, uint32_t index, uint32_t n) {
    for (uint32_t s = 0; s < t->n_states; ++s) {
        uint64_t *made = malloc(t->bytes[s]);
        assert_non_null(made);
        fill_state(t, own->tokens, n, s, made);
        rig_is_ok(lk_step_write_state(t->r.cache, index, s, made, t->bytes[s]));
        free(made);
    }
}

// The rule of state_versions and state_interval_tokens, once more.
static void grow(chat *own, uint32_t n_kept) {
    const uint32_t before = own->n_versions ? own->versions[own->n_versions - 1] : 0;
    if (own->n && own->n - before >= TALK_INTERVAL) {
        if (own->n_versions == TALK_KEPT) {
            memmove(own->versions, own->versions + 1, (TALK_KEPT - 1) * sizeof *own->versions);
            --own->n_versions;
        }
        own->versions[own->n_versions++] = own->n;
    }
    own->n += n_kept;
}

uint32_t chat_newest(const chat *own, uint32_t n_tokens) {
    if (n_tokens == own->n)
        return n_tokens;
    uint32_t found = 0;
    for (uint32_t v = 0; v < own->n_versions; ++v)
        found = own->versions[v] <= n_tokens ? own->versions[v] : found;
    return found;
}

void chat_cut(chat *own, uint32_t n_tokens) {
    own->n = n_tokens;
    while (own->n_versions && own->versions[own->n_versions - 1] >= n_tokens)
        --own->n_versions;
}

// A step of the chats at these indices, with so many new tokens each.
void talk_step(talk *t, const uint32_t *indices, uint32_t n_chats, const uint32_t *counts,
               int end) {
    lk_sequence ids[TALK_MAX_CHATS] = {0};
    uint32_t keep[TALK_MAX_CHATS] = {0};
    rig_token tokens[TALK_STEP_TOKENS];
    uint32_t n = 0;
    for (uint32_t i = 0; i < n_chats; ++i) {
        chat *own = &t->chats[indices[i]];
        ids[i] = own->id;
        for (uint32_t k = 0; k < counts[i]; ++k, ++n) {
            own->tokens[own->n + k] = t->next_token++;
            tokens[n] = (rig_token){indices[i], own->n + k};
        }
        keep[i] = end == TALK_KEEP_SOME && counts[i] <= LK_DRAFT_TOKENS
                      ? talk_below(t, counts[i] + 1)
                      : counts[i];
    }
    rig_is_ok(rig_begin(&t->r, n_chats, ids, counts, NULL));
    for (uint32_t i = 0; i < n_chats; ++i)
        check_states(t, &t->chats[indices[i]], i, t->chats[indices[i]].n, "at a begin");
    rig_is_ok(rig_layers(&t->r, tokens, n, NULL));
    for (uint32_t i = 0; i < n_chats; ++i)
        write_states(t, &t->chats[indices[i]], i, t->chats[indices[i]].n + keep[i]);
    if (end == TALK_DISCARD) {
        rig_is_ok(lk_step_discard(t->r.cache));
        return;
    }
    rig_is_ok(lk_step_commit(t->r.cache, end == TALK_KEEP_SOME ? keep : NULL));
    for (uint32_t i = 0; i < n_chats; ++i)
        if (keep[i])
            grow(&t->chats[indices[i]], keep[i]);
}

void talk_step_one(talk *t, uint32_t index, uint32_t n) {
    talk_step(t, &index, 1, &n, TALK_COMMIT);
}

uint64_t talk_used(const talk *t) { return rig_stats(&t->r).state_bytes; }
