// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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

// The zone after an allocation is the zone before the next one, or its padding.
GuardedArena::Block GuardedArena::reserve(size_t n, Block *zone) {
    const size_t offset =
        (expected_.size() + kGuardBytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
    if (offset + n + kGuardBytes > capacity_bytes_) {
        std::fprintf(stderr, "a case needs more than %zu bytes\n", capacity_bytes_);
        std::exit(1);
    }
    zone->offset = expected_.size();
    expected_.resize(offset + n + kGuardBytes, kGuard);
    zone->n_bytes = expected_.size() - zone->offset;
    return {offset, n};
}

GuardedArena::Block GuardedArena::input(const void *bytes, size_t n, Block *zone) {
    const Block block = reserve(n, zone);
    std::memcpy(expected_.data() + block.offset, bytes, n);
    return block;
}

GuardedArena::Block GuardedArena::output(size_t n, Block *zone) {
    outputs_.push_back(reserve(n, zone));
    return outputs_.back();
}

bool GuardedArena::intact(const uint8_t *found) const {
    size_t from = 0;
    const auto same_to = [&](size_t to) {
        return std::equal(found + from, found + to, expected_.data() + from);
    };
    for (const Block &output : outputs_) {
        if (!same_to(output.offset))
            return false;
        from = output.offset + output.n_bytes;
    }
    return same_to(expected_.size());
}

void GuardedArena::clear() {
    expected_.clear();
    outputs_.clear();
}
