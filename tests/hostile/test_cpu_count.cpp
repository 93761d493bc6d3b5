// n_threads = 0 takes the CPUs that the process may use: of its affinity mask, and of the quotas of
// control groups as files of a folder state them.
//
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" {
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
}

#include "api/rig.h"
#include "base/cpu_count.h"

namespace {

constexpr const char *kV2Mount =
    "34 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";
constexpr const char *kV1Mount =
    "30 24 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct\n";

// A folder that stands for the root of the file system.
class Root {
  public:
    Root() {
        char pattern[] = "./hostile-root-XXXXXX";
        assert_non_null(mkdtemp(pattern));
        path_ = pattern;
    }
    ~Root() {
        const std::string command = "rm -rf " + path_;
        if (std::system(command.c_str()) != 0)
            std::perror("rm");
    }
    void write(const std::string &name, const std::string &text) const {
        for (size_t at = 1; (at = name.find('/', at)) != std::string::npos; ++at)
            (void)mkdir((path_ + name.substr(0, at)).c_str(), 0777);
        std::FILE *file = std::fopen((path_ + name).c_str(), "w");
        assert_non_null(file);
        std::fputs(text.c_str(), file);
        std::fclose(file);
    }
    uint32_t quota() const { return lk::quota_cpus(path_.c_str()); }

  private:
    std::string path_;
};

void version_2(void **) {
    const struct {
        const char *own;
        const char *above;
        uint32_t expected;
    } cases[] = {
        {"max 100000\n", "max 100000\n", UINT32_MAX},
        {"300000 100000\n", "max 100000\n", 3},
        {"max 100000\n", "200000 100000\n", 2},
        {"400000 100000\n", "200000 100000\n", 2},
        {"250000 100000\n", "max 100000\n", 2},
        {"50000 100000\n", "max 100000\n", 1},
        {"nonsense", "", UINT32_MAX},
    };
    for (const auto &c : cases) {
        const Root root;
        root.write("/proc/self/cgroup", "0::/machine/one\n");
        root.write("/proc/self/mountinfo", std::string(9000, 'x') + "\n" + kV2Mount);
        root.write("/sys/fs/cgroup/machine/one/cpu.max", c.own);
        root.write("/sys/fs/cgroup/machine/cpu.max", c.above);
        assert_int_equal(root.quota(), c.expected);
    }
}

void version_1(void **) {
    const struct {
        const char *quota;
        const char *period;
        uint32_t expected;
    } cases[] = {
        {"-1\n", "100000\n", UINT32_MAX}, {"200000\n", "100000\n", 2}, {"70000\n", "50000\n", 1}};
    for (const auto &c : cases) {
        const Root root;
        root.write("/proc/self/cgroup",
                   "9:memory:/elsewhere\n4:cpu,cpuacct:/one\n1:name=systemd:/\n");
        root.write("/proc/self/mountinfo", kV1Mount);
        root.write("/sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_quota_us", c.quota);
        root.write("/sys/fs/cgroup/cpu,cpuacct/one/cpu.cfs_period_us", c.period);
        assert_int_equal(root.quota(), c.expected);
    }
}

// In a container the mount shows a part of the hierarchy.
void containers(void **) {
    const Root root;
    root.write("/proc/self/cgroup", "4:cpu,cpuacct:/docker/abc/inner\n0::/../outside\n");
    root.write("/proc/self/mountinfo",
               "31 24 0:27 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
               "34 24 0:30 /here /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    root.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "500000\n");
    root.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(root.quota(), 5);
    root.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_quota_us", "400000\n");
    root.write("/sys/fs/cgroup/cpu/inner/cpu.cfs_period_us", "100000\n");
    assert_int_equal(root.quota(), 4);
    root.write("/sys/fs/cgroup/unified/cpu.max", "300000 100000\n");
    assert_int_equal(root.quota(), 3);
}

void nothing_is_known(void **) {
    const Root root;
    assert_int_equal(root.quota(), UINT32_MAX);
    root.write("/proc/self/cgroup", "0::/\n");
    assert_int_equal(root.quota(), UINT32_MAX);
    root.write("/proc/self/mountinfo", "\n - \na - cgroup2\n1 2 3 / /x rw -cgroup2 c rw\n");
    assert_int_equal(root.quota(), UINT32_MAX);
}

uint32_t threads_of_context() {
    lk_context *context = nullptr;
    lk_device_info info;
    assert_int_equal(lk_context_open(nullptr, LK_ABI_VERSION, &context), LK_OK);
    assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_context_device(context, &info), LK_OK);
    assert_int_equal(lk_context_close(&context), LK_OK);
    return info.n_threads;
}

void affinity(void **) {
    cpu_set_t all;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    const auto n_all = static_cast<uint32_t>(CPU_COUNT(&all));
    assert_int_equal(lk::usable_cpus(), std::min(n_all, lk::quota_cpus("")));
    assert_int_equal(threads_of_context(), lk::usable_cpus());
    int first = 0;
    while (!CPU_ISSET(first, &all))
        ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(threads_of_context(), 1);
    lk_device_info info;
    assert_int_equal(lk_device_info_init(&info, sizeof info), LK_OK);
    assert_int_equal(lk_device_get(0, &info), LK_OK);
    assert_int_equal(info.n_threads, 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

}  // namespace

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(version_2),  cmocka_unit_test(version_1),
        cmocka_unit_test(containers), cmocka_unit_test(nothing_is_known),
        cmocka_unit_test(affinity),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
