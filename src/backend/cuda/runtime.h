// The CUDA runtime as the files of this folder use it: errors, the current device, owned memory and
// events.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BACKEND_CUDA_RUNTIME_H
#define LK_BACKEND_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>
#include <lowkey/base.h>

#include <cstdint>

namespace lk {
namespace cuda {

// LK_OK, or the sentence of a call of the runtime that failed while doing `action`: LK_E_NOMEM or
// LK_E_DEVICE. The runtime's last error is cleared.
lk_status checked(cudaError_t error, const char *action);

// While it lives, the device is the thread's current one, and calls that a capture on another
// stream would forbid (allocation, waiting) are allowed and leave that capture sound.
class DeviceScope {
  public:
    explicit DeviceScope(int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope &) = delete;
    DeviceScope &operator=(const DeviceScope &) = delete;

    // Of making the device current.
    cudaError_t error() const { return error_; }

  private:
    const int device_;
    int previous_;
    cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
    cudaError_t error_;
};

// Memory of the current device, ended by cudaFree(). LK_E_NOMEM names `what` and the bytes.
lk_status allocate(uint64_t bytes, const char *what, void **out);

// Host memory that a device copies from or writes to.
class PinnedMemory {
  public:
    PinnedMemory() = default;
    ~PinnedMemory();
    PinnedMemory(const PinnedMemory &) = delete;
    PinnedMemory &operator=(const PinnedMemory &) = delete;

    // flags are cudaHostAlloc()'s.
    lk_status open(uint64_t bytes, unsigned flags, const char *what);
    // Leave it to the process that opened it.
    void abandon() { data_ = nullptr; }
    char *data() const { return static_cast<char *>(data_); }

  private:
    void *data_ = nullptr;
};

// A stream of our own, which waits for no other.
class Stream {
  public:
    Stream() = default;
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    lk_status open();
    void abandon() { stream_ = nullptr; }  // as PinnedMemory's
    cudaStream_t get() const { return stream_; }

  private:
    cudaStream_t stream_ = nullptr;
};

// A point of a stream, without a time.
class Event {
  public:
    Event() = default;
    ~Event();
    Event(const Event &) = delete;
    Event &operator=(const Event &) = delete;

    lk_status open();
    void abandon() { event_ = nullptr; }  // as PinnedMemory's
    cudaEvent_t get() const { return event_; }

  private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace cuda
}  // namespace lk

#endif
