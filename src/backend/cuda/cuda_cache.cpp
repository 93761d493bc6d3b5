// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_cache.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/launch.h"

namespace lk {
namespace cuda {

namespace {

constexpr uint32_t kMaxJobs = 4096;   // of a launch; a large GPU runs over 500 blocks at once
constexpr uint32_t kCopiedJobs = 64;  // for the upload at once
constexpr uint64_t kJobBytes = sizeof(PackJob) > sizeof(ReopenJob) ? sizeof(PackJob)
                                                                   : sizeof(ReopenJob);

lk_status queue_error(cudaError_t error, int device) {
    if (error != cudaErrorInvalidResourceHandle && error != cudaErrorContextIsDestroyed)
        return checked(error, "looking at the queue");
    (void)cudaGetLastError();
    return fail(LK_E_ARGUMENT, "queue is no stream of CUDA device %d, which the context has",
                device);
}

}  // namespace

TensorArg tensor_arg(const TensorView &view) {
    TensorArg arg{};
    arg.data = view.data;
    arg.dtype = view.dtype;
    arg.token_stride = view.token_stride;
    arg.head_stride = view.head_stride;
    return arg;
}

CudaCache::CudaCache(const Allocator &allocator, int device, const CacheLayout &layout)
    : allocator_(allocator),
      device_(device),
      layout_(layout),
      tables_(allocator),
      rows_(allocator),
      step_(allocator),
      splits_(allocator),
      faults_(allocator) {}

// The host may have destroyed its stream by now, so the device is waited for.
CudaCache::~CudaCache() { (void)cudaDeviceSynchronize(); }

lk_status CudaCache::open() {
    int n_sms = 0;
    int shared_bytes = 0;
    cudaError_t error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device_);
    if (!error)
        error =
            cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_);
    lk_status status = checked(error, "measuring the device");
    n_sms_ = static_cast<uint32_t>(n_sms);
    rows_.open(layout_.n_entries);
    if (!status)
        status = passed_.open();
    if (!status)
        status = upload_.open();
    if (!status)
        status = faults_.open(layout_.max_sequences);
    if (!status)
        status = open_work({n_sms_, static_cast<uint32_t>(shared_bytes)});
    if (!status)
        status = fill_constants();
    if (status)
        return status;
    view_ = step_.view();
    view_.classes = tables_.classes();
    view_.report = faults_.device_report();
    return LK_OK;
}

// Splits of decode launches, jobs, and what blocks leave for the merge.
lk_status CudaCache::open_work(const SplitLimits &limits) {
    if (!tables_.choose_kinds(layout_) || !splits_.open(layout_, tables_.decode_kinds(), limits))
        return fail(LK_E_NOMEM, "no memory for the work items of %u sequences",
                    layout_.max_sequences);
    uint64_t floats = splits_.partial_floats();
    for (uint32_t l = 0; l < layout_.n_layers; ++l) {
        const uint64_t own = tile_partial_floats(layout_.layers[l].head_dim, n_sms_);
        floats = own > floats ? own : floats;
    }
    lk_status status = step_.open(layout_, splits_.bytes());
    if (!status)
        status = jobs_.open(kMaxJobs * kJobBytes, "lists of pages to pack");
    if (!status)
        status = counters_.open(uint64_t{splits_.n_counters()} * sizeof(uint32_t),
                                "the counters of attention");
    if (!status)
        status = partials_.open(floats * sizeof(float), "the parts of attention");
    return status;
}

// On a stream of its own, since there is no queue yet.
lk_status CudaCache::fill_constants() {
    cudaStream_t stream = nullptr;
    lk_status status =
        checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    if (status)
        return status;
    status = tables_.open(layout_, &upload_, stream);
    if (!status)
        status = checked(cudaMemsetAsync(counters_.as<void>(), 0, counters_.bytes(), stream),
                         "clearing the counters of attention");
    if (!status)
        status = checked(cudaStreamSynchronize(stream), "filling the tables of a cache");
    (void)cudaStreamDestroy(stream);
    return status;
}

uint64_t CudaCache::fixed_bytes() const {
    return tables_.bytes() + step_.bytes() + jobs_.bytes() + counters_.bytes() + partials_.bytes();
}

lk_status CudaCache::set_queue(const lk_queue *queue) {
    const DeviceScope scope(device_);
    auto *stream = static_cast<cudaStream_t>(queue->handle);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaErrorStreamCaptureImplicit || capture != cudaStreamCaptureStatusNone) {
        (void)cudaGetLastError();
        return fail(LK_E_STATE, "queue is being captured into a graph: begin the step before that");
    }
    if (error)
        return queue_error(error, device_);
    return has_stream_ && stream == stream_ ? LK_OK : change_stream(stream);
}

// Our event can be recorded on streams of our device only.
lk_status CudaCache::change_stream(cudaStream_t stream) {
    cudaError_t error = cudaEventRecord(passed_.get(), stream);
    if (error)
        return queue_error(error, device_);
    if (has_stream_) {
        error = cudaEventRecord(passed_.get(), stream_);
        if (!error)
            error = cudaStreamWaitEvent(stream, passed_.get(), 0);
    }
    if (error)
        return checked(error, "changing the queue");
    stream_ = stream;
    has_stream_ = true;
    return LK_OK;
}

bool CudaCache::is_capturing() const {
    const DeviceScope scope(device_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (has_stream_ && cudaStreamIsCapturing(stream_, &capture) != cudaSuccess)
        (void)cudaGetLastError();
    return capture != cudaStreamCaptureStatusNone;
}

lk_status CudaCache::row_create(PageRow *row) {
    const DeviceScope scope(device_);
    rows_changed_ = true;
    return rows_.add(row);
}

void CudaCache::row_destroy(PageRow *row) {
    rows_changed_ = true;
    rows_.drop(row);
}

lk_status CudaCache::entries_changed(PageRow *row) {
    rows_changed_ = true;
    rows_.mark_stale(row);
    return LK_OK;
}

lk_status CudaCache::begin(const Batch &batch) {
    const DeviceScope scope(device_);
    const uint32_t serial = serial_ + 1;
    lk_status status = step_.fill(batch, serial, rows_changed_);
    if (status)
        return status;
    splits_changed_ = splits_.plan(batch, rows_changed_) || splits_changed_;
    status = faults_.begin(batch, serial, stream_);
    if (!status)
        status = rows_.send(&upload_, stream_);
    const uint64_t splits_bytes = splits_changed_ ? splits_.bytes() : 0;
    if (!status)
        status = step_.send(splits_.data(), splits_bytes, &upload_, stream_);
    if (!status)
        status = upload_.turn(stream_);
    if (status)
        return status;
    serial_ = serial;
    rows_changed_ = false;
    splits_changed_ = false;
    shape_ = {batch.n_sequences, batch.n_tokens, 0, false};
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        shape_.max_new = sequence.n_new > shape_.max_new ? sequence.n_new : shape_.max_new;
        shape_.is_staged = shape_.is_staged || !sequence.new_in_rows;
    }
    return LK_OK;
}

StagingArg CudaCache::staging_arg(const Staging &staging) const {
    StagingArg arg{};
    if (shape_.is_staged)
        arg = {staging.keys, staging.values, staging.n_tokens, 0};
    return arg;
}

lk_status CudaCache::append(const AppendArgs &args) {
    const DeviceScope scope(device_);
    const cudaError_t error = launch_append(
        view_, tables_.layer(args.layer_index), tensor_arg(args.k), tensor_arg(args.v),
        staging_arg(args.staging), shape_.n_sequences, shape_.n_tokens, stream_);
    return checked(error, "appending a layer's tokens");
}

lk_status CudaCache::attend(const AttendArgs &args) {
    const DeviceScope scope(device_);
    const LayerArg &layer = tables_.layer(args.layer_index);
    const bool is_short = !shape_.is_staged && splits_.takes(args.layer_index, shape_.max_new);
    return checked(is_short ? decode(layer, args) : tile(layer, args), "attending a layer");
}

cudaError_t CudaCache::decode(const LayerArg &layer, const AttendArgs &args) {
    const DecodeLaunch launch = splits_.launch_of(args.layer_index);
    DecodeArgs decode{};
    decode.step = view_;
    decode.layer = layer;
    decode.n_sequences = shape_.n_sequences;
    decode.n_tokens = shape_.n_tokens;
    decode.q = tensor_arg(args.q);
    decode.out = tensor_arg(args.out);
    decode.lse = args.lse;
    decode.lse_token_stride = args.lse_token_stride;
    decode.lse_head_stride = args.lse_head_stride;
    decode.n_items = step_.splits<uint32_t>(launch.n_items_offset);
    decode.items = step_.splits<WorkItem>(launch.items_offset);
    decode.partials = partials_.as<float>();
    decode.counters = counters_.as<uint32_t>();
    decode.n_warps = launch.n_warps;
    decode.n_blocks = launch.n_blocks;
    decode.n_column_tiles = launch.n_column_tiles;
    decode.key_metadata_bytes = launch.key_metadata_bytes;
    decode.value_metadata_bytes = launch.value_metadata_bytes;
    decode.kind = launch.kind;
    decode.has_many_units = launch.has_many_units;
    return launch_decode(decode, stream_);
}

cudaError_t CudaCache::tile(const LayerArg &layer, const AttendArgs &args) {
    TileArgs tile{};
    tile.step = view_;
    tile.layer = layer;
    tile.q = tensor_arg(args.q);
    tile.out = tensor_arg(args.out);
    tile.lse = args.lse;
    tile.lse_token_stride = args.lse_token_stride;
    tile.lse_head_stride = args.lse_head_stride;
    tile.staging = staging_arg(args.staging);
    tile.n_sequences = shape_.n_sequences;
    tile.n_tokens = shape_.n_tokens;
    tile.max_new = shape_.max_new;
    tile.n_splits = tile_splits(tile, n_sms_);
    tile.partials = partials_.as<float>();
    return launch_tile(tile, stream_);
}

uint32_t CudaCache::class_index(const HalfClass *half) const {
    return static_cast<uint32_t>(half - layout_.classes);
}

PackJob CudaCache::job_of(const PackItem &item) const {
    PackJob job{};
    job.payload = item.payload;
    job.metadata = item.metadata;
    job.source = item.source_class ? item.source_payload : reinterpret_cast<uint64_t>(item.staged);
    job.target_class = class_index(item.target);
    job.source_class = item.source_class ? class_index(item.source_class) : kStaged;
    return job;
}

ReopenJob CudaCache::job_of(const ReopenItem &item) const {
    ReopenJob job{};
    job.payload = item.source_payload;
    job.metadata = item.source_metadata;
    job.target = item.target_payload;
    job.source_class = class_index(item.source);
    job.target_class = class_index(item.target);
    job.n_tokens = item.n_tokens;
    return job;
}

template <class Job, class Item>
lk_status CudaCache::put_jobs(const Item *items, uint32_t n, uint32_t first) {
    Job jobs[kCopiedJobs];
    for (uint32_t i = 0; i < n; ++i)
        jobs[i] = job_of(items[i]);
    return upload_.put(jobs_.address() + first * sizeof(Job), jobs, n * sizeof(Job), stream_);
}

// In launches of up to kMaxJobs; launch(jobs, items, n) has the jobs in device memory.
template <class Job, class Item, class Launch>
lk_status CudaCache::run_jobs(const Item *items, uint32_t n_items, const char *action,
                              const Launch &launch) {
    const DeviceScope scope(device_);
    lk_status status = LK_OK;
    for (uint32_t first = 0; !status && first < n_items; first += kMaxJobs) {
        const uint32_t n = n_items - first < kMaxJobs ? n_items - first : kMaxJobs;
        for (uint32_t i = 0; !status && i < n; i += kCopiedJobs)
            status = put_jobs<Job>(items + first + i, std::min(n - i, kCopiedJobs), i);
        if (!status)
            status = upload_.send(stream_);
        if (!status)
            status = checked(launch(jobs_.as<Job>(), items + first, n), action);
    }
    return status;
}

lk_status CudaCache::pack(const PackItem *items, uint32_t n_items) {
    return run_jobs<PackJob>(items, n_items, "packing pages",
                             [&](const PackJob *jobs, const PackItem *packed, uint32_t n) {
                                 uint32_t head_dim = 0;
                                 uint32_t page_tokens = 0;
                                 for (uint32_t i = 0; i < n; ++i) {
                                     const HalfShape &shape = packed[i].target->shape;
                                     if (shape.head_dim > head_dim)
                                         head_dim = shape.head_dim;
                                     if (shape.page_tokens > page_tokens)
                                         page_tokens = shape.page_tokens;
                                 }
                                 return launch_pack(jobs, n, tables_.classes(), head_dim,
                                                    page_tokens, stream_);
                             });
}

lk_status CudaCache::reopen(const ReopenItem *items, uint32_t n_items) {
    return run_jobs<ReopenJob>(items, n_items, "reopening pages",
                               [&](const ReopenJob *jobs, const ReopenItem *, uint32_t n) {
                                   return launch_reopen(jobs, n, tables_.classes(), stream_);
                               });
}

lk_status CudaCache::sum_queries(const QuerySumArgs *, uint32_t) {
    return fail(LK_E_UNSUPPORTED, "the CUDA backend does not rank channels by queries");
}

}  // namespace cuda
}  // namespace lk
