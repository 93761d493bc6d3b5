// SPDX-License-Identifier: Apache-2.0
#include "backend/vulkan/vulkan_cache.h"

#include <algorithm>

#include "backend/vulkan/append_push.h"
#include "backend/vulkan/layer_table.h"
#include "base/status.h"
#include "shaders/prefill/limits.h"

namespace lk {
namespace vulkan {

namespace {

static_assert(sizeof(NewBlock) == sizeof(gpu::NewBlockTable::Row) &&
                  offsetof(NewBlock, first_token) == offsetof(gpu::NewBlockTable::Row, first_token),
              "shaders read rows as blocks");
static_assert(sizeof(gpu::TokenRun) == 8 && offsetof(gpu::TokenRun, n) == 4,
              "shaders read runs as pairs of words");

constexpr uint32_t kMaxSequences = 65535;  // workgroups in y and z that every device has
constexpr uint32_t kTileWorkers = 4;       // workgroups of a core

// Of the list of shaders/prefill/pages.glsl for the longest sequence, at most.
// Workgroups that share the channels of a column's merge.
uint32_t n_merge_parts(uint32_t value_dim) {
    return static_cast<uint32_t>(ceil_div(value_dim, LK_MERGE_CHANNELS));
}

uint32_t n_pages_of(const gpu::StepShape &shape) {
    return shape.max_blocks +
           static_cast<uint32_t>(ceil_div(shape.max_staged, LK_STAGED_PAGE_TOKENS));
}

}  // namespace

VulkanCache::VulkanCache(const Allocator &allocator, const Device &device,
                         const CacheLayout &layout)
    : allocator_(allocator),
      device_(device),
      layout_(layout),
      tables_(allocator, device),
      report_(allocator),
      rules_(allocator, device.traits()),
      pipelines_(allocator),
      state_(allocator),
      slots_(allocator),
      new_blocks_(allocator),
      commands_(device),
      append_tensors_(device, &commands_),
      attend_tensors_(device, &commands_),
      sum_tensors_(device, &commands_),
      transfer_(device, &commands_) {}

VulkanCache::~VulkanCache() { (void)commands_.wait(); }

lk_status VulkanCache::open(Pipelines *pipelines, const SlabPool *slabs) {
    transfer_.open(slabs);
    if (layout_.max_sequences > kMaxSequences)
        return fail(LK_E_UNSUPPORTED, "max_sequences is %u, at most %u on Vulkan",
                    layout_.max_sequences, kMaxSequences);
    if (!rules_.open(layout_))
        return fail(LK_E_NOMEM, "no memory for the rules of %u layers", layout_.n_layers);
    lk_status status = pipelines_.open(layout_, rules_, device_.traits(), pipelines);
    if (!status)
        status = report_.open(device_, layout_);
    if (!status)
        status = commands_.open(pipelines->layout());
    if (!status)
        status = open_tables();
    return status;
}

// On the context's queue, and done when it returns: a later step may be in a command buffer that
// the host submits whenever it likes.
lk_status VulkanCache::open_tables() {
    uint64_t floats = 0;
    for (uint32_t l = 0; l < layout_.n_layers; ++l)
        floats = std::max(floats, most_tile_floats(layout_.layers[l]));
    const lk_status status = run({}, [&](const Recorder &) {
        lk_status filled = state_.open(layout_, rules_, &tables_, &report_);
        if (!filled)
            filled = put_constants();
        if (!filled)
            filled = jobs_.open(&tables_);
        if (!filled)
            filled = new_blocks_.open(layout_, &tables_);
        if (!filled)
            filled = slots_.open(layout_, device_.traits(), n_tile_groups(), &tables_);
        if (!filled)
            filled = rotated_.open(layout_, &tables_);
        floats = std::max(floats, state_.splits().partial_floats());
        if (!filled)
            filled = partials_.open(&tables_, floats * sizeof(float), "the splits of attention");
        return filled;
    });
    return status ? status : commands_.wait();
}

lk_status VulkanCache::put_constants() {
    LK_TRY(constants_.open(&tables_, sizeof(StepTable) + layer_table_bytes(layout_),
                           "the constants of a cache"));
    const gpu::StepAddresses step = state_.addresses();
    const StepTable table = {step.header,
                             step.sequences,
                             step.blocks,
                             step.ancestors,
                             step.positions,
                             state_.constants().formats(),
                             constants_.address() + sizeof(StepTable),
                             report_.address(),
                             layout_.n_layers,
                             {}};
    LK_TRY(tables_.put(constants_.address(), &table, sizeof table));
    return put_layer_table(allocator_, layout_, state_.constants(), table.layers, &tables_);
}

uint64_t VulkanCache::fixed_bytes() const {
    return state_.fixed_bytes() + slots_.bytes() + new_blocks_.bytes() + jobs_.bytes() +
           constants_.bytes() + partials_.bytes() + append_tensors_.bytes() +
           attend_tensors_.bytes() + sum_tensors_.bytes() + sums_.bytes() + rotated_.bytes() +
           transfer_.bytes();
}

template <class Record>
lk_status VulkanCache::run(const Semaphores &semaphores, const Record &record) {
    Recorder recorder;
    LK_TRY(commands_.begin(&recorder));
    tables_.use(recorder);
    report_.use(recorder);
    lk_status status = record(recorder);
    if (!status)
        return commands_.end(semaphores);
    commands_.abandon();
    return status;
}

// All work of a context runs on its queue, so an earlier queue needs no waiting for.
lk_status VulkanCache::set_queue(const lk_queue *queue) {
    queue_ = queue ? *queue : lk_queue{};
    commands_.record_into(queue_.kind == LK_QUEUE_VULKAN_RECORD
                              ? static_cast<VkCommandBuffer>(queue_.handle)
                              : nullptr);
    return LK_OK;
}

// Append n of a step waits for wait_value + n, attend n signals signal_value + n.
Semaphores VulkanCache::next_append() {
    return {reinterpret_cast<VkSemaphore>(queue_.wait_semaphore), queue_.wait_value + n_appends_++,
            VK_NULL_HANDLE, 0};
}
Semaphores VulkanCache::next_attend() {
    return {VK_NULL_HANDLE, 0, reinterpret_cast<VkSemaphore>(queue_.signal_semaphore),
            queue_.signal_value + n_attends_++};
}

// What a step with staged tokens finds in the staging area.
Address VulkanCache::staged(const uint16_t *area) const {
    return state_.shape().is_staged ? reinterpret_cast<Address>(area) : 0;
}

uint32_t VulkanCache::n_tile_groups() const { return kTileWorkers * device_.traits().n_cores; }

uint64_t VulkanCache::most_tile_floats(const LayerView &layer) const {
    uint32_t columns = prefill_columns(device_.traits(), layer, UINT32_MAX);
    if (has_slot_pipelines(device_.traits(), layer))
        columns = std::max(columns, LK_SLOT_COLUMNS);
    return tile_partial_floats(layer.value_dim, columns, n_tile_groups());
}

lk_status VulkanCache::entries_changed(Block *block) {
    state_.entries_changed(block);
    return LK_OK;
}

lk_status VulkanCache::begin(const Batch &batch) {
    n_appends_ = n_attends_ = 0;
    bool has_moved = false;
    LK_TRY(sums_.grow(&tables_, batch.query_stat_bytes, &has_moved));
    slots_.begin(batch);
    LK_TRY(run({}, [&](const Recorder &) {
        const lk_status status = state_.begin(batch);
        return status ? status : new_blocks_.put(state_.new_blocks());
    }));
    return make_attend_pipelines();
}

bool VulkanCache::is_decoded(uint32_t layer) const {
    const gpu::StepShape &shape = state_.shape();
    return !shape.is_staged && !shape.has_spans && rules_.takes(layer, shape.max_new);
}

// The kernels of the forms that have work items: as record_decode() takes them.
bool VulkanCache::want_decode(uint32_t layer) {
    const gpu::Split &split = state_.splits().of(layer);
    const gpu::FormItems *forms = state_.splits().forms_of(split);
    bool has_memory = true;
    for (uint32_t i = 0; has_memory && i <= split.n_forms; ++i)
        has_memory =
            !forms[i].n_items || pipelines_.want_decode(layer, split.shape.tile_columns,
                                                        i < split.n_forms ? i : 0, split.variant);
    return has_memory;
}

// Those that the step runs, before it has done anything: attend() only records them.
lk_status VulkanCache::make_attend_pipelines() {
    const gpu::StepShape &shape = state_.shape();
    bool has_memory = true;
    for (uint32_t l = 0; has_memory && l < layout_.n_layers; ++l) {
        const LayerView &layer = layout_.layers[l];
        const uint32_t n_columns = shape.max_new * (layer.n_query_heads / layer.n_kv_heads);
        if (is_decoded(l))
            has_memory = want_decode(l);
        else if (slots_.takes(shape, layer))
            has_memory = pipelines_.want_slots(l);
        else
            has_memory =
                pipelines_.want_tile(l, prefill_columns(device_.traits(), layer, n_columns));
    }
    return has_memory ? pipelines_.make_wanted()
                      : fail(LK_E_NOMEM, "no memory for the pipelines of a step");
}

lk_status VulkanCache::append(const AppendArgs &args) {
    const gpu::StepShape &shape = state_.shape();
    const LayerView &layer = args.layer;
    AppendPush push{};
    CallTensor tensors[] = {
        {&args.k, shape.n_tokens, layer.n_kv_heads, layer.head_dim, false, &push.k},
        {&args.v, shape.n_tokens, layer.n_kv_heads, layer.value_dim, false, &push.v}};
    VkPipeline pipeline = VK_NULL_HANDLE;
    LK_TRY(pipelines_.fixed(append_kernel(layer), &pipeline));
    LK_TRY(append_tensors_.stage(tensors, layer.n_stored_sides()));
    push.step = constants_.address();
    push.staged_k = staged(args.staging.k);
    push.staged_v = staged(args.staging.v);
    push.layer = args.layer_index;
    push.n_sequences = shape.n_sequences;
    push.n_tokens = shape.n_tokens;
    push.token_step = append_step(layer, shape.n_tokens, device_.traits().n_cores);
    const bool takes_pages = new_blocks_.n_blocks() && pipelines_.append_pages(args.layer_index);
    LK_TRY(run(next_append(), [&](const Recorder &recorder) {
        if (takes_pages)
            record_new_pages(recorder, pipeline, args, push);
        else
            record_append(recorder, pipeline, args, push, n_append_groups(push));
        return LK_OK;
    }));
    return takes_pages ? LK_OK : pack_staged(args);
}

// The blocks that the new tokens fill, from the staging area.
lk_status VulkanCache::pack_staged(const AppendArgs &args) {
    const Array<PackItem> *pages = nullptr;
    LK_TRY(state_.new_blocks().list_pages(layout_, args, &pages));
    return pages->empty() ? LK_OK : pack(pages->data(), static_cast<uint32_t>(pages->size()));
}

void VulkanCache::record_append(const Recorder &recorder, VkPipeline pipeline,
                                const AppendArgs &args, AppendPush push, uint32_t n_groups) const {
    const uint32_t most = device_.traits().max_workgroup_count;
    recorder.bind(pipeline);
    for (; push.first_group < n_groups; push.first_group += most) {
        recorder.push(push);
        recorder.dispatch(std::min(most, n_groups - push.first_group), args.layer.n_kv_heads,
                          args.layer.n_stored_sides());
    }
}

// Whole blocks are packed from the host's tensors, while append takes the other tokens; or from the
// staging area, after append has taken all tokens.
void VulkanCache::record_new_pages(const Recorder &recorder, VkPipeline append,
                                   const AppendArgs &args, AppendPush push) const {
    if (can_pack_rows(args, push)) {
        push.list = new_blocks_.runs();
        record_append(recorder, append, args, push, new_blocks_.n_runs());
    } else {
        record_append(recorder, append, args, push, n_append_groups(push));
        recorder.dispatch_barrier();
        push.k = staged_tensor(push.staged_k, args);
        push.v = staged_tensor(push.staged_v, args);
        push.staged_k = push.staged_v = 0;
    }
    push.list = new_blocks_.blocks();
    record_append(recorder, pipelines_.append_pages(args.layer_index), args, push,
                  new_blocks_.n_blocks());
}

lk_status VulkanCache::attend(const AttendArgs &args) {
    const gpu::StepShape &shape = state_.shape();
    const uint32_t n_tokens = shape.n_tokens;
    const uint32_t n_heads = args.layer.n_query_heads;
    const TensorView lse = {args.lse, LK_F32, args.lse_token_stride, args.lse_head_stride,
                            args.lse_is_host};
    PushTensor pushes[3] = {};
    CallTensor tensors[] = {{&args.q, n_tokens, n_heads, args.layer.head_dim, false, &pushes[0]},
                            {&args.out, n_tokens, n_heads, args.layer.value_dim, true, &pushes[1]},
                            {&lse, n_tokens, n_heads, 1, true, &pushes[2]}};
    AttentionScoresPipelines scoring;
    if (args.n_chunk_attentions)
        LK_TRY(pipelines_.score_attention(&scoring));
    LK_TRY(attend_tensors_.stage(tensors, 3));
    const bool is_decode = is_decoded(args.layer_index);
    LK_TRY(run(next_attend(), [&](const Recorder &recorder) {
        if (is_decode)
            record_decode(recorder, args.layer_index, pushes);
        if (args.layer.key_rotation && (!is_decode || args.n_chunk_attentions))
            pushes[0] = rotated(recorder, args.layer_index, pushes[0], args.layer.query_limit);
        if (!is_decode)
            record_prefill(recorder, args, pushes);
        for (uint32_t i = 0; i < args.n_chunk_attentions; ++i)
            record_attention_scores(recorder, args, args.chunk_attentions[i], scoring, pushes[0]);
        return LK_OK;
    }));
    return attend_tensors_.finish(tensors, 3);
}

// The queries of a layer, for the kernels that do not rotate them.
PushTensor VulkanCache::rotated(const Recorder &recorder, uint32_t layer, const PushTensor &q,
                                float query_limit) const {
    return rotated_.record(recorder, pipelines_.rotate_queries(), layout_.layers[layer],
                           state_.shape().n_tokens, q, state_.constants().layer(layer).key_scales,
                           query_limit, device_.traits().max_workgroup_count);
}

template <class Push>
Push VulkanCache::attend_push(uint32_t layer, const PushTensor *tensors) const {
    Push push{};
    push.step = constants_.address();
    push.partials = partials_.address();
    push.q = tensors[0];
    push.outputs = tensors[1];
    push.lse = tensors[2].data;
    push.lse_token_stride = tensors[2].token_stride;
    push.lse_head_stride = tensors[2].head_stride;
    push.layer = layer;
    return push;
}

// The items of a form have a dispatch of their own. 16-bit blocks among packed ones are read by the
// kernel of any form.
void VulkanCache::record_decode(const Recorder &recorder, uint32_t layer,
                                const PushTensor *tensors) const {
    const gpu::Split &split = state_.splits().of(layer);
    const gpu::FormItems *forms = state_.splits().forms_of(split);
    const AttendPipelines &pipelines = pipelines_.decode(layer, split.shape.tile_columns);
    const uint32_t most = device_.traits().max_workgroup_count;
    const Address items = state_.addresses().splits + split.items_offset;
    const bool has_matrices = rules_.arithmetic(layer) == DecodeArithmetic::kMatrix;
    DecodePush push = attend_push<DecodePush>(layer, tensors);
    const uint32_t value_dim = layout_.layers[layer].value_dim;
    push.n_value_strips = value_dim / LK_STRIP_CHANNELS;
    push.n_key_groups = rules_.key_groups(layer);
    push.n_value_steps = rules_.value_steps(layer);
    const auto dispatch = [&](VkPipeline pipeline, uint32_t first, uint32_t n, uint32_t n_columns,
                              uint32_t n_parts) {
        recorder.bind(pipeline);
        for (const uint32_t end = first + n; first < end; first += push.n_items) {
            push.items = items + uint64_t{first} * sizeof(WorkItem);
            push.n_items = std::min(most, end - first);
            recorder.push(push);
            recorder.dispatch(push.n_items, n_columns, n_parts);
        }
    };
    for (uint32_t i = 0; i <= split.n_forms; ++i) {
        const uint32_t form = i < split.n_forms ? i : 0;
        push.n_kv_tiles = forms[i].n_kv_tiles;
        push.n_f16_rounds = forms[i].n_f16_rounds;
        push.n_own_f16_rounds = forms[i].n_own_f16_rounds;
        push.form = has_matrices ? rules_.form(layer, form).form : 0;
        push.formats = has_matrices && (split.has_mixed || i == split.n_forms)
                           ? rules_.form(layer, form).formats
                           : 0;
        if (forms[i].n_items)
            dispatch(pipelines_.attend(layer, split.shape.tile_columns, form, split.variant),
                     forms[i].first_item, forms[i].n_items, 1, 1);
    }
    if (!split.n_merges)
        return;
    recorder.dispatch_barrier();
    dispatch(pipelines.merge, split.n_items, split.n_merges, split.shape.tile_columns,
             n_merge_parts(value_dim));
}

void VulkanCache::record_prefill(const Recorder &recorder, const AttendArgs &args,
                                 const PushTensor *tensors) const {
    if (slots_.takes(state_.shape(), args.layer))
        record_slots(recorder, args, tensors);
    else
        record_tile(recorder, args, tensors);
}

void VulkanCache::record_tile(const Recorder &recorder, const AttendArgs &args,
                              const PushTensor *tensors) const {
    const gpu::StepShape &shape = state_.shape();
    const LayerView &layer = args.layer;
    const uint32_t n_columns = shape.max_new * (layer.n_query_heads / layer.n_kv_heads);
    const uint32_t columns = prefill_columns(device_.traits(), layer, n_columns);
    const AttendPipelines &pipelines = pipelines_.tile(args.layer_index, columns);
    const uint32_t most = device_.traits().max_workgroup_count;
    TilePush push = attend_push<TilePush>(rotated_record(layout_, args.layer_index), tensors);
    push.staged_k = staged(args.staging.k);
    push.staged_v = staged(args.staging.v);
    push.n_tokens = shape.n_tokens;
    push.n_tiles = static_cast<uint32_t>(ceil_div(n_columns, columns));
    push.n_splits =
        tile_splits(uint64_t{push.n_tiles} * layer.n_kv_heads * shape.n_sequences, n_tile_groups(),
                    n_pages_of(shape) * (layer.is_latent ? LK_LATENT_PAGE_PARTS : 1));
    recorder.bind(pipelines.attend);
    for (; push.first_tile < push.n_tiles; push.first_tile += most) {
        recorder.push(push);
        recorder.dispatch(std::min(most, push.n_tiles - push.first_tile), layer.n_kv_heads,
                          shape.n_sequences * push.n_splits);
    }
    if (push.n_splits == 1)
        return;
    recorder.dispatch_barrier();
    recorder.bind(pipelines.merge);
    recorder.push(push);
    recorder.dispatch(n_columns, layer.n_kv_heads,
                      shape.n_sequences * n_merge_parts(layer.value_dim));
}

void VulkanCache::record_slots(const Recorder &recorder, const AttendArgs &args,
                               const PushTensor *tensors) const {
    SlotPush push = attend_push<SlotPush>(rotated_record(layout_, args.layer_index), tensors);
    push.staged_k = staged(args.staging.k);
    push.staged_v = staged(args.staging.v);
    push.n_tokens = state_.shape().n_tokens;
    slots_.record(recorder, pipelines_.slots(args.layer_index), args.layer, push);
}

// Batches of work tiles follow each other in the same partial results.
void VulkanCache::record_attention_scores(const Recorder &recorder, const AttendArgs &args,
                                          const ChunkAttention &request,
                                          const AttentionScoresPipelines &pipelines,
                                          const PushTensor &q) const {
    static_assert(kAttentionScoreColumns == LK_ATTENTION_SCORE_COLUMNS,
                  "shaders have the work tiles of the core");
    const uint32_t most = device_.traits().max_workgroup_count;
    AttentionScoresPush push{};
    push.step = constants_.address();
    push.scores = request.scores;
    push.partials = request.partials;
    push.q = q;
    push.layer = rotated_record(layout_, args.layer_index);
    push.sequence = request.sequence;
    push.first_query = request.first_query;
    push.n_queries = request.n_queries;
    push.first_block = request.first_block;
    push.page_tokens = layout_.page_tokens;
    push.chunk_tokens = request.chunk_tokens;
    push.n_chunks = request.n_chunks;
    push.n_tiles = attention_score_tiles(args.layer, request.n_queries);
    push.is_first = request.is_first != 0;
    push.weight = request.weight;
    const uint32_t end = push.n_tiles * args.layer.n_kv_heads;
    const auto dispatch = [&](VkPipeline pipeline, uint32_t x, uint32_t y) {
        recorder.dispatch_barrier();
        recorder.bind(pipeline);
        recorder.push(push);
        recorder.dispatch(x, y);
    };
    for (; push.first_work_tile < end; push.first_work_tile += push.n_work_tiles) {
        push.n_work_tiles = std::min(request.max_tiles, end - push.first_work_tile);
        dispatch(pipelines.partials, std::min(most, push.n_chunks), push.n_work_tiles);
        dispatch(pipelines.totals, LK_ATTENTION_SCORE_COLUMNS / LK_ATTENTION_TOTAL_COLUMNS,
                 push.n_work_tiles);
        const auto n_groups =
            static_cast<uint32_t>(ceil_div(push.n_chunks, LK_ATTENTION_SCORE_THREADS));
        dispatch(pipelines.scores, std::min(most, n_groups), 1);
    }
}

namespace {

struct Workgroups {
    uint32_t x;
    uint32_t y;
};
template <class Item>
Workgroups workgroups_of(const Item *, uint32_t n) {
    return {n, 1};
}
Workgroups workgroups_of(const ShrinkItem *items, uint32_t n) {
    return {gpu::most_pages(items, n), n};
}

}  // namespace

template <class Item>
lk_status VulkanCache::run_jobs(FixedKernel kernel, const Item *items, uint32_t n_items,
                                const gpu::PackExtent &extent) {
    VkPipeline pipeline = VK_NULL_HANDLE;
    LK_TRY(pipelines_.fixed(kernel, &pipeline));
    JobPush push{};
    push.jobs = jobs_.address();
    push.formats = state_.constants().formats();
    push.head_dim = extent.head_dim;
    push.page_tokens = extent.page_tokens;
    return run({}, [&](const Recorder &recorder) {
        return jobs_.run(layout_, items, n_items, [&](const Item *listed, uint32_t n) {
            const Workgroups groups = workgroups_of(listed, n);
            push.n_jobs = n;
            recorder.barrier();
            recorder.bind(pipeline);
            recorder.push(push);
            recorder.dispatch(groups.x, groups.y);
            recorder.barrier();
            return LK_OK;
        });
    });
}

lk_status VulkanCache::pack(const PackItem *items, uint32_t n_items) {
    return run_jobs(kPackKernel, items, n_items, gpu::extent_of(items, n_items));
}

lk_status VulkanCache::dequantize(const DequantizeItem *items, uint32_t n_items) {
    return run_jobs(kDequantizeKernel, items, n_items, {});
}

lk_status VulkanCache::move(const MoveItem *items, uint32_t n_items) {
    return run_jobs(kMoveKernel, items, n_items, {});
}

lk_status VulkanCache::shrink(const ShrinkItem *items, uint32_t n_items) {
    return run_jobs(kShrinkKernel, items, n_items, {});
}

lk_status VulkanCache::sum_queries(const QueryStatArgs &args) {
    const LayerView &layer = args.layer;
    QueryStatsPush push{};
    CallTensor tensor = {
        &args.q, state_.shape().n_tokens, layer.n_query_heads, layer.head_dim, false, &push.q};
    VkPipeline pipeline = VK_NULL_HANDLE;
    LK_TRY(pipelines_.fixed(kSumQueriesKernel, &pipeline));
    LK_TRY(sum_tensors_.stage(&tensor, 1));
    push.key_scales = state_.constants().layer(args.layer_index).key_scales;
    push.head_dim = layer.head_dim;
    push.group_size = layer.n_query_heads / layer.n_kv_heads;
    return run({}, [&](const Recorder &recorder) {
        if (layer.key_rotation) {
            push.q = rotated(recorder, args.layer_index, push.q, 0);
            push.key_scales = 0;
        }
        recorder.bind(pipeline);
        for (uint32_t r = 0; r < args.n_runs; ++r)
            record_sums(recorder, args.runs[r], push);
        return LK_OK;
    });
}

void VulkanCache::record_sums(const Recorder &recorder, const QueryStatRun &run,
                              QueryStatsPush push) const {
    const uint32_t most = device_.traits().max_workgroup_count;
    push.stride_bytes = static_cast<uint32_t>(run.stride_bytes);
    push.tokens_per_sum = run.tokens_per_sum;
    push.first_head = run.first_head;
    const uint32_t n_sums = n_query_stats(run);
    for (uint32_t first = 0; first < n_sums; first += most) {
        const uint32_t first_token = first * run.tokens_per_sum;
        push.sums = sums_.address() + run.offset_bytes + first * run.stride_bytes;
        push.first_token = run.first_token + first_token;
        push.n_tokens = run.n_tokens - first_token;
        recorder.push(push);
        recorder.dispatch(std::min(most, n_sums - first), run.n_heads);
    }
}

lk_status VulkanCache::add_stats(const StatItem *items, uint32_t n_items) {
    constexpr uint32_t kMostTiles = 1024;  // workgroups that take the channels of an item in turn
    VkPipeline pipeline = VK_NULL_HANDLE;
    LK_TRY(pipelines_.fixed(kAddStatsKernel, &pipeline));
    return run({}, [&](const Recorder &recorder) {
        return jobs_.run(layout_, items, n_items, [&](const StatItem *added, uint32_t n) {
            const AddQueryStatsPush push = {jobs_.address(), n, 0};
            const uint64_t n_tiles =
                ceil_div(uint64_t{gpu::most_channels(added, n)}, LK_QUERY_STATS_THREADS);
            recorder.barrier();
            recorder.bind(pipeline);
            recorder.push(push);
            recorder.dispatch(static_cast<uint32_t>(std::min<uint64_t>(n_tiles, kMostTiles)), n);
            recorder.barrier();
            return LK_OK;
        });
    });
}

}  // namespace vulkan
}  // namespace lk
