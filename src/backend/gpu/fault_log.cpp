// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/fault_log.h"

#include "base/status.h"

namespace lk {
namespace gpu {

namespace {

// Where fault_key() puts what.
struct FaultKey {
    uint32_t serial;  // modulo 16
    uint32_t layer;
    uint32_t token;  // of the batch
    uint32_t kv_head;
    uint32_t is_value;
};

constexpr FaultKey parse(uint64_t key) {
    return {static_cast<uint32_t>(key >> 1 & 15), static_cast<uint32_t>(key >> 45 & 0xffff),
            static_cast<uint32_t>(key >> 21 & 0xffffff), static_cast<uint32_t>(key >> 5 & 0xffff),
            static_cast<uint32_t>(key & 1)};
}

constexpr FaultKey kSample = parse(kFaultBias | fault_key(0x1d, 0xabcd, 0xfedcba, 0x8765, 1));
static_assert(kSample.serial == 13 && kSample.layer == 0xabcd && kSample.token == 0xfedcba &&
                  kSample.kv_head == 0x8765 && kSample.is_value == 1,
              "parse() undoes fault_key()");

}  // namespace

lk_status FaultLog::open(uint32_t max_sequences, ReportMemory *memory) {
    memory_ = memory;
    max_sequences_ = max_sequences;
    if (!members_.resize(uint64_t{kSteps} * max_sequences))
        return fail(LK_E_NOMEM, "no memory for the steps of %u sequences", max_sequences);
    return LK_OK;
}

// kNoFault until the device has carried out the last clear.
uint64_t FaultLog::first_bad() const {
    return memory_->n_clears() == n_clears_ ? memory_->first_bad() : kNoFault;
}

bool FaultLog::is_dropped(uint64_t key) const {
    return key != kNoFault && key != kShapeFault && (dropped_ >> parse(key).serial & 1);
}

lk_status FaultLog::begin(const Batch &batch, uint32_t serial) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t index = serial % kSteps;
    lk_status status = LK_OK;
    if (is_dropped(first_bad()))
        start_clear();
    if (is_clear_due_)
        status = forget();
    Member *members = members_.data() + uint64_t{index} * max_sequences_;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        members[s] = {batch.sequences[s].id, batch.sequences[s].first_new};
    n_members_[index] = batch.n_sequences;
    dropped_ &= ~(1u << index);
    serial_ = serial;
    return status;
}

void FaultLog::start_clear() {
    ++n_clears_;
    is_clear_due_ = true;
}

lk_status FaultLog::forget() {
    const lk_status status = memory_->forget(n_clears_);
    is_clear_due_ = status != LK_OK;
    return status;
}

void FaultLog::decode(uint64_t key, DataReport *out) const {
    if (key == kShapeFault) {
        out->is_wrong_shape = 1;
        return;
    }
    const FaultKey fault = parse(key);
    const Member *members = members_.data() + uint64_t{fault.serial} * max_sequences_;
    uint32_t s = n_members_[fault.serial];
    while (s > 1 && members[s - 1].first_new > fault.token)
        --s;
    out->has_fault = 1;
    out->is_earlier = fault.serial != serial_ % kSteps;
    out->layer = fault.layer;
    out->token = fault.token - members[s - 1].first_new;
    out->kv_head = fault.kv_head;
    out->is_value = static_cast<int32_t>(fault.is_value);
    out->sequence = members[s - 1].id;
}

void FaultLog::read(DataReport *out) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    *out = {};
    out->n_saturated = memory_->n_saturated();
    const uint64_t key = first_bad();
    if (key != kNoFault && !is_dropped(key))
        decode(key, out);
}

// A fault that is known goes at once and is erased in the order of the queue; one that comes later
// is distinguished from those of earlier steps by its serial.
void FaultLog::clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped_ |= 1u << serial_ % kSteps;
    if (first_bad() != kNoFault)
        start_clear();
}

}  // namespace gpu
}  // namespace lk
