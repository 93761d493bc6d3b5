// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/commands.h"

#include "base/status.h"

namespace lk {
namespace vulkan {

Semaphores semaphores_of(const lk_queue *queue) {
    if (!queue)
        return {};
    return {reinterpret_cast<VkSemaphore>(queue->wait_semaphore), queue->wait_value,
            reinterpret_cast<VkSemaphore>(queue->signal_semaphore), queue->signal_value};
}

Commands::~Commands() {
    (void)wait();
    const Functions &vk = device_.functions();
    for (const Slot &slot : slots_) {
        if (slot.is_in_flight)
            device_.settle(slot.fence);
        if (slot.fence)
            vk.DestroyFence(device_.handle(), slot.fence, nullptr);
        if (slot.pool)
            vk.DestroyCommandPool(device_.handle(), slot.pool, nullptr);
    }
}

lk_status Commands::open(VkPipelineLayout layout) {
    layout_ = layout;
    lk_status status = LK_OK;
    for (Slot &slot : slots_)
        if (!status)
            status = open_slot(&slot);
    return status;
}

lk_status Commands::open_slot(Slot *slot) const {
    const Functions &vk = device_.functions();
    VkCommandPoolCreateInfo pool{};
    pool.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO;
    pool.flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT;
    pool.queueFamilyIndex = device_.queue_family();
    VkResult result = vk.CreateCommandPool(device_.handle(), &pool, nullptr, &slot->pool);
    if (result == VK_SUCCESS) {
        VkCommandBufferAllocateInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO;
        info.commandPool = slot->pool;
        info.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
        info.commandBufferCount = 1;
        result = vk.AllocateCommandBuffers(device_.handle(), &info, &slot->commands);
    }
    if (result == VK_SUCCESS) {
        VkFenceCreateInfo fence{};
        fence.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO;
        result = vk.CreateFence(device_.handle(), &fence, nullptr, &slot->fence);
    }
    return device_.checked(result, "making a command buffer");
}

lk_status Commands::finish(Slot *slot) const {
    if (!slot->is_in_flight)
        return LK_OK;
    lk_status status = device_.wait(slot->fence);
    if (!status)
        status = device_.checked(device_.functions().ResetFences(device_.handle(), 1, &slot->fence),
                                 "resetting a fence");
    if (!status)
        slot->is_in_flight = false;
    return status;
}

lk_status Commands::begin(Recorder *out) {
    LK_TRY(device_.check_alive());
    VkCommandBuffer commands = host_;
    if (!commands) {
        Slot &slot = slots_[current_];
        LK_TRY(finish(&slot));
        const Functions &vk = device_.functions();
        VkCommandBufferBeginInfo info{};
        info.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO;
        info.flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT;
        VkResult result = vk.ResetCommandPool(device_.handle(), slot.pool, 0);
        if (result == VK_SUCCESS)
            result = vk.BeginCommandBuffer(slot.commands, &info);
        LK_TRY(device_.checked(result, "beginning a command buffer"));
        commands = slot.commands;
    }
    recorder_ = Recorder(device_.functions(), layout_, commands);
    recorder_.opening_barrier();
    *out = recorder_;
    return LK_OK;
}

lk_status Commands::end(const Semaphores &semaphores) {
    recorder_.closing_barrier();
    has_recorded_ = has_recorded_ || host_ != nullptr;
    if (host_)
        return LK_OK;
    Slot &slot = slots_[current_];
    const lk_status status = device_.checked(device_.functions().EndCommandBuffer(slot.commands),
                                             "ending a command buffer");
    return status ? status : submit(&slot, semaphores);
}

void Commands::abandon() {
    if (!host_)
        (void)device_.functions().EndCommandBuffer(slots_[current_].commands);
    else
        (void)end();
}

lk_status Commands::submit(Slot *slot, const Semaphores &semaphores) {
    VkTimelineSemaphoreSubmitInfo values{};
    values.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO;
    values.waitSemaphoreValueCount = semaphores.wait ? 1 : 0;
    values.pWaitSemaphoreValues = &semaphores.wait_value;
    values.signalSemaphoreValueCount = semaphores.signal ? 1 : 0;
    values.pSignalSemaphoreValues = &semaphores.signal_value;
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    VkSubmitInfo info{};
    info.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO;
    info.pNext = semaphores.wait || semaphores.signal ? &values : nullptr;
    info.waitSemaphoreCount = values.waitSemaphoreValueCount;
    info.pWaitSemaphores = &semaphores.wait;
    info.pWaitDstStageMask = &stage;
    info.commandBufferCount = 1;
    info.pCommandBuffers = &slot->commands;
    info.signalSemaphoreCount = values.signalSemaphoreValueCount;
    info.pSignalSemaphores = &semaphores.signal;
    LK_TRY(device_.submit(info, slot->fence));
    slot->is_in_flight = true;
    current_ = (current_ + 1) % kSlots;
    return LK_OK;
}

lk_status Commands::wait() {
    if (has_recorded_)
        return wait_for_queue();
    lk_status status = LK_OK;
    for (Slot &slot : slots_)
        if (!status)
            status = finish(&slot);
    return status;
}

// A fence is signalled after all earlier submissions.
lk_status Commands::wait_for_queue() {
    const VkCommandBuffer host = host_;
    host_ = nullptr;
    Recorder recorder;
    lk_status status = begin(&recorder);
    if (!status)
        status = end();
    host_ = host;
    if (status)
        return status;
    has_recorded_ = false;
    return wait();
}

}  // namespace vulkan
}  // namespace lk
