// Work in a process that fork() makes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_HOSTILE_CHILD_H
#define LK_TESTS_HOSTILE_CHILD_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <lowkey/lowkey.h>

#define CHILD_SECONDS 60

// In a child process, where cmocka has no say: state what does not hold and end with status 1.
#define REQUIRE(condition)                                                                 \
    do {                                                                                   \
        if (!(condition)) {                                                                \
            char sentence[512];                                                            \
            lk_last_error(sentence, sizeof sentence, NULL);                                \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, sentence); \
            _exit(1);                                                                      \
        }                                                                                  \
    } while (0)

// Run work(user) in a child process. Its wait status: 0 when work returned in time.
static inline int in_child(void (*work)(void *), void *user) {
    fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        alarm(CHILD_SECONDS);
        work(user);
        _exit(0);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child ? status : -1;
}

#endif
