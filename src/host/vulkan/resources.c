// Pipelines and buffers.
//
// SPDX-License-Identifier: Apache-2.0
#include "host.h"

#include <string.h>

vulkan_failure vulkan_program_create(vulkan_host *host, const uint32_t *spirv, size_t spirv_bytes,
                                     uint32_t push_bytes, vulkan_program *program) {
    const VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                       .size = push_bytes};
    const VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range};
    const VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                             .codeSize = spirv_bytes,
                                             .pCode = spirv};
    VkShaderModule shader = VK_NULL_HANDLE;
    *program = (vulkan_program){.push_bytes = push_bytes};
    if (host->vk.CreatePipelineLayout(host->device, &layout, NULL, &program->layout))
        return "there is no memory for the layout of a pipeline";
    if (host->vk.CreateShaderModule(host->device, &module, NULL, &shader))
        return "the device does not take the shader";
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = shader,
                  .pName = "main"},
        .layout = program->layout};
    const VkResult result = host->vk.CreateComputePipelines(host->device, VK_NULL_HANDLE, 1, &info,
                                                            NULL, &program->pipeline);
    host->vk.DestroyShaderModule(host->device, shader, NULL);
    return result ? "the device makes no pipeline of the shader" : NULL;
}

void vulkan_program_destroy(vulkan_host *host, vulkan_program *program) {
    host->vk.DestroyPipeline(host->device, program->pipeline, NULL);
    host->vk.DestroyPipelineLayout(host->device, program->layout, NULL);
    *program = (vulkan_program){0};
}

void vulkan_program_run(const vulkan_host *host, const vulkan_program *program, const void *push,
                        uint32_t n_groups) {
    host->vk.CmdBindPipeline(host->commands, VK_PIPELINE_BIND_POINT_COMPUTE, program->pipeline);
    host->vk.CmdPushConstants(host->commands, program->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                              program->push_bytes, push);
    host->vk.CmdDispatch(host->commands, n_groups, 1, 1);
}

// The first type that has all of `needed`, and of `wanted` if one has both.
static uint32_t memory_type(const vulkan_host *host, uint32_t allowed, VkMemoryPropertyFlags needed,
                            VkMemoryPropertyFlags wanted) {
    VkPhysicalDeviceMemoryProperties memory;
    host->vk.GetPhysicalDeviceMemoryProperties(host->physical_device, &memory);
    for (uint32_t pass = 0; pass < 2; ++pass) {
        const VkMemoryPropertyFlags flags = pass ? needed : needed | wanted;
        for (uint32_t i = 0; i < memory.memoryTypeCount; ++i)
            if (allowed >> i & 1 && (memory.memoryTypes[i].propertyFlags & flags) == flags)
                return i;
    }
    return UINT32_MAX;
}

static vulkan_failure allocate(vulkan_host *host, int is_mapped, vulkan_buffer *buffer) {
    VkMemoryRequirements needs;
    host->vk.GetBufferMemoryRequirements(host->device, buffer->handle, &needs);
    const VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                             .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = buffer->usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT ? &flags : NULL,
        .allocationSize = needs.size,
        .memoryTypeIndex = is_mapped ? memory_type(host, needs.memoryTypeBits,
                                                   VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT |
                                                       VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                                                   VK_MEMORY_PROPERTY_HOST_CACHED_BIT)
                                     : memory_type(host, needs.memoryTypeBits, 0,
                                                   VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)};
    if (host->vk.AllocateMemory(host->device, &info, NULL, &buffer->memory) ||
        host->vk.BindBufferMemory(host->device, buffer->handle, buffer->memory, 0))
        return "there is no memory for a buffer";
    if (!is_mapped)
        return NULL;
    if (host->vk.MapMemory(host->device, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped))
        return "the memory of a buffer cannot be mapped";
    memset(buffer->mapped, 0, buffer->bytes);
    return NULL;
}

vulkan_failure vulkan_buffer_create(vulkan_host *host, uint64_t bytes, VkBufferUsageFlags usage,
                                    int is_mapped, vulkan_buffer *buffer) {
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO, .size = bytes, .usage = usage};
    *buffer = (vulkan_buffer){.bytes = bytes, .usage = usage};
    if (host->vk.CreateBuffer(host->device, &info, NULL, &buffer->handle))
        return "a buffer is refused";
    const vulkan_failure failure = allocate(host, is_mapped, buffer);
    if (failure) {
        vulkan_buffer_destroy(host, buffer);
        return failure;
    }
    if (usage & VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT) {
        const VkBufferDeviceAddressInfo whose = {
            .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO, .buffer = buffer->handle};
        buffer->address = host->vk.GetBufferDeviceAddress(host->device, &whose);
    }
    return NULL;
}

void vulkan_buffer_destroy(vulkan_host *host, vulkan_buffer *buffer) {
    host->vk.DestroyBuffer(host->device, buffer->handle, NULL);
    host->vk.FreeMemory(host->device, buffer->memory, NULL);
    *buffer = (vulkan_buffer){0};
}
