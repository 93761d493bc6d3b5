// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/fault_log.h"

#include "base/status.h"

namespace lk {
namespace cuda {

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

lk_status FaultLog::open(uint32_t max_sequences) {
    max_sequences_ = max_sequences;
    if (!members_.resize(uint64_t{kSteps} * max_sequences))
        return fail(LK_E_NOMEM, "no memory for the steps of %u sequences", max_sequences);
    const lk_status status =
        memory_.open(sizeof(Mapped), cudaHostAllocMapped, "the report of a cache");
    if (status)
        return status;
    *mapped() = {{kNoFault, 0}, 0};
    void *device = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&device, memory_.data(), 0);
    device_report_ = static_cast<Report *>(device);
    return checked(error, "mapping the report of a cache");
}

// kNoFault until the device has carried out the last clear.
uint64_t FaultLog::first_bad() const {
    if (__atomic_load_n(&mapped()->n_clears, __ATOMIC_ACQUIRE) != n_clears_)
        return kNoFault;
    return __atomic_load_n(&mapped()->report.first_bad, __ATOMIC_RELAXED);
}

bool FaultLog::is_dropped(uint64_t key) const {
    return key != kNoFault && key != kShapeFault && (dropped_ >> parse(key).serial & 1);
}

lk_status FaultLog::begin(const Batch &batch, uint32_t serial, cudaStream_t stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t place = serial % kSteps;
    lk_status status = LK_OK;
    if (is_dropped(first_bad()))
        start_clear();
    if (is_clear_due_)
        status = forget(stream);
    Member *members = members_.data() + uint64_t{place} * max_sequences_;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        members[s] = {batch.sequences[s].id, batch.sequences[s].first_new};
    n_members_[place] = batch.n_sequences;
    dropped_ &= ~(1u << place);
    serial_ = serial;
    return status;
}

void FaultLog::start_clear() {
    ++n_clears_;
    is_clear_due_ = true;
}

lk_status FaultLog::forget(cudaStream_t stream) {
    auto *device = reinterpret_cast<Mapped *>(device_report_);
    cudaError_t error = cudaMemsetAsync(&device->report.first_bad, 0xff, sizeof(uint64_t), stream);
    if (!error)
        error = cudaMemsetAsync(&device->n_clears, n_clears_, sizeof(uint8_t), stream);
    is_clear_due_ = error != cudaSuccess;
    return checked(error, "clearing the report of a cache");
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
    out->n_saturated = __atomic_load_n(&mapped()->report.n_saturated, __ATOMIC_RELAXED);
    const uint64_t key = first_bad();
    if (key != kNoFault && !is_dropped(key))
        decode(key, out);
}

// A fault that is known goes at once and is erased in the order of the stream; one that comes later
// is told from those of earlier steps by its serial.
void FaultLog::clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped_ |= 1u << serial_ % kSteps;
    if (first_bad() != kNoFault)
        start_clear();
}

}  // namespace cuda
}  // namespace lk
