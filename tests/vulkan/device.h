// The device of the Vulkan suites: one that the test program owns and hands to lowkey. The
// validation layer checks all that is done on it; its first message ends the program.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_VULKAN_DEVICE_H
#define LK_TESTS_VULKAN_DEVICE_H

#include "vulkan/host.h"

#ifdef __cplusplus
extern "C" {
#endif

// Opened once: the first device, or number LOWKEY_VULKAN_DEVICE of the environment. Ends the
// program as skipped, with the reason, when there is none.
vulkan_host *test_device(void);
// Ends the program when a call failed.
void test_check(vulkan_failure failure);
// The validation layer's messages: prints it and ends the program.
void test_message(const char *message);

// Takes features away from every context that test_describe() describes from now on. names:
// "no-float16", "no-subgroup", "no-integer-dot", "no-cooperative-matrix", "no-timeline" with commas
// between them, or NULL for none.
void test_mask(const char *names);

// A description of a context on the device: `vulkan` is filled in and hangs on `desc`. The
// queue's lock is the program's one.
void test_describe(lk_context_desc *desc, lk_vulkan_desc *vulkan);
// Waits for all work on the queue; memory that it wrote can be read.
void test_wait(void);

#ifdef __cplusplus
}
#endif
#endif
