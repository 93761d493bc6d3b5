// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/recorder.h"

#include <algorithm>
#include <cassert>

namespace lk {
namespace vulkan {

namespace {

constexpr uint64_t kUpdateBytes = 65536;  // of one vkCmdUpdateBuffer()
constexpr VkPipelineStageFlags kWork =
    VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
constexpr VkAccessFlags kWrites = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
constexpr VkAccessFlags kUses = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                                VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;

}  // namespace

void Recorder::bind(VkPipeline pipeline) const {
    functions_->CmdBindPipeline(commands_, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
}

void Recorder::push_bytes(const void *constants, uint32_t bytes) const {
    functions_->CmdPushConstants(commands_, layout_, VK_SHADER_STAGE_COMPUTE_BIT, 0, bytes,
                                 constants);
}

void Recorder::dispatch(uint32_t x, uint32_t y, uint32_t z) const {
    functions_->CmdDispatch(commands_, x, y, z);
}

void Recorder::depend(VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
                      VkAccessFlags read) const {
    VkMemoryBarrier barrier{};
    barrier.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER;
    barrier.srcAccessMask = written;
    barrier.dstAccessMask = read;
    functions_->CmdPipelineBarrier(commands_, from, to, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

void Recorder::barrier() const { depend(kWork, kWrites, kWork, kUses); }

void Recorder::dispatch_barrier() const {
    depend(VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
           VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
           VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

void Recorder::opening_barrier() const {
    depend(VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_ACCESS_MEMORY_WRITE_BIT, kWork, kUses);
}

void Recorder::closing_barrier() const {
    depend(kWork, kWrites, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT | VK_PIPELINE_STAGE_HOST_BIT,
           VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT | VK_ACCESS_HOST_READ_BIT);
}

void Recorder::update(const Buffer &to, uint64_t offset_bytes, const void *data,
                      uint64_t bytes) const {
    assert(offset_bytes % 4 == 0 && bytes % 4 == 0);
    const char *from = static_cast<const char *>(data);
    for (uint64_t at = 0; at < bytes; at += kUpdateBytes)
        functions_->CmdUpdateBuffer(commands_, to.handle(), offset_bytes + at,
                                    std::min(bytes - at, kUpdateBytes), from + at);
}

void Recorder::copy(const Buffer &from, uint64_t from_bytes, const Buffer &to, uint64_t to_bytes,
                    uint64_t bytes) const {
    const VkBufferCopy region = {from_bytes, to_bytes, bytes};
    functions_->CmdCopyBuffer(commands_, from.handle(), to.handle(), 1, &region);
}

void Recorder::fill(const Buffer &to, uint64_t offset_bytes, uint64_t bytes, uint32_t word) const {
    assert(offset_bytes % 4 == 0 && bytes % 4 == 0);
    functions_->CmdFillBuffer(commands_, to.handle(), offset_bytes, bytes, word);
}

}  // namespace vulkan
}  // namespace lk
