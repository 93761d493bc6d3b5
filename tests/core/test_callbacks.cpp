// The host's functions of a snapshot: what they get and return is handed on, and what they throw
// ends as a status.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/callbacks.h"

#include "suite.h"

#include <pthread.h>

namespace {

// What a callback got, and what it returns or throws.
struct Host {
    const void *data = nullptr;
    uint64_t n_bytes = 0;
    uint64_t total_bytes = 0;
    int64_t answer = 0;
    bool throws = false;

    int64_t take(const void *bytes, uint64_t n, uint64_t total) {
        data = bytes;
        n_bytes = n;
        total_bytes = total;
        if (throws)
            throw 7;
        return answer;
    }
    static int32_t write(void *self, const void *bytes, size_t n) {
        return static_cast<int32_t>(static_cast<Host *>(self)->take(bytes, n, 0));
    }
    static int64_t read(void *self, void *bytes, size_t n) {
        return static_cast<Host *>(self)->take(bytes, n, 0);
    }
    static int32_t progress(void *self, uint64_t done, uint64_t total) {
        return static_cast<int32_t>(static_cast<Host *>(self)->take(nullptr, done, total));
    }
    lk_snapshot_desc desc() {
        lk_snapshot_desc made{};
        made.progress = progress;
        made.progress_user = this;
        return made;
    }
};

void results_are_handed_on(void **) {
    Host host;
    char bytes[8] = {};
    int32_t short_result = 0;
    int64_t result = 0;
    host.answer = -3;
    assert_int_equal(lk::call_write(Host::write, &host, bytes, 5, &short_result), LK_OK);
    assert_int_equal(short_result, -3);
    assert_ptr_equal(host.data, bytes);
    assert_int_equal(host.n_bytes, 5);
    host.answer = int64_t{1} << 40;
    assert_int_equal(lk::call_read(Host::read, &host, bytes + 1, 6, &result), LK_OK);
    assert_true(result == int64_t{1} << 40);
    assert_ptr_equal(host.data, bytes + 1);
    assert_int_equal(host.n_bytes, 6);
    host.answer = 9;
    assert_int_equal(lk::call_progress(host.desc(), 10, 20, &short_result), LK_OK);
    assert_int_equal(short_result, 9);
    assert_int_equal(host.n_bytes, 10);
    assert_int_equal(host.total_bytes, 20);
}

void exceptions_become_a_status(void **) {
    Host host;
    host.throws = true;
    char bytes[8] = {};
    int32_t short_result = 1;
    int64_t result = 1;
    assert_int_equal(lk::call_write(Host::write, &host, bytes, 5, &short_result), LK_E_IO);
    assert_string_equal(lk::last_sentence(), "the write callback threw an exception");
    assert_int_equal(lk::call_read(Host::read, &host, bytes, 5, &result), LK_E_IO);
    assert_string_equal(lk::last_sentence(), "the read callback threw an exception");
    assert_int_equal(lk::call_progress(host.desc(), 10, 20, &short_result), LK_E_IO);
    assert_string_equal(lk::last_sentence(), "the progress callback threw an exception");
    assert_int_equal(short_result, 1);
    assert_int_equal(result, 1);
    host.throws = false;
    assert_int_equal(lk::call_write(Host::write, &host, bytes, 5, &short_result), LK_OK);
    assert_int_equal(short_result, 0);
}

// A thread unwinds its frames as it exits, and the C library aborts the process if a frame stops
// that.
void a_thread_may_exit_in_a_callback(void **) {
    int64_t mark = 1;
    const auto run = [](void *user) -> void * {
        const auto read = [](void *exit_value, void *, size_t) -> int64_t {
            pthread_exit(exit_value);
        };
        (void)lk::call_read(read, user, nullptr, 0, static_cast<int64_t *>(user));
        return nullptr;
    };
    pthread_t thread;
    void *returned = nullptr;
    assert_int_equal(pthread_create(&thread, nullptr, run, &mark), 0);
    assert_int_equal(pthread_join(thread, &returned), 0);
    assert_ptr_equal(returned, &mark);
    assert_int_equal(mark, 1);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(results_are_handed_on),
        cmocka_unit_test(exceptions_become_a_status),
        cmocka_unit_test(a_thread_may_exit_in_a_callback),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
