// The process that a context is used in: a child process does not know it until one of its threads
// has renewed it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/context/process.h"

#include "hostile/child.h"
#include "suite.h"

#include <thread>
#include <vector>

namespace {

// Renewals, and the status that they return.
struct Renewals {
    lk_status enter() {
        return process.enter([this] {
            ++n;
            return answer;
        });
    }
    lk::Process process;
    std::atomic<uint32_t> n{0};
    lk_status answer = LK_OK;
};

void the_process_that_makes_it_is_entered(void **) {
    Renewals renewals;
    assert_true(renewals.process.is_entered());
    assert_int_equal(renewals.enter(), LK_OK);
    assert_int_equal(renewals.n, 0);
}

void a_child_process_renews_once(void **) {
    Renewals renewals;
    const auto work = [](void *user) {
        auto *own = static_cast<Renewals *>(user);
        REQUIRE(!own->process.is_entered());
        REQUIRE(own->enter() == LK_OK && own->process.is_entered() && own->n == 1);
        REQUIRE(own->enter() == LK_OK && own->n == 1);
        const auto grandchild_work = [](void *grandchild) {
            auto *copy = static_cast<Renewals *>(grandchild);
            REQUIRE(!copy->process.is_entered());
            REQUIRE(copy->enter() == LK_OK && copy->n == 2);
        };
        REQUIRE(in_child(grandchild_work, own) == 0);
        REQUIRE(own->process.is_entered());
    };
    assert_int_equal(in_child(work, &renewals), 0);
    assert_true(renewals.process.is_entered());
    assert_int_equal(renewals.n, 0);
}

void a_renewal_that_failed_is_tried_again(void **) {
    Renewals renewals;
    const auto work = [](void *user) {
        auto *own = static_cast<Renewals *>(user);
        own->answer = LK_E_NOMEM;
        for (uint32_t n = 1; n <= 2; ++n) {
            REQUIRE(own->enter() == LK_E_NOMEM && own->n == n);
            REQUIRE(!own->process.is_entered());
        }
        own->answer = LK_OK;
        REQUIRE(own->enter() == LK_OK && own->n == 3);
        REQUIRE(own->process.is_entered());
    };
    assert_int_equal(in_child(work, &renewals), 0);
}

// No thread goes on before the renewal has ended.
void threads_wait_for_the_one_that_renews(void **) {
    lk::Process process;
    const auto work = [](void *user) {
        auto *own = static_cast<lk::Process *>(user);
        constexpr uint32_t kThreads = 4;
        std::atomic<uint32_t> n_begun{0};
        std::atomic<uint32_t> n_renewals{0};
        std::atomic<bool> is_renewed{false};
        std::atomic<uint32_t> n_early{0};
        std::vector<std::thread> threads;
        for (uint32_t i = 0; i < kThreads; ++i)
            threads.emplace_back([&] {
                ++n_begun;
                const lk_status status = own->enter([&] {
                    ++n_renewals;
                    while (n_begun != kThreads)
                        std::this_thread::yield();
                    (void)usleep(20000);  // in which the others would go on
                    is_renewed = true;
                    return lk_status{LK_OK};
                });
                n_early += status != LK_OK || !is_renewed;
            });
        for (std::thread &thread : threads)
            thread.join();
        REQUIRE(n_renewals == 1);
        REQUIRE(n_early == 0);
    };
    assert_int_equal(in_child(work, &process), 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(the_process_that_makes_it_is_entered),
        cmocka_unit_test(a_child_process_renews_once),
        cmocka_unit_test(a_renewal_that_failed_is_tried_again),
        cmocka_unit_test(threads_wait_for_the_one_that_renews),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
