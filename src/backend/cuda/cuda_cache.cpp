// SPDX-License-Identifier: Apache-2.0
#include "backend/cuda/cuda_cache.h"

#include <algorithm>

#include "base/status.h"
#include "cuda/launch.h"
#include "cuda/query_stats.h"

namespace lk {
namespace cuda {

namespace {

// Of a KV head: fewer of them are attended sooner than packed pages become tiles in device memory.
constexpr uint32_t kLongColumns = 2048;
// For each token of the longest step, so that caches of short steps stay small.
constexpr uint64_t kTokenSlotsBytes = 64 * 1024;
constexpr uint32_t kPackStaticBytes = 1024;  // a little more than packing has of its own

template <class T>
T *at(uint64_t address) {
    return reinterpret_cast<T *>(address);
}

lk_status queue_error(cudaError_t error, int device) {
    if (error != cudaErrorInvalidResourceHandle && error != cudaErrorContextIsDestroyed)
        return checked(error, "looking at the queue");
    (void)cudaGetLastError();
    return fail(LK_E_ARGUMENT, "queue is no stream of CUDA device %d, which the context has",
                device);
}

// Has a thread block the shared memory that packing a page of each format takes?
lk_status check_pages(const CacheLayout &layout, uint32_t shared_bytes) {
    for (uint32_t f = 0; f < layout.n_formats; ++f) {
        const PageLayout &page = layout.formats[f].layout;
        if (page.is_raw())
            continue;
        const uint32_t bytes =
            pack_shared_bytes(page.head_dim, page.page_tokens, n_parameters(page));
        if (bytes + kPackStaticBytes > shared_bytes)
            return fail(LK_E_UNSUPPORTED,
                        "packing pages of head_dim %u with %u ranges needs %u bytes of shared "
                        "memory, the device has %u",
                        page.head_dim, n_parameters(page), bytes, shared_bytes);
    }
    return LK_OK;
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
      transfer_(allocator),
      rules_(allocator),
      state_(allocator),
      append_tables_(allocator) {}

// The host may have destroyed its stream by now, so the device is waited for.
CudaCache::~CudaCache() {
    if (!is_abandoned_)
        (void)cudaDeviceSynchronize();
}

void CudaCache::enter_child() {
    is_abandoned_ = true;
    first_.abandon();
    passed_.abandon();
    upload_.abandon();
    report_.abandon();
    transfer_.abandon();
}

lk_status CudaCache::open() {
    int n_sms = 0;
    int shared_bytes = 0;
    cudaError_t error = cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, device_);
    if (!error)
        error =
            cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_);
    lk_status status = checked(error, "measuring the device");
    if (!status)
        status = check_pages(layout_, static_cast<uint32_t>(shared_bytes));
    n_sms_ = static_cast<uint32_t>(n_sms);
    if (!status && !rules_.open(layout_, n_sms_, static_cast<uint32_t>(shared_bytes)))
        status = fail(LK_E_NOMEM, "no memory for the rules of %u layers", layout_.n_layers);
    if (!status)
        status = first_.open();
    if (!status)
        status = passed_.open();
    use(first_.get());
    if (!status)
        status = upload_.open();
    if (!status)
        status = report_.open();
    if (!status)
        status = open_tables();
    return status;
}

lk_status CudaCache::open_tables() {
    lk_status status = state_.open(layout_, rules_, &upload_, &report_);
    if (!status)
        status = templates_.open(layout_, state_.constants(), allocator_, &upload_);
    if (!status)
        status = upload_.send();
    if (!status)
        status = open_work();
    if (!status)
        status = checked(cudaStreamSynchronize(stream_), "filling the tables of a cache");
    fill_view();
    return status;
}

// Jobs, and the splits that thread blocks leave for the merge.
lk_status CudaCache::open_work() {
    uint64_t floats = state_.splits().partial_floats();
    uint64_t slots_bytes = 0;
    for (uint32_t l = 0; l < layout_.n_layers; ++l) {
        const uint32_t head_dim = layout_.layers[l].head_dim;
        if (rules_.is_uneven(l)) {
            floats = std::max(floats, rows_floats(layer_arg(l), n_sms_));
            continue;
        }
        floats = std::max(floats, tile_partial_floats(head_dim, n_sms_));
        if (layout_.max_step_tokens > kDraftTokens && long_has_instance(head_dim))
            slots_bytes = std::max(slots_bytes, long_slots_bytes(head_dim, n_sms_));
    }
    slots_bytes = std::min(slots_bytes, layout_.max_step_tokens * kTokenSlotsBytes);
    const uint64_t n_counters = uint64_t{state_.splits().n_counters()} * kTileCounters;
    LK_TRY(append_tables_.open(layout_, &upload_));
    LK_TRY(jobs_.open(&upload_));
    LK_TRY(query_stats_cell_.open(&upload_, sizeof(uint64_t), "the place of sums"));
    LK_TRY(partials_.open(&upload_, floats * sizeof(float), "the splits of attention"));
    LK_TRY(slots_.open(&upload_, slots_bytes, "dequantized pages of a long step"));
    LK_TRY(counters_.open(&upload_, n_counters * sizeof(uint32_t), "the counters of attention"));
    return checked(cudaMemsetAsync(at<void>(counters_.address()), 0, counters_.bytes(), stream_),
                   "clearing the counters of attention");
}

void CudaCache::fill_view() {
    const gpu::StepAddresses tables = state_.addresses();
    view_.header = at<StepHeader>(tables.header);
    view_.sequences = at<SequenceInfo>(tables.sequences);
    view_.blocks = at<BlockInfo>(tables.blocks);
    view_.ancestors = at<uint64_t>(tables.ancestors);
    view_.positions = at<uint32_t>(tables.positions);
    view_.formats = at<FormatInfo>(state_.constants().formats());
    view_.report = report_.device_report();
}

uint64_t CudaCache::fixed_bytes() const {
    return state_.fixed_bytes() + templates_.bytes() + append_tables_.bytes() + jobs_.bytes() +
           counters_.bytes() + partials_.bytes() + slots_.bytes() + sums_.bytes() +
           query_stats_cell_.bytes();
}

void CudaCache::use(cudaStream_t stream) {
    stream_ = stream;
    upload_.use(stream);
    report_.use(stream);
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
    return stream == stream_ ? LK_OK : change_stream(stream);
}

// Our event can be recorded on streams of our device only.
lk_status CudaCache::change_stream(cudaStream_t stream) {
    cudaError_t error = cudaEventRecord(passed_.get(), stream);
    if (error)
        return queue_error(error, device_);
    error = cudaEventRecord(passed_.get(), stream_);
    if (!error)
        error = cudaStreamWaitEvent(stream, passed_.get(), 0);
    if (error)
        return checked(error, "changing the queue");
    use(stream);
    return LK_OK;
}

bool CudaCache::is_capturing() const {
    const DeviceScope scope(device_);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream_, &capture) != cudaSuccess)
        (void)cudaGetLastError();
    return capture != cudaStreamCaptureStatusNone;
}

lk_status CudaCache::block_create(Block *block) {
    const DeviceScope scope(device_);
    return state_.block_create(block);
}

void CudaCache::block_destroy(Block *block) { state_.block_destroy(block); }

lk_status CudaCache::entries_changed(Block *block) {
    state_.entries_changed(block);
    return LK_OK;
}

lk_status CudaCache::grow_sums(uint64_t n_bytes) {
    bool has_moved = false;
    const lk_status status = sums_.grow(&upload_, n_bytes, &has_moved);
    if (status || !has_moved)
        return status;
    const uint64_t address = sums_.address();
    return upload_.put(query_stats_cell_.address(), &address, sizeof address);
}

lk_status CudaCache::begin(const Batch &batch) {
    const DeviceScope scope(device_);
    unstaged_ = {};
    lk_status status = grow_sums(batch.query_stat_bytes);
    if (!status)
        status = state_.begin(batch);
    if (!status)
        status = append_tables_.put(state_.new_blocks());
    return status ? status : upload_.turn();
}

StagingArg CudaCache::staging_arg(const Staging &staging) const {
    StagingArg arg{};
    if (state_.shape().is_staged)
        arg = {staging.k, staging.v, staging.n_tokens, 0};
    return arg;
}

LayerArg CudaCache::layer_arg(uint32_t index) const {
    const LayerView &view = layout_.layers[index];
    LayerArg arg{};
    arg.layer = index;
    arg.n_query_heads = view.n_query_heads;
    arg.n_kv_heads = view.n_kv_heads;
    arg.head_dim = view.head_dim;
    arg.window_tokens = view.window_tokens;
    arg.window_sink_tokens = view.window_sink_tokens;
    arg.first_entry = layout_.first_entries[index];
    arg.scale = view.scale;
    arg.soft_cap = view.soft_cap;
    const auto &parameters = state_.constants().layer(index);
    arg.sink_logits = at<const float>(parameters.sink_logits);
    arg.key_centers = at<const float>(parameters.key_centers);
    arg.key_scales = at<const float>(parameters.key_scales);
    arg.key_inverses = at<const float>(parameters.key_inverses);
    arg.query_limit = view.query_limit;
    arg.value_dim = view.value_dim;
    arg.is_latent = view.is_latent;
    arg.key_rotation = view.key_rotation;
    return arg;
}

lk_status CudaCache::append(const AppendArgs &args) {
    const DeviceScope scope(device_);
    const gpu::StepShape &shape = state_.shape();
    const LayerArg layer = layer_arg(args.layer_index);
    const TensorArg k = tensor_arg(args.k);
    const TensorArg v = tensor_arg(args.v);
    const bool is_staged = must_stage(args.layer_index);
    const StagingArg staging = is_staged ? staging_arg(args.staging) : StagingArg{};
    unstaged_ = {!is_staged, args.layer_index, k, v};
    AppendPages pages{};
    append_tables_.fill(&pages);
    if (!pages.n_blocks)
        return checked(
            launch_append(view_, layer, k, v, staging, shape.n_sequences, shape.n_tokens, stream_),
            "appending a layer's tokens");
    pages.tokens = new_tokens(view_, layer, k, v, staging, shape.n_sequences, shape.n_tokens);
    cudaError_t error = launch_append_runs(pages, stream_);
    if (!error)
        error = launch_append_pages(pages, stream_);
    return checked(error, "appending and packing a layer's tokens");
}

lk_status CudaCache::attend(const AttendArgs &args) {
    const DeviceScope scope(device_);
    const gpu::StepShape &shape = state_.shape();
    const bool is_short =
        !shape.is_staged && !shape.has_spans && rules_.takes(args.layer_index, shape.max_new);
    const cudaError_t error = rules_.is_uneven(args.layer_index) ? attend_rows(args)
                              : is_short                         ? decode(args)
                                                                 : prefill(args);
    lk_status status = checked(error, "attending a layer");
    for (uint32_t i = 0; !status && i < args.n_chunk_attentions; ++i)
        status = checked(score_attention(args, args.chunk_attentions[i]), "scoring chunks");
    return status;
}

cudaError_t CudaCache::decode(const AttendArgs &args) {
    const gpu::Split &split = state_.splits().of(args.layer_index);
    const uint64_t splits = state_.addresses().splits;
    DecodeArgs decode{};
    decode.step = view_;
    decode.layer = layer_arg(args.layer_index);
    decode.n_sequences = state_.shape().n_sequences;
    decode.n_tokens = state_.shape().n_tokens;
    decode.q = tensor_arg(args.q);
    decode.out = tensor_arg(args.out);
    decode.lse = args.lse;
    decode.lse_token_stride = args.lse_token_stride;
    decode.lse_head_stride = args.lse_head_stride;
    decode.n_items = at<uint32_t>(splits + split.n_items_offset);
    decode.items = at<WorkItem>(splits + split.items_offset);
    decode.templates = templates_.of(decode.layer.first_entry);
    decode.partials = at<float>(partials_.address());
    decode.counters = at<uint32_t>(counters_.address());
    rules_.fill(args.layer_index, split, &decode);
    return launch_decode(decode, stream_);
}

TileArgs CudaCache::tile_args(const AttendArgs &args) const {
    const gpu::StepShape &shape = state_.shape();
    TileArgs tile{};
    tile.step = view_;
    tile.layer = layer_arg(args.layer_index);
    tile.q = tensor_arg(args.q);
    tile.out = tensor_arg(args.out);
    tile.lse = args.lse;
    tile.lse_token_stride = args.lse_token_stride;
    tile.lse_head_stride = args.lse_head_stride;
    if (!unstaged_.exists || unstaged_.layer != args.layer_index)
        tile.staging = staging_arg(args.staging);
    tile.n_sequences = shape.n_sequences;
    tile.n_tokens = shape.n_tokens;
    tile.max_new = shape.max_new;
    tile.partials = at<float>(partials_.address());
    return tile;
}

cudaError_t CudaCache::prefill(const AttendArgs &args) {
    TileArgs tile = tile_args(args);
    const bool is_long_step = is_long(args.layer_index);
    tile.n_splits = is_long_step ? long_splits(tile, n_sms_) : tile_splits(tile, n_sms_);
    return is_long_step ? launch_long(tile, long_step(args.layer_index), stream_)
                        : launch_tile(tile, stream_);
}

cudaError_t CudaCache::attend_rows(const AttendArgs &args) {
    const RowsPages pages = rules_.rows_pages(args.layer_index);
    TileArgs tile = tile_args(args);
    tile.n_splits = rows_splits(tile, pages, n_sms_);
    return launch_rows(tile, pages, stream_);
}

// Graphs, which are replayed with longer sequences, have no step of more tokens than a draft.
bool CudaCache::is_long(uint32_t layer) const {
    const LayerView &view = layout_.layers[layer];
    const uint32_t max_new = state_.shape().max_new;
    const uint64_t n_columns = uint64_t{max_new} * (view.n_query_heads / view.n_kv_heads);
    return max_new > kDraftTokens && !rules_.is_uneven(layer) && long_has_instance(view.head_dim) &&
           (rules_.is_raw(layer) || n_columns >= kLongColumns);
}

// Attention of a long step can read the host's tensors, which stay until then. A layer that reads
// these keys and values may come later, and keys that are ranked by queries are packed later.
bool CudaCache::must_stage(uint32_t layer) const {
    if (!is_long(layer) || layout_.n_ranked_channels)
        return true;
    for (uint32_t l = 0; l < layout_.n_layers; ++l)
        if (l != layer && layout_.first_entries[l] == layout_.first_entries[layer])
            return true;
    return false;
}

LongStep CudaCache::long_step(uint32_t layer) const {
    const gpu::StepShape &shape = state_.shape();
    LongStep step{};
    step.n_sms = n_sms_;
    step.blocks_are_raw = rules_.is_raw(layer);
    step.n_blocks = shape.max_blocks;
    step.n_staged_pages = long_staged_pages(shape.max_staged);
    step.slots = at<uint8_t>(slots_.address());
    step.slots_bytes = slots_.bytes();
    step.k = unstaged_.k;
    step.v = unstaged_.v;
    return step;
}

cudaError_t CudaCache::score_attention(const AttendArgs &args, const ChunkAttention &request) {
    AttentionScoresArgs own{};
    own.step = view_;
    own.layer = layer_arg(args.layer_index);
    own.q = tensor_arg(args.q);
    own.sequence = request.sequence;
    own.first_query = request.first_query;
    own.n_queries = request.n_queries;
    own.n_tiles = attention_score_tiles(args.layer, request.n_queries);
    own.first_block = request.first_block;
    own.page_tokens = layout_.page_tokens;
    own.chunk_tokens = request.chunk_tokens;
    own.n_chunks = request.n_chunks;
    own.max_work_tiles = request.max_tiles;
    own.is_first = request.is_first != 0;
    own.weight = request.weight;
    own.scores = at<float>(request.scores);
    own.partials = at<float2>(request.partials);
    return launch_attention_scores(own, stream_);
}

lk_status CudaCache::pack(const PackItem *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return jobs_.run(layout_, items, n_items, [&](const PackItem *packed, uint32_t n) {
        const gpu::PackExtent extent = gpu::extent_of(packed, n);
        const lk_status status = upload_.send();
        return status ? status
                      : checked(launch_pack(at<PackJob>(jobs_.address()), n, view_.formats,
                                            extent.head_dim, extent.page_tokens,
                                            extent.n_parameters, stream_),
                                "packing pages");
    });
}

lk_status CudaCache::dequantize(const DequantizeItem *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return jobs_.run(layout_, items, n_items, [&](const DequantizeItem *, uint32_t n) {
        const lk_status status = upload_.send();
        return status ? status
                      : checked(launch_dequantize(at<DequantizeJob>(jobs_.address()), n,
                                                  view_.formats, stream_),
                                "dequantizing pages");
    });
}

lk_status CudaCache::download(const SlotCopy *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return transfer_.download(items, n_items, stream_);
}

lk_status CudaCache::upload(const SlotCopy *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return transfer_.upload(items, n_items, stream_);
}

lk_status CudaCache::copy(const MemoryCopy *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; !error && i < n_items; ++i) {
        const MemoryCopy &item = items[i];
        error = item.source ? cudaMemcpyAsync(at<void>(item.target), at<void>(item.source),
                                              item.bytes, cudaMemcpyDeviceToDevice, stream_)
                            : cudaMemsetAsync(at<void>(item.target), 0, item.bytes, stream_);
    }
    return checked(error, "copying states");
}

lk_status CudaCache::move(const MoveItem *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return jobs_.run(layout_, items, n_items, [&](const MoveItem *, uint32_t n) {
        const lk_status status = upload_.send();
        return status
                   ? status
                   : checked(launch_move(at<MoveJob>(jobs_.address()), n, view_.formats, stream_),
                             "moving tokens");
    });
}

lk_status CudaCache::shrink(const ShrinkItem *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return jobs_.run(layout_, items, n_items, [&](const ShrinkItem *runs, uint32_t n) {
        const lk_status status = upload_.send();
        return status ? status
                      : checked(launch_shrink(at<ShrinkJob>(jobs_.address()), n,
                                              gpu::most_pages(runs, n), stream_),
                                "shrinking pages");
    });
}

lk_status CudaCache::sum_queries(const QueryStatArgs &args) {
    const DeviceScope scope(device_);
    const gpu::StepShape &shape = state_.shape();
    QueryStatsLaunch launch{};
    launch.header = view_.header;
    launch.q = tensor_arg(args.q);
    launch.key_scales = layer_arg(args.layer_index).key_scales;
    launch.query_stats_cell = at<uint64_t>(query_stats_cell_.address());
    launch.n_sequences = shape.n_sequences;
    launch.n_step_tokens = shape.n_tokens;
    launch.head_dim = args.layer.head_dim;
    launch.group_size = args.layer.n_query_heads / args.layer.n_kv_heads;
    launch.key_rotation = args.layer.key_rotation;
    lk_status status = LK_OK;
    for (uint32_t r = 0; !status && r < args.n_runs; ++r) {
        const QueryStatRun &run = args.runs[r];
        launch.offset_bytes = run.offset_bytes;
        launch.stride_bytes = run.stride_bytes;
        launch.first_token = run.first_token;
        launch.n_tokens = run.n_tokens;
        launch.tokens_per_sum = run.tokens_per_sum;
        launch.first_head = run.first_head;
        launch.n_heads = run.n_heads;
        status = checked(launch_query_stats(launch, stream_), "summing queries");
    }
    return status;
}

static_assert(sizeof(SumJob) == sizeof(StatItem) &&
                  offsetof(SumJob, mask) == offsetof(StatItem, mask) &&
                  offsetof(SumJob, stride_bytes) == offsetof(StatItem, stride_bytes) &&
                  offsetof(SumJob, n_channels) == offsetof(StatItem, n_channels) &&
                  offsetof(SumJob, flags) == offsetof(StatItem, flags),
              "items are copied as bytes");

lk_status CudaCache::add_stats(const StatItem *items, uint32_t n_items) {
    const DeviceScope scope(device_);
    return jobs_.run(layout_, items, n_items, [&](const StatItem *added, uint32_t n) {
        const lk_status status = upload_.send();
        return status ? status
                      : checked(launch_add_query_stats(at<SumJob>(jobs_.address()), n,
                                                       gpu::most_channels(added, n), stream_),
                                "adding sums");
    });
}

}  // namespace cuda
}  // namespace lk
