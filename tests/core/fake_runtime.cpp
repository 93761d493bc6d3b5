// SPDX-License-Identifier: Apache-2.0
#include "fake_runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "backend/cpu/attention_scores.h"
#include "backend/cpu/cache_device.h"
#include "cuda/append_pages.h"
#include "cuda/launch.h"
#include "cuda/query_stats.h"
#include "suite.h"

using namespace lk;
using namespace lk::cuda;

struct CUevent_st {
    uint64_t place = 0;  // in the queue
};

namespace {

constexpr int kMultiprocessors = 5;
constexpr int kSharedBytes = 227 << 10;  // of a multiprocessor and of a block

using Work = std::function<void()>;
using Blocks = std::map<uint64_t, uint64_t>;  // address, bytes

FakeCounts g_counts;
std::deque<Work> g_queue;
uint64_t g_n_queued;
uint64_t g_n_done;
std::vector<Work> g_graph;
bool g_is_capturing;
cudaError_t g_count_error = cudaSuccess;
uint32_t g_seed = 1;
Blocks g_device;
Blocks g_pinned;
CacheLayout g_layout;

void run_to(uint64_t place) {
    for (; g_n_done < place; ++g_n_done) {
        const Work work = g_queue.front();
        g_queue.pop_front();
        work();
    }
}

void queue(const Work &work) {
    g_queue.push_back(work);
    ++g_n_queued;
    g_seed = g_seed * 1664525u + 1013904223u;
    if (g_seed >> 28 == 0)
        run_to(g_n_done + (g_n_queued - g_n_done) / 2);
}

cudaError_t launch(const Work &work) {
    if (g_is_capturing)
        g_graph.push_back(work);
    else
        queue(work);
    return cudaSuccess;
}

bool holds(const Blocks &blocks, const void *data, uint64_t bytes) {
    const auto at = reinterpret_cast<uint64_t>(data);
    auto block = blocks.upper_bound(at);
    if (block == blocks.begin())
        return false;
    --block;
    return at + bytes <= block->first + block->second;
}

cudaError_t allocate(Blocks *blocks, void **out, size_t bytes) {
    *out = std::aligned_alloc(256, round_up(bytes, 256));
    std::memset(*out, 0xcd, bytes);
    (*blocks)[reinterpret_cast<uint64_t>(*out)] = bytes;
    ++g_counts.n_allocations;
    return cudaSuccess;
}

cudaError_t release(Blocks *blocks, void *data) {
    run_to(g_n_queued);
    assert_int_equal(blocks->erase(reinterpret_cast<uint64_t>(data)), 1);
    std::free(data);
    return cudaSuccess;
}

cpu::Engine &engine() {
    static cpu::Engine made(default_allocator(), nullptr);
    if (!made.pack_scratch.capacity()) {
        assert_true(made.pack_scratch.reserve(cpu::kPackScratch));
        assert_int_equal(made.pool.start(1), LK_OK);
    }
    return made;
}

// A batch as the device's tables have it.
struct DeviceBatch {
    explicit DeviceBatch(const StepView &view);

    std::vector<std::vector<Block>> blocks;
    std::vector<std::vector<const Block *>> lists;
    std::vector<std::vector<int32_t>> parents;
    std::vector<std::vector<uint32_t>> reaches;
    std::vector<BatchSequence> sequences;
    Batch batch;

  private:
    void read_blocks(const StepView &view, const SequenceInfo &info, uint32_t s);
    void read_tree(const StepView &view, const SequenceInfo &info, uint32_t s);
};

void DeviceBatch::read_blocks(const StepView &view, const SequenceInfo &info, uint32_t s) {
    for (uint32_t r = 0; r < info.n_blocks; ++r) {
        const BlockInfo &from = view.blocks[info.first_block + r];
        Block block{};
        block.first_token = from.first_token;
        block.capacity_tokens = from.capacity_tokens;
        block.n_entries = g_layout.n_entries;
        block.entries = reinterpret_cast<PageEntry *>(from.entries);
        block.is_packed_on_append = from.is_packed_on_append;
        for (uint32_t e = 0; e < block.n_entries; ++e) {
            assert_true(block.entries[e].key_format < g_layout.n_formats);
            assert_true(block.entries[e].value_format < g_layout.n_formats);
        }
        blocks[s].push_back(block);
    }
    for (const Block &block : blocks[s])
        lists[s].push_back(&block);
}

// The nearest ancestor is the parent: its bit is the highest below the token's own.
void DeviceBatch::read_tree(const StepView &view, const SequenceInfo &info, uint32_t s) {
    for (uint32_t i = 0; info.has_tree && i < info.n_new; ++i) {
        const uint64_t own = uint64_t{1} << i;
        const uint64_t before = view.ancestors[info.first_new + i] ^ own;
        assert_true(before < own);
        const int32_t parent = before ? 63 - __builtin_clzll(before) : -1;
        const uint32_t position =
            before ? view.positions[info.first_new + static_cast<uint32_t>(parent)] + 1
                   : info.n_history;
        assert_int_equal(view.positions[info.first_new + i], position);
        parents[s].push_back(parent);
    }
}

DeviceBatch::DeviceBatch(const StepView &view) {
    const uint32_t n = view.header->n_sequences;
    blocks.resize(n);
    lists.resize(n);
    parents.resize(n);
    reaches.resize(n);
    for (uint32_t s = 0; s < n; ++s) {
        const SequenceInfo &info = view.sequences[s];
        read_blocks(view, info, s);
        read_tree(view, info, s);
        for (uint32_t i = 0; info.has_spans && i < info.n_new; ++i)
            reaches[s].push_back(view.positions[info.first_new + i] - info.n_history);
        sequences.push_back({lists[s].data(), info.n_blocks, info.n_attended, info.id,
                             info.n_history, info.n_new, info.first_new,
                             static_cast<int32_t>(info.new_in_blocks),
                             info.has_tree ? parents[s].data() : nullptr,
                             info.has_spans ? reaches[s].data() : nullptr, info.has_spans == 1});
    }
    batch = {sequences.data(), n, view.header->n_tokens};
}

LayerView layer_view(const LayerArg &layer) {
    return {layer.n_query_heads,      layer.n_kv_heads,     layer.head_dim,     layer.window_tokens,
            layer.window_sink_tokens, layer.scale,          layer.soft_cap,     layer.sink_logits,
            layer.key_centers,        layer.key_scales,     layer.key_inverses, layer.query_limit,
            layer.value_dim,          layer.is_latent != 0, layer.key_rotation};
}

TensorView tensor_view(const TensorArg &tensor) {
    return {tensor.data, tensor.dtype, tensor.token_stride, tensor.head_stride};
}

void append_now(const StepView &view, const LayerArg &layer, const TensorArg &k, const TensorArg &v,
                const StagingArg &staging) {
    DeviceBatch read(view);
    cpu::CpuCacheDevice device(&engine(), g_layout);
    assert_int_equal(device.begin(read.batch), LK_OK);
    const size_t n = size_t{layer.n_kv_heads} * view.header->n_tokens *
                     std::max(layer.head_dim, layer.value_dim);
    std::vector<uint16_t> own(2 * n);
    AppendArgs args{};
    args.layer = layer_view(layer);
    args.layer_index = layer.layer;
    args.first_entry = layer.first_entry;
    args.k = tensor_view(k);
    args.v = tensor_view(v);
    args.staging = {staging.k ? staging.k : own.data(), staging.k ? staging.v : own.data() + n,
                    view.header->n_tokens};
    assert_int_equal(device.append(args), LK_OK);
    DataReport report{};
    device.report(&report);
    view.report->n_saturated += report.n_saturated;
    for (const BatchSequence &sequence : read.sequences) {
        if (!report.has_fault || sequence.id != report.sequence)
            continue;
        const uint64_t key =
            kFaultBias | fault_key(view.header->serial, report.layer,
                                   sequence.first_new + report.token, report.kv_head,
                                   static_cast<uint32_t>(report.is_value));
        view.report->first_bad = key < view.report->first_bad ? key : view.report->first_bad;
    }
}

template <class Args>
void attend_now(const Args &from, const StagingArg &staging) {
    DeviceBatch read(from.step);
    cpu::CpuCacheDevice device(&engine(), g_layout);
    assert_int_equal(device.begin(read.batch), LK_OK);
    AttendArgs args{};
    args.layer = layer_view(from.layer);
    args.layer_index = from.layer.layer;
    args.first_entry = from.layer.first_entry;
    args.q = tensor_view(from.q);
    args.out = tensor_view(from.out);
    args.lse = from.lse;
    args.lse_token_stride = from.lse_token_stride;
    args.lse_head_stride = from.lse_head_stride;
    args.staging = {staging.k, staging.v, staging.n_tokens};
    assert_int_equal(device.attend(args), LK_OK);
}

void score_attention_now(const AttentionScoresArgs &from) {
    DeviceBatch read(from.step);
    assert_true(holds(g_device, from.scores, from.n_chunks * sizeof(float)));
    assert_true(holds(g_device, from.partials,
                      from.max_work_tiles * attention_score_tile_bytes(from.n_chunks)));
    cpu::AttendCall call{};
    call.layer = layer_view(from.layer);
    call.layer_index = from.layer.layer;
    call.first_entry = from.layer.first_entry;
    call.q = tensor_view(from.q);
    call.classes = g_layout.formats;
    call.sequences = read.sequences.data();
    call.n_sequences = static_cast<uint32_t>(read.sequences.size());
    assert_int_equal(from.n_tiles, attention_score_tiles(call.layer, from.n_queries));
    assert_int_equal(from.page_tokens,
                     read.sequences[from.sequence].blocks[from.first_block]->capacity_tokens);
    const ChunkAttention chunks = {from.sequence,
                                   from.first_query,
                                   from.n_queries,
                                   from.first_block,
                                   from.chunk_tokens,
                                   from.n_chunks,
                                   from.max_work_tiles,
                                   from.weight,
                                   reinterpret_cast<uint64_t>(from.scores),
                                   reinterpret_cast<uint64_t>(from.partials),
                                   static_cast<int32_t>(from.is_first)};
    assert_int_equal(cpu::score_attention(call, chunks, &engine().pool, &engine().attend_scratch),
                     LK_OK);
}

// The work items of one work tile: how often each block is read.
struct WorkTile {
    std::vector<uint8_t> blocks;
    uint32_t n_items = 0;
    uint32_t n_splits = 0;
    std::set<uint32_t> splits;
};

void mark_blocks(const WorkItem &item, std::vector<uint8_t> *blocks) {
    const uint32_t begins[3] = {item.raw_begin[0], item.raw_begin[1], item.packed_begin};
    const uint32_t counts[3] = {item.raw_count[0], item.raw_count[1], item.packed_count};
    for (uint32_t run = 0; run < 3; ++run)
        for (uint32_t b = begins[run]; b < begins[run] + counts[run]; ++b) {
            assert_true(b < blocks->size());
            ++(*blocks)[b];
        }
}

// What a work item repeats of its sequence is right, and its work tile's memory is there.
void check_item(const DecodeArgs &args, const WorkItem &item) {
    assert_true(item.sequence < args.step.header->n_sequences);
    const SequenceInfo &info = args.step.sequences[item.sequence];
    assert_int_equal(item.first_block, info.first_block);
    assert_int_equal(item.first_new, info.first_new);
    assert_int_equal(item.n_new, info.n_new);
    assert_int_equal(item.new_in_blocks, info.new_in_blocks);
    assert_int_equal(item.has_tree, info.has_tree);
    assert_int_equal(info.has_spans, 0);  // decode knows none
    assert_true(holds(g_device, args.counters + item.work_tile, sizeof *args.counters));
    const uint64_t split_floats = args.tile_columns * (args.layer.head_dim + 2);
    if (item.n_splits > 1)
        assert_true(holds(g_device, args.partials + item.first_partial,
                          item.n_splits * split_floats * sizeof *args.partials));
}

// Every work tile is there, with a counter of its own, and its splits read each block once; blocks
// that a window hides may be left out.
void check_items(const DecodeArgs &args) {
    std::map<uint64_t, WorkTile> work_tiles;
    std::map<uint32_t, uint64_t> owners;  // of counters
    for (uint32_t i = 0; i < *args.n_items; ++i) {
        const WorkItem &item = args.items[i];
        check_item(args, item);
        const uint64_t name =
            uint64_t{item.sequence} << 32 | uint64_t{item.kv_head} << 16 | item.column_tile;
        assert_int_equal(owners.emplace(item.work_tile, name).first->second, name);
        WorkTile &work_tile = work_tiles[name];
        assert_true(item.split < item.n_splits);
        work_tile.splits.insert(item.split);
        ++work_tile.n_items;
        work_tile.blocks.resize(args.step.sequences[item.sequence].n_attended);
        mark_blocks(item, &work_tile.blocks);
        work_tile.n_splits = item.n_splits;
    }
    for (const auto &[name, work_tile] : work_tiles) {
        assert_int_equal(work_tile.n_items, work_tile.n_splits);
        assert_int_equal(work_tile.splits.size(), work_tile.n_splits);
        for (const uint8_t n : work_tile.blocks)
            assert_true(n == 1 || (n == 0 && args.layer.window_tokens));
    }
    const uint32_t group = args.layer.n_query_heads / args.layer.n_kv_heads;
    uint64_t n_work_tiles = 0;
    for (uint32_t s = 0; s < args.step.header->n_sequences; ++s)
        n_work_tiles += args.layer.n_kv_heads *
                        ceil_div(args.step.sequences[s].n_new * group, args.tile_columns);
    assert_int_equal(work_tiles.size(), n_work_tiles);
    assert_int_equal(owners.size(), n_work_tiles);
}

// The thread block fits and its kernel exists.
void check_shape(const DecodeArgs &args) {
    assert_true(decode_has_instance(args.layer.head_dim));
    assert_true(args.kind < kDecodeNone);
    const uint32_t n_blocks = args.n_blocks / kMultiprocessors;  // of a multiprocessor
    assert_true(n_blocks > 0 && args.n_blocks % kMultiprocessors == 0);
    assert_true(args.n_warps > 0 &&
                n_blocks * args.n_warps <=
                    decode_warps(args.layer.head_dim, args.tile_columns, args.kind));
    assert_true(n_blocks * decode_shared_bytes(
                               args.layer.head_dim, args.tile_columns, args.kind, args.n_warps,
                               decode_ring_bytes(args.key_metadata_bytes, args.value_metadata_bytes,
                                                 args.own_bytes)) <=
                kSharedBytes);
}

// Each token of the step is in one run or one block, which is the one that its sequence has for it.
void check_lists(const AppendPages &pages) {
    const NewTokens &tokens = pages.tokens;
    const StepView &step = tokens.step;
    std::vector<uint32_t> n_times(tokens.n_tokens);
    std::map<uint32_t, uint64_t> blocks;  // entries by their first token in the batch
    for (uint32_t i = 0; i < pages.n_runs; ++i) {
        assert_true(pages.runs[i].n && pages.runs[i].n <= kRunTokens);
        for (uint32_t t = 0; t < pages.runs[i].n; ++t)
            ++n_times.at(pages.runs[i].first + t);
    }
    for (uint32_t i = 0; i < pages.n_blocks; ++i)
        blocks[pages.blocks[i].first_token] = pages.blocks[i].entries;
    assert_int_equal(blocks.size(), pages.n_blocks);
    for (uint32_t s = 0; s < step.header->n_sequences; ++s) {
        const SequenceInfo &info = step.sequences[s];
        for (uint32_t b = info.first_block; b < info.first_block + info.n_blocks; ++b) {
            const BlockInfo &block = step.blocks[b];
            if (!block.is_packed_on_append)
                continue;
            const uint32_t first = info.first_new + block.first_token - info.n_history;
            assert_int_equal(blocks.at(first), block.entries);
            for (uint32_t t = 0; t < block.capacity_tokens; ++t)
                ++n_times.at(first + t);
        }
    }
    for (const uint32_t n : n_times)
        assert_int_equal(n, 1);
}

PackItem pack_item(const PackJob &job, const FormatInfo *classes) {
    const FormatInfo &info = classes[job.target_format];
    PackItem item{};
    item.target = &g_layout.formats[job.target_format];
    item.payload = job.payload;
    item.metadata = job.metadata;
    item.query_stats = job.query_stats;
    item.source = job.source;
    if (job.source_format != kStaged)
        item.source_format = &g_layout.formats[job.source_format];
    assert_int_equal(info.permutation != 0, item.target->permutation != nullptr);
    if (info.permutation)
        assert_memory_equal(reinterpret_cast<const uint8_t *>(info.permutation),
                            item.target->permutation, info.head_dim);
    return item;
}

}  // namespace

FakeCounts fake_counts() { return g_counts; }

void fake_use(const PageFormat *classes, uint32_t n_classes, uint32_t n_entries) {
    g_layout = {};
    g_layout.formats = classes;
    g_layout.n_formats = n_classes;
    g_layout.n_entries = n_entries;
    g_graph.clear();
}

void fake_finish() { run_to(g_n_queued); }
void fake_count_error(int error) { g_count_error = static_cast<cudaError_t>(error); }
void fake_capture(bool is_capturing) { g_is_capturing = is_capturing; }
void fake_replay() {
    for (const Work &work : g_graph)
        queue(work);
}

namespace lk {
namespace cuda {

cudaError_t kernels_present() { return cudaSuccess; }
bool decode_has_instance(uint32_t head_dim) { return head_dim != kMissingHeadDim; }
uint32_t tile_splits(const TileArgs &, uint32_t) { return 1; }
bool long_has_instance(uint32_t head_dim) { return head_dim != kMissingHeadDim; }
uint64_t long_slots_bytes(uint32_t head_dim, uint32_t n_sms) {
    return uint64_t{head_dim} * 512 * n_sms;
}
uint32_t long_splits(const TileArgs &, uint32_t) { return 1; }
cudaError_t tile_fits(uint32_t) { return cudaSuccess; }
uint64_t tile_partial_floats(uint32_t head_dim, uint32_t n_blocks) {
    return uint64_t{head_dim} * n_blocks;
}
uint32_t rows_splits(const TileArgs &, const RowsPages &, uint32_t) { return 1; }
cudaError_t rows_fit(const LayerArg &) { return cudaSuccess; }
uint64_t rows_floats(const LayerArg &layer, uint32_t n_sms) {
    return tile_partial_floats(layer.value_dim, n_sms);
}

cudaError_t launch_append(const StepView &step, const LayerArg &layer, const TensorArg &k,
                          const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                          uint32_t n_tokens, cudaStream_t) {
    return launch([=] {
        if (step.header->n_sequences != n_sequences || step.header->n_tokens != n_tokens)
            step.report->first_bad = kShapeFault;
        else
            append_now(step, layer, k, v, staging);
    });
}

NewTokens new_tokens(const StepView &step, const LayerArg &layer, const TensorArg &k,
                     const TensorArg &v, const StagingArg &staging, uint32_t n_sequences,
                     uint32_t n_tokens) {
    return {step, layer, {k, v}, {}, staging, n_sequences, n_tokens};
}

// All tokens of the step, those of launch_append_pages() among them.
cudaError_t launch_append_runs(const AppendPages &pages, cudaStream_t stream) {
    const NewTokens &tokens = pages.tokens;
    return launch_append(tokens.step, tokens.layer, tokens.kv[0], tokens.kv[1], tokens.staging,
                         tokens.n_sequences, tokens.n_tokens, stream);
}

cudaError_t launch_append_pages(const AppendPages &pages, cudaStream_t) {
    ++g_counts.n_appended_pages;
    return launch([=] { check_lists(pages); });
}

cudaError_t launch_decode(const DecodeArgs &args, cudaStream_t) {
    ++g_counts.n_decodes;
    check_shape(args);
    return launch([=] {
        if (args.step.report->first_bad == kShapeFault)
            return;
        check_items(args);
        attend_now(args, {});
    });
}

cudaError_t launch_tile(const TileArgs &args, cudaStream_t) {
    ++g_counts.n_tiles;
    return launch([=] { attend_now(args, args.staging); });
}

cudaError_t launch_rows(const TileArgs &args, const RowsPages &, cudaStream_t stream) {
    return launch_tile(args, stream);
}

cudaError_t launch_long(const TileArgs &args, const LongStep &step, cudaStream_t) {
    ++g_counts.n_long_steps;
    assert_true(step.slots && step.slots_bytes && step.n_sms);
    return launch([=] {
        const size_t n = size_t{args.layer.n_kv_heads} * args.n_tokens * args.layer.head_dim;
        std::vector<uint16_t> own(2 * n);
        StagingArg staging = args.staging;
        if (!staging.k) {
            Report report{};  // what they report is known
            StepView view = args.step;
            view.report = &report;
            staging = {own.data(), own.data() + n, args.n_tokens, 0};
            append_now(view, args.layer, step.k, step.v, staging);
        }
        attend_now(args, staging);
    });
}

cudaError_t launch_attention_scores(const AttentionScoresArgs &args, cudaStream_t) {
    ++g_counts.n_chunk_attentions;
    return launch([=] { score_attention_now(args); });
}

uint32_t pack_shared_bytes(uint32_t, uint32_t, uint32_t) { return 0; }

cudaError_t launch_pack(const PackJob *jobs, uint32_t n_jobs, const FormatInfo *classes,
                        uint32_t head_dim, uint32_t page_tokens, uint32_t, cudaStream_t) {
    ++g_counts.n_packs;
    return launch([=] {
        cpu::CpuCacheDevice device(&engine(), g_layout);
        for (uint32_t i = 0; i < n_jobs; ++i) {
            const PackItem item = pack_item(jobs[i], classes);
            assert_true(item.target->layout.head_dim <= head_dim);
            assert_true(item.target->layout.page_tokens <= page_tokens);
            assert_int_equal(device.pack(&item, 1), LK_OK);
        }
    });
}

cudaError_t launch_dequantize(const DequantizeJob *jobs, uint32_t n_jobs, const FormatInfo *,
                              cudaStream_t) {
    ++g_counts.n_dequantized;
    return launch([=] {
        cpu::CpuCacheDevice device(&engine(), g_layout);
        for (uint32_t i = 0; i < n_jobs; ++i) {
            const DequantizeItem item = {
                &g_layout.formats[jobs[i].source_format], jobs[i].payload, jobs[i].metadata,
                &g_layout.formats[jobs[i].target_format], jobs[i].target,  jobs[i].n_tokens};
            assert_int_equal(device.dequantize(&item, 1), LK_OK);
        }
    });
}

cudaError_t launch_move(const MoveJob *jobs, uint32_t n_jobs, const FormatInfo *, cudaStream_t) {
    ++g_counts.n_moves;
    return launch([=] {
        cpu::CpuCacheDevice device(&engine(), g_layout);
        for (uint32_t i = 0; i < n_jobs; ++i) {
            const MoveItem item = {&g_layout.formats[jobs[i].source_format],
                                   jobs[i].source,
                                   &g_layout.formats[jobs[i].target_format],
                                   jobs[i].target,
                                   jobs[i].first_source,
                                   jobs[i].first_target,
                                   jobs[i].mask};
            assert_int_equal(device.move(&item, 1), LK_OK);
        }
    });
}

cudaError_t launch_shrink(const ShrinkJob *jobs, uint32_t n_jobs, uint32_t most_pages,
                          cudaStream_t) {
    ++g_counts.n_shrinks;
    return launch([=] {
        cpu::CpuCacheDevice device(&engine(), g_layout);
        for (uint32_t i = 0; i < n_jobs; ++i) {
            assert_true(jobs[i].n_pages && jobs[i].n_pages <= most_pages);
            ShrinkItem item;
            std::memcpy(&item, &jobs[i], sizeof item);
            assert_int_equal(device.shrink(&item, 1), LK_OK);
        }
    });
}

cudaError_t launch_query_stats(const QueryStatsLaunch &from, cudaStream_t) {
    ++g_counts.n_query_stats;
    return launch([=] {
        if (from.header->n_sequences != from.n_sequences ||
            from.header->n_tokens != from.n_step_tokens)
            return;
        QueryStatArgs args{};
        args.layer.n_kv_heads = from.first_head + from.n_heads;
        args.layer.n_query_heads = args.layer.n_kv_heads * from.group_size;
        args.layer.head_dim = from.head_dim;
        args.layer.key_scales = from.key_scales;
        args.q = tensor_view(from.q);
        const QueryStatRun run = {from.offset_bytes, from.stride_bytes,   from.first_token,
                                  from.n_tokens,     from.tokens_per_sum, from.first_head,
                                  from.n_heads};
        for (uint32_t i = 0; i < n_query_stats(run); ++i) {
            auto *sums = reinterpret_cast<uint64_t *>(*from.query_stats_cell + from.offset_bytes +
                                                      i * from.stride_bytes);
            assert_true(holds(g_device, sums, uint64_t{from.n_heads} * from.head_dim * 8));
            for (uint32_t head = 0; head < from.n_heads; ++head)
                cpu::sum_queries(nullptr, args, run, i, head, sums + head * from.head_dim);
        }
    });
}

cudaError_t launch_add_query_stats(const SumJob *jobs, uint32_t n_jobs, uint32_t most_channels,
                                   cudaStream_t) {
    ++g_counts.n_sums_added;
    return launch([=] {
        for (uint32_t i = 0; i < n_jobs; ++i) {
            const SumJob &job = jobs[i];
            assert_true(job.n_channels <= most_channels);
            assert_true(holds(g_device, reinterpret_cast<void *>(job.target), job.n_channels * 8));
            cpu::add_sum(
                {job.target, job.source, job.mask, job.stride_bytes, job.n_channels, job.flags});
        }
    });
}

cudaError_t launch_merge(const MergeArgs &, cudaStream_t) { return cudaSuccess; }
cudaError_t launch_cosine(const CosineArgs &, cudaStream_t) { return cudaSuccess; }

}  // namespace cuda
}  // namespace lk

extern "C" {

cudaError_t cudaGetDeviceCount(int *count) {
    *count = g_count_error == cudaSuccess;
    return g_count_error;
}
cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr name, int) {
    *value = name == cudaDevAttrMultiProcessorCount            ? kMultiprocessors
             : name == cudaDevAttrMaxSharedMemoryPerBlockOptin ? kSharedBytes
             : name == cudaDevAttrComputeCapabilityMajor       ? 9
                                                               : 0;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    *properties = cudaDeviceProp{};
    std::snprintf(properties->name, sizeof properties->name, "no device");
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
    *free = *total = size_t{1} << 30;
    return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "an error"; }
const char *cudaGetErrorString(cudaError_t) { return "of the fake runtime"; }

cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(&g_device, out, bytes); }
cudaError_t cudaFree(void *data) { return release(&g_device, data); }
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    return allocate(&g_pinned, out, bytes);
}
cudaError_t cudaFreeHost(void *data) { return release(&g_pinned, data); }
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *data) {
    *attributes = {};
    attributes->type = holds(g_device, data, 1)   ? cudaMemoryTypeDevice
                       : holds(g_pinned, data, 1) ? cudaMemoryTypeHost
                                                  : cudaMemoryTypeUnregistered;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t) {
    assert_true(holds(kind == cudaMemcpyDeviceToHost ? g_pinned : g_device, to, bytes));
    assert_true(holds(kind == cudaMemcpyHostToDevice ? g_pinned : g_device, from, bytes));
    assert_false(g_is_capturing);
    if (kind == cudaMemcpyDeviceToDevice) {
        ++g_counts.n_state_copies;
    } else {
        ++g_counts.n_copies;
        g_counts.copied_bytes += bytes;
    }
    queue([=] { std::memcpy(to, from, bytes); });
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) {
    assert_false(g_is_capturing);
    queue([=] { std::memset(to, value, bytes); });
    return cudaSuccess;
}

// The default stream has nothing else to do.
cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    std::memset(to, value, bytes);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
    *event = new CUevent_st;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (reinterpret_cast<uintptr_t>(stream) == kForeignStream)
        return cudaErrorInvalidResourceHandle;
    event->place = g_n_queued;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    run_to(event->place);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
    *stream = nullptr;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *status) {
    *status = g_is_capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (stream != cudaStreamLegacy)
        run_to(g_n_queued);
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
    run_to(g_n_queued);
    return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }

}  // extern "C"
