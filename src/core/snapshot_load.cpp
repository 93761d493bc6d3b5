// Loading sequences: they are built beside the cache's own and join them when all was read.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "core/cache.h"
#include "core/snapshot.h"
#include "format/bulk.h"

namespace lk {

namespace {

bool same_class(const PageFormat &own, const FileFormat &file) {
    if (!same_layout(own.layout, file.layout) || !own.permutation != !file.permutation)
        return false;
    return !own.permutation || !std::memcmp(own.permutation, file.permutation, own.layout.head_dim);
}

class Loader {
  public:
    Loader(lk_cache *cache, SnapshotSource *source)
        : cache_(*cache),
          reader_(cache->context->allocator, source),
          loaded_(cache->context->allocator),
          known_(cache->context->allocator),
          copies_(cache->context->allocator) {}
    ~Loader();

    lk_status load(const SnapshotTarget &target);

  private:
    lk_status check_model() const;
    lk_status check_plan() const;
    lk_status fail_plan(const Plan &from, const Array<uint8_t> &own) const;
    lk_status check_room(const SnapshotTarget &target) const;
    lk_status load_sequence();
    lk_status load_scores(const SequencePart &part, Sequence *sequence);
    lk_status load_chunks(const SequencePart &part, Sequence *sequence);
    lk_status share_row(Sequence *sequence, Row *row);
    lk_status load_row(Sequence *sequence, uint64_t ordinal);
    lk_status load_part(const BlockPart &part, bool is_sink, Row *row, uint32_t *n_taken);
    bool may_lack(uint32_t layer, const Row &row) const;
    uint16_t find_packed_format(uint32_t layer, const HalfInfo &half, const Row &row,
                                const FileFormat &file) const;
    lk_status find_class(uint32_t layer, const HalfInfo &half, uint16_t last_sink,
                         uint16_t file_class, const Row &row, bool is_sink, HalfNeed *out) const;
    void add_half(uint16_t page_format, uint64_t payload, uint64_t metadata, const uint8_t **from);
    lk_status check_packed(const Row &row, uint64_t number) const;
    void join(const SnapshotTarget &target);

    lk_cache &cache_;
    lk_snapshot_desc desc_{};
    SnapshotReader reader_;
    Array<Sequence *> loaded_;
    Array<Row *> known_;  // by number in the snapshot
    Array<SlotCopy> copies_;
};

lk_status no_row_memory(size_t n) {
    return fail(LK_E_NOMEM, "no memory for a list of %zu rows", n + 1);
}

// What was not joined goes.
Loader::~Loader() {
    for (Sequence *sequence : loaded_)
        free_sequence(&cache_, sequence);
    cache_.slots.trim();
}

lk_status Loader::load(const SnapshotTarget &target) {
    lk_status status = import_snapshot_desc(target.desc, &desc_);
    if (!status)
        status = settle_cache(&cache_, "loaded into");
    if (!status)
        status = reader_.open();
    if (!status)
        status = check_plan();
    if (!status)
        status = check_model();
    if (!status)
        status = check_room(target);
    const uint32_t n = reader_.header().n_sequences;
    if (!status && (!loaded_.reserve(n) || !cache_.sequences.reserve(cache_.sequences.size() + n)))
        status = fail(LK_E_NOMEM, "no memory for a list of %u sequences", n);
    for (uint32_t i = 0; !status && i < n; ++i)
        status = load_sequence();
    if (!status)
        status = reader_.finish();
    if (!status)
        join(target);
    return status;
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

// The texts are equal or their plans differ somewhere; then the sentence says where.
lk_status Loader::check_plan() const {
    const Allocator &allocator = cache_.context->allocator;
    Array<uint8_t> own(allocator);
    const Array<uint8_t> &theirs = reader_.plan_text();
    lk_status status = plan_text(cache_.plan.model, allocator, &own);
    if (status)
        return status;
    if (own.size() != theirs.size() || std::memcmp(own.data(), theirs.data(), own.size())) {
        Plan from(allocator);
        status = parse_plan_text(theirs, &from);
        return status ? status : fail_plan(from, own);
    }
    const SnapshotHeader &header = reader_.header();
    return check_header_plan(header, cache_.plan.model);
}

lk_status Loader::fail_plan(const Plan &from, const Array<uint8_t> &own) const {
    Array<lk_layer> layers(cache_.context->allocator);
    for (const LayerPlan &layer : cache_.plan.model.layers)
        if (!layers.push(layer.geometry))
            return fail(LK_E_NOMEM, "no memory for a list of %zu layers", layers.size() + 1);
    if (compare_geometry(from, layers)) {
        char difference[256];
        std::snprintf(difference, sizeof difference, "%s", last_sentence());
        return fail(LK_E_MISMATCH, "the snapshot is of geometry %016llx, the cache has %016llx: %s",
                    ull{geometry_hash(from)}, ull{geometry_hash(cache_.plan.model)}, difference);
    }
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

lk_status Loader::check_room(const SnapshotTarget &target) const {
    const uint32_t n = reader_.header().n_sequences;
    if (target.n_sequences)
        *target.n_sequences = n;
    if (n > target.capacity || (n && !target.ids))
        return fail(LK_E_ARGUMENT, "the snapshot has %u sequences, ids has room for %u", n,
                    target.ids ? target.capacity : 0);
    if (n > cache_.desc.max_sequences - cache_.sequences.size())
        return fail(LK_E_BUDGET, "the snapshot has %u sequences, the cache has %zu of %u", n,
                    cache_.sequences.size(), cache_.desc.max_sequences);
    return LK_OK;
}

lk_status Loader::load_sequence() {
    const SequencePart *part = nullptr;
    lk_status status = reader_.next_sequence(cache_.plan.model, &part);
    if (status)
        return status;
    const Allocator &allocator = cache_.context->allocator;
    Sequence *sequence = create<Sequence>(allocator, allocator);
    if (!sequence)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    loaded_.push(sequence);
    status = load_scores(*part, sequence);
    if (!status)
        status = load_chunks(*part, sequence);
    const uint64_t n_blocks = block_count(cache_.plan.model, part->record.n_tokens);
    for (uint64_t r = 0; !status && r < n_blocks; ++r)
        status = load_row(sequence, r);
    if (status)
        return status;
    sequence->length = part->record.n_tokens;
    if (check_pages(&cache_, *sequence, sequence->length))
        return fail(LK_E_CORRUPT, "snapshot: sequence %llu lacks pages that it sees",
                    ull{part->record.id});
    sequence->first_open = sink_blocks(cache_.plan.model);
    while (sequence->first_open < n_blocks &&
           sequence->row(sequence->first_open)->n_packed == cache_.entries.size())
        ++sequence->first_open;
    if (sequence->first_open > n_blocks)
        sequence->first_open = n_blocks;
    return LK_OK;
}

lk_status Loader::load_scores(const SequencePart &part, Sequence *sequence) {
    const SequenceRecord &record = part.record;
    if (record.n_channels != cache_.n_ranked_channels)
        return fail(LK_E_CORRUPT, "snapshot: sequence %llu has sums of %u channels, the plan %u",
                    ull{record.id}, record.n_channels, cache_.n_ranked_channels);
    if (!record.n_channels)
        return LK_OK;
    const lk_status status = make_scores(&cache_, &sequence->scores);
    if (status)
        return status;
    Scores *scores = sequence->scores;
    const uint64_t sums_bytes = record.n_channels * sizeof(uint64_t);
    copies_.clear();
    if (!copies_.reserve(1 + static_cast<size_t>(record.n_sums)))
        return fail(LK_E_NOMEM, "no memory for a list of %u sums", record.n_sums);
    scores->restore_base(part.base, record.flags & kHasFolded);
    copies_.push({scores->base(), const_cast<uint8_t *>(part.base), sums_bytes});
    uint64_t least_row = sink_blocks(cache_.plan.model);
    for (uint32_t i = 0; i < record.n_sums; ++i) {
        const uint8_t *values = nullptr;
        const SumRecord sum = part.sum(i, &values);
        if (sum.row < least_row || sum.is_gap > 1 ||
            (!sum.is_gap && sum.row >= block_count(cache_.plan.model, record.n_tokens)) ||
            !scores->restore_item(sum.row, sum.is_gap != 0, values))
            return fail(LK_E_CORRUPT, "snapshot: sum %u of sequence %llu is of row %llu", i,
                        ull{record.id}, ull{sum.row});
        copies_.push({scores->item_sums(i), const_cast<uint8_t *>(values), sums_bytes});
        least_row = sum.row + 1;
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

lk_status Loader::load_row(Sequence *sequence, uint64_t ordinal) {
    SnapshotRow at;
    lk_status status = reader_.next_row(&at);
    if (status)
        return status;
    if (!at.is_new)
        return share_row(sequence, known_[at.number]);
    Row *row = nullptr;
    status = make_row(&cache_, ordinal, &row);
    if (status)
        return status;
    const bool is_sink = is_sink_block(cache_.plan.model, ordinal);
    uint32_t n_taken = 0;
    while (!status && n_taken < row->n_entries) {
        BlockPart part;
        status = reader_.next_part(&part);
        if (status)
            break;
        row->n_packed = part.record.n_packed;
        row->chunk_class = part.record.chunk_class;
        status = load_part(part, is_sink, row, &n_taken);
        if (!status)
            status = tell_progress(desc_, reader_.done_bytes(), reader_.header().total_bytes);
    }
    if (!status)
        status = check_packed(*row, at.number);
    if (!status)
        status = cache_.device->entries_changed(row);
    if (!status && !known_.push(row))
        status = no_row_memory(known_.size());
    if (!status && !sequence->rows.push(row))
        status = no_row_memory(sequence->rows.size());
    if (status)
        free_row(&cache_, row, n_taken);
    return status;
}

// The reader has seen to it that the row is whole.
lk_status Loader::share_row(Sequence *sequence, Row *row) {
    if (cache_.ledger.left_bytes() < kLinkBytes)
        return fail(LK_E_BUDGET, "the budget of %llu bytes has no bytes for a list of rows",
                    ull{cache_.ledger.limit_bytes});
    if (!sequence->rows.push(row))
        return no_row_memory(sequence->rows.size());
    row->n_written = row->capacity_tokens;
    hold_row(&cache_, row);
    return LK_OK;
}

// The class of a packed half: that of its row's chunks or of the plan, at any rung of the layer's
// ladder, or one that it comes by on its way down. 0, a raw class, for none.
uint16_t Loader::find_packed_format(uint32_t layer, const HalfInfo &half, const Row &row,
                                    const FileFormat &file) const {
    const uint32_t n_rungs = cache_.plan.model.layers[layer].n_rungs;
    const uint16_t *classes = row.chunk_class ? half.chunk_class[row.chunk_class - LK_CHUNK_LOW]
                              : n_rungs       ? half.rung_format
                                              : &half.packed_class;
    for (uint32_t r = 0; r < (n_rungs ? n_rungs : 1); ++r)
        for (uint16_t c = classes[r]; c && !cache_.classes[c].layout.is_raw();
             c = cache_.shrink_steps[c].to)
            if (same_class(cache_.classes[c], file))
                return c;
    return 0;
}

// The class of the plan that a half of the file has.
lk_status Loader::find_class(uint32_t layer, const HalfInfo &half, uint16_t last_sink,
                             uint16_t file_class, const Row &row, bool is_sink,
                             HalfNeed *out) const {
    if (file_class != kAbsentPage) {
        const FileFormat &file = reader_.classes()[file_class];
        const bool is_short = row.capacity_tokens < cache_.plan.model.page_tokens;
        const uint16_t raw = is_sink && is_short ? last_sink : half.recent_class;
        if (same_class(cache_.classes[raw], file)) {
            *out = is_sink ? sink_need(&cache_, raw) : need_of(half, false);
            return LK_OK;
        }
        const uint16_t packed = is_sink ? uint16_t{0} : find_packed_format(layer, half, row, file);
        if (packed) {
            *out = packed_need_of(&cache_, half, packed);
            return LK_OK;
        }
    }
    return fail(LK_E_CORRUPT,
                "snapshot: a half of tokens %llu to %llu has class %u, which is none that the "
                "plan gives it",
                ull{row.first_token}, ull{row.first_token + row.capacity_tokens}, file_class);
}

// A layer lacks pages that lie behind its window; load_sequence() looks whether they do.
bool Loader::may_lack(uint32_t layer, const Row &row) const {
    const Plan &plan = cache_.plan.model;
    return frees_hidden_pages(plan, plan.layers[layer].geometry) &&
           row.first_token >= plan.sink_tokens;
}

void Loader::add_half(uint16_t page_format, uint64_t payload, uint64_t metadata,
                      const uint8_t **from) {
    const PageLayout &layout = cache_.classes[page_format].layout;
    const uint64_t bytes[] = {payload_bytes(layout), metadata_bytes(layout)};
    const uint64_t addresses[] = {payload, metadata};
    for (int i = 0; i < 2; ++i) {
        if (bytes[i])
            copies_.push({addresses[i], const_cast<uint8_t *>(*from), bytes[i]});
        *from += bytes[i];
    }
}

lk_status Loader::load_part(const BlockPart &part, bool is_sink, Row *row, uint32_t *n_taken) {
    copies_.clear();
    if (!copies_.reserve(4 * static_cast<size_t>(part.record.n_entries)))
        return fail(LK_E_NOMEM, "no memory for the copies of %u entries", part.record.n_entries);
    const uint8_t *halves = part.pages;
    for (uint32_t i = 0; i < part.record.n_entries; ++i) {
        const EntryInfo &info = cache_.entries[*n_taken];
        const LayerInfo &layer = cache_.layers[info.layer];
        const EntryRecord classes = part.entry(i);
        PageEntry &entry = row->entries[*n_taken];
        HalfNeed key;
        HalfNeed value;
        if (classes.key_format == kAbsentPage && classes.value_format == kAbsentPage &&
            may_lack(info.layer, *row)) {
            entry.key_format = packed_need(&cache_, info, false, row->chunk_class).page_format;
            entry.value_format = packed_need(&cache_, info, true, row->chunk_class).page_format;
            entry.is_absent = 1;
            ++*n_taken;
            continue;
        }
        lk_status status = find_class(info.layer, info.key, layer.last_sink_key, classes.key_format,
                                      *row, is_sink, &key);
        if (!status)
            status = find_class(info.layer, info.value, layer.last_sink_value, classes.value_format,
                                *row, is_sink, &value);
        if (!status)
            status = take_halves(&cache_, key, value, &entry);
        if (status == LK_E_BUDGET && compact(&cache_))
            status = take_halves(&cache_, key, value, &entry);
        if (status)
            return status;
        ++*n_taken;
        add_half(entry.key_format, entry.key_payload, entry.key_metadata, &halves);
        add_half(entry.value_format, entry.value_payload, entry.value_metadata, &halves);
    }
    const SideWork side = {
        [](void *reader) { static_cast<SnapshotReader *>(reader)->look_ahead(); }, &reader_};
    return cache_.device->upload_with(copies_.data(), static_cast<uint32_t>(copies_.size()), side);
}

// Entries at 16 bits may be among the packed ones where the plan, a class of chunks or a rung of 16
// has them so; those behind are whole and at 16 bits. Windows leave rows that are packed in full.
lk_status Loader::check_packed(const Row &row, uint64_t number) const {
    const auto is_packed = [&](uint16_t page_format) {
        return !cache_.classes[page_format].layout.is_raw();
    };
    bool is_right = true;
    for (uint32_t e = 0; is_right && e < row.n_entries; ++e) {
        const EntryInfo &info = cache_.entries[e];
        const PageEntry &entry = row.entries[e];
        const bool has_ladder = cache_.plan.model.layers[info.layer].n_rungs != 0;
        is_right = !entry.is_absent || row.n_packed == row.n_entries;
        for (const bool is_value : {false, true}) {
            const uint16_t own = is_value ? entry.value_format : entry.key_format;
            const uint16_t packed =
                packed_need(&cache_, info, is_value, row.chunk_class).page_format;
            if (e >= row.n_packed)
                is_right = is_right && !is_packed(own);
            else if (!has_ladder)
                is_right = is_right && is_packed(own) == is_packed(packed);
        }
    }
    return is_right ? LK_OK
                    : fail(LK_E_CORRUPT,
                           "snapshot: row %llu of %u entries has others packed than its first %u",
                           ull{number}, row.n_entries, row.n_packed);
}

void Loader::join(const SnapshotTarget &target) {
    for (size_t i = 0; i < loaded_.size(); ++i) {
        Sequence *sequence = loaded_[i];
        sequence->id = cache_.next_id++;
        cache_.sequences.push(sequence);
        cache_.stats.n_tokens += sequence->length;
        target.ids[i] = sequence->id;
    }
    for (uint32_t l = 0; l < cache_.layers.size(); ++l)
        unsettle(&cache_, l);
    loaded_.clear();
}

}  // namespace

lk_status load_snapshot(lk_cache *cache, const SnapshotTarget &target, SnapshotSource *source) {
    Loader loader(cache, source);
    return loader.load(target);
}

}  // namespace lk
