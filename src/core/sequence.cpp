// SPDX-License-Identifier: Apache-2.0
#include "core/sequence.h"

#include "core/cache.h"
#include "core/retain.h"
#include "core/watch.h"

namespace lk {

namespace {

// Slots taken by one call, given back unless it succeeds.
class Taken {
  public:
    explicit Taken(Slots &slots) : slots_(slots) {}
    ~Taken() {
        for (uint32_t i = 0; i < n_; ++i)
            slots_.give(addresses_[i]);
    }
    lk_status take(uint64_t bytes, uint64_t *address) {
        *address = 0;
        if (!bytes)
            return LK_OK;
        const lk_status status = slots_.take(bytes, address);
        if (!status)
            addresses_[n_++] = *address;
        return status;
    }
    void keep() { n_ = 0; }

  private:
    Slots &slots_;
    uint64_t addresses_[4];
    uint32_t n_ = 0;
};

}  // namespace

HalfNeed need_of(const HalfInfo &half, bool is_packed_on_append) {
    if (is_packed_on_append && half.packs())
        return {half.packed_class, half.slots.packed_payload, half.metadata_slot()};
    return {half.recent_class, half.slots.recent_payload, half.slots.recent_metadata};
}

HalfNeed packed_need_of(const lk_cache *cache, const HalfInfo &half, uint16_t packed) {
    const PageLayout &layout = cache->classes[packed].layout;
    return {packed, slot_bytes(payload_bytes(layout)),
            half.slots.recent_metadata ? half.slots.recent_metadata
                                       : slot_bytes(metadata_bytes(layout))};
}

HalfNeed packed_need(const lk_cache *cache, const EntryInfo &info, bool is_value,
                     lk_chunk_class chunk_class) {
    const HalfInfo &half = is_value ? info.value : info.key;
    if (chunk_class == LK_CHUNK_NONE)
        return need_of(half, true);
    const uint16_t packed =
        half.chunk_class[chunk_class - LK_CHUNK_LOW][cache->layers[info.layer].rung];
    return cache->classes[packed].layout.is_raw() ? need_of(half, false)
                                                  : packed_need_of(cache, half, packed);
}

HalfNeed sink_need(const lk_cache *cache, uint16_t page_format) {
    return {page_format, slot_bytes(payload_bytes(cache->classes[page_format].layout)), 0};
}

lk_status make_row(lk_cache *cache, uint64_t index, Row **out) {
    const Plan &plan = cache->plan.model;
    const uint64_t bytes = block_bytes(plan);
    if (cache->ledger.left_bytes() < bytes)
        return fail(LK_E_BUDGET, "the budget of %llu bytes lacks %llu bytes for a page table",
                    ull{cache->ledger.limit_bytes}, ull{bytes - cache->ledger.left_bytes()});
    const Allocator &allocator = cache->context->allocator;
    void *place = allocator.alloc(allocator.user, bytes, 64);
    if (!place)
        return fail(LK_E_NOMEM, "no memory for a page table of %llu bytes", ull{bytes});
    std::memset(place, 0, bytes);
    Row *row = new (place) Row{};
    row->first_token = block_first_token(plan, index);
    row->capacity_tokens = block_capacity(plan, index);
    row->n_entries = static_cast<uint32_t>(cache->entries.size());
    row->n_holders = 1;
    row->entries = reinterpret_cast<PageEntry *>(static_cast<char *>(place) + kBlockBytes);
    const lk_status status = cache->device->block_create(row);
    if (status) {
        allocator.free(allocator.user, place, bytes, 64);
        return status;
    }
    cache->ledger.table_bytes += bytes;
    *out = row;
    return LK_OK;
}

void free_row(lk_cache *cache, Row *row, uint32_t n_entries) {
    for (uint32_t e = 0; e < n_entries; ++e)
        give_entry(cache, row->entries[e]);
    cache->device->block_destroy(row);
    const uint64_t bytes = block_bytes(cache->plan.model);
    const Allocator &allocator = cache->context->allocator;
    allocator.free(allocator.user, row, bytes, 64);
    cache->ledger.table_bytes -= bytes;
}

void give_entry(lk_cache *cache, const PageEntry &entry) {
    if (entry.is_absent)
        return;
    cache->slots.give(entry.key_payload);
    cache->slots.give(entry.key_metadata);
    cache->slots.give(entry.value_payload);
    cache->slots.give(entry.value_metadata);
    count_halves(cache, entry.key_format, -1);
    count_halves(cache, entry.value_format, -1);
}

void hold_row(lk_cache *cache, Row *row) {
    if (row->n_holders == 1)
        cache->stats.shared_bytes += content_bytes(cache, *row);
    ++row->n_holders;
    cache->ledger.table_bytes += kLinkBytes;
}

void release_row(lk_cache *cache, Row *row) {
    if (!--row->n_holders) {
        part_twins(row);
        free_row(cache, row, row->n_entries);
        return;
    }
    if (row->n_holders == 1)
        cache->stats.shared_bytes -= content_bytes(cache, *row);
    cache->ledger.table_bytes -= kLinkBytes;
}

void part_twins(Row *row) {
    if (row->packed_twin)
        row->packed_twin->recent_twin = nullptr;
    if (row->recent_twin)
        row->recent_twin->packed_twin = nullptr;
    row->packed_twin = row->recent_twin = nullptr;
}

uint64_t content_bytes(const lk_cache *cache, const Row &row) {
    uint64_t bytes = 0;
    for (uint32_t e = 0; e < row.n_entries; ++e) {
        if (row.entries[e].is_absent)
            continue;
        for (const uint16_t half : {row.entries[e].key_format, row.entries[e].value_format}) {
            const HalfBytes own = half_bytes(cache->classes[half]);
            bytes += own.payload + own.metadata + own.recent;
        }
    }
    return bytes;
}

Sequence *find_sequence(const lk_cache *cache, lk_sequence id) {
    size_t low = 0;
    size_t high = cache->sequences.size();
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (cache->sequences[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    const bool is_there = low < cache->sequences.size() && cache->sequences[low]->id == id;
    return is_there ? cache->sequences[low] : nullptr;
}

RowKind row_kind(const lk_cache *cache, const Sequence &sequence, uint64_t row, uint64_t n_new) {
    const Plan &plan = cache->plan.model;
    if (is_sink_block(plan, row))
        return RowKind::kSink;
    return row >= first_to_pack(cache, sequence) &&
                   packs_on_append(plan, row, sequence.length, n_new)
               ? RowKind::kDirect
               : RowKind::kRecent;
}

lk_chunk_class chunk_class_of(RowKind kind) {
    return kind == RowKind::kLow      ? LK_CHUNK_LOW
           : kind == RowKind::kMiddle ? LK_CHUNK_MIDDLE
           : kind == RowKind::kHigh   ? LK_CHUNK_HIGH
                                      : LK_CHUNK_NONE;
}

lk_status take_halves(lk_cache *cache, const HalfNeed &key, const HalfNeed &value, PageEntry *out) {
    PageEntry made{};
    made.key_format = key.page_format;
    made.value_format = value.page_format;
    Taken taken(cache->slots);
    lk_status status = taken.take(key.payload, &made.key_payload);
    if (!status)
        status = taken.take(key.metadata, &made.key_metadata);
    if (!status)
        status = taken.take(value.payload, &made.value_payload);
    if (!status)
        status = taken.take(value.metadata, &made.value_metadata);
    if (status)
        return status;
    taken.keep();
    count_halves(cache, made.key_format, 1);
    count_halves(cache, made.value_format, 1);
    *out = made;
    return LK_OK;
}

lk_status take_entry(lk_cache *cache, uint32_t entry, RowKind kind, bool is_last_sink,
                     PageEntry *out) {
    const EntryInfo &info = cache->entries[entry];
    const LayerInfo &layer = cache->layers[info.layer];
    if (kind == RowKind::kSink)
        return take_halves(
            cache, sink_need(cache, is_last_sink ? layer.last_sink_key : info.key.recent_class),
            sink_need(cache, is_last_sink ? layer.last_sink_value : info.value.recent_class), out);
    if (kind == RowKind::kRecent)
        return take_halves(cache, need_of(info.key, false), need_of(info.value, false), out);
    const lk_chunk_class chunk_class = chunk_class_of(kind);
    return take_halves(cache, packed_need(cache, info, false, chunk_class),
                       packed_need(cache, info, true, chunk_class), out);
}

lk_status create_row(lk_cache *cache, uint64_t index, RowKind kind, Row **out) {
    Row *row = nullptr;
    lk_status status = make_row(cache, index, &row);
    if (status)
        return status;
    const bool is_last_sink = row->capacity_tokens < cache->plan.model.page_tokens;
    for (uint32_t e = 0; e < row->n_entries; ++e) {
        status = take_entry(cache, e, kind, is_last_sink, &row->entries[e]);
        if (status) {
            free_row(cache, row, e);
            return status;
        }
    }
    status = cache->device->entries_changed(row);
    if (status) {
        free_row(cache, row, row->n_entries);
        return status;
    }
    row->is_packed_on_append = kind == RowKind::kDirect;
    row->chunk_class = chunk_class_of(kind);
    row->n_packed = row->is_packed_on_append || row->chunk_class ? row->n_entries : 0;
    *out = row;
    return LK_OK;
}

lk_status add_row(lk_cache *cache, Sequence *sequence, RowKind kind) {
    Row *row = nullptr;
    const lk_status status = create_row(cache, sequence->rows.size(), kind, &row);
    if (!status)
        sequence->rows.push(row);
    return status;
}

void drop_rows(lk_cache *cache, Sequence *sequence, uint64_t n_rows) {
    while (sequence->rows.size() > n_rows) {
        release_row(cache, sequence->row(sequence->rows.size() - 1));
        sequence->rows.pop();
    }
}

lk_status enter_sequence(lk_cache *cache, Sequence *sequence) {
    if (cache->sequences.size() == cache->desc.max_sequences)
        return fail(LK_E_BUDGET, "the cache has its max_sequences of %u already",
                    cache->desc.max_sequences);
    if (!cache->sequences.push(sequence))
        return fail(LK_E_NOMEM, "no memory for a list of %zu sequences",
                    cache->sequences.size() + 1);
    sequence->id = cache->next_id++;
    return LK_OK;
}

void free_sequence(lk_cache *cache, Sequence *sequence) {
    drop_rows(cache, sequence, 0);
    release_scores(cache, sequence->scores);
    drop_watch(cache, sequence);
    release_chunks(cache, sequence->chunks);
    drop_originals(cache, sequence);
    destroy(cache->context->allocator, sequence);
}

void leave_sequence(lk_cache *cache, Sequence *sequence) {
    size_t place = 0;
    while (cache->sequences[place] != sequence)
        ++place;
    for (size_t i = place + 1; i < cache->sequences.size(); ++i)
        cache->sequences[i - 1] = cache->sequences[i];
    cache->sequences.pop();
    cache->stats.n_tokens -= sequence->length;
    free_sequence(cache, sequence);
}

void release_scores(lk_cache *cache, Scores *scores) {
    if (!scores || --scores->n_holders)
        return;
    const SlabMemory &memory = scores->memory();
    cache->sums.forget(memory.address, memory.bytes);
    cache->context->backend->slab_destroy(memory);
    cache->ledger.table_bytes -= sequence_stat_bytes(cache->plan.model);
    destroy(cache->context->allocator, scores);
}

lk_status cut_scores(lk_cache *cache, Sequence *sequence, uint64_t n_rows) {
    Scores *scores = sequence->scores;
    if (!scores)
        return LK_OK;
    if (n_rows < sequence->scores_rows)
        sequence->scores_rows = n_rows;
    if (scores->n_holders > 1 || sequence->scores_rows == UINT64_MAX)
        return LK_OK;
    const bool is_empty = !sequence->scores_rows;
    scores->truncate(sequence->scores_rows);
    sequence->scores_rows = UINT64_MAX;
    return is_empty ? scores->clear(&cache->sums) : LK_OK;
}

lk_status make_scores(lk_cache *cache, Scores **out) {
    *out = nullptr;
    const uint64_t bytes = sequence_stat_bytes(cache->plan.model);
    if (cache->ledger.left_bytes() < bytes)
        return fail(LK_E_BUDGET, "the budget of %llu bytes lacks %llu bytes for a sequence's sums",
                    ull{cache->ledger.limit_bytes}, ull{bytes - cache->ledger.left_bytes()});
    const uint32_t n_channels = cache->n_ranked_channels;
    const uint64_t n_slots = query_stat_slots(cache->plan.model);
    const Allocator &allocator = cache->context->allocator;
    Scores *scores = create<Scores>(allocator, allocator);
    lk_status status = LK_OK;
    if (!scores || !scores->open(n_channels, n_slots))
        status = fail(LK_E_NOMEM, "no memory for a sequence's list of sums");
    SlabMemory memory{};
    if (!status)
        status = cache->context->backend->slab_create(Scores::bytes(n_channels, n_slots), &memory);
    if (status) {
        destroy(allocator, scores);
        return status;
    }
    scores->use(memory);
    cache->ledger.table_bytes += bytes;
    cache->slots.trim();
    *out = scores;
    return LK_OK;
}

lk_status own_scores(lk_cache *cache, Sequence *sequence, Scores **borrowed) {
    Scores *shared = sequence->scores;
    if (!shared)
        return LK_OK;
    lk_status status = LK_OK;
    if (shared->n_holders > 1) {
        Scores *own;
        status = make_scores(cache, &own);
        if (!status)
            status = own->copy(*shared, &cache->sums);
        if (status) {
            release_scores(cache, own);
            return status;
        }
        sequence->scores = own;
        if (borrowed)
            *borrowed = shared;
    }
    if (!status)
        status = cut_scores(cache, sequence, UINT64_MAX);
    if (!status)
        status = cache->sums.flush();
    if (sequence->scores != shared && !borrowed)
        release_scores(cache, shared);
    return status;
}

namespace {

lk_status add_sequence(lk_cache *cache, lk_sequence *id) {
    if (cache->step.is_open)
        return fail(LK_E_BUSY, "a step is open: commit or discard it first");
    const Allocator &allocator = cache->context->allocator;
    Sequence *sequence = create<Sequence>(allocator, allocator);
    if (!sequence)
        return fail(LK_E_NOMEM, "no memory for a sequence");
    lk_status status = cache->n_ranked_channels ? make_scores(cache, &sequence->scores) : LK_OK;
    if (!status && sequence->scores)
        status = sequence->scores->start(&cache->sums);
    if (!status)
        status = enter_sequence(cache, sequence);
    if (status) {
        free_sequence(cache, sequence);
        return status;
    }
    *id = sequence->id;
    return LK_OK;
}

lk_status remove_sequence(lk_cache *cache, lk_sequence id) {
    Sequence *sequence = find_sequence(cache, id);
    if (!sequence)
        return fail(LK_E_NOT_FOUND, "there is no sequence %llu", ull{id});
    if (cache->step.is_open)
        return fail(LK_E_BUSY,
                    "a step is open: commit or discard it before sequence %llu is removed",
                    ull{id});
    leave_sequence(cache, sequence);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_sequence_add(lk_cache *cache, lk_sequence *id) {
    return lk::on_cache(cache, [&] {
        if (!id)
            return lk::fail(LK_E_ARGUMENT, "id is NULL");
        *id = 0;
        return lk::add_sequence(cache, id);
    });
}

extern "C" lk_status lk_sequence_remove(lk_cache *cache, lk_sequence id) {
    return lk::on_cache(cache, [&] { return lk::remove_sequence(cache, id); });
}

extern "C" lk_status lk_sequence_length(const lk_cache *cache, lk_sequence id, uint64_t *n_tokens) {
    if (!cache)
        return lk::fail(LK_E_ARGUMENT, "cache is NULL");
    if (!n_tokens)
        return lk::fail(LK_E_ARGUMENT, "n_tokens is NULL");
    const lk::Sequence *sequence = lk::find_sequence(cache, id);
    if (!sequence)
        return lk::fail(LK_E_NOT_FOUND, "there is no sequence %llu", lk::ull{id});
    *n_tokens = sequence->length;
    return LK_OK;
}
