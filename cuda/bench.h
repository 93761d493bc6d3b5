// Memory, a stream, events, graphs and kernels of known cost, for measurements on a CUDA device.
// Not part of the library.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_CUDA_BENCH_H
#define LK_CUDA_BENCH_H

#include <cstdint>

namespace lk {
namespace cuda {
namespace bench {

// A device with a stream of its own, on which everything below runs in order.
struct Device;
// A recorded part of the stream's work.
struct Graph;
// A call returns null, or the reason of its failure as a static text. Work is asynchronous unless a
// comment says otherwise; wait() or stop() returns the errors of earlier work.
using Failure = const char *;

Failure open(uint32_t index, Device **out);
void close(Device *device);          // waits
void *stream(const Device *device);  // cudaStream_t
Failure wait(Device *device);

Failure allocate(Device *device, uint64_t bytes, void **out);
void release(Device *device, void *memory);  // waits
// These wait.
Failure copy_in(Device *device, void *to, const void *from, uint64_t bytes);
Failure copy_out(Device *device, void *to, const void *from, uint64_t bytes);

// Seconds between two points of the stream; stop() waits.
Failure start(Device *device);
Failure stop(Device *device, double *seconds);

// Empties L2 by reading four times its bytes. A flush that wrote would leave dirty lines, whose
// write-back the next reads would pay for.
Failure flush_l2(Device *device);
// Keeps the stream busy for some tens of microseconds, so that later calls are queued when it ends
// and the measurement excludes the pace of the host.
Failure hold(Device *device);

// Kernels to compare with: nothing, reading a range, and the driver's copy.
Failure run_empty(Device *device);
Failure run_load(Device *device, const void *memory, uint64_t bytes);
Failure run_copy(Device *device, void *to, const void *from, uint64_t bytes);

// The work between the two calls goes into a graph instead of to the device. graph may be null in
// capture_end(): it is dropped.
Failure capture_begin(Device *device);
Failure capture_end(Device *device, Graph **graph);
Failure replay(Device *device, Graph *graph);
void release_graph(Graph *graph);

}  // namespace bench
}  // namespace cuda
}  // namespace lk

#endif
