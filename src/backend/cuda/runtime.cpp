// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/runtime.h"

#include "base/status.h"

namespace lk {
namespace cuda {

namespace {

lk_status no_memory(cudaError_t error, uint64_t bytes, const char *kind, const char *what) {
    if (error != cudaErrorMemoryAllocation)
        return checked(error, what);
    (void)cudaGetLastError();
    return fail(LK_E_NOMEM, "no %s memory for %s of %llu bytes", kind, what,
                static_cast<unsigned long long>(bytes));
}

}  // namespace

lk_status checked(cudaError_t error, const char *action) {
    if (error == cudaSuccess)
        return LK_OK;
    (void)cudaGetLastError();
    return fail(error == cudaErrorMemoryAllocation ? LK_E_NOMEM : LK_E_DEVICE,
                "%s failed with %s: %s", action, cudaGetErrorName(error),
                cudaGetErrorString(error));
}

DeviceScope::DeviceScope(int device) : device_(device), previous_(device) {
    error_ = cudaGetDevice(&previous_);
    if (!error_ && previous_ != device_)
        error_ = cudaSetDevice(device_);
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}

DeviceScope::~DeviceScope() {
    (void)cudaThreadExchangeStreamCaptureMode(&mode_);
    if (previous_ != device_)
        (void)cudaSetDevice(previous_);
}

lk_status allocate(uint64_t bytes, const char *what, void **out) {
    const cudaError_t error = cudaMalloc(out, bytes);
    return error ? no_memory(error, bytes, "device", what) : LK_OK;
}

PinnedMemory::~PinnedMemory() {
    if (data_)
        (void)cudaFreeHost(data_);
}

lk_status PinnedMemory::open(uint64_t bytes, unsigned flags, const char *what) {
    const cudaError_t error = cudaHostAlloc(&data_, bytes, flags);
    return error ? no_memory(error, bytes, "pinned", what) : LK_OK;
}

Stream::~Stream() {
    if (stream_)
        (void)cudaStreamDestroy(stream_);
}

lk_status Stream::open() {
    return checked(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
}

Event::~Event() {
    if (event_)
        (void)cudaEventDestroy(event_);
}

lk_status Event::open() {
    return checked(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event");
}

}  // namespace cuda
}  // namespace lk
