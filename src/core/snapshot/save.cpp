// What there is to write is walked twice, to measure it and to write it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/save.h"

#include <algorithm>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/snapshot/snapshot.h"
#include "core/snapshot/stream.h"
#include "format/bulk.h"
#include "format/codec.h"

namespace lk {

namespace {

constexpr uint64_t kNoNumber = UINT64_MAX;

// Numbers of blocks in the order in which they are written. Blocks that sequences may share have
// one for all; a block in which a sequence ends is written for each of them.
class BlockNumbers {
  public:
    explicit BlockNumbers(const Allocator &allocator) : shared_(allocator) {}

    lk_status open(const Plan &plan, const Array<Sequence *> &sequences);
    void restart();
    uint64_t n_blocks() const { return next_; }
    // The number of a block: n_blocks() when it comes for the first time.
    uint64_t take(const Block *block, bool is_whole);

  private:
    struct Known {
        const Block *block;
        uint64_t number;
    };
    Array<Known> shared_;  // by address
    uint64_t next_ = 0;
};

uint64_t tokens_of(const Sequence &sequence, const Block &block) {
    const uint64_t left = sequence.length - block.first_token;
    return left < block.capacity_tokens ? left : block.capacity_tokens;
}

bool is_whole(const Sequence &sequence, const Block &block) {
    return tokens_of(sequence, block) == block.capacity_tokens;
}

lk_status BlockNumbers::open(const Plan &plan, const Array<Sequence *> &sequences) {
    uint64_t n = 0;
    for (const Sequence *sequence : sequences)
        n += block_count(plan, sequence->length);
    if (sequences.size() < 2)
        return LK_OK;
    if (!shared_.reserve(n))
        return fail(LK_E_NOMEM, "no memory for a list of %llu blocks", ull{n});
    for (const Sequence *sequence : sequences)
        for (const Block *block : sequence->block_table)
            if (is_whole(*sequence, *block))
                shared_.push({block, kNoNumber});
    std::sort(shared_.begin(), shared_.end(),
              [](const Known &a, const Known &b) { return a.block < b.block; });
    const Known *end =
        std::unique(shared_.begin(), shared_.end(),
                    [](const Known &a, const Known &b) { return a.block == b.block; });
    while (shared_.end() != end)
        shared_.pop();
    return LK_OK;
}

void BlockNumbers::restart() {
    next_ = 0;
    for (Known &known : shared_)
        known.number = kNoNumber;
}

uint64_t BlockNumbers::take(const Block *block, bool is_whole) {
    Known *known = shared_.end();
    if (is_whole)
        known =
            std::lower_bound(shared_.begin(), shared_.end(), block,
                             [](const Known &a, const Block *wanted) { return a.block < wanted; });
    if (known == shared_.end())
        return next_++;
    if (known->number == kNoNumber)
        known->number = next_++;
    return known->number;
}

// Zeros for the tokens of a raw page from n_tokens on: what is there was never the sequence's.
void clear_tokens(const PageLayout &layout, uint32_t n_tokens, uint8_t *payload) {
    constexpr uint32_t kTileBytes = LK_LANES * LK_TILE_WORDS * sizeof(uint32_t);
    const uint32_t n_tiles = layout.page_tokens / LK_TILE_TOKENS;
    const auto whole = static_cast<uint32_t>(ceil_div(n_tokens, LK_TILE_TOKENS));
    for (uint32_t strip = 0; strip < layout.head_dim / LK_STRIP_CHANNELS; ++strip)
        std::memset(payload + strip * strip_bytes(layout.page_tokens, 16) + whole * kTileBytes, 0,
                    (n_tiles - whole) * kTileBytes);
    for (uint32_t token = n_tokens; token < whole * LK_TILE_TOKENS; ++token)
        for (uint32_t slot = 0; slot < layout.head_dim; ++slot)
            write_code(layout, payload, slot, token, 0);
}

// A format of the cache.
struct FormatBytes {
    uint64_t payload;
    uint64_t metadata;
    uint16_t number;  // in the snapshot: kAbsentPage for the V pages of latent layers
};

class Writer {
  public:
    explicit Writer(lk_cache *cache)
        : cache_(*cache),
          sequences_(cache->context->allocator),
          numbers_(cache->context->allocator),
          runs_(cache->context->allocator),
          copies_(cache->context->allocator),
          versions_(cache->context->allocator),
          formats_(cache->context->allocator),
          plan_text_(cache->context->allocator) {}

    lk_status open(const SnapshotChoice &choice);
    uint64_t total_bytes() const { return header_.total_bytes; }
    lk_status write(SnapshotSink *sink);

  private:
    lk_status choose(const SnapshotChoice &choice);
    lk_status walk();
    template <class Fill>
    lk_status chunk(ChunkKind kind, uint64_t n_bytes, const Fill &fill);
    lk_status put_header();
    lk_status put_formats();
    lk_status number_blocks(const Sequence &sequence);
    lk_status put_sequence(const Sequence &sequence);
    lk_status put_block(const Sequence &sequence, const Block &block, uint64_t number);
    lk_status put_state_sizes();
    lk_status put_versions(const Sequence &sequence);
    lk_status put_states(const StateVersion &version);
    lk_status fill_states(const StateVersion &version, uint64_t first, uint64_t n_bytes,
                          uint8_t *to);
    lk_status fill_sequence(const SequenceRecord &record, const Sequence &sequence, uint8_t *to);
    lk_status fill_part(const Block &block, const BlockRecord &record, uint8_t *to);
    bool add_page(uint16_t page_format, uint64_t payload, uint64_t metadata, uint8_t **to);
    void clear_ends(const Block &block, const BlockRecord &record, uint8_t *pages) const;
    // Entries from `first` on that one chunk holds, and the bytes of its body.
    uint32_t part_of(const Block &block, uint32_t first, uint64_t *n_bytes) const;

    lk_cache &cache_;
    lk_snapshot_desc desc_{};
    SnapshotHeader header_{};
    Array<Sequence *> sequences_;
    BlockNumbers numbers_;
    Array<BlockRun> runs_;  // of one sequence
    Array<SlotCopy> copies_;
    Array<VersionRecord> versions_;  // of one sequence
    uint64_t n_versions_ = 0;        // that were numbered
    Array<FormatBytes> formats_;
    uint16_t n_formats_ = 0;  // in the snapshot
    Array<uint8_t> plan_text_;
    SnapshotSink *sink_ = nullptr;  // null while it measures
    uint64_t done_bytes_ = 0;
    uint64_t n_chunks_ = 0;
};

lk_status Writer::choose(const SnapshotChoice &choice) {
    if (choice.n_sequences && !choice.ids)
        return fail(LK_E_ARGUMENT, "ids is NULL for %u sequences", choice.n_sequences);
    if (!choice.n_sequences && choice.ids)
        return fail(LK_E_ARGUMENT, "n_sequences is 0, which is the whole cache: ids must be NULL");
    const size_t n = choice.n_sequences ? choice.n_sequences : cache_.sequences.size();
    if (n > cache_.sequences.size())
        return fail(LK_E_ARGUMENT, "n_sequences is %zu, the cache has %zu", n,
                    cache_.sequences.size());
    if (!sequences_.reserve(n))
        return fail(LK_E_NOMEM, "no memory for a list of %zu sequences", n);
    ++cache_.sequences.next_mark;
    for (size_t i = 0; i < n; ++i) {
        Sequence *sequence =
            choice.n_sequences ? cache_.sequences.find(choice.ids[i]) : cache_.sequences[i];
        if (!sequence)
            return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{choice.ids[i]});
        if (sequence->mark == cache_.sequences.next_mark)
            return fail(LK_E_ARGUMENT, "sequence %llu is named twice", ull{sequence->id});
        sequence->mark = cache_.sequences.next_mark;
        sequences_.push(sequence);
    }
    return LK_OK;
}

lk_status Writer::open(const SnapshotChoice &choice) {
    LK_TRY(import_snapshot_desc(choice.desc, &desc_));
    LK_TRY(choose(choice));
    LK_TRY(settle_cache(&cache_, "saved"));
    LK_TRY(cache_.stat_queue.flush());
    LK_TRY(save_states(&cache_));
    LK_TRY(numbers_.open(cache_.plan.model, sequences_));
    LK_TRY(plan_text(cache_.plan.model, cache_.context->allocator, &plan_text_));
    for (const PageFormat &page : cache_.formats.table) {
        const uint16_t number = page.layout.is_absent() ? kAbsentPage : n_formats_++;
        if (!formats_.push({payload_bytes(page.layout), metadata_bytes(page.layout), number}))
            return fail(LK_E_NOMEM, "no memory for the sizes of %zu classes",
                        cache_.formats.table.size());
    }
    lk_status status = walk();
    header_.total_bytes = done_bytes_;
    header_.n_blocks = numbers_.n_blocks();
    header_.n_states = static_cast<uint32_t>(cache_.states.bytes.size());
    header_.n_versions = n_versions_;
    return status;
}

lk_status Writer::write(SnapshotSink *sink) {
    sink_ = sink;
    done_bytes_ = n_chunks_ = 0;
    return walk();
}

lk_status Writer::walk() {
    numbers_.restart();
    ++cache_.sequences.next_walk;
    n_versions_ = 0;
    LK_TRY(put_header());
    LK_TRY(chunk(ChunkKind::kModel, desc_.fingerprint_bytes, [&](uint8_t *to) {
        if (desc_.fingerprint_bytes)
            std::memcpy(to, desc_.fingerprint, desc_.fingerprint_bytes);
        return LK_OK;
    }));
    LK_TRY(chunk(ChunkKind::kPlan, plan_text_.size(), [&](uint8_t *to) {
        std::memcpy(to, plan_text_.data(), plan_text_.size());
        return LK_OK;
    }));
    LK_TRY(put_formats());
    if (cache_.states.has_any())
        LK_TRY(put_state_sizes());
    for (const Sequence *sequence : sequences_)
        LK_TRY(put_sequence(*sequence));
    return LK_OK;
}

template <class Fill>
lk_status Writer::chunk(ChunkKind kind, uint64_t n_bytes, const Fill &fill) {
    const uint64_t whole = sizeof(ChunkHeader) + n_bytes;
    done_bytes_ += whole;
    if (!sink_)
        return LK_OK;
    uint8_t *bytes = sink_->reserve(whole);
    if (!bytes)
        return fail(LK_E_NOMEM, "no memory for a chunk of %llu bytes", ull{whole});
    uint8_t *body = bytes + sizeof(ChunkHeader);
    LK_TRY(fill(body));
    write_chunk_header(kind, n_chunks_++, body, n_bytes, bytes);
    LK_TRY(sink_->put(whole));
    return report_progress(desc_, done_bytes_, header_.total_bytes);
}

lk_status Writer::put_header() {
    done_bytes_ += sizeof header_;
    if (!sink_)
        return LK_OK;
    const Plan &plan = cache_.plan.model;
    header_.geometry_hash = geometry_hash(plan);
    header_.plan_hash = hash_bytes(plan_text_.data(), plan_text_.size());
    header_.n_tokens = 0;
    for (const Sequence *sequence : sequences_)
        header_.n_tokens += sequence->length;
    header_.n_sequences = static_cast<uint32_t>(sequences_.size());
    header_.n_formats = n_formats_;
    header_.n_entries = static_cast<uint32_t>(cache_.formats.entries.size());
    header_.page_tokens = plan.page_tokens;
    header_.sink_tokens = plan.sink_tokens;
    header_.fingerprint_bytes = desc_.fingerprint_bytes;
    seal_header(&header_);
    uint8_t *bytes = sink_->reserve(sizeof header_);
    if (!bytes)
        return fail(LK_E_NOMEM, "no memory for a header of %zu bytes", sizeof header_);
    std::memcpy(bytes, &header_, sizeof header_);
    return sink_->put(sizeof header_);
}

lk_status Writer::put_formats() {
    uint64_t n_bytes = 0;
    for (const PageFormat &page : cache_.formats.table)
        if (!page.layout.is_absent())
            n_bytes += format_record_bytes({page.layout, page.permutation});
    return chunk(ChunkKind::kClasses, n_bytes, [&](uint8_t *to) {
        for (const PageFormat &page : cache_.formats.table) {
            if (page.layout.is_absent())
                continue;
            const FileFormat file = {page.layout, page.permutation};
            write_format(file, to);
            to += format_record_bytes(file);
        }
        return LK_OK;
    });
}

lk_status Writer::number_blocks(const Sequence &sequence) {
    runs_.clear();
    for (const Block *block : sequence.block_table) {
        const uint64_t number = numbers_.take(block, is_whole(sequence, *block));
        if (!runs_.empty() && runs_.back().first_block + runs_.back().n_blocks == number)
            ++runs_.back().n_blocks;
        else if (!runs_.push({number, 1}))
            return fail(LK_E_NOMEM, "no memory for the blocks of sequence %llu", ull{sequence.id});
    }
    return LK_OK;
}

lk_status Writer::put_sequence(const Sequence &sequence) {
    const uint64_t first_new = numbers_.n_blocks();
    LK_TRY(number_blocks(sequence));
    SequenceRecord record{};
    record.id = sequence.id;
    record.n_tokens = sequence.length;
    record.n_runs = static_cast<uint32_t>(runs_.size());
    record.n_channels = cache_.formats.n_ranked_channels;
    const QueryStats *stats = sequence.query_stats;
    for (size_t i = 0; stats && i < stats->n_items(); ++i)
        record.n_sums += stats->keeps(i, sequence.stats_blocks);
    record.flags = stats && stats->has_folded() ? kHasFolded : 0;
    record.flags |= sequence.chunks ? kHasChunks : 0;
    record.n_chunks = sequence.chunks ? sequence.chunks->size() : 0;
    // The host assigns pending classes again.
    record.deferral = sequence.pending ? lk_defer{LK_DEFER_REFUSE} : sequence.deferral;
    lk_status status = chunk(ChunkKind::kSequence, sequence_bytes(record),
                             [&](uint8_t *to) { return fill_sequence(record, sequence, to); });
    if (!status && cache_.states.has_any())
        status = put_versions(sequence);
    size_t ordinal = 0;
    for (const BlockRun &run : runs_)
        for (uint64_t i = 0; !status && i < run.n_blocks; ++i, ++ordinal)
            if (run.first_block + i >= first_new)
                status = put_block(sequence, *sequence.block_table[ordinal], run.first_block + i);
    return status;
}

// Of sums that the sequence shares and has still to cut, what it will have.
lk_status Writer::fill_sequence(const SequenceRecord &record, const Sequence &sequence,
                                uint8_t *to) {
    const auto put = [&to](const void *from, size_t n_bytes) {
        if (n_bytes)
            std::memcpy(to, from, n_bytes);
        to += n_bytes;
    };
    const QueryStats *stats = sequence.query_stats;
    const uint64_t stats_bytes = record.n_channels * sizeof(uint64_t);
    const auto put_stats = [&](uint64_t address) {
        copies_.push({address, to, stats_bytes});
        to += stats_bytes;
    };
    put(&record, sizeof record);
    put(runs_.data(), runs_.size() * sizeof(BlockRun));
    copies_.clear();
    if (stats && !copies_.reserve(1 + stats->n_items()))
        return fail(LK_E_NOMEM, "no memory for a list of %zu sums", 1 + stats->n_items());
    const bool is_cleared = stats && !sequence.stats_blocks && !stats->has_folded();
    if (is_cleared) {
        std::memset(to, 0, stats_bytes);
        to += stats_bytes;
    } else if (stats) {
        put_stats(stats->base());
    }
    for (size_t i = 0; stats && i < stats->n_items(); ++i) {
        if (!stats->keeps(i, sequence.stats_blocks))
            continue;
        const SumRecord sum = {stats->item_block(i), stats->item_is_gap(i)};
        put(&sum, sizeof sum);
        put_stats(stats->item_stats(i));
    }
    const ChunkList *chunks = sequence.chunks;
    if (chunks) {
        put(chunks->order.data(), chunks->order.size() * sizeof(uint32_t));
        put(chunks->assigned.data(), chunks->assigned.size());
    }
    return copies_.empty()
               ? LK_OK
               : cache_.device->download(copies_.data(), static_cast<uint32_t>(copies_.size()));
}

lk_status Writer::put_state_sizes() {
    const Array<uint64_t> &bytes = cache_.states.bytes;
    const uint64_t n_bytes = bytes.size() * sizeof(uint64_t);
    return chunk(ChunkKind::kStateSizes, n_bytes, [&](uint8_t *to) {
        std::memcpy(to, bytes.data(), n_bytes);
        return LK_OK;
    });
}

// Versions are numbered as they come; forks have the same ones.
lk_status Writer::put_versions(const Sequence &sequence) {
    const uint64_t first_new = n_versions_;
    versions_.clear();
    for (StateVersion *version : sequence.versions) {
        if (version->walk != cache_.sequences.next_walk)
            version->number = n_versions_++;
        version->walk = cache_.sequences.next_walk;
        if (!versions_.push({version->n_tokens, version->number}))
            return fail(LK_E_NOMEM, "no memory for the versions of sequence %llu",
                        ull{sequence.id});
    }
    const uint64_t n_bytes = versions_.size() * sizeof(VersionRecord);
    LK_TRY(chunk(ChunkKind::kVersions, n_bytes, [&](uint8_t *to) {
        if (n_bytes)
            std::memcpy(to, versions_.data(), n_bytes);
        return LK_OK;
    }));
    for (const StateVersion *version : sequence.versions)
        if (version->number >= first_new)
            LK_TRY(put_states(*version));
    return LK_OK;
}

lk_status Writer::put_states(const StateVersion &version) {
    constexpr uint64_t kMost = kMaxPartBytes - sizeof(StateRecord);
    const uint64_t total = content_bytes(cache_.states);
    lk_status status = LK_OK;
    for (uint64_t first = 0; !status && first < total; first += kMost) {
        const uint64_t n_bytes = std::min(kMost, total - first);
        status = chunk(ChunkKind::kStates, sizeof(StateRecord) + n_bytes,
                       [&](uint8_t *to) { return fill_states(version, first, n_bytes, to); });
    }
    return status;
}

lk_status Writer::fill_states(const StateVersion &version, uint64_t first, uint64_t n_bytes,
                              uint8_t *to) {
    const StateRecord record = {version.number, first};
    std::memcpy(to, &record, sizeof record);
    copies_.clear();
    if (!add_state_copies(cache_.states, version.memory, first, n_bytes, to + sizeof record,
                          &copies_))
        return fail(LK_E_NOMEM, "no memory for the copies of %zu states",
                    cache_.states.bytes.size());
    return cache_.device->download(copies_.data(), static_cast<uint32_t>(copies_.size()));
}

uint32_t Writer::part_of(const Block &block, uint32_t first, uint64_t *n_bytes) const {
    uint64_t pages = 0;
    uint32_t n = 0;
    for (; first + n < block.n_entries; ++n) {
        const PageEntry &entry = block.entries[first + n];
        const FormatBytes &key = formats_[entry.key_format];
        const FormatBytes &value = formats_[entry.value_format];
        const uint64_t more =
            entry.is_absent ? 0 : key.payload + key.metadata + value.payload + value.metadata;
        if (n && block_head_bytes(n + 1) + pages + more > kMaxPartBytes)
            break;
        pages += more;
    }
    *n_bytes = block_head_bytes(n) + pages;
    return n;
}

lk_status Writer::put_block(const Sequence &sequence, const Block &block, uint64_t number) {
    BlockRecord record{};
    record.row = number;
    record.first_token = block.first_token;
    record.n_tokens = static_cast<uint32_t>(tokens_of(sequence, block));
    record.n_packed = static_cast<const CacheBlock &>(block).n_packed;
    record.chunk_class = static_cast<const CacheBlock &>(block).chunk_class;
    lk_status status = LK_OK;
    for (; !status && record.first_entry < block.n_entries;
         record.first_entry += record.n_entries) {
        uint64_t n_bytes = 0;
        record.n_entries = part_of(block, record.first_entry, &n_bytes);
        status = chunk(ChunkKind::kRows, n_bytes,
                       [&](uint8_t *to) { return fill_part(block, record, to); });
    }
    return status;
}

bool Writer::add_page(uint16_t page_format, uint64_t payload, uint64_t metadata, uint8_t **to) {
    const FormatBytes &bytes = formats_[page_format];
    bool fits = !bytes.payload || copies_.push({payload, *to, bytes.payload});
    *to += bytes.payload;
    if (bytes.metadata)
        fits = fits && copies_.push({metadata, *to, bytes.metadata});
    *to += bytes.metadata;
    return fits;
}

lk_status Writer::fill_part(const Block &block, const BlockRecord &record, uint8_t *to) {
    const uint64_t head = block_head_bytes(record.n_entries);
    uint8_t *pages = to + head;
    std::memset(to, 0, head);
    std::memcpy(to, &record, sizeof record);
    copies_.clear();
    bool fits = true;
    for (uint32_t i = 0; i < record.n_entries; ++i) {
        const PageEntry &entry = block.entries[record.first_entry + i];
        const EntryRecord classes = {
            entry.is_absent ? kAbsentPage : formats_[entry.key_format].number,
            entry.is_absent ? kAbsentPage : formats_[entry.value_format].number};
        std::memcpy(to + sizeof record + i * sizeof classes, &classes, sizeof classes);
        if (entry.is_absent)
            continue;
        fits = fits && add_page(entry.key_format, entry.key_payload, entry.key_metadata, &pages) &&
               add_page(entry.value_format, entry.value_payload, entry.value_metadata, &pages);
    }
    if (!fits)
        return fail(LK_E_NOMEM, "no memory for the copies of %u entries", record.n_entries);
    const lk_status status =
        cache_.device->download(copies_.data(), static_cast<uint32_t>(copies_.size()));
    if (!status && record.n_tokens < block.capacity_tokens)
        clear_ends(block, record, to + head);
    return status;
}

// Of a block in which a sequence ends; all its pages are raw.
void Writer::clear_ends(const Block &block, const BlockRecord &record, uint8_t *pages) const {
    for (uint32_t i = 0; i < record.n_entries; ++i) {
        const PageEntry &entry = block.entries[record.first_entry + i];
        for (const uint16_t page_format : {entry.key_format, entry.value_format}) {
            const PageLayout &layout = cache_.formats[page_format].layout;
            if (layout.is_raw())
                clear_tokens(layout, record.n_tokens, pages);
            pages += formats_[page_format].payload + formats_[page_format].metadata;
        }
    }
}

}  // namespace

lk_status snapshot_bytes(lk_cache *cache, const SnapshotChoice &choice, uint64_t *n_bytes) {
    Writer writer(cache);
    const lk_status status = writer.open(choice);
    if (!status)
        *n_bytes = writer.total_bytes();
    return status;
}

lk_status save_snapshot(lk_cache *cache, const SnapshotChoice &choice, SnapshotSink *sink) {
    Writer writer(cache);
    LK_TRY(writer.open(choice));
    return writer.write(sink);
}

}  // namespace lk
