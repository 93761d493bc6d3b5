// Sequences with recurrent states: the host's layers compute a hash of the tokens.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_API_TALK_H
#define LK_TESTS_API_TALK_H

#include "rig.h"

#define TALK_BUDGET (64u << 20)
#define TALK_N_STATES 3u
#define TALK_KEPT 3u
#define TALK_INTERVAL 24u
#define TALK_MAX_TOKENS 2000u
#define TALK_MAX_CHATS 5u
#define TALK_STEP_TOKENS 160u

typedef struct chat {
    lk_sequence id;
    uint32_t n;
    uint32_t tokens[TALK_MAX_TOKENS];
    uint32_t n_versions;  // of earlier steps, by the rule of lk_cache_desc
    uint32_t versions[TALK_KEPT];
} chat;

typedef struct talk {
    rig r;
    chat chats[TALK_MAX_CHATS];
    uint32_t n_chats;
    uint64_t state;  // of the numbers
    uint32_t next_token;
    const uint64_t *bytes;
    uint32_t n_states;
} talk;

// Bytes of the states of talk_open().
extern const uint64_t talk_bytes[TALK_N_STATES];

// A number below n.
uint32_t talk_below(talk *t, uint32_t n);

// A context and a plan; the cache that talk_describe() and talk_make() make of them; all of it.
talk *talk_model(uint64_t seed, const char *preset);
void talk_describe(const talk *t, uint64_t budget, lk_cache_desc *desc);
lk_status talk_make(talk *t, const lk_cache_desc *desc);
talk *talk_open(uint64_t seed, const char *preset);
void talk_close(talk *t);

chat *talk_add(talk *t);
void talk_remove(talk *t, uint32_t index);
// A step of the chats at these indices, with so many new tokens each, which checks all states at
// its begin.
enum { TALK_COMMIT, TALK_KEEP_SOME, TALK_DISCARD };
void talk_step(talk *t, const uint32_t *indices, uint32_t n_chats, const uint32_t *counts, int end);
void talk_step_one(talk *t, uint32_t index, uint32_t n);
// lk_cache_stats.state_bytes.
uint64_t talk_used(const talk *t);

// Tokens of the newest version at or before n_tokens, by the rule of lk_cache_desc.
uint32_t chat_newest(const chat *own, uint32_t n_tokens);
// The chat ends there.
void chat_cut(chat *own, uint32_t n_tokens);

#endif
