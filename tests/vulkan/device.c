// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include "shared_pipelines.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SKIPPED 77  // of Meson

static const struct {
    const char *name;
    uint32_t bit;
} kMasks[] = {{"no-float16", LK_VULKAN_NO_FLOAT16},
              {"no-subgroup", LK_VULKAN_NO_SUBGROUP},
              {"no-integer-dot", LK_VULKAN_NO_INTEGER_DOT},
              {"no-cooperative-matrix", LK_VULKAN_NO_COOPERATIVE_MATRIX},
              {"no-timeline", LK_VULKAN_NO_TIMELINE}};

static vulkan_host g_host;
static uint32_t g_mask;
static pthread_mutex_t g_queue = PTHREAD_MUTEX_INITIALIZER;

static void lock_queue(void *user) { pthread_mutex_lock(user); }
static void unlock_queue(void *user) { pthread_mutex_unlock(user); }

void test_message(const char *message) {
    fprintf(stderr, "the validation layer: %s\n", message);
    _Exit(1);
}

void test_check(vulkan_failure failure) {
    if (!failure)
        return;
    fprintf(stderr, "Vulkan: %s\n", failure);
    exit(1);
}

void test_mask(const char *names) {
    while (names && *names) {
        const size_t length = strcspn(names, ",");
        size_t i = 0;
        while (i < sizeof kMasks / sizeof *kMasks &&
               (strlen(kMasks[i].name) != length || strncmp(kMasks[i].name, names, length) != 0))
            ++i;
        if (i == sizeof kMasks / sizeof *kMasks)
            test_check("--mask has a name of no feature");
        g_mask |= kMasks[i].bit;
        names += length + (names[length] == ',');
    }
}

// Leak checkers know what a driver keeps by the name of its file, while that is loaded.
static void close_device(void) {
    shared_pipelines_close();
    vulkan_host_close_device(&g_host);
}

vulkan_host *test_device(void) {
    if (g_host.device)
        return &g_host;
    const char *const index = getenv("LOWKEY_VULKAN_DEVICE");
    const vulkan_host_options options = {
        .device_index = index ? (uint32_t)strtoul(index, NULL, 10) : 0, .on_message = test_message};
    const vulkan_failure failure = vulkan_host_open(&options, &g_host);
    if (failure) {
        printf("skipped: %s\n", failure);
        vulkan_host_close(&g_host);
        exit(SKIPPED);
    }
    atexit(close_device);
    printf("on %s, %s the validation layer\n", g_host.properties.deviceName,
           g_host.is_validated ? "checked by" : "without");
    // A GPU's machine may not have it; where Mesa's driver was installed for the tests, the layer
    // was too.
    if (!g_host.is_validated && g_host.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU)
        test_check("the validation layer is not installed");
    return &g_host;
}

void test_describe(lk_context_desc *desc, lk_vulkan_desc *vulkan) {
    if (lk_vulkan_desc_init(vulkan, sizeof *vulkan))
        test_check("no description");
    vulkan_host_describe(test_device(), vulkan);
    vulkan->get_instance_proc_addr = (lk_vulkan_function)shared_get_instance_proc_addr;
    vulkan->lock_queue = lock_queue;
    vulkan->unlock_queue = unlock_queue;
    vulkan->lock_user = &g_queue;
    vulkan->mask = g_mask;
    desc->backend = LK_BACKEND_VULKAN;
    desc->vulkan = vulkan;
}

void test_wait(void) {
    pthread_mutex_lock(&g_queue);
    test_check(vulkan_host_wait(test_device()));
    pthread_mutex_unlock(&g_queue);
}
