// SPDX-License-Identifier: Apache-2.0
#include "core/context/context.h"

#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <new>

#include "core/context/call.h"
#include "core/context/tensor.h"
#include "core/context/vulkan.h"
#include "plan/check.h"
#include "plan/plan.h"

namespace lk {

namespace {

constexpr uint32_t kMaxThreads = 1024;
constexpr size_t kOldestDesc = offsetof(lk_context_desc, vulkan);
constexpr size_t kOldestCapability = offsetof(lk_capability, value_dim);
constexpr uint32_t kCpuMask =
    LK_CPU_REFERENCE_ONLY | LK_CPU_NO_AVX2 | LK_CPU_NO_AVX512 | LK_CPU_NO_NEON;

lk_status check_abi(uint32_t version) {
    const uint32_t major = version >> 16;
    const uint32_t minor = version & 0xffffu;
    if (major != LK_ABI_MAJOR || minor > LK_ABI_MINOR)
        return fail(LK_E_MISMATCH, "abi_version is %u.%u and this library is %u.%u", major, minor,
                    static_cast<unsigned>(LK_ABI_MAJOR), static_cast<unsigned>(LK_ABI_MINOR));
    return LK_OK;
}

void set_defaults(lk_context_desc *desc) {
    *desc = lk_context_desc{};
    desc->size = sizeof *desc;
    desc->backend = kDefaultBackend;
}

lk_status check_desc(const lk_context_desc &desc) {
    if (!is_backend(desc.backend))
        return fail(LK_E_ARGUMENT, "context_desc.backend is %u, which names no backend",
                    desc.backend);
    if (desc.n_threads > kMaxThreads)
        return fail(LK_E_ARGUMENT, "context_desc.n_threads is %u, at most %u", desc.n_threads,
                    kMaxThreads);
    if (desc.cpu_mask & ~kCpuMask)
        return fail(LK_E_ARGUMENT, "context_desc.cpu_mask is 0x%x, known bits are 0x%x",
                    desc.cpu_mask, kCpuMask);
    if (desc.log_level > LK_LOG_DEBUG)
        return fail(LK_E_ARGUMENT, "context_desc.log_level is %u, at most %u", desc.log_level,
                    static_cast<unsigned>(LK_LOG_DEBUG));
    if (!desc.alloc != !desc.free)
        return fail(LK_E_ARGUMENT, "context_desc.%s is NULL and context_desc.%s is not",
                    desc.alloc ? "free" : "alloc", desc.alloc ? "alloc" : "free");
    return LK_OK;
}

lk_status open_context(const lk_context_desc *from, uint32_t abi_version, lk_context **out) {
    LK_TRY(check_abi(abi_version));
    lk_context_desc desc;
    set_defaults(&desc);
    if (from)
        LK_TRY(import_struct(&desc, sizeof desc, kOldestDesc, from, "context_desc"));
    LK_TRY(check_desc(desc));
    lk_vulkan_desc vulkan;
    LK_TRY(import_vulkan(desc, &vulkan));
    desc.vulkan = &vulkan;
    Allocator allocator = default_allocator();
    if (desc.alloc)
        allocator = {desc.alloc, desc.free, desc.alloc_user};
    lk_context *context = create<lk_context>(allocator, allocator);
    if (!context)
        return fail(LK_E_NOMEM, "no memory for a context of %zu bytes", sizeof *context);
    context->desc = desc;
    context->desc.vulkan = nullptr;
    lk_status status = backend_open(desc, context->allocator, &context->backend);
    if (status) {
        destroy(allocator, context);
        return status;
    }
    *out = context;
    return LK_OK;
}

lk_status check_dims(const lk_capability &c) {
    lk_layer layer = default_layer();
    layer.n_query_heads = layer.n_kv_heads = 1;
    layer.head_dim = c.head_dim;
    layer.value_dim = c.value_dim;
    layer.flags = c.is_latent ? LK_LAYER_LATENT : 0;
    return check_layer(layer, {"capability.", false, LK_E_ARGUMENT});
}

lk_status check_width(const char *member, uint32_t bits, uint32_t page_tokens) {
    if (!is_width(bits))
        return fail(LK_E_ARGUMENT, "capability.%s is %u, not one of %s", member, bits,
                    kWidthList.text);
    if (page_tokens < least_page_tokens(bits))
        return fail(LK_E_ARGUMENT,
                    "capability.%s is %u, which needs page_tokens of 64 or 128, not %u", member,
                    bits, page_tokens);
    return LK_OK;
}

}  // namespace

void log_line(const lk_context &context, lk_log_level level, const char *format, ...) {
    if (!context.desc.log || level > context.desc.log_level)
        return;
    char sentence[512];
    va_list args;
    va_start(args, format);
    std::vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    context.desc.log(context.desc.log_user, level, sentence);
}

lk_status logged(const lk_context *context, lk_status status) {
    if (status && context)
        log_line(*context, status == LK_E_BUDGET ? LK_LOG_WARNING : LK_LOG_ERROR, "%s: %s",
                 lk_status_name(status), last_sentence());
    return status;
}

lk_status check_capability(const lk_capability &c) {
    LK_TRY(check_dims(c));
    if (c.group_size < 1 || c.group_size > kMaxQueryGroup)
        return fail(LK_E_ARGUMENT, "capability.group_size is %u, not 1 to %u", c.group_size,
                    kMaxQueryGroup);
    if (c.page_tokens != 32 && c.page_tokens != 64 && c.page_tokens != 128)
        return fail(LK_E_ARGUMENT, "capability.page_tokens is %u, not 32, 64 or 128",
                    c.page_tokens);
    LK_TRY(check_width("key_bits", c.key_bits, c.page_tokens));
    if (c.is_latent > 1)
        return fail(LK_E_ARGUMENT, "capability.is_latent is %u, not 0 or 1", c.is_latent);
    if (!c.is_latent)
        LK_TRY(check_width("value_bits", c.value_bits, c.page_tokens));
    if (c.memory < LK_MEMORY_HOST || c.memory > LK_MEMORY_VULKAN)
        return fail(LK_E_ARGUMENT, "capability.memory is %u, which names no kind of memory",
                    c.memory);
    if (c.dtype < LK_F16 || c.dtype > LK_F32)
        return fail(LK_E_ARGUMENT, "capability.dtype is %u, which names no element type", c.dtype);
    if (c.queue > LK_QUEUE_VULKAN_RECORD)
        return fail(LK_E_ARGUMENT, "capability.queue is %u, which names no kind of queue", c.queue);
    return LK_OK;
}

bool is_recorded(const lk_context &context, lk_queue_kind queue) {
    return queue && queue == context.backend->traits().recorded_queue;
}

lk_status import_queue(const lk_context &context, const lk_queue *from, lk_queue *queue) {
    if (from) {
        LK_TRY(import_struct(queue, sizeof *queue, sizeof *queue, from, "queue"));
        if (queue->kind < LK_QUEUE_CUDA_STREAM || queue->kind > LK_QUEUE_VULKAN_RECORD)
            return fail(LK_E_ARGUMENT, "queue.kind is %u, which names no kind of queue",
                        queue->kind);
    }
    return context.backend->check_queue(from ? queue : nullptr);
}

lk_status take_tensor(const lk_context &context, lk_queue_kind queue, const lk_tensor *from,
                      const char *name, const TensorShape &shape, bool is_output, TensorView *view,
                      TensorRange *range) {
    lk_tensor tensor;
    lk_status status =
        import_tensor(from, name, shape, context.backend->traits(), is_output, &tensor, range);
    if (status)
        return status;
    if (is_recorded(context, queue) && range->is_host)
        return fail(LK_E_UNSUPPORTED,
                    "%s.memory is host memory, which recorded work does not reach", name);
    void *data = nullptr;
    LK_TRY(context.backend->resolve_tensor(tensor, range->n_bytes, name, &data));
    range->first = reinterpret_cast<uint64_t>(data);
    *view = {data, tensor.dtype, tensor.token_stride, tensor.head_stride, range->is_host};
    return LK_OK;
}

namespace {

// The first call in a child process. A lock that a thread of the parent held has no owner here.
lk_status renew(const lk_context &context) {
    const bool was_in_use = context.n_calls.exchange(0) != 0;
    new (&context.children) std::mutex;
    const lk_status status = context.backend->enter_child(was_in_use);
    context.is_lost = status == LK_E_DEVICE;
    context.is_torn = context.is_torn || (context.is_lost && was_in_use);
    context.generation.fetch_add(1);
    return context.is_lost ? LK_OK : status;
}

}  // namespace

lk_status enter_process(const lk_context &context) {
    if (!context.process.is_entered())
        LK_TRY(context.process.enter([&] { return renew(context); }));
    return context.is_lost ? fail(LK_E_DEVICE,
                                  "this process was made by fork() and the context's device, of "
                                  "%s, stayed with its parent: destroy the caches and close the "
                                  "context",
                                  context.backend->traits().name)
                           : LK_OK;
}

void add_cache(lk_context *context) {
    const std::lock_guard<std::mutex> lock(context->children);
    ++context->n_caches;
}

void drop_cache(lk_context *context) {
    const std::lock_guard<std::mutex> lock(context->children);
    --context->n_caches;
}

}  // namespace lk

extern "C" lk_status lk_device_info_init(lk_device_info *info, size_t struct_bytes) {
    return lk::init_struct(info, struct_bytes, sizeof(lk_device_info), "device_info");
}

extern "C" lk_status lk_context_desc_init(lk_context_desc *desc, size_t struct_bytes) {
    const lk_status status = lk::init_struct(desc, struct_bytes, lk::kOldestDesc, "context_desc");
    if (!status)
        desc->backend = lk::kDefaultBackend;
    return status;
}

extern "C" lk_status lk_capability_init(lk_capability *capability, size_t struct_bytes) {
    return lk::init_struct(capability, struct_bytes, lk::kOldestCapability, "capability");
}

extern "C" lk_status lk_device_count(uint32_t *count) {
    if (!count)
        return lk::fail(LK_E_ARGUMENT, "count is NULL");
    *count = lk::registry_device_count();
    return LK_OK;
}

extern "C" lk_status lk_device_get(uint32_t ordinal, lk_device_info *info) {
    if (!info)
        return lk::fail(LK_E_ARGUMENT, "info is NULL");
    lk_device_info found{};
    found.size = sizeof found;
    LK_TRY(lk::registry_device(ordinal, &found));
    return lk::export_struct(info, &found, sizeof found, sizeof found, "info");
}

extern "C" lk_status lk_context_open(const lk_context_desc *desc, uint32_t abi_version,
                                     lk_context **out) {
    if (!out)
        return lk::fail(LK_E_ARGUMENT, "out is NULL");
    *out = nullptr;
    return lk::open_context(desc, abi_version, out);
}

extern "C" lk_status lk_context_close(lk_context **context) {
    if (!context)
        return lk::fail(LK_E_ARGUMENT, "context is NULL");
    lk_context *open = *context;
    if (!open)
        return LK_OK;
    (void)lk::enter_process(*open);
    {
        const std::lock_guard<std::mutex> lock(open->children);
        if (open->n_caches)
            return lk::fail(LK_E_BUSY, "the context has %u live caches: destroy them first",
                            open->n_caches);
    }
    *context = nullptr;
    if (open->is_torn)
        return LK_OK;
    const lk::Allocator allocator = open->allocator;
    lk::backend_close(open->allocator, open->backend);
    lk::destroy(allocator, open);
    return LK_OK;
}

extern "C" lk_status lk_context_device(const lk_context *context, lk_device_info *info) {
    return lk::on_context(context, [&] {
        if (!info)
            return lk::fail(LK_E_ARGUMENT, "info is NULL");
        lk_device_info found{};
        found.size = sizeof found;
        context->backend->describe(&found);
        return lk::export_struct(info, &found, sizeof found, sizeof found, "info");
    });
}

extern "C" lk_status lk_context_supports(const lk_context *context,
                                         const lk_capability *capability) {
    return lk::on_context(context, [&] {
        lk_capability own{};
        LK_TRY(
            lk::import_struct(&own, sizeof own, lk::kOldestCapability, capability, "capability"));
        LK_TRY(lk::check_capability(own));
        return context->backend->supports(own);
    });
}
