// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_count.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstring>

#include <sched.h>
#include <unistd.h>

#include "base/memory.h"

namespace lk {

namespace {

constexpr uint32_t kNoQuota = UINT32_MAX;
constexpr int kMostCpus = 1 << 16;       // that the kernel may have bits for
constexpr size_t kMostBytes = 4u << 20;  // of a file of /proc

uint32_t affinity_cpus() {
    for (int n = 1024; n <= kMostCpus; n *= 2) {
        const size_t bytes = CPU_ALLOC_SIZE(n);
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set)
            break;
        const bool has_failed = sched_getaffinity(0, bytes, set) != 0;
        const bool is_too_small = has_failed && errno == EINVAL;
        const int count = has_failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (count > 0)
            return static_cast<uint32_t>(count);
        if (!is_too_small)
            break;
    }
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : static_cast<uint32_t>(online);
}

// A path of the machine below the root. False when it is too long.
struct Path {
    char text[PATH_MAX];
    template <class... Parts>
    bool set(const char *format, Parts... parts) {
        const int n = std::snprintf(text, sizeof text, format, parts...);
        return n >= 0 && static_cast<size_t>(n) < sizeof text;
    }
};

// A whole file with a zero after it; empty when it cannot be read.
bool read_text(const char *path, Array<char> *out) {
    out->clear();
    std::FILE *file = std::fopen(path, "re");
    if (!file)
        return false;
    size_t n = 0;
    size_t more = 0;
    bool fits = true;
    do {
        fits = out->resize(n + 4097);
        more = fits ? std::fread(out->data() + n, 1, 4096, file) : 0;
        n += more;
    } while (more && n < kMostBytes);
    std::fclose(file);
    if (fits)
        (*out)[n] = 0;
    return fits && n;
}

// Calls use(line) for each line, which it may cut, until that returns true.
template <class Use>
void for_lines(char *text, const Use &use) {
    for (char *rest = text; char *line = strsep(&rest, "\n");)
        if (use(line))
            return;
}

// Is `name` one of a list with commas?
bool lists(const char *list, const char *name) {
    const size_t length = std::strlen(name);
    while (list) {
        if (!std::strncmp(list, name, length) && (!list[length] || list[length] == ','))
            return true;
        list = std::strchr(list, ',');
        list += list != nullptr;
    }
    return false;
}

struct Group {
    Path mount;   // where the hierarchy is seen
    Path prefix;  // which of its folders is seen there
    Path path;    // of the process's group in the hierarchy
    bool is_v2;
};

// A line "hierarchy:controllers:path" of /proc/self/cgroup.
bool parse_group(char *line, Group *out) {
    const char *hierarchy = strsep(&line, ":");
    const char *controllers = strsep(&line, ":");
    if (!line || out->is_v2 != !std::strcmp(hierarchy, "0"))
        return false;
    return (out->is_v2 || lists(controllers, "cpu")) && out->path.set("%s", line);
}

// A line of /proc/self/mountinfo: "id parent device root mount options ... - type source options".
bool parse_mount(char *line, Group *out) {
    char *fields[5] = {};
    for (char *&field : fields)
        field = strsep(&line, " ");
    char *rest = line ? std::strstr(line, "- ") : nullptr;
    while (rest && rest != line && rest[-1] != ' ')
        rest = std::strstr(rest + 1, "- ");
    if (!rest)
        return false;
    rest += 2;
    const char *type = strsep(&rest, " ");
    strsep(&rest, " ");
    if (std::strcmp(type, out->is_v2 ? "cgroup2" : "cgroup") != 0 ||
        (!out->is_v2 && !(rest && lists(rest, "cpu"))))
        return false;
    return out->prefix.set("%s", fields[3]) && out->mount.set("%s", fields[4]);
}

// Whole CPUs of quota / period, at least 1.
uint32_t whole_cpus(long long quota, long long period) {
    if (quota <= 0 || period <= 0)
        return kNoQuota;
    return static_cast<uint32_t>(std::clamp<long long>(quota / period, 1, kMostCpus));
}

uint32_t folder_quota(const char *folder, bool is_v2, Array<char> *text) {
    Path file;
    long long quota = 0;
    long long period = 0;
    if (is_v2) {
        if (file.set("%s/cpu.max", folder) && read_text(file.text, text) &&
            std::sscanf(text->data(), "%lld %lld", &quota, &period) == 2)
            return whole_cpus(quota, period);
        return kNoQuota;
    }
    if (file.set("%s/cpu.cfs_quota_us", folder) && read_text(file.text, text) &&
        std::sscanf(text->data(), "%lld", &quota) == 1 &&
        file.set("%s/cpu.cfs_period_us", folder) && read_text(file.text, text) &&
        std::sscanf(text->data(), "%lld", &period) == 1)
        return whole_cpus(quota, period);
    return kNoQuota;
}

// The least quota of the group and of the groups above it, up to the mount.
uint32_t hierarchy_quota(const char *root, Group *group, Array<char> *text) {
    const size_t n_prefix =
        std::strcmp(group->prefix.text, "/") ? std::strlen(group->prefix.text) : 0;
    const bool is_below = !std::strncmp(group->path.text, group->prefix.text, n_prefix);
    Path folder;
    if (!folder.set("%s%s", root, group->mount.text))
        return kNoQuota;
    const size_t n_mount = std::strlen(folder.text);
    // A group outside of what is mounted here: the mount is the nearest that is known.
    if (is_below && !folder.set("%s%s%s", root, group->mount.text, group->path.text + n_prefix))
        return kNoQuota;
    uint32_t least = kNoQuota;
    for (;;) {
        least = std::min(least, folder_quota(folder.text, group->is_v2, text));
        char *slash = std::strrchr(folder.text, '/');
        if (!slash || slash < folder.text + n_mount)
            return least;
        *slash = 0;
    }
}

uint32_t version_quota(const char *root, bool is_v2) {
    const Allocator &allocator = default_allocator();
    Array<char> text;
    Path path;
    auto *group = create<Group>(allocator);
    if (!group)
        return kNoQuota;
    group->is_v2 = is_v2;
    bool has_group = false;
    bool has_mount = false;
    if (path.set("%s/proc/self/cgroup", root) && read_text(path.text, &text))
        for_lines(text.data(), [&](char *line) { return has_group = parse_group(line, group); });
    if (has_group && path.set("%s/proc/self/mountinfo", root) && read_text(path.text, &text))
        for_lines(text.data(), [&](char *line) { return has_mount = parse_mount(line, group); });
    const uint32_t quota = has_mount ? hierarchy_quota(root, group, &text) : kNoQuota;
    destroy(allocator, group);
    return quota;
}

}  // namespace

uint32_t usable_cpus() { return std::min(affinity_cpus(), quota_cpus("")); }

uint32_t quota_cpus(const char *root) {
    return std::min(version_quota(root, true), version_quota(root, false));
}

}  // namespace lk
