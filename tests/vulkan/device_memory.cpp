// SPDX-License-Identifier: Apache-2.0
#include "device_memory.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status.h"

namespace {

constexpr size_t kBufferBytes = size_t{256} << 20;

}  // namespace

MappedMemory::MappedMemory() : arena_(kBufferBytes) {
    test_check(vulkan_buffer_create(test_device(), kBufferBytes, VULKAN_BUFFER_USAGE, 1, &buffer_));
    lk_queue_init(&queue_, sizeof queue_);
    queue_.kind = LK_QUEUE_VULKAN_SUBMIT;
    queue_.handle = test_device()->queue;
}

MappedMemory::~MappedMemory() {
    clear();
    vulkan_buffer_destroy(test_device(), &buffer_);
}

void MappedMemory::guard(const GuardedArena::Block &zone) {
    std::memset(mapped() + zone.offset, kGuard, zone.n_bytes);
}

uint64_t MappedMemory::input(const void *bytes, size_t n) {
    if (!n)
        return 0;
    GuardedArena::Block zone;
    const GuardedArena::Block block = arena_.input(bytes, n, &zone);
    guard(zone);
    std::memcpy(mapped() + block.offset, bytes, n);
    return buffer_.address + block.offset;
}

uint64_t MappedMemory::output(size_t n) {
    GuardedArena::Block zone;
    const GuardedArena::Block block = arena_.output(n, &zone);
    guard(zone);
    std::memset(mapped() + block.offset, kPoison, n);
    return buffer_.address + block.offset;
}

void MappedMemory::read(uint64_t address, void *to, size_t n) {
    test_wait();
    std::memcpy(to, mapped() + (address - buffer_.address), n);
}

bool MappedMemory::intact() {
    test_wait();
    return arena_.intact(mapped());
}

void MappedMemory::poison() {
    test_wait();
    for (const GuardedArena::Block &output : arena_.outputs())
        std::memset(mapped() + output.offset, kPoison, output.n_bytes);
}

void MappedMemory::clear() {
    test_wait();
    arena_.clear();
}

VulkanDevice::VulkanDevice() {
    lk_context_desc desc = {};
    lk_vulkan_desc vulkan;
    test_describe(&desc, &vulkan);
    if (lk::backend_open(desc, lk::default_allocator(), &backend_) == LK_OK)
        return;
    std::fprintf(stderr, "the Vulkan backend: %s\n", lk::last_sentence());
    std::exit(1);
}

VulkanDevice::~VulkanDevice() { lk::backend_close(lk::default_allocator(), backend_); }

bool has_argument(int argc, char **argv, const char *name) {
    for (int i = 1; i < argc; ++i)
        if (std::strcmp(argv[i], name) == 0)
            return true;
    return false;
}

const char *text_of_argument(int argc, char **argv, const char *name) {
    for (int i = 1; i + 1 < argc; ++i)
        if (std::strcmp(argv[i], name) == 0)
            return argv[i + 1];
    return nullptr;
}
