/* For tools that other programs run: numbers as text on stdin, results on stdout.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef LK_TESTS_TEXT_TOOL_H
#define LK_TESTS_TEXT_TOOL_H

#include <stdio.h>
#include <stdlib.h>

#include <lowkey/lowkey.h>

static void check(lk_status status) {
    char text[512];
    if (status == LK_OK)
        return;
    lk_last_error(text, sizeof text, NULL);
    fprintf(stderr, "%s: %s\n", lk_status_name(status), text);
    exit(1);
}

static double number(void) {
    double value;
    if (scanf("%lf", &value) != 1) {
        fprintf(stderr, "a number is missing\n");
        exit(1);
    }
    return value;
}

static uint32_t whole(void) { return (uint32_t)number(); }

#endif
