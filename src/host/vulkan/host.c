// The description of the device for lowkey, and the one command buffer for recorded work.
//
// SPDX-License-Identifier: Apache-2.0
#include "setup.h"

#include <dlfcn.h>
#include <string.h>

// A driver on the CPU takes a minute for one command where other programs have most of it.
#define WAIT_NS (UINT64_C(300) * 1000000000)

vulkan_failure vulkan_host_open(const vulkan_host_options *options, vulkan_host *host) {
    memset(host, 0, sizeof *host);
    const vulkan_failure failure = vulkan_open_instance(options, host);
    return failure ? failure : vulkan_open_device(options, host);
}

void vulkan_host_close(vulkan_host *host) {
    vulkan_host_close_device(host);
    if (host->messenger)
        host->vk.DestroyDebugUtilsMessengerEXT(host->instance, host->messenger, NULL);
    if (host->instance)
        host->vk.DestroyInstance(host->instance, NULL);
    if (host->library)
        dlclose(host->library);
    memset(host, 0, sizeof *host);
}

void vulkan_host_describe(const vulkan_host *host, lk_vulkan_desc *desc) {
    desc->api_version = VK_API_VERSION_1_2;
    desc->get_instance_proc_addr = (lk_vulkan_function)host->get_instance_proc_addr;
    desc->instance = host->instance;
    desc->physical_device = host->physical_device;
    desc->device = host->device;
    desc->queue = host->queue;
    desc->queue_family = host->queue_family;
    desc->extensions = host->extensions;
    desc->n_extensions = host->n_extensions;
    desc->features = &host->features;
}

vulkan_failure vulkan_host_record(const vulkan_host *host) {
    const VkCommandBufferBeginInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    return host->vk.BeginCommandBuffer(host->commands, &info) ? "recording does not begin" : NULL;
}

vulkan_failure vulkan_host_submit(const vulkan_host *host) {
    vulkan_host_barrier(host);
    const VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                               .commandBufferCount = 1,
                               .pCommandBuffers = &host->commands};
    if (host->vk.EndCommandBuffer(host->commands) ||
        host->vk.QueueSubmit(host->queue, 1, &info, host->fence))
        return "commands are not accepted";
    if (host->vk.WaitForFences(host->device, 1, &host->fence, VK_TRUE, WAIT_NS) ||
        host->vk.ResetFences(host->device, 1, &host->fence))
        return "commands do not end";
    return NULL;
}

vulkan_failure vulkan_host_wait(const vulkan_host *host) {
    const vulkan_failure failure = vulkan_host_record(host);
    return failure ? failure : vulkan_host_submit(host);
}

void vulkan_host_barrier(const vulkan_host *host) {
    const VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_MEMORY_READ_BIT};
    host->vk.CmdPipelineBarrier(host->commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
                                VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT, 0,
                                1, &barrier, 0, NULL, 0, NULL);
}
