// Every call of the interface on a context or a cache that returns a status, but the one that
// closes. verbs.py compares the list with the headers.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_HOSTILE_VERBS_H
#define LK_TESTS_HOSTILE_VERBS_H

#include <lowkey/lowkey.h>

typedef struct verb {
    const char *name;
    int of_cache;
    lk_status (*call)(lk_context *context, lk_cache *cache, lk_sequence id);
} verb;
extern const verb verbs[];
extern const int n_verbs;

#endif
