// SPDX-License-Identifier: Apache-2.0
#include "backend/gpu/step_tables.h"

#include "base/status.h"

namespace lk {
namespace gpu {

namespace {

using ull = unsigned long long;

constexpr uint64_t kAlignment = 256;
constexpr uint64_t kSequencesOffset = 16;
static_assert(sizeof(StepHeader) == kSequencesOffset, "header and sequences are one copy");
static_assert(sizeof(SequenceInfo) % alignof(WorkItem) == 0, "splits follow sequences");
// Up to this size all sequences are sent, so that the splits after them go with the same copy.
constexpr uint64_t kSmallBytes = 16u << 10;

SequenceInfo sequence_info(const BatchSequence &from, uint32_t first_block) {
    SequenceInfo info{};
    info.id = from.id;
    info.first_block = first_block;
    info.n_blocks = from.n_blocks;
    info.n_attended = from.n_attended;
    info.n_history = static_cast<uint32_t>(from.n_history);
    info.n_new = from.n_new;
    info.first_new = from.first_new;
    info.new_in_blocks = from.new_in_blocks ? 1 : 0;
    info.has_tree = from.parent ? 1 : 0;
    info.has_spans = !from.reach ? 0 : from.reach_is_windowed ? 1 : 2;
    return info;
}

}  // namespace

lk_status StepTables::open(const CacheLayout &layout, uint64_t splits_bytes, bool has_order,
                           TableMemory *memory) {
    memory_ = memory;
    const uint64_t drafted = uint64_t{layout.max_sequences} * kDraftTokens;
    const uint64_t n_tokens = drafted < layout.max_step_tokens ? drafted : layout.max_step_tokens;
    max_blocks_ = layout.max_step_blocks;
    splits_offset_ = kSequencesOffset + layout.max_sequences * sizeof(SequenceInfo);
    blocks_offset_ = round_up(splits_offset_ + splits_bytes, kAlignment);
    const uint64_t n_blocks = has_order ? 2 * max_blocks_ : max_blocks_;
    ancestors_offset_ = round_up(blocks_offset_ + n_blocks * sizeof(BlockInfo), kAlignment);
    positions_offset_ = round_up(ancestors_offset_ + n_tokens * sizeof(uint64_t), kAlignment);
    if (!sequences_.resize(layout.max_sequences) || !ancestors_.resize(n_tokens) ||
        !positions_.resize(layout.max_step_tokens))
        return fail(LK_E_NOMEM, "no memory for the step tables of %u sequences",
                    layout.max_sequences);
    return table_.open(memory,
                       positions_offset_ + uint64_t{layout.max_step_tokens} * sizeof(uint32_t),
                       "the tables of a step");
}

StepAddresses StepTables::addresses() const {
    const uint64_t base = table_.address();
    return {base,
            base + kSequencesOffset,
            base + splits_offset_,
            base + blocks_offset_,
            base + ancestors_offset_,
            base + positions_offset_};
}

// A block keeps its index and its tokens, so equal counts mean equal blocks; but a block that is
// packed on append is so for its own step only.
bool StepTables::has_same_blocks(const Batch &batch) const {
    if (!has_blocks_ || batch.n_sequences != header_.n_sequences)
        return false;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        if (sequences_[s].id != batch.sequences[s].id ||
            sequences_[s].n_blocks != batch.sequences[s].n_blocks)
            return false;
    return true;
}

lk_status StepTables::fill_sequences(const Batch &batch) {
    uint64_t n_blocks = 0;
    has_trees_ = has_spans_ = false;
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        if (sequence.n_history + sequence.n_new > UINT32_MAX - LK_MAX_RAW_TOKENS)
            return fail(LK_E_UNSUPPORTED,
                        "sequence %llu would have %llu tokens, at most %llu on a device",
                        ull{sequence.id}, ull{sequence.n_history + sequence.n_new},
                        ull{UINT32_MAX - LK_MAX_RAW_TOKENS});
        sequences_[s] = sequence_info(sequence, static_cast<uint32_t>(n_blocks));
        has_trees_ = has_trees_ || sequence.parent;
        has_spans_ = has_spans_ || sequence.reach;
        n_blocks += sequence.n_blocks;
    }
    if (n_blocks > max_blocks_)
        return fail(LK_E_NOMEM, "the step's sequences have %llu blocks of pages, at most %llu",
                    ull{n_blocks}, ull{max_blocks_});
    return LK_OK;
}

bool StepTables::push_block(const Block &block) {
    return blocks_.push({block.device_entries, static_cast<uint32_t>(block.first_token),
                         static_cast<uint16_t>(block.capacity_tokens),
                         static_cast<uint16_t>(block.is_packed_on_append ? 1 : 0)});
}

lk_status StepTables::fill_blocks(const Batch &batch, const BlockOrder &order) {
    blocks_.clear();
    has_packed_on_append_ = false;
    bool has_memory = true;
    for (uint32_t s = 0; s < batch.n_sequences; ++s)
        for (uint32_t r = 0; r < batch.sequences[s].n_blocks; ++r) {
            const Block &block = *batch.sequences[s].blocks[r];
            has_packed_on_append_ = has_packed_on_append_ || block.is_packed_on_append;
            has_memory = has_memory && push_block(block);
        }
    for (const Block *block : order.blocks())
        has_memory = has_memory && push_block(*block);
    return has_memory ? LK_OK
                      : fail(LK_E_NOMEM, "no memory for a list of %zu blocks", blocks_.size() + 1);
}

void StepTables::fill_trees(const Batch &batch) {
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        if (!sequence.parent)
            continue;
        uint64_t *ancestors = ancestors_.data() + sequence.first_new;
        uint32_t *positions = positions_.data() + sequence.first_new;
        for (uint32_t i = 0; i < sequence.n_new; ++i) {
            const int32_t parent = sequence.parent[i];
            ancestors[i] = (uint64_t{1} << i) | (parent < 0 ? 0 : ancestors[parent]);
            positions[i] = parent < 0 ? sequences_[s].n_history : positions[parent] + 1;
        }
    }
}

void StepTables::fill_spans(const Batch &batch) {
    for (uint32_t s = 0; s < batch.n_sequences; ++s) {
        const BatchSequence &sequence = batch.sequences[s];
        for (uint32_t i = 0; sequence.reach && i < sequence.n_new; ++i)
            positions_[sequence.first_new + i] = sequences_[s].n_history + sequence.reach[i];
    }
}

lk_status StepTables::fill(const Batch &batch, const BlockOrder &order, uint32_t serial,
                           bool blocks_changed) {
    sends_blocks_ = blocks_changed || order.is_new() || !has_same_blocks(batch);
    has_blocks_ = false;
    LK_TRY(fill_sequences(batch));
    if (sends_blocks_)
        LK_TRY(fill_blocks(batch, order));
    if (has_trees_)
        fill_trees(batch);
    if (has_spans_)
        fill_spans(batch);
    header_ = {batch.n_sequences, batch.n_tokens, serial, 0};
    return LK_OK;
}

lk_status StepTables::send(const Splits *splits) {
    const StepAddresses to = addresses();
    const uint64_t all = splits_offset_ - kSequencesOffset;
    const uint64_t used = header_.n_sequences * sizeof(SequenceInfo);
    lk_status status = memory_->put(to.header, &header_, sizeof header_);
    if (!status)
        status = memory_->put(to.sequences, sequences_.data(), all <= kSmallBytes ? all : used);
    if (!status && splits)
        status = splits->send(memory_, to.splits);
    if (!status && sends_blocks_)
        status = memory_->put(to.blocks, blocks_.data(), blocks_.size() * sizeof(BlockInfo));
    if (!status && has_trees_)
        status = memory_->put(to.ancestors, ancestors_.data(), header_.n_tokens * sizeof(uint64_t));
    if (!status && (has_trees_ || has_spans_))
        status = memory_->put(to.positions, positions_.data(), header_.n_tokens * sizeof(uint32_t));
    has_blocks_ = !status && !has_packed_on_append_;
    return status;
}

}  // namespace gpu
}  // namespace lk
