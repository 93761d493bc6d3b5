// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/report_buffer.h"

#include <algorithm>

#include "base/status.h"

namespace lk {
namespace vulkan {

namespace {

uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

}  // namespace

lk_status ReportBuffer::open(const Device &device, const CacheLayout &layout) {
    if (!heads_.resize(layout.n_layers))
        return fail(LK_E_NOMEM, "no memory for the list of %u layers", layout.n_layers);
    for (uint32_t l = 0; l < layout.n_layers; ++l) {
        heads_[l] = layout.layers[l].n_kv_heads;
        if (uint64_t{layout.max_step_tokens} * heads_[l] >= LK_NO_FAULT / 2)
            return fail(LK_E_UNSUPPORTED,
                        "max_step_tokens is %u with %u KV heads, a product of at most %u on Vulkan",
                        layout.max_step_tokens, heads_[l], LK_NO_FAULT / 2 - 1);
    }
    const uint64_t bytes = sizeof(FaultReport) + n_faults() * sizeof(uint32_t);
    LK_TRY(buffer_.open(device, MemoryKind::kReadback, bytes, "the report of a cache"));
    *report() = {};
    std::fill_n(faults(), n_faults(), LK_NO_FAULT);
    return LK_OK;
}

// Of all steps, as fault_key() orders them.
uint64_t ReportBuffer::first_bad() const {
    uint64_t first = kNoFault;
    if (!load(&report()->has_fault))
        return first;
    for (uint32_t i = 0; i < n_faults(); ++i) {
        const uint32_t index = load(faults() + i);
        if (index == LK_NO_FAULT)
            continue;
        const auto layer = static_cast<uint32_t>(i % heads_.size());
        const auto serial = static_cast<uint32_t>(i / heads_.size());
        const uint64_t key = kFaultBias | fault_key(serial, layer, index / 2 / heads_[layer],
                                                    index / 2 % heads_[layer], index % 2);
        first = std::min(first, key);
    }
    return first;
}

// The low word may overflow between two loads, so the high one is read twice.
uint64_t ReportBuffer::n_saturated() const {
    const uint32_t *words = report()->n_saturated;
    uint32_t high;
    uint32_t low;
    do {
        high = load(words + 1);
        low = load(words);
    } while (high != load(words + 1));
    return uint64_t{high} << 32 | low;
}

lk_status ReportBuffer::forget(uint8_t n_clears) {
    const uint32_t none = 0;
    const uint32_t word = n_clears;
    recorder_.fill(buffer_, sizeof(FaultReport), n_faults() * sizeof(uint32_t), LK_NO_FAULT);
    recorder_.update(buffer_, offsetof(FaultReport, has_fault), &none, sizeof none);
    recorder_.barrier();
    recorder_.update(buffer_, offsetof(FaultReport, n_clears), &word, sizeof word);
    return LK_OK;
}

uint8_t ReportBuffer::n_clears() const { return static_cast<uint8_t>(load(&report()->n_clears)); }

}  // namespace vulkan
}  // namespace lk
