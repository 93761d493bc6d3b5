// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <cstring>

std::string &current_case() {
    static std::string text;
    return text;
}

uint64_t HostMemory::input(const void *bytes, size_t n) {
    if (!n)
        return 0;
    const auto *from = static_cast<const uint8_t *>(bytes);
    inputs_.push_back({{from, from + n}, {from, from + n}});
    return reinterpret_cast<uint64_t>(inputs_.back().bytes.data());
}

uint64_t HostMemory::output(size_t n) {
    outputs_.emplace_back(n + 2 * kGuardBytes, kGuard);
    uint8_t *first = outputs_.back().data() + kGuardBytes;
    std::fill_n(first, n, kPoison);
    return reinterpret_cast<uint64_t>(first);
}

void HostMemory::read(uint64_t address, void *to, size_t n) {
    std::memcpy(to, reinterpret_cast<const void *>(address), n);
}

bool HostMemory::intact() {
    const auto is_guard = [](uint8_t byte) { return byte == kGuard; };
    return std::all_of(outputs_.begin(), outputs_.end(),
                       [&](const std::vector<uint8_t> &block) {
                           return std::all_of(block.begin(), block.begin() + kGuardBytes,
                                              is_guard) &&
                                  std::all_of(block.end() - kGuardBytes, block.end(), is_guard);
                       }) &&
           std::all_of(inputs_.begin(), inputs_.end(),
                       [](const Input &input) { return input.bytes == input.original; });
}

void HostMemory::poison() {
    for (std::vector<uint8_t> &block : outputs_)
        std::fill(block.begin() + kGuardBytes, block.end() - kGuardBytes, kPoison);
}

void HostMemory::clear() {
    inputs_.clear();
    outputs_.clear();
}
