// Sequences are built apart from the cache's own and join them when all was read.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot/load.h"

#include <cstdio>

#include "core/cache.h"
#include "core/chunks/chunks.h"
#include "core/memory/compact.h"
#include "core/memory/reserve.h"
#include "core/pages/ladders.h"
#include "core/pages/page_slots.h"
#include "core/sequence/shared_query_stats.h"
#include "core/sequence/windows.h"
#include "core/snapshot/reader.h"
#include "core/snapshot/snapshot.h"
#include "core/snapshot/stream.h"
#include "format/bulk.h"

namespace lk {

namespace {

bool same_format(const PageFormat &own, const FileFormat &file) {
    if (!same_layout(own.layout, file.layout) || !own.permutation != !file.permutation)
        return false;
    return !own.permutation ||
           !std::memcmp(own.permutation, file.permutation, permutation_bytes(own.layout.head_dim));
}

class Loader {
  public:
    Loader(lk_cache *cache, SnapshotSource *source)
        : cache_(*cache),
          reader_(cache->context->allocator, source),
          loaded_(cache->context->allocator),
          known_(cache->context->allocator),
          versions_(cache->context->allocator),
          copies_(cache->context->allocator) {}
    ~Loader();

    lk_status load(const SnapshotTarget &target);

  private:
    lk_status check_model() const;
    lk_status check_plan() const;
    lk_status check_rotations(const Plan &from) const;
    lk_status fail_plan(const Array<uint8_t> &own) const;
    lk_status check_states() const;
    lk_status check_capacity(const SnapshotTarget &target) const;
    lk_status load_sequence();
    lk_status load_query_stats(const SequencePart &part, Sequence *sequence);
    lk_status load_chunks(const SequencePart &part, Sequence *sequence);
    lk_status load_versions(Sequence *sequence);
    lk_status load_states(const StateVersion &version);
    lk_status share_blocks(Sequence *sequence, const SnapshotBlocks &at);
    lk_status load_block(Sequence *sequence, uint64_t number);
    lk_status load_part(const BlockPart &part, bool is_sink, CacheBlock *block, uint32_t *n_taken);
    bool may_be_absent(uint32_t layer, const CacheBlock &block) const;
    uint16_t find_packed_format(uint32_t layer, const PageInfo &page, const CacheBlock &block,
                                const FileFormat &file) const;
    lk_status find_format(uint32_t layer, const PageInfo &page, uint16_t last_sink,
                          uint16_t file_format, const CacheBlock &block, bool is_sink,
                          PageNeed *out) const;
    void add_page(uint16_t page_format, uint64_t payload, uint64_t metadata, const uint8_t **from);
    lk_status check_packed(const CacheBlock &block, uint64_t number) const;
    void join(const SnapshotTarget &target);

    lk_cache &cache_;
    lk_snapshot_desc desc_{};
    SnapshotReader reader_;
    Array<Sequence *> loaded_;
    Array<CacheBlock *> known_;       // by number in the snapshot
    Array<StateVersion *> versions_;  // by number in the snapshot, each held
    Array<SlotCopy> copies_;
};

lk_status no_block_memory(size_t n) {
    return fail(LK_E_NOMEM, "no memory for a list of %zu blocks", n + 1);
}

// What was not joined goes.
Loader::~Loader() {
    for (StateVersion *version : versions_)
        release_version(&cache_, version);
    for (Sequence *sequence : loaded_)
        free_sequence(&cache_, sequence);
    cache_.slots.trim();
}

lk_status Loader::load(const SnapshotTarget &target) {
    LK_TRY(import_snapshot_desc(target.desc, &desc_));
    LK_TRY(settle_cache(&cache_, "loaded into"));
    LK_TRY(reader_.open());
    LK_TRY(check_plan());
    LK_TRY(check_model());
    LK_TRY(check_states());
    LK_TRY(check_capacity(target));
    const uint32_t n = reader_.header().n_sequences;
    if (!loaded_.reserve(n))
        return fail(LK_E_NOMEM, "no memory for a list of %u sequences", n);
    for (uint32_t i = 0; i < n; ++i)
        LK_TRY(load_sequence());
    LK_TRY(reader_.finish());
    join(target);
    return LK_OK;
}

lk_status Loader::check_model() const {
    const Array<uint8_t> &theirs = reader_.fingerprint();
    if (theirs.size() == desc_.fingerprint_bytes &&
        (theirs.empty() || !std::memcmp(theirs.data(), desc_.fingerprint, theirs.size())))
        return LK_OK;
    return fail(LK_E_MISMATCH,
                "the snapshot's model has a fingerprint of %zu bytes with hash %016llx, the "
                "caller's one of %u with hash %016llx",
                theirs.size(), ull{hash_bytes(theirs.data(), theirs.size())},
                desc_.fingerprint_bytes,
                ull{hash_bytes(desc_.fingerprint, desc_.fingerprint_bytes)});
}

// The texts are equal or the plans differ somewhere. A plan of another geometry is not parsed.
lk_status Loader::check_plan() const {
    const Plan &plan = cache_.plan.model;
    const SnapshotHeader &header = reader_.header();
    Array<uint8_t> own(cache_.context->allocator);
    const Array<uint8_t> &theirs = reader_.plan_text();
    LK_TRY(plan_text(plan, cache_.context->allocator, &own));
    if (own.size() == theirs.size() && !std::memcmp(own.data(), theirs.data(), own.size()))
        return check_header_plan(header, plan);
    const uint64_t own_geometry = geometry_hash(plan);
    if (header.geometry_hash == own_geometry)
        return fail_plan(own);
    return fail(LK_E_MISMATCH,
                "the snapshot is of geometry %016llx, the cache has %016llx: the model's layers "
                "differ, and lk_snapshot_plan() shows those of the snapshot",
                ull{header.geometry_hash}, ull{own_geometry});
}

// Pages of keys in another basis mean nothing to the cache's queries.
lk_status Loader::check_rotations(const Plan &from) const {
    const Plan &own = cache_.plan.model;
    for (uint32_t l = 0; l < own.layers.size() && l < from.layers.size(); ++l)
        if (from.layers[l].key_rotation != own.layers[l].key_rotation)
            return fail(LK_E_MISMATCH,
                        "keys of layer %u are %srotated in the snapshot (plan %s) and %srotated in "
                        "the cache (plan %s)",
                        l, from.layers[l].key_rotation ? "" : "not ", from.name,
                        own.layers[l].key_rotation ? "" : "not ", own.name);
    return LK_OK;
}

// The other plan's name is shown, and so it is parsed.
lk_status Loader::fail_plan(const Array<uint8_t> &own) const {
    Plan from(cache_.context->allocator);
    LK_TRY(parse_plan_text(reader_.plan_text(), &from));
    LK_TRY(check_header_plan(reader_.header(), from));
    LK_TRY(check_rotations(from));
    const Array<uint8_t> &theirs = reader_.plan_text();
    size_t at = 0;
    while (at < own.size() && at < theirs.size() && own[at] == theirs[at])
        ++at;
    const auto excerpt = [at](const Array<uint8_t> &text) {
        return reinterpret_cast<const char *>(text.data() + (at < text.size() ? at : 0));
    };
    const auto length = [at](const Array<uint8_t> &text) {
        const size_t left = at < text.size() ? text.size() - at : 0;
        return static_cast<int>(left < 40 ? left : 40);
    };
    return fail(LK_E_MISMATCH,
                "the snapshot is of plan %s (%016llx), the cache runs %s (%016llx): \"%.*s\" "
                "against \"%.*s\"",
                from.name, ull{reader_.header().plan_hash}, cache_.plan.model.name,
                ull{hash_bytes(own.data(), own.size())}, length(theirs), excerpt(theirs),
                length(own), excerpt(own));
}

lk_status Loader::check_states() const {
    const Array<uint64_t> &own = cache_.states.bytes;
    const Array<uint64_t> &theirs = reader_.state_bytes();
    if (own.size() != theirs.size())
        return fail(LK_E_MISMATCH, "the snapshot has %zu recurrent states, the cache %zu",
                    theirs.size(), own.size());
    for (size_t i = 0; i < own.size(); ++i)
        if (own[i] != theirs[i])
            return fail(LK_E_MISMATCH,
                        "recurrent state %zu has %llu bytes in the snapshot, %llu in the cache", i,
                        ull{theirs[i]}, ull{own[i]});
    return LK_OK;
}

lk_status Loader::check_capacity(const SnapshotTarget &target) const {
    const uint32_t n = reader_.header().n_sequences;
    if (target.n_sequences)
        *target.n_sequences = n;
    if (n > target.capacity || (n && !target.ids))
        return fail(LK_E_ARGUMENT, "the snapshot has %u sequences, ids has a capacity of %u", n,
                    target.ids ? target.capacity : 0);
    if (n > cache_.desc.max_sequences - cache_.sequences.size())
        return fail(LK_E_BUDGET, "the snapshot has %u sequences, the cache has %zu of %u", n,
                    cache_.sequences.size(), cache_.desc.max_sequences);
    return LK_OK;
}

lk_status Loader::load_sequence() {
    const SequencePart *part = nullptr;
    LK_TRY(reader_.next_sequence(cache_.plan.model, &part));
    const Allocator &allocator = cache_.context->allocator;
    Sequence *sequence = create<Sequence>(allocator, allocator);
    if (!sequence)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    loaded_.push(sequence);
    LK_TRY(load_query_stats(*part, sequence));
    LK_TRY(load_chunks(*part, sequence));
    LK_TRY(load_versions(sequence));
    const uint64_t n_blocks = block_count(cache_.plan.model, part->record.n_tokens);
    while (sequence->block_table.size() < n_blocks) {
        SnapshotBlocks at;
        LK_TRY(reader_.next_blocks(&at));
        // Step by step: the blocks that a snapshot states need not be there.
        const uint64_t needed = sequence->block_table.size() + (at.is_new ? 1 : at.n);
        if (needed > sequence->block_table.capacity())
            LK_TRY(reserve_table(&cache_, sequence, table_capacity(needed)));
        LK_TRY(at.is_new ? load_block(sequence, at.number) : share_blocks(sequence, at));
    }
    sequence->length = part->record.n_tokens;
    if (check_pages(&cache_, *sequence, sequence->length))
        return fail(LK_E_CORRUPT,
                    "snapshot: sequence %llu has no pages for tokens that it attends to",
                    ull{part->record.id});
    sequence->first_open = sink_blocks(cache_.plan.model);
    while (sequence->first_open < n_blocks &&
           sequence->block(sequence->first_open)->n_packed == cache_.formats.entries.size())
        ++sequence->first_open;
    if (sequence->first_open > n_blocks)
        sequence->first_open = n_blocks;
    return LK_OK;
}

lk_status Loader::load_query_stats(const SequencePart &part, Sequence *sequence) {
    const SequenceRecord &record = part.record;
    if (record.n_channels != cache_.formats.n_ranked_channels)
        return fail(LK_E_CORRUPT, "snapshot: sequence %llu has sums of %u channels, the plan %u",
                    ull{record.id}, record.n_channels, cache_.formats.n_ranked_channels);
    if (!record.n_channels)
        return LK_OK;
    LK_TRY(make_query_stats(&cache_, &sequence->query_stats));
    QueryStats *stats = sequence->query_stats;
    const uint64_t stats_bytes = record.n_channels * sizeof(uint64_t);
    copies_.clear();
    if (!copies_.reserve(1 + static_cast<size_t>(record.n_sums)))
        return fail(LK_E_NOMEM, "no memory for a list of %u sums", record.n_sums);
    stats->restore_base(part.base, record.flags & kHasFolded);
    copies_.push({stats->base(), const_cast<uint8_t *>(part.base), stats_bytes});
    uint64_t least_block = sink_blocks(cache_.plan.model);
    for (uint32_t i = 0; i < record.n_sums; ++i) {
        const uint8_t *values = nullptr;
        const SumRecord sum = part.sum(i, &values);
        if (sum.row < least_block || sum.is_gap > 1 ||
            (!sum.is_gap && sum.row >= block_count(cache_.plan.model, record.n_tokens)) ||
            !stats->restore_item(sum.row, sum.is_gap != 0, values))
            return fail(LK_E_CORRUPT, "snapshot: sum %u of sequence %llu is of block %llu", i,
                        ull{record.id}, ull{sum.row});
        copies_.push({stats->item_stats(i), const_cast<uint8_t *>(values), stats_bytes});
        least_block = sum.row + 1;
    }
    return cache_.device->upload(copies_.data(), static_cast<uint32_t>(copies_.size()));
}

lk_status Loader::load_chunks(const SequencePart &part, Sequence *sequence) {
    const uint32_t n = part.record.n_chunks;
    sequence->deferral = part.record.deferral;
    if (!(part.record.flags & kHasChunks))
        return LK_OK;
    const lk_status status = make_chunks(&cache_, n, &sequence->chunks);
    if (status || !n)
        return status;
    std::memcpy(sequence->chunks->order.data(), part.order, n * sizeof(uint32_t));
    std::memcpy(sequence->chunks->assigned.data(), part.assigned, n);
    return LK_OK;
}

lk_status Loader::load_versions(Sequence *sequence) {
    const size_t n = reader_.n_versions();
    LK_TRY(list_versions(&cache_, n, sequence));
    for (size_t i = 0; i < n; ++i) {
        SnapshotVersion at;
        LK_TRY(reader_.next_version(&at));
        if (at.is_new) {
            if (!versions_.reserve(versions_.size() + 1))
                return fail(LK_E_NOMEM, "no memory for a list of %zu versions",
                            versions_.size() + 1);
            StateVersion *version = nullptr;
            LK_TRY(make_version(&cache_, at.n_tokens, &version));
            versions_.push(version);
            LK_TRY(load_states(*version));
        }
        ++versions_[at.number]->n_holders;
        sequence->versions.push(versions_[at.number]);
    }
    return LK_OK;
}

lk_status Loader::load_states(const StateVersion &version) {
    SnapshotStates part{};
    while (part.first_byte + part.n_bytes < reader_.version_bytes()) {
        LK_TRY(reader_.next_states(&part));
        copies_.clear();
        if (!add_state_copies(cache_.states, version.memory, part.first_byte, part.n_bytes,
                              const_cast<uint8_t *>(part.bytes), &copies_))
            return fail(LK_E_NOMEM, "no memory for the copies of %zu states",
                        cache_.states.bytes.size());
        LK_TRY(cache_.device->upload(copies_.data(), static_cast<uint32_t>(copies_.size())));
        LK_TRY(report_progress(desc_, reader_.done_bytes(), reader_.header().total_bytes));
    }
    return LK_OK;
}

lk_status Loader::load_block(Sequence *sequence, uint64_t number) {
    const uint64_t ordinal = sequence->block_table.size();
    CacheBlock *block = nullptr;
    lk_status status = make_block(&cache_, ordinal, &block);
    if (status)
        return status;
    const bool is_sink = is_sink_block(cache_.plan.model, ordinal);
    uint32_t n_taken = 0;
    while (!status && n_taken < block->n_entries) {
        BlockPart part;
        status = reader_.next_part(&part);
        if (status)
            break;
        block->n_packed = part.record.n_packed;
        block->chunk_class = part.record.chunk_class;
        status = load_part(part, is_sink, block, &n_taken);
        if (!status)
            status = report_progress(desc_, reader_.done_bytes(), reader_.header().total_bytes);
    }
    if (!status)
        status = check_packed(*block, number);
    if (!status)
        status = cache_.device->entries_changed(block);
    if (!status && !known_.push(block))
        status = no_block_memory(known_.size());
    if (status) {
        free_block(&cache_, block, n_taken);
        return status;
    }
    count_block(&cache_, block);
    sequence->block_table.push(block);
    return LK_OK;
}

// The reader has checked that the blocks are whole, and the block table has space for them.
lk_status Loader::share_blocks(Sequence *sequence, const SnapshotBlocks &at) {
    for (uint64_t i = 0; i < at.n; ++i) {
        CacheBlock *block = known_[at.number + i];
        sequence->block_table.push(block);
        block->n_written = block->capacity_tokens;
        hold_block(&cache_, block);
    }
    return report_progress(desc_, reader_.done_bytes(), reader_.header().total_bytes);
}

// The format of a packed page: by its block's chunks or by the plan, at any rung of the layer's
// ladder, or one that a page passes on its way down. 0, a raw format, for none.
uint16_t Loader::find_packed_format(uint32_t layer, const PageInfo &page, const CacheBlock &block,
                                    const FileFormat &file) const {
    const uint32_t n_rungs = cache_.plan.model.layers[layer].n_rungs;
    const uint16_t *classes = block.chunk_class
                                  ? page.chunk_format[block.chunk_class - LK_CHUNK_LOW]
                              : n_rungs ? page.rung_format
                                        : &page.packed_format;
    for (uint32_t r = 0; r < (n_rungs ? n_rungs : 1); ++r)
        for (uint16_t c = classes[r]; c && !cache_.formats[c].layout.is_raw();
             c = cache_.formats.shrink_steps[c].to)
            if (same_format(cache_.formats[c], file))
                return c;
    return 0;
}

// The cache's format of a page of the file.
lk_status Loader::find_format(uint32_t layer, const PageInfo &page, uint16_t last_sink,
                              uint16_t file_format, const CacheBlock &block, bool is_sink,
                              PageNeed *out) const {
    const bool is_absent = cache_.formats[page.recent_format].layout.is_absent();
    if (is_absent && file_format == kAbsentPage) {
        *out = need_of(page, false);
        return LK_OK;
    }
    if (!is_absent && file_format != kAbsentPage) {
        const FileFormat &file = reader_.formats()[file_format];
        const bool is_short = block.capacity_tokens < cache_.plan.model.page_tokens;
        const uint16_t raw = is_sink && is_short ? last_sink : page.recent_format;
        if (same_format(cache_.formats[raw], file)) {
            *out = is_sink ? sink_need(cache_.formats, raw) : need_of(page, false);
            return LK_OK;
        }
        const uint16_t packed =
            is_sink ? uint16_t{0} : find_packed_format(layer, page, block, file);
        if (packed) {
            *out = packed_need_of(cache_.formats, page, packed);
            return LK_OK;
        }
    }
    return fail(LK_E_CORRUPT,
                "snapshot: a page of tokens %llu to %llu has format %u, which is none that the "
                "plan gives it",
                ull{block.first_token}, ull{block.first_token + block.capacity_tokens},
                file_format);
}

// Pages that the layer's window has left may be absent; load_sequence() checks that it has.
bool Loader::may_be_absent(uint32_t layer, const CacheBlock &block) const {
    const Plan &plan = cache_.plan.model;
    return frees_hidden_pages(plan, plan.layers[layer].geometry) &&
           block.first_token >= plan.sink_tokens;
}

void Loader::add_page(uint16_t page_format, uint64_t payload, uint64_t metadata,
                      const uint8_t **from) {
    const PageLayout &layout = cache_.formats[page_format].layout;
    const uint64_t bytes[] = {payload_bytes(layout), metadata_bytes(layout)};
    const uint64_t addresses[] = {payload, metadata};
    for (int i = 0; i < 2; ++i) {
        if (bytes[i])
            copies_.push({addresses[i], const_cast<uint8_t *>(*from), bytes[i]});
        *from += bytes[i];
    }
}

lk_status Loader::load_part(const BlockPart &part, bool is_sink, CacheBlock *block,
                            uint32_t *n_taken) {
    copies_.clear();
    if (!copies_.reserve(4 * static_cast<size_t>(part.record.n_entries)))
        return fail(LK_E_NOMEM, "no memory for the copies of %u entries", part.record.n_entries);
    const uint8_t *pages = part.pages;
    for (uint32_t i = 0; i < part.record.n_entries; ++i) {
        const EntryInfo &info = cache_.formats.entries[*n_taken];
        const LayerInfo &layer = cache_.formats.layers[info.layer];
        const EntryRecord classes = part.entry(i);
        PageEntry &entry = block->entries[*n_taken];
        PageNeed key;
        PageNeed value;
        if (classes.key_format == kAbsentPage && classes.value_format == kAbsentPage &&
            may_be_absent(info.layer, *block)) {
            entry.key_format =
                packed_need(cache_.formats, info, false, block->chunk_class).page_format;
            entry.value_format =
                packed_need(cache_.formats, info, true, block->chunk_class).page_format;
            entry.is_absent = 1;
            ++*n_taken;
            continue;
        }
        lk_status status = find_format(info.layer, info.key, layer.last_sink_key,
                                       classes.key_format, *block, is_sink, &key);
        if (!status)
            status = find_format(info.layer, info.value, layer.last_sink_value,
                                 classes.value_format, *block, is_sink, &value);
        if (!status)
            status = take_pages(&cache_, key, value, &entry);
        if (status == LK_E_BUDGET && compact(&cache_))
            status = take_pages(&cache_, key, value, &entry);
        if (status)
            return status;
        ++*n_taken;
        add_page(entry.key_format, entry.key_payload, entry.key_metadata, &pages);
        add_page(entry.value_format, entry.value_payload, entry.value_metadata, &pages);
    }
    const SideWork side = {
        [](void *reader) { static_cast<SnapshotReader *>(reader)->look_ahead(); }, &reader_};
    return cache_.device->upload_with(copies_.data(), static_cast<uint32_t>(copies_.size()), side);
}

// Entries at 16 bits may be among the packed ones where the plan, a chunk class or a rung of 16 has
// them so; the entries after the packed ones are at 16 bits. Windows free pages of blocks that are
// packed in full.
lk_status Loader::check_packed(const CacheBlock &block, uint64_t number) const {
    const auto is_packed = [&](uint16_t page_format) {
        return !cache_.formats[page_format].layout.is_raw();
    };
    bool is_right = true;
    for (uint32_t e = 0; is_right && e < block.n_entries; ++e) {
        const EntryInfo &info = cache_.formats.entries[e];
        const PageEntry &entry = block.entries[e];
        const bool has_ladder = cache_.plan.model.layers[info.layer].n_rungs != 0;
        is_right = !entry.is_absent || block.n_packed == block.n_entries;
        for (const bool is_value : {false, true}) {
            const uint16_t own = is_value ? entry.value_format : entry.key_format;
            const uint16_t packed =
                packed_need(cache_.formats, info, is_value, block.chunk_class).page_format;
            if (e >= block.n_packed)
                is_right = is_right && !is_packed(own);
            else if (!has_ladder)
                is_right = is_right && is_packed(own) == is_packed(packed);
        }
    }
    return is_right ? LK_OK
                    : fail(LK_E_CORRUPT,
                           "snapshot: block %llu of %u entries has others packed than its first %u",
                           ull{number}, block.n_entries, block.n_packed);
}

void Loader::join(const SnapshotTarget &target) {
    for (size_t i = 0; i < loaded_.size(); ++i) {
        Sequence *sequence = loaded_[i];
        sequence->id = cache_.sequences.next_id++;
        cache_.sequences.list.push(sequence);
        cache_.statistics.counts.n_tokens += sequence->length;
        target.ids[i] = sequence->id;
    }
    unsettle_layers(&cache_);
    loaded_.clear();
}

}  // namespace

lk_status load_snapshot(lk_cache *cache, const SnapshotTarget &target, SnapshotSource *source) {
    Loader loader(cache, source);
    return loader.load(target);
}

}  // namespace lk
