// What an open context has: its log, its count of caches, and checks of capabilities, queues and
// tensors against its backend.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/context/context.h"

#include "cache_rig.h"

#include <string>

namespace {

// A context of the fake backend, and the last line of its log.
struct Opened {
    Opened() : context(lk::default_allocator()) {
        context.backend = &backend;
        context.desc.log_user = this;
        context.desc.log = [](void *self, lk_log_level level, const char *text) {
            static_cast<Opened *>(self)->line = std::to_string(level) + " " + text;
        };
        context.desc.log_level = LK_LOG_WARNING;
    }
    FakeDeviceBackend backend;
    lk_context context;
    std::string line;
};

void lines_up_to_the_level_are_logged(void **) {
    Opened opened;
    lk::log_line(opened.context, LK_LOG_INFO, "not %d", 1);
    assert_string_equal(opened.line.c_str(), "");
    lk::log_line(opened.context, LK_LOG_WARNING, "but %d", 2);
    assert_string_equal(opened.line.c_str(), "2 but 2");
    const std::string long_text(2000, 'x');
    lk::log_line(opened.context, LK_LOG_ERROR, "%s", long_text.c_str());
    assert_int_equal(opened.line.size(), 2 + 511);
    opened.context.desc.log = nullptr;
    lk::log_line(opened.context, LK_LOG_ERROR, "%s", "nobody hears");
    assert_int_equal(opened.line.size(), 2 + 511);
}

void failures_are_logged_and_handed_on(void **) {
    Opened opened;
    assert_int_equal(lk::logged(&opened.context, LK_OK), LK_OK);
    assert_string_equal(opened.line.c_str(), "");
    assert_int_equal(lk::logged(&opened.context, refuse(LK_E_BUDGET, "too small")), LK_E_BUDGET);
    assert_string_equal(opened.line.c_str(), "2 LK_E_BUDGET: too small");
    assert_int_equal(lk::logged(&opened.context, refuse(LK_E_DEVICE, "gone")), LK_E_DEVICE);
    assert_string_equal(opened.line.c_str(), "1 LK_E_DEVICE: gone");
    assert_int_equal(lk::logged(nullptr, refuse(LK_E_ARGUMENT, "no context")), LK_E_ARGUMENT);
}

lk_capability sound() {
    lk_capability made;
    assert_int_equal(lk_capability_init(&made, sizeof made), LK_OK);
    made.head_dim = 128;
    made.group_size = 4;
    made.page_tokens = 128;
    made.key_bits = made.value_bits = 2;
    made.memory = LK_MEMORY_HOST;
    made.dtype = LK_F16;
    return made;
}

void capabilities_are_checked_member_by_member(void **) {
    assert_int_equal(lk::check_capability(sound()), LK_OK);
    const struct {
        uint32_t lk_capability::*member;
        uint32_t value;
        const char *name;
    } faults[] = {
        {&lk_capability::head_dim, 16, "head_dim"},
        {&lk_capability::head_dim, 528, "head_dim"},
        {&lk_capability::head_dim, 40, "head_dim"},
        {&lk_capability::value_dim, 16, "value_dim"},
        {&lk_capability::value_dim, 528, "value_dim"},
        {&lk_capability::is_latent, 2, "is_latent"},
        {&lk_capability::group_size, 0, "group_size"},
        {&lk_capability::group_size, 1025, "group_size"},
        {&lk_capability::page_tokens, 96, "page_tokens"},
        {&lk_capability::key_bits, 5, "key_bits"},
        {&lk_capability::value_bits, 0, "value_bits"},
        {&lk_capability::memory, 0, "memory"},
        {&lk_capability::memory, LK_MEMORY_VULKAN + 1, "memory"},
        {&lk_capability::dtype, LK_F32 + 1, "dtype"},
        {&lk_capability::queue, LK_QUEUE_VULKAN_RECORD + 1, "queue"},
    };
    for (const auto &fault : faults) {
        lk_capability wrong = sound();
        wrong.*fault.member = fault.value;
        assert_int_equal(lk::check_capability(wrong), LK_E_ARGUMENT);
        sentence_has(fault.name);
    }
    // Keys of latent layers may be wider than others, values no wider than keys.
    lk_capability latent = sound();
    latent.head_dim = 576;
    latent.value_dim = 512;
    latent.value_bits = 0;
    assert_int_equal(lk::check_capability(latent), LK_E_ARGUMENT);
    latent.is_latent = 1;
    assert_int_equal(lk::check_capability(latent), LK_OK);
    latent.head_dim = 256;
    assert_int_equal(lk::check_capability(latent), LK_E_ARGUMENT);
    sentence_has("at most head_dim 256");
    // One bit for 32 tokens would be less than a tile's words.
    lk_capability narrow = sound();
    narrow.key_bits = 1;
    assert_int_equal(lk::check_capability(narrow), LK_OK);
    narrow.page_tokens = 32;
    assert_int_equal(lk::check_capability(narrow), LK_E_ARGUMENT);
    sentence_has("needs page_tokens of 64 or 128");
}

void queues_are_the_backends(void **) {
    Opened opened;
    lk_queue from;
    lk_queue queue{};
    assert_int_equal(lk_queue_init(&from, sizeof from), LK_OK);
    from.kind = LK_QUEUE_CUDA_STREAM;
    from.handle = &from;
    assert_int_equal(lk::import_queue(opened.context, &from, &queue), LK_OK);
    assert_ptr_equal(queue.handle, &from);
    from.kind = LK_QUEUE_VULKAN_RECORD + 1;
    assert_int_equal(lk::import_queue(opened.context, &from, &queue), LK_E_ARGUMENT);
    sentence_has("queue.kind");
    from.kind = 0;
    assert_int_equal(lk::import_queue(opened.context, &from, &queue), LK_E_ARGUMENT);
    // The fake device needs one.
    assert_int_equal(lk::import_queue(opened.context, nullptr, &queue), LK_E_ARGUMENT);
    assert_false(lk::is_recorded(opened.context, 0));
    assert_false(lk::is_recorded(opened.context, LK_QUEUE_CUDA_STREAM));
    opened.backend.own_traits.recorded_queue = LK_QUEUE_VULKAN_RECORD;
    assert_true(lk::is_recorded(opened.context, LK_QUEUE_VULKAN_RECORD));
    assert_false(lk::is_recorded(opened.context, LK_QUEUE_CUDA_STREAM));
}

void tensors_are_taken_where_the_device_reaches_them(void **) {
    Opened opened;
    lk_tensor from;
    assert_int_equal(lk_tensor_init(&from, sizeof from), LK_OK);
    from.dtype = LK_F16;
    from.memory = LK_MEMORY_CUDA;
    from.data = opened.backend.tensors + 64;
    from.token_stride = from.head_stride = 32;
    lk::TensorView view{};
    lk::TensorRange range;
    const auto take = [&](lk_queue_kind queue) {
        return lk::take_tensor(opened.context, queue, &from, "k", {3, 1, 32}, false, &view, &range);
    };
    assert_int_equal(take(LK_QUEUE_CUDA_STREAM), LK_OK);
    assert_ptr_equal(view.data, from.data);
    assert_int_equal(view.token_stride, 32);
    assert_int_equal(range.first, reinterpret_cast<uint64_t>(from.data));
    assert_int_equal(range.n_bytes, 3 * 32 * 2);
    from.data = opened.backend.tensors + sizeof opened.backend.tensors - 3 * 64 + 2;
    assert_int_equal(take(LK_QUEUE_CUDA_STREAM), LK_E_ARGUMENT);
    sentence_has("k.data");
    // Memory of the host is there when the call is, not when recorded work runs.
    opened.backend.own_traits.takes_host_tensors = true;
    opened.backend.own_traits.recorded_queue = LK_QUEUE_VULKAN_RECORD;
    from.memory = LK_MEMORY_HOST;
    from.data = opened.backend.tensors;
    assert_int_equal(take(LK_QUEUE_CUDA_STREAM), LK_OK);
    assert_true(view.is_host);
    assert_int_equal(take(LK_QUEUE_VULKAN_RECORD), LK_E_UNSUPPORTED);
    sentence_has("recorded work does not reach");
}

void contexts_close_after_their_caches(void **) {
    lk_context *context = nullptr;
    lk_context_desc desc;
    CountedMemory memory;
    assert_int_equal(lk_context_desc_init(&desc, sizeof desc), LK_OK);
    desc.alloc = CountedMemory::alloc;
    desc.free = CountedMemory::free;
    desc.alloc_user = &memory;
    memory.give(0);
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_E_NOMEM);
    memory.give(1);
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_E_NOMEM);
    assert_null(context);
    assert_int_equal(memory.n_live, 0);
    memory.give_all();
    assert_int_equal(lk_context_open(&desc, LK_ABI_VERSION, &context), LK_OK);
    lk::add_cache(context);
    lk::add_cache(context);
    lk::drop_cache(context);
    assert_int_equal(lk_context_close(&context), LK_E_BUSY);
    sentence_has("1 live caches");
    lk::drop_cache(context);
    assert_int_equal(lk_context_close(&context), LK_OK);
    assert_null(context);
    assert_int_equal(memory.n_live, 0);
}

}  // namespace

int main() {
    const CMUnitTest tests[] = {
        cmocka_unit_test(lines_up_to_the_level_are_logged),
        cmocka_unit_test(failures_are_logged_and_handed_on),
        cmocka_unit_test(capabilities_are_checked_member_by_member),
        cmocka_unit_test(queues_are_the_backends),
        cmocka_unit_test(tensors_are_taken_where_the_device_reaches_them),
        cmocka_unit_test(contexts_close_after_their_caches),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
