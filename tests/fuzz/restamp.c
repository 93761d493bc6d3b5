// SPDX-License-Identifier: Apache-2.0
#include "restamp.h"

#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

static uint64_t body_bytes(const uint8_t *bytes, size_t at, size_t n_bytes) {
    uint64_t stated;
    memcpy(&stated, bytes + at + 16, sizeof stated);
    const uint64_t left = n_bytes - at - RESTAMP_CHUNK;
    return stated < left ? stated : left;
}

size_t snapshot_next_chunk(const uint8_t *bytes, size_t at, size_t n_bytes) {
    if (at + RESTAMP_CHUNK > n_bytes)
        return n_bytes;
    return at + RESTAMP_CHUNK + (size_t)body_bytes(bytes, at, n_bytes);
}

static void stamp(uint8_t *to, const uint8_t *body, uint64_t n) {
    const uint64_t hash = XXH3_64bits(body, n);
    memcpy(to, &hash, sizeof hash);
}

void snapshot_seal_header(uint8_t *bytes) {
    memset(bytes + 120, 0, 8);
    stamp(bytes + 120, bytes, RESTAMP_HEADER);
}

void snapshot_restamp(uint8_t *bytes, size_t n_bytes) {
    if (n_bytes < RESTAMP_HEADER)
        return;
    for (size_t at = RESTAMP_HEADER; at + RESTAMP_CHUNK <= n_bytes;
         at = snapshot_next_chunk(bytes, at, n_bytes)) {
        const uint8_t *body = bytes + at + RESTAMP_CHUNK;
        const uint64_t n = body_bytes(bytes, at, n_bytes);
        stamp(bytes + at + 24, body, n);
        if (!memcmp(bytes + at, "PLAN", 4))
            stamp(bytes + 24, body, n);
    }
    const uint64_t whole = n_bytes;
    memcpy(bytes + 8, &whole, sizeof whole);
    snapshot_seal_header(bytes);
}
