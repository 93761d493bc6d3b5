// SPDX-License-Identifier: Apache-2.0
#include "base/proc.h"

#include <cstdio>
#include <cstring>

namespace lk {

bool find_line(const char *path, const char *key, char *value, size_t value_bytes) {
    std::FILE *file = std::fopen(path, "r");
    if (!file)
        return false;
    char line[512];
    bool found = false;
    while (!found && std::fgets(line, sizeof line, file)) {
        if (std::strncmp(line, key, std::strlen(key)) != 0)
            continue;
        const char *text = std::strchr(line, ':');
        if (!text)
            continue;
        ++text;
        while (*text == ' ' || *text == '\t')
            ++text;
        const size_t length = std::strcspn(text, "\n");
        std::snprintf(value, value_bytes, "%.*s", static_cast<int>(length), text);
        found = true;
    }
    std::fclose(file);
    return found;
}

uint64_t memory_line(const char *key) {
    char text[64];
    unsigned long long kilobytes = 0;
    if (!find_line("/proc/meminfo", key, text, sizeof text) ||
        std::sscanf(text, "%llu", &kilobytes) != 1)
        return 0;
    return kilobytes * 1024;
}

}  // namespace lk
