// Hashes of a damaged snapshot made to fit again, so that its contents are reached. Written from
// docs/FORMAT.md, section 16.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_FUZZ_RESTAMP_H
#define LK_TESTS_FUZZ_RESTAMP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { RESTAMP_HEADER = 128, RESTAMP_CHUNK = 32 };

// The header says n_bytes as the whole; every chunk as far as it is there fits its hash, the plan
// the header's, and the header its own.
void snapshot_restamp(uint8_t *bytes, size_t n_bytes);

// The header fits its own hash, whatever it says.
void snapshot_seal_header(uint8_t *bytes);

// Where the chunk behind this one is, at most n_bytes. The first is at RESTAMP_HEADER.
size_t snapshot_next_chunk(const uint8_t *bytes, size_t at, size_t n_bytes);

#ifdef __cplusplus
}
#endif

#endif
