// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/cache_device.h"

#include "backend/cpu/attention_scores.h"
#include "backend/cpu/reference.h"
#include "base/status.h"

namespace lk {
namespace cpu {

namespace {

constexpr uint32_t kTokensPerJob = 16;

// The new tokens of a sequence that a block holds.
BlockPart part_of(const BatchSequence &sequence, const Block &row) {
    const uint64_t row_end = row.first_token + row.capacity_tokens;
    const uint64_t new_end = sequence.n_history + sequence.n_new;
    const uint64_t begin =
        row.first_token > sequence.n_history ? row.first_token : sequence.n_history;
    const uint64_t end = row_end < new_end ? row_end : new_end;
    return {&row, sequence.first_new + static_cast<uint32_t>(begin - sequence.n_history),
            static_cast<uint32_t>(begin - row.first_token), static_cast<uint32_t>(end - begin)};
}

// Faults and saturated values that the threads of a conversion found.
struct Conversion {
    std::atomic<uint64_t> n_saturated{0};
    std::atomic<uint64_t> first_bad{kNothingBad};
};

void convert_job(const Kernels *kernels, const AppendArgs &args, uint32_t index, Conversion *out) {
    uint64_t n_saturated = 0;
    uint64_t bad = kNothingBad;
    const uint32_t first = index * kTokensPerJob;
    for (uint32_t i = 0; i < kTokensPerJob && first + i < args.staging.n_tokens; ++i)
        convert_token(kernels, args, first + i, &n_saturated, &bad);
    out->n_saturated.fetch_add(n_saturated);
    uint64_t seen = out->first_bad.load();
    while (bad < seen && !out->first_bad.compare_exchange_weak(seen, bad)) {}
}

void upload_item(const SlotCopy &item) {
    std::memcpy(reinterpret_cast<void *>(item.address), item.host, item.bytes);
}

void copy_item(const MemoryCopy &item) {
    auto *target = reinterpret_cast<void *>(item.target);
    if (item.source)
        std::memcpy(target, reinterpret_cast<const void *>(item.source), item.bytes);
    else
        std::memset(target, 0, item.bytes);
}

}  // namespace

// A block has space for 32 tokens or more, but for the last one of the sinks. A sequence's new
// tokens can begin and end within a block.
bool CpuCacheDevice::reserve() {
    const size_t most = layout_.max_step_tokens / 32 + size_t{3} * layout_.max_sequences;
    return parts_.reserve(most) && packed_parts_.reserve(most);
}

lk_status CpuCacheDevice::begin(const Batch &batch) {
    if (batch.query_stat_bytes > query_sums_.size() * sizeof(uint64_t) &&
        !query_sums_.resize(batch.query_stat_bytes / sizeof(uint64_t)))
        return fail(LK_E_NOMEM, "no memory for sums of |Q| of %llu bytes",
                    static_cast<unsigned long long>(batch.query_stat_bytes));
    parts_.clear();
    packed_parts_.clear();
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        for (uint32_t r = sequence.n_blocks; r; --r) {
            const Block &row = *sequence.blocks[r - 1];
            if (row.first_token + row.capacity_tokens <= sequence.n_history)
                break;
            if (row.first_token >= sequence.n_history + sequence.n_new)
                continue;
            Array<BlockPart> &parts = row.is_packed_on_append ? packed_parts_ : parts_;
            if (!parts.push(part_of(sequence, row)))
                return fail(LK_E_NOMEM, "no memory for the rows of a batch of %u tokens",
                            batch.n_tokens);
        }
    }
    batch_ = batch;
    return LK_OK;
}

lk_status CpuCacheDevice::append(const AppendArgs &args) {
    const Lock lock(&engine_.mutex);
    Conversion conversion;
    LK_TRY(engine_.pool.parallel_for(
        (args.staging.n_tokens + kTokensPerJob - 1) / kTokensPerJob,
        [&](uint32_t index, uint32_t) { convert_job(engine_.kernels, args, index, &conversion); }));
    const uint64_t first_bad = conversion.first_bad.load();
    note(args, conversion.n_saturated.load(), first_bad);
    if (first_bad != kNothingBad)
        return LK_OK;
    const uint32_t n_heads = args.layer.n_kv_heads;
    const auto n_parts = static_cast<uint32_t>(parts_.size());
    LK_TRY(engine_.pool.parallel_for(n_parts * n_heads, [&](uint32_t index, uint32_t) {
        store_part(args, layout_.formats, parts_[index / n_heads], index % n_heads);
    }));
    const auto n_packed = static_cast<uint32_t>(packed_parts_.size());
    return engine_.pool.parallel_for(2 * n_packed * n_heads, [&](uint32_t index, uint32_t thread) {
        pack_part(engine_.kernels, args, layout_.formats, packed_parts_[index / 2 / n_heads],
                  index / 2 % n_heads, index % 2, engine_.scratch_of(thread));
    });
}

void CpuCacheDevice::note(const AppendArgs &args, uint64_t n_saturated, uint64_t first_bad) {
    const Lock lock(&report_mutex_);
    report_.n_saturated += n_saturated;
    if (first_bad == kNothingBad || report_.has_fault)
        return;
    const auto token = static_cast<uint32_t>(first_bad / 2 / args.layer.n_kv_heads);
    const BatchSequence *sequence = batch_.sequences;
    while (token - sequence->first_new >= sequence->n_new)
        ++sequence;
    report_.has_fault = 1;
    report_.layer = args.layer_index;
    report_.token = token - sequence->first_new;
    report_.kv_head = static_cast<uint32_t>(first_bad / 2 % args.layer.n_kv_heads);
    report_.is_value = static_cast<int32_t>(first_bad % 2);
    report_.sequence = sequence->id;
}

lk_status CpuCacheDevice::pack(const PackItem *items, uint32_t n_items) {
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items, [&](uint32_t index, uint32_t thread) {
        pack_item(engine_.kernels, items[index], engine_.scratch_of(thread));
    });
}

lk_status CpuCacheDevice::dequantize(const DequantizeItem *items, uint32_t n_items) {
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items, [&](uint32_t index, uint32_t thread) {
        dequantize_item(engine_.kernels, items[index], engine_.scratch_of(thread));
    });
}

// Where the host's threads have failed, pages may be written in part.
lk_status CpuCacheDevice::download(const SlotCopy *items, uint32_t n_items) {
    LK_TRY(engine_.pool.check());
    for (uint32_t i = 0; i < n_items; ++i)
        std::memcpy(items[i].host, reinterpret_cast<const void *>(items[i].address),
                    items[i].bytes);
    return LK_OK;
}

lk_status CpuCacheDevice::upload(const SlotCopy *items, uint32_t n_items) {
    LK_TRY(engine_.pool.check());
    for (uint32_t i = 0; i < n_items; ++i)
        upload_item(items[i]);
    return LK_OK;
}

lk_status CpuCacheDevice::upload_with(const SlotCopy *items, uint32_t n_items,
                                      const SideWork &side) {
    if (engine_.pool.size() == 1)
        return upload(items, n_items);
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items + 1, [&](uint32_t index, uint32_t) {
        if (index)
            upload_item(items[index - 1]);
        else
            side.run(side.context);
    });
}

lk_status CpuCacheDevice::copy(const MemoryCopy *items, uint32_t n_items) {
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items,
                                     [&](uint32_t index, uint32_t) { copy_item(items[index]); });
}

lk_status CpuCacheDevice::move(const MoveItem *items, uint32_t n_items) {
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items, [&](uint32_t index, uint32_t thread) {
        move_item(items[index], engine_.scratch_of(thread));
    });
}

lk_status CpuCacheDevice::shrink(const ShrinkItem *items, uint32_t n_items) {
    const Lock lock(&engine_.mutex);
    return engine_.pool.parallel_for(n_items,
                                     [&](uint32_t index, uint32_t) { shrink_item(items[index]); });
}

lk_status CpuCacheDevice::sum_queries(const QueryStatArgs &args) {
    const Lock lock(&engine_.mutex);
    for (uint32_t r = 0; r < args.n_runs; ++r) {
        const QueryStatRun &run = args.runs[r];
        auto sum = [&](uint32_t index, uint32_t) {
            const uint32_t i = index / run.n_heads;
            const uint32_t head = index % run.n_heads;
            const uint64_t at = run.offset_bytes + i * run.stride_bytes;
            uint64_t *sums = query_sums_.data() + at / sizeof *sums;
            cpu::sum_queries(engine_.kernels, args, run, i, head,
                             sums + head * args.layer.head_dim);
        };
        LK_TRY(engine_.pool.parallel_for(n_query_stats(run) * run.n_heads, sum));
    }
    return LK_OK;
}

lk_status CpuCacheDevice::add_stats(const StatItem *items, uint32_t n_items) {
    for (uint32_t i = 0; i < n_items; ++i)
        add_sum(items[i]);
    return LK_OK;
}

lk_status CpuCacheDevice::attend(const AttendArgs &args) {
    const Lock lock(&engine_.mutex);
    const AttendCall call = {args, layout_.formats, batch_.sequences, batch_.n_sequences};
    lk_status status = engine_.kernels ? fast_attend(*engine_.kernels, call, &engine_.pool,
                                                     &engine_.attend_scratch)
                                       : reference_attend(call, &engine_.pool, engine_.allocator);
    for (uint32_t i = 0; !status && i < args.n_chunk_attentions; ++i)
        status =
            score_attention(call, args.chunk_attentions[i], &engine_.pool, &engine_.attend_scratch);
    return status;
}

void CpuCacheDevice::report(DataReport *out) const {
    const Lock lock(&report_mutex_);
    *out = report_;
}

void CpuCacheDevice::clear_report() {
    const Lock lock(&report_mutex_);
    const uint64_t n_saturated = report_.n_saturated;
    report_ = {};
    report_.n_saturated = n_saturated;
}

}  // namespace cpu
}  // namespace lk
