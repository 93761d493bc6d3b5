// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/mapped_report.h"

#include "base/status.h"

namespace lk {
namespace cuda {

lk_status MappedReport::open() {
    LK_TRY(memory_.open(sizeof(Mapped), cudaHostAllocMapped, "the report of a cache"));
    *mapped() = {{kNoFault, 0}, 0};
    void *device = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&device, memory_.data(), 0);
    device_report_ = static_cast<Report *>(device);
    return checked(error, "mapping the report of a cache");
}

uint64_t MappedReport::first_bad() const {
    return __atomic_load_n(&mapped()->report.first_bad, __ATOMIC_RELAXED);
}

uint64_t MappedReport::n_saturated() const {
    return __atomic_load_n(&mapped()->report.n_saturated, __ATOMIC_RELAXED);
}

lk_status MappedReport::forget(uint8_t n_clears) {
    auto *device = reinterpret_cast<Mapped *>(device_report_);
    cudaError_t error = cudaMemsetAsync(&device->report.first_bad, 0xff, sizeof(uint64_t), stream_);
    if (!error)
        error = cudaMemsetAsync(&device->n_clears, n_clears, sizeof(uint8_t), stream_);
    return checked(error, "clearing the report of a cache");
}

uint8_t MappedReport::n_clears() const {
    return __atomic_load_n(&mapped()->n_clears, __ATOMIC_ACQUIRE);
}

}  // namespace cuda
}  // namespace lk
