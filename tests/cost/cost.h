/* What a call costs: the most bytes that the process held from malloc() at once, above those before
 * it, and the time of its thread. Under a sanitizer bytes come from the sanitizer's hooks, and time
 * is that of instrumented code.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_TESTS_COST_COST_H
#define LK_TESTS_COST_COST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cost {
    uint64_t bytes;
    uint64_t ns;
};

void cost_begin(void);
struct cost cost_end(void);
/* Ends what cost_begin() began, and aborts with a sentence if it took more than 64 bytes and 1 us
 * for each of n_bytes, 1 MiB + free_bytes, and 10 ms + free_ns. */
void cost_expect(const char *what, uint64_t n_bytes, uint64_t free_bytes, uint64_t free_ns);
/* Times to multiply a bound of time with: 1, or more where code is instrumented. */
uint64_t cost_slowness(void);

#ifdef __cplusplus
}
#endif

#endif
