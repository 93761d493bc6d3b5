// SPDX-License-Identifier: Apache-2.0
#include "core/context/vulkan.h"

#include "core/context/call.h"

namespace lk {

namespace {

constexpr uint32_t kMask = LK_VULKAN_NO_FLOAT16 | LK_VULKAN_NO_SUBGROUP | LK_VULKAN_NO_INTEGER_DOT |
                           LK_VULKAN_NO_COOPERATIVE_MATRIX | LK_VULKAN_NO_TIMELINE;

// With `device` all handles are set, without it none is.
lk_status check_handles(const lk_vulkan_desc &desc) {
    const struct {
        bool is_set;
        const char *name;
    } handles[] = {
        {desc.get_instance_proc_addr != nullptr, "get_instance_proc_addr"},
        {desc.instance != nullptr, "instance"},
        {desc.physical_device != nullptr, "physical_device"},
        {desc.queue != nullptr, "queue"},
        {desc.features != nullptr, "features"},
    };
    for (const auto &handle : handles)
        if (handle.is_set != (desc.device != nullptr))
            return fail(LK_E_ARGUMENT, "vulkan.%s is %s and vulkan.device is %s", handle.name,
                        handle.is_set ? "set" : "NULL", desc.device ? "set" : "NULL");
    if (desc.n_extensions && !desc.extensions)
        return fail(LK_E_ARGUMENT, "vulkan.n_extensions is %u and vulkan.extensions is NULL",
                    desc.n_extensions);
    for (uint32_t i = 0; i < desc.n_extensions; ++i)
        if (!desc.extensions[i])
            return fail(LK_E_ARGUMENT, "vulkan.extensions[%u] is NULL", i);
    return LK_OK;
}

lk_status check_options(const lk_vulkan_desc &desc) {
    if (desc.mask & ~kMask)
        return fail(LK_E_ARGUMENT, "vulkan.mask is 0x%x, known bits are 0x%x", desc.mask, kMask);
    if (desc.validation > 1)
        return fail(LK_E_ARGUMENT, "vulkan.validation is %u, at most 1", desc.validation);
    if (desc.validation && desc.device)
        return fail(LK_E_ARGUMENT,
                    "vulkan.validation is for lowkey's own device: the host's has its layers");
    if (!desc.lock_queue != !desc.unlock_queue)
        return fail(LK_E_ARGUMENT, "vulkan.%s is NULL and vulkan.%s is not",
                    desc.lock_queue ? "unlock_queue" : "lock_queue",
                    desc.lock_queue ? "lock_queue" : "unlock_queue");
    if (desc.lock_queue && !desc.device)
        return fail(LK_E_ARGUMENT, "vulkan.lock_queue is set and vulkan.device is NULL");
    if (desc.pipeline_cache_bytes && !desc.pipeline_cache)
        return fail(LK_E_ARGUMENT,
                    "vulkan.pipeline_cache_bytes is %llu and vulkan.pipeline_cache is NULL",
                    static_cast<unsigned long long>(desc.pipeline_cache_bytes));
    return LK_OK;
}

lk_status fail_capability() { return fail(LK_E_UNSUPPORTED, "the context is not of Vulkan"); }

lk_status find_buffers(const lk_context *context, HostBuffers **out) {
    *out = context->backend->host_buffers();
    return *out ? LK_OK : fail_capability();
}

lk_status add_buffer(const lk_context *context, uint64_t buffer, uint64_t bytes, uint32_t usage) {
    HostBuffers *buffers = nullptr;
    LK_TRY(find_buffers(context, &buffers));
    if (!buffer || !bytes)
        return fail(LK_E_ARGUMENT, "%s is 0", buffer ? "bytes" : "buffer");
    return buffers->add(buffer, bytes, usage);
}

lk_status remove_buffer(const lk_context *context, uint64_t buffer) {
    HostBuffers *buffers = nullptr;
    LK_TRY(find_buffers(context, &buffers));
    return buffers->remove(buffer);
}

lk_status save_pipelines(const lk_context *context, void *buffer, uint64_t capacity_bytes,
                         uint64_t *needed_bytes) {
    const PipelineStore *pipelines = context->backend->pipeline_store();
    if (!pipelines)
        return fail_capability();
    if (!buffer && capacity_bytes)
        return fail(LK_E_ARGUMENT, "buffer is NULL and capacity_bytes is %llu",
                    ull{capacity_bytes});
    return pipelines->save(buffer, capacity_bytes, needed_bytes);
}

}  // namespace

lk_status import_vulkan(const lk_context_desc &desc, lk_vulkan_desc *vulkan) {
    *vulkan = {};
    vulkan->size = sizeof *vulkan;
    if (!desc.vulkan)
        return LK_OK;
    if (!takes_host_device(desc.backend))
        return fail(LK_E_ARGUMENT, "context_desc.vulkan is set and context_desc.backend is %u",
                    desc.backend);
    LK_TRY(import_struct(vulkan, sizeof *vulkan, sizeof *vulkan, desc.vulkan, "vulkan"));
    LK_TRY(check_options(*vulkan));
    return check_handles(*vulkan);
}

}  // namespace lk

extern "C" lk_status lk_vulkan_desc_init(lk_vulkan_desc *desc, size_t struct_bytes) {
    return lk::init_struct(desc, struct_bytes, sizeof(lk_vulkan_desc), "vulkan");
}

extern "C" lk_status lk_vulkan_buffer_add(lk_context *context, uint64_t buffer, uint64_t bytes,
                                          uint32_t usage) {
    return lk::logged(context, lk::on_context(context, [&] {
                          return lk::add_buffer(context, buffer, bytes, usage);
                      }));
}

extern "C" lk_status lk_vulkan_buffer_remove(lk_context *context, uint64_t buffer) {
    return lk::logged(context,
                      lk::on_context(context, [&] { return lk::remove_buffer(context, buffer); }));
}

extern "C" lk_status lk_vulkan_pipeline_cache(const lk_context *context, void *buffer,
                                              uint64_t capacity_bytes, uint64_t *needed_bytes) {
    return lk::logged(context, lk::on_context(context, [&] {
                          return lk::save_pipelines(context, buffer, capacity_bytes, needed_bytes);
                      }));
}
