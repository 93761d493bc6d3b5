// Calls on a context: their count, their floating-point mode, and the first one in a child process.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/context/call.h"

#include "cache_rig.h"
#include "hostile/child.h"

#include <cfenv>

namespace {

// A device that a child process may or may not have.
class ForkedBackend final : public lk::Backend {
  public:
    const lk::BackendTraits &traits() const override {
        static constexpr lk::BackendTraits kTraits = {"a fake", LK_MEMORY_HOST, false, 0, 0, false};
        return kTraits;
    }
    lk_status supports(const lk_capability &) const override { return LK_OK; }
    void describe(lk_device_info *) const override {}
    lk_status slab_create(uint64_t, lk::SlabMemory *) override { return LK_E_NOMEM; }
    void slab_destroy(const lk::SlabMemory &) override {}
    lk_status check_queue(const lk_queue *) const override { return LK_OK; }
    lk_status resolve_tensor(const lk_tensor &, uint64_t, const char *, void **) const override {
        return LK_OK;
    }
    lk_status merge(const lk::MergeView &) const override { return LK_OK; }
    lk_status cosine(const lk::CosineView &) const override { return LK_OK; }
    lk_status cache_open(const lk::CacheLayout &, lk::CacheDevice **) override { return LK_OK; }
    void cache_close(lk::CacheDevice *) override {}
    lk_status enter_child(bool is_used) override {
        ++n_entries;
        was_in_use = is_used;
        return answer;
    }

    lk_status answer = LK_OK;
    bool was_in_use = false;
    uint32_t n_entries = 0;
};

struct Opened {
    Opened() : context(lk::default_allocator()) { context.backend = &backend; }
    // A call on the context that fails by itself.
    lk_status call() {
        return lk::on_context(&context, [&] {
            ++n_runs;
            return lk_status{LK_E_STATE};
        });
    }
    ForkedBackend backend;
    lk_context context;
    uint32_t n_runs = 0;
};

void running_calls_are_counted(void **) {
    Opened opened;
    {
        const lk::Call outer(opened.context);
        assert_int_equal(outer.status(), LK_OK);
        assert_int_equal(opened.context.n_calls, 1);
        const lk_status status = lk::on_context(&opened.context, [&] {
            assert_int_equal(opened.context.n_calls, 2);
            return lk_status{LK_E_STATE};
        });
        assert_int_equal(status, LK_E_STATE);
        assert_int_equal(opened.context.n_calls, 1);
    }
    assert_int_equal(opened.context.n_calls, 0);
    assert_int_equal(opened.backend.n_entries, 0);
    assert_int_equal(lk::on_context(nullptr, [] { return lk_status{LK_OK}; }), LK_E_ARGUMENT);
    sentence_has("context is NULL");
}

void calls_on_a_lost_context_do_not_run(void **) {
    Opened opened;
    opened.context.is_lost = true;
    assert_int_equal(opened.call(), LK_E_DEVICE);
    sentence_has("device, of a fake, stayed with its parent");
    assert_int_equal(opened.n_runs, 0);
    assert_int_equal(opened.context.n_calls, 0);
    opened.context.is_lost = false;
    assert_int_equal(opened.call(), LK_E_STATE);
    assert_int_equal(opened.n_runs, 1);
}

// Beyond 1, less than half the way to the next number. fegetround() need not know the mode of these
// additions: x86 has another one for its older unit.
bool rounds_up() {
    const volatile float one = 1;
    const volatile float tiny = 1e-10f;
    const volatile float sum = one + tiny;
    return sum > one;
}

void calls_round_to_the_nearest(void **) {
    Opened opened;
    const int before = std::fegetround();
    assert_int_equal(std::fesetround(FE_UPWARD), 0);
    const bool outside = rounds_up();
    bool inside = true;
    (void)lk::on_context(&opened.context, [&] {
        inside = rounds_up();
        return lk_status{LK_OK};
    });
    const bool afterwards = rounds_up();
    assert_int_equal(std::fesetround(before), 0);
    assert_true(outside);
    assert_false(inside);
    assert_true(afterwards);
    assert_false(rounds_up());
}

// The call that runs at the fork is another thread's as far as the child process knows.
void a_child_process_counts_its_own_calls(void **) {
    Opened opened;
    const lk::Call at_fork(opened.context);
    const auto work = [](void *user) {
        auto *own = static_cast<Opened *>(user);
        own->backend.answer = LK_E_NOMEM;
        REQUIRE(own->call() == LK_E_NOMEM && own->n_runs == 0);
        REQUIRE(own->backend.was_in_use);
        own->backend.answer = LK_OK;
        {
            const lk::Call first(own->context);
            REQUIRE(first.status() == LK_OK && own->context.n_calls == 1);
            REQUIRE(own->context.children.try_lock());
            own->context.children.unlock();
        }
        REQUIRE(own->call() == LK_E_STATE && own->n_runs == 1);
        REQUIRE(own->context.n_calls == 0 && own->backend.n_entries == 2);
        REQUIRE(!own->context.is_lost && !own->context.is_torn);
    };
    opened.context.children.lock();
    const int status = in_child(work, &opened);
    opened.context.children.unlock();
    assert_int_equal(status, 0);
    assert_int_equal(opened.context.n_calls, 1);
}

void a_device_that_stays_is_lost_for_good(void **) {
    Opened opened;
    opened.backend.answer = LK_E_DEVICE;
    const auto work = [](void *user) {
        auto *own = static_cast<Opened *>(user);
        const bool was_in_use = own->context.n_calls != 0;
        REQUIRE(own->call() == LK_E_DEVICE && own->call() == LK_E_DEVICE);
        REQUIRE(own->n_runs == 0 && own->backend.n_entries == 1);
        REQUIRE(own->context.is_lost && own->context.is_torn == was_in_use);
        REQUIRE(own->context.generation == 1);
    };
    assert_int_equal(in_child(work, &opened), 0);
    const lk::Call at_fork(opened.context);
    assert_int_equal(in_child(work, &opened), 0);
    assert_int_equal(opened.call(), LK_E_STATE);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(running_calls_are_counted),
        cmocka_unit_test(calls_on_a_lost_context_do_not_run),
        cmocka_unit_test(calls_round_to_the_nearest),
        cmocka_unit_test(a_child_process_counts_its_own_calls),
        cmocka_unit_test(a_device_that_stays_is_lost_for_good),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
