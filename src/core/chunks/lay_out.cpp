// Blocks that shall hold other tokens than they do, or the same at another class, are made next to
// the old ones: their tokens are collected from 16-bit blocks, and packed from there as any page
// is. Packed pages are dequantized first. The old blocks go when all new ones are there, so a
// failure changes nothing, and what forks share stays theirs.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/chunks/lay_out.h"

#include "core/cache.h"
#include "core/chunks/attention_scores.h"
#include "core/chunks/chunks.h"
#include "core/chunks/order.h"
#include "core/chunks/retain.h"
#include "core/chunks/staged_blocks.h"
#include "core/memory/reserve.h"
#include "core/pages/dequantize.h"
#include "core/pages/ladders.h"
#include "core/pages/page_slots.h"

namespace lk {

namespace {

constexpr uint32_t kMoveTokens = 64;  // of an item

uint64_t low_bits(uint32_t n) { return n < 64 ? (uint64_t{1} << n) - 1 : UINT64_MAX; }

BlockKind kind_of(uint8_t width) {
    return width == LK_CHUNK_LOW      ? BlockKind::kLow
           : width == LK_CHUNK_MIDDLE ? BlockKind::kMiddle
           : width == LK_CHUNK_HIGH   ? BlockKind::kHigh
                                      : BlockKind::kRecent;
}

bool is_raw(const lk_cache *cache, uint16_t page_format) {
    return cache->formats[page_format].layout.is_raw();
}

// One side of an entry.
struct PageMemory {
    uint16_t page_format;
    uint64_t payload;
    uint64_t metadata;
};
PageMemory page_of(const PageEntry &entry, bool is_value) {
    return is_value ? PageMemory{entry.value_format, entry.value_payload, entry.value_metadata}
                    : PageMemory{entry.key_format, entry.key_payload, entry.key_metadata};
}

// A block of the new layout.
struct NewBlock {
    uint32_t first_run;
    uint32_t n_runs;
    uint8_t width;
    CacheBlock *block;     // null until it is made
    uint64_t source;       // its block of now, when it stays as it is
    uint64_t copied_from;  // the block of now with its bytes, which others have too
    bool is_made;
};

constexpr uint64_t kNoBlock = UINT64_MAX;

class Rebuild {
  public:
    Rebuild(lk_cache *cache, Sequence *sequence)
        : cache_(*cache),
          sequence_(*sequence),
          shape_(cache->plan.model),
          first_block_(sink_blocks(cache->plan.model)),
          runs_(cache->context->allocator),
          chunks_(cache->context->allocator),
          blocks_(cache->context->allocator),
          copies_(cache->context->allocator),
          is_raw_(cache->context->allocator),
          staged_(cache) {}
    ~Rebuild();

    lk_status plan(const ChunkOrder &layout, const Array<TokenRun> &tail);
    lk_status make();
    void put(uint64_t n_tokens);

  private:
    bool add_run(const TokenRun &run, uint8_t width, uint32_t *n_filled);
    lk_status list_runs(const ChunkOrder &layout, const Array<TokenRun> &tail);
    lk_status look();
    void take_originals(const NewBlock &wanted);
    // The block of now that holds just these tokens in this order, else kNoRow.
    uint64_t same_block(const NewBlock &wanted) const;
    bool may_stay(const NewBlock &wanted, uint64_t from, uint64_t to) const;
    bool has_class(const CacheBlock &block, uint64_t index, uint8_t width) const;
    bool has_bytes(const NewBlock &wanted, uint64_t index) const;
    lk_status check_bytes();
    lk_status make_block(NewBlock *wanted);
    lk_status fill(const NewBlock &wanted);
    lk_status copy(const CacheBlock &from, const CacheBlock &to);
    lk_status collect(const NewBlock &wanted, const CacheBlock *staged);
    lk_status collect_run(const NewBlock &wanted, const CacheBlock *staged, const TokenRun &run,
                          uint32_t first_target);
    lk_status move(const PageMemory &from, const PageMemory &to, const TokenRun &run,
                   uint32_t first_target);
    lk_status dequantize(uint64_t index);
    lk_status load(uint64_t index);
    lk_status pack(const NewBlock &wanted, const CacheBlock &from);
    lk_status queue_pack(const PageMemory &from, const PageMemory &to);
    bool is_whole_block(const NewBlock &wanted) const;

    lk_cache &cache_;
    Sequence &sequence_;
    const ChunkShape shape_;
    const uint64_t first_block_;
    Array<TokenRun> runs_;
    Array<uint32_t> chunks_;  // by run: the chunk times its blocks, and the block of it
    Array<NewBlock> blocks_;
    Array<ShrinkItem> copies_;
    Array<uint8_t> is_raw_;           // by block of now: at 16 bits as a whole
    bool packs_[kAt16Bits + 1] = {};  // by width: has a block of it packed pages?
    StagedBlocks staged_;
    CacheBlock *dequantized_ = nullptr;  // at 16 bits: of packed blocks and originals
    uint64_t dequantized_index_ = kNoBlock;
    uint64_t loaded_index_ = kNoBlock;  // an original's
};

Rebuild::~Rebuild() {
    for (const NewBlock &block : blocks_)
        if (block.is_made)
            release_block(&cache_, block.block);
    if (dequantized_)
        release_block(&cache_, dequantized_);
    cache_.slots.trim();
}

bool Rebuild::add_run(const TokenRun &run, uint8_t width, uint32_t *n_filled) {
    if (!*n_filled) {
        NewBlock block{};
        block.first_run = static_cast<uint32_t>(runs_.size());
        block.width = width;
        block.source = block.copied_from = kNoBlock;
        if (!blocks_.push(block))
            return false;
    }
    ++blocks_.back().n_runs;
    *n_filled = (*n_filled + run.n_tokens) % shape_.block_tokens;
    return runs_.push(run);
}

// For each index of the layout, where its chunk lies now. Runs never cross the end of a block:
// chunks are parts of blocks or blocks, and what follows them begins where a chunk of now does.
lk_status Rebuild::list_runs(const ChunkOrder &layout, const Array<TokenRun> &tail) {
    const ChunkList *now = sequence_.chunks;
    Array<uint32_t> indices(cache_.context->allocator);  // by chunk
    bool fits = indices.resize(layout.wanted.size());
    for (uint32_t c = 0; fits && c < indices.size(); ++c)
        indices[c] = c;
    for (uint32_t p = 0; fits && now && p < now->size(); ++p)
        indices[now->order[p]] = p;
    const uint32_t run_tokens =
        shape_.chunk_tokens < shape_.block_tokens ? shape_.chunk_tokens : shape_.block_tokens;
    uint32_t n_filled = 0;
    for (const uint32_t chunk : layout.order)
        for (uint32_t i = 0; fits && i < shape_.chunk_blocks; ++i) {
            const size_t at = blocks_.size() - (n_filled ? 1 : 0);
            const uint8_t width =
                at < layout.block_classes.size() ? layout.block_classes[at] : kAt16Bits;
            fits = add_run({first_block_ + shape_.block_of_index(indices[chunk]) + i,
                            shape_.token_of_index(indices[chunk]), run_tokens, false},
                           width, &n_filled);
            fits = fits && chunks_.push(chunk * shape_.chunk_blocks + i);
        }
    for (const TokenRun &run : tail)
        fits = fits && add_run(run, kAt16Bits, &n_filled);
    return fits ? LK_OK
                : fail(LK_E_NOMEM, "no memory for the blocks of %zu chunks", layout.wanted.size());
}

lk_status Rebuild::look() {
    if (!is_raw_.resize(sequence_.block_table.size()))
        return fail(LK_E_NOMEM, "no memory for a list of %zu blocks", sequence_.block_table.size());
    for (uint64_t r = first_block_; r < is_raw_.size(); ++r)
        is_raw_[r] = is_raw_block(cache_.formats, *sequence_.block(r));
    for (const uint8_t width : {LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_HIGH})
        for (const EntryInfo &info : cache_.formats.entries)
            for (const bool is_value : {false, true})
                packs_[width] =
                    packs_[width] ||
                    !is_raw(&cache_,
                            packed_need(cache_.formats, info, is_value, width).page_format);
    return LK_OK;
}

// A block may be at 16 bits by its chunk class or without one.
bool Rebuild::has_class(const CacheBlock &block, uint64_t index, uint8_t width) const {
    return (block.chunk_class == width && block.n_packed == block.n_entries) ||
           (is_raw_[index] && !packs_[width]);
}

// A block that others have too does not move.
bool Rebuild::may_stay(const NewBlock &wanted, uint64_t from, uint64_t to) const {
    const CacheBlock &block = *sequence_.block(from);
    return has_class(block, from, wanted.width) && (from == to || block.n_holders == 1);
}

// Packed pages, all at the rungs of now.
bool Rebuild::has_bytes(const NewBlock &wanted, uint64_t index) const {
    const CacheBlock &block = *sequence_.block(index);
    bool is_same =
        packs_[wanted.width] && has_class(block, index, wanted.width) && !has_absent_pages(block);
    for (uint32_t e = 0; is_same && e < block.n_entries; ++e)
        for (const bool is_value : {false, true})
            is_same = is_same && page_of(block.entries[e], is_value).page_format ==
                                     packed_need(cache_.formats, cache_.formats.entries[e],
                                                 is_value, wanted.width)
                                         .page_format;
    return is_same;
}

uint64_t Rebuild::same_block(const NewBlock &wanted) const {
    const TokenRun &first = runs_[wanted.first_run];
    uint32_t token = 0;
    for (uint32_t i = 0; i < wanted.n_runs; ++i) {
        const TokenRun &run = runs_[wanted.first_run + i];
        if (run.block != first.block || run.first != token || run.is_original)
            return kNoBlock;
        token += run.n_tokens;
    }
    return first.block;
}

lk_status Rebuild::plan(const ChunkOrder &layout, const Array<TokenRun> &tail) {
    LK_TRY(look());
    LK_TRY(list_runs(layout, tail));
    for (size_t i = 0; i < blocks_.size(); ++i) {
        NewBlock *wanted = &blocks_[i];
        const uint64_t source = same_block(*wanted);
        if (source != kNoBlock && may_stay(*wanted, source, first_block_ + i)) {
            wanted->source = source;
            wanted->block = sequence_.block(source);
        } else if (source != kNoBlock && has_bytes(*wanted, source)) {
            wanted->copied_from = source;
        } else {
            take_originals(*wanted);
        }
    }
    return LK_OK;
}

// What is made anew is made of originals where there are some.
void Rebuild::take_originals(const NewBlock &wanted) {
    for (uint32_t i = wanted.first_run; i < wanted.first_run + wanted.n_runs; ++i) {
        const uint32_t chunk = i < chunks_.size() ? chunks_[i] / shape_.chunk_blocks : UINT32_MAX;
        if (!has_original(&cache_, sequence_, chunk))
            continue;
        runs_[i].block =
            first_block_ + shape_.block_of_index(chunk) + chunks_[i] % shape_.chunk_blocks;
        runs_[i].first = shape_.token_of_index(chunk);
        runs_[i].is_original = true;
    }
}

bool Rebuild::is_whole_block(const NewBlock &wanted) const {
    const uint64_t source = same_block(wanted);
    return source != kNoBlock && is_raw_[source];
}

// Also takes those of the 16-bit blocks that are needed.
lk_status Rebuild::check_bytes() {
    uint64_t n_collected = 0;  // blocks whose tokens wait to be packed
    bool dequantizes = false;
    uint64_t n_blocks = 0;
    cache_.block_slots.clear_needs();
    for (const NewBlock &wanted : blocks_) {
        if (wanted.block)
            continue;
        ++n_blocks;
        add_block_slots(&cache_, kind_of(wanted.width));
        if (wanted.copied_from != kNoBlock)
            continue;
        n_collected += packs_[wanted.width] && !is_whole_block(wanted);
        for (uint32_t i = 0; i < wanted.n_runs; ++i)
            dequantizes = dequantizes || !is_raw_[runs_[wanted.first_run + i].block] ||
                          runs_[wanted.first_run + i].is_original;
    }
    for (const bool is_needed : {n_collected != 0, dequantizes})
        if (is_needed) {
            ++n_blocks;
            add_block_slots(&cache_, BlockKind::kRecent);
        }
    const uint64_t table_bytes = n_blocks * block_bytes(cache_.plan.model);
    lk_status status =
        check_reserve(&cache_, table_bytes, "laying out chunks next to the old ones");
    if (!status && n_collected)
        status = staged_.open(first_block_, n_collected, table_bytes);
    if (!status && dequantizes)
        status = create_block(&cache_, first_block_, BlockKind::kRecent, &dequantized_);
    return status;
}

lk_status Rebuild::make() {
    lk_status status = check_bytes();
    for (size_t i = 0; !status && i < blocks_.size(); ++i) {
        NewBlock *wanted = &blocks_[i];
        if (wanted->block)
            continue;
        status = create_block(&cache_, first_block_ + i, kind_of(wanted->width), &wanted->block);
        if (status)
            break;
        wanted->is_made = true;
        status = fill(*wanted);
    }
    if (status)
        staged_.drop();
    return status ? status : staged_.flush();
}

lk_status Rebuild::fill(const NewBlock &wanted) {
    if (wanted.copied_from != kNoBlock)
        return copy(*sequence_.block(wanted.copied_from), *wanted.block);
    if (packs_[wanted.width] && is_whole_block(wanted)) {
        const CacheBlock &source = *sequence_.block(runs_[wanted.first_run].block);
        LK_TRY(pack(wanted, source));
        return copy_raw_pages(&cache_, source, *wanted.block, source.capacity_tokens);
    }
    if (!packs_[wanted.width])
        return collect(wanted, nullptr);
    CacheBlock *staged;
    LK_TRY(staged_.take(&staged));
    LK_TRY(collect(wanted, staged));
    return pack(wanted, *staged);
}

// What its codes stand for, packed again, need not give the same codes.
lk_status Rebuild::copy(const CacheBlock &from, const CacheBlock &to) {
    copies_.clear();
    const auto add = [this](uint64_t source, uint64_t target) {
        return !target || copies_.push(copy_item(source, target, cache_.slots.bytes_at(target)));
    };
    bool fits = true;
    for (uint32_t e = 0; e < from.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const PageMemory source = page_of(from.entries[e], is_value);
            const PageMemory target = page_of(to.entries[e], is_value);
            if (!is_raw(&cache_, source.page_format))
                fits = fits && add(source.payload, target.payload) &&
                       add(source.metadata, target.metadata);
        }
    if (!fits)
        return fail(LK_E_NOMEM, "no memory for the copies of %u entries", from.n_entries);
    const lk_status status =
        copies_.empty()
            ? LK_OK
            : cache_.device->shrink(copies_.data(), static_cast<uint32_t>(copies_.size()));
    return status ? status : copy_raw_pages(&cache_, from, to, from.capacity_tokens);
}

// staged: of pages that are packed; null where there are none.
lk_status Rebuild::collect(const NewBlock &wanted, const CacheBlock *staged) {
    lk_status status = LK_OK;
    uint32_t first_target = 0;
    for (uint32_t i = 0; !status && i < wanted.n_runs; ++i) {
        const TokenRun &run = runs_[wanted.first_run + i];
        status = collect_run(wanted, staged, run, first_target);
        first_target += run.n_tokens;
    }
    return status;
}

// Pages that stay at 16 bits go to the new block at once.
lk_status Rebuild::collect_run(const NewBlock &wanted, const CacheBlock *staged,
                               const TokenRun &run, uint32_t first_target) {
    const CacheBlock &source = *sequence_.block(run.block);
    lk_status status = run.is_original      ? load(run.block)
                       : is_raw_[run.block] ? LK_OK
                                            : dequantize(run.block);
    for (uint32_t e = 0; e < source.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            PageMemory from = page_of(source.entries[e], is_value);
            PageMemory to = page_of(wanted.block->entries[e], is_value);
            if (run.is_original || !is_raw(&cache_, from.page_format))
                from = page_of(dequantized_->entries[e], is_value);
            if (!is_raw(&cache_, to.page_format))
                to = page_of(staged->entries[e], is_value);
            if (!status)
                status = move(from, to, run, first_target);
        }
    return status;
}

lk_status Rebuild::move(const PageMemory &from, const PageMemory &to, const TokenRun &run,
                        uint32_t first_target) {
    if (cache_.formats[to.page_format].layout.is_absent())
        return LK_OK;
    for (uint32_t done = 0; done < run.n_tokens; done += kMoveTokens) {
        const uint32_t n = run.n_tokens - done < kMoveTokens ? run.n_tokens - done : kMoveTokens;
        cache_.work.moves.push({&cache_.formats[from.page_format], from.payload,
                                &cache_.formats[to.page_format], to.payload, run.first + done,
                                first_target + done, low_bits(n)});
        LK_TRY(cache_.work.moves.size() < kBatch ? LK_OK : flush_moves(&cache_));
    }
    return LK_OK;
}

// Bring back a packed block, whose chunks often come one after the other.
lk_status Rebuild::dequantize(uint64_t index) {
    if (dequantized_index_ == index)
        return LK_OK;
    const CacheBlock &block = *sequence_.block(index);
    lk_status status = flush_moves(&cache_);  // they read what was there
    for (uint32_t e = 0; e < block.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const PageMemory from = page_of(block.entries[e], is_value);
            const PageMemory to = page_of(dequantized_->entries[e], is_value);
            if (status || is_raw(&cache_, from.page_format))
                continue;
            ++cache_.statistics.counts.pages_dequantized;
            cache_.work.dequantizes.push({&cache_.formats[from.page_format], from.payload,
                                          from.metadata, &cache_.formats[to.page_format],
                                          to.payload, block.capacity_tokens});
            if (cache_.work.dequantizes.size() == kBatch)
                status = flush_dequantizes(&cache_);
        }
    loaded_index_ = kNoBlock;
    dequantized_index_ = status ? kNoBlock : index;
    return status ? status : flush_dequantizes(&cache_);
}

lk_status Rebuild::load(uint64_t index) {
    if (loaded_index_ == index)
        return LK_OK;
    lk_status status = flush_moves(&cache_);  // they read what was there
    if (!status)
        status = load_original(&cache_, *sequence_.originals, index - first_block_, *dequantized_);
    dequantized_index_ = kNoBlock;
    loaded_index_ = status ? kNoBlock : index;
    return status;
}

lk_status Rebuild::queue_pack(const PageMemory &from, const PageMemory &to) {
    cache_.work.packs.push({&cache_.formats[to.page_format], to.payload, to.metadata,
                            &cache_.formats[from.page_format], from.payload, 0});
    ++cache_.statistics.counts.pages_packed;
    return cache_.work.packs.size() < kBatch ? LK_OK : staged_.flush();
}

// A block of the sequence itself has the pages too that stay at 16 bits.
lk_status Rebuild::pack(const NewBlock &wanted, const CacheBlock &from) {
    lk_status status = LK_OK;
    for (uint32_t e = 0; e < from.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const PageMemory source = page_of(from.entries[e], is_value);
            const PageMemory target = page_of(wanted.block->entries[e], is_value);
            if (!status && !is_raw(&cache_, target.page_format))
                status = queue_pack(source, target);
        }
    return status;
}

// The present blocks that do not stay are released, with all after the new ones.
void Rebuild::put(uint64_t n_tokens) {
    const uint64_t n_blocks = block_count(cache_.plan.model, n_tokens);
    const uint64_t end = first_block_ + blocks_.size();
    for (const NewBlock &wanted : blocks_)
        if (wanted.source != kNoBlock)
            sequence_.block_table[wanted.source] = nullptr;
    for (uint64_t r = first_block_; r < sequence_.block_table.size(); ++r)
        if (sequence_.block_table[r] && (r < end || r >= n_blocks))
            release_block(&cache_, sequence_.block(r));
    while (sequence_.block_table.size() > n_blocks)
        sequence_.block_table.pop();
    for (size_t i = 0; i < blocks_.size(); ++i) {
        NewBlock *wanted = &blocks_[i];
        CacheBlock *block = wanted->block;
        sequence_.block_table[first_block_ + i] = block;
        wanted->is_made = false;
        if (wanted->source == kNoBlock || !may_replace(*block))
            continue;
        unlink_packed_copy(block);
        const uint64_t first_token = block_first_token(cache_.plan.model, first_block_ + i);
        const lk_chunk_class chunk_class = chunk_class_of(kind_of(wanted->width));
        const uint32_t n_packed = chunk_class ? block->n_entries : 0;
        if (block->first_token == first_token && block->chunk_class == chunk_class &&
            block->n_packed == n_packed)
            continue;
        block->first_token = first_token;
        block->chunk_class = chunk_class;
        block->n_packed = n_packed;
        (void)cache_.device->entries_changed(block);
    }
}

}  // namespace

lk_status list_tail(const lk_cache *cache, uint32_t index, uint64_t n_tokens,
                    Array<TokenRun> *out) {
    const ChunkShape shape(cache->plan.model);
    uint64_t block = sink_blocks(cache->plan.model) + shape.block_of_index(index);
    uint32_t first = shape.token_of_index(index);
    while (n_tokens) {
        const uint32_t left = shape.block_tokens - first;
        const uint32_t n = n_tokens < left ? static_cast<uint32_t>(n_tokens) : left;
        if (!out->push({block, first, n, false}))
            return no_chunk_memory(out->size() + 1);
        n_tokens -= n;
        first = 0;
        ++block;
    }
    return LK_OK;
}

lk_status lay_chunks(lk_cache *cache, Sequence *sequence, const NewLayout &layout) {
    const ChunkOrder &order = layout.order;
    ChunkList *chunks;
    LK_TRY(leave_recording(cache));
    LK_TRY(make_chunks(cache, static_cast<uint32_t>(order.order.size()), &chunks));
    Rebuild rebuild(cache, sequence);
    lk_status status = rebuild.plan(order, layout.tail);
    if (!status)
        status = rebuild.make();
    if (status) {
        release_chunks(cache, chunks);
        return status;
    }
    if (chunks->size()) {
        std::memcpy(chunks->assigned.data(), layout.assigned, chunks->size());
        std::memcpy(chunks->order.data(), order.order.data(),
                    chunks->size() * sizeof order.order[0]);
    }
    rebuild.put(layout.n_tokens);
    release_chunks(cache, sequence->chunks);
    sequence->chunks = chunks;
    sequence->first_open = sink_blocks(cache->plan.model);
    unsettle_layers(cache);
    return LK_OK;
}

lk_status lay_context(lk_cache *cache, Sequence *sequence, const ChunkOrder &order,
                      const uint8_t *assigned) {
    const ChunkShape shape(cache->plan.model);
    const auto n_chunks = static_cast<uint32_t>(order.order.size());
    Array<TokenRun> tail(cache->context->allocator);
    // Tokens that share the last block with chunks go with them.
    const uint64_t end = first_chunk_token(cache) + uint64_t{n_chunks} * shape.chunk_tokens;
    const uint64_t n_after = sequence->length > end ? sequence->length - end : 0;
    const uint64_t space = shape.block_tokens - shape.token_of_index(n_chunks);
    if (space < shape.block_tokens)
        LK_TRY(list_tail(cache, n_chunks, n_after < space ? n_after : space, &tail));
    LK_TRY(lay_chunks(cache, sequence, {order, tail, assigned, sequence->length}));
    if (sequence->attention_scores && sequence->attention_scores->n_scored)
        drop_attention_scores(cache, sequence);
    return LK_OK;
}

}  // namespace lk
