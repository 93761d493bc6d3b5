// Laying chunks out anew. Rows that shall hold other tokens than they do, or the same at another
// class, are made beside the old ones: their tokens are gathered from 16-bit rows, and packed from
// there as any page is. What is packed already is reopened first. The old rows go when all new ones
// are there, so a failure changes nothing, and what forks share stays theirs.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"
#include "core/retain.h"

namespace lk {

namespace {

constexpr uint32_t kMoveTokens = 64;  // of an item

uint64_t low_bits(uint32_t n) { return n < 64 ? (uint64_t{1} << n) - 1 : UINT64_MAX; }

RowKind kind_of(uint8_t width) {
    return width == LK_CHUNK_LOW      ? RowKind::kLow
           : width == LK_CHUNK_MIDDLE ? RowKind::kMiddle
           : width == LK_CHUNK_HIGH   ? RowKind::kHigh
                                      : RowKind::kRecent;
}

bool is_raw(const lk_cache *cache, uint16_t page_format) {
    return cache->classes[page_format].layout.is_raw();
}

// One side of an entry.
struct HalfPlace {
    uint16_t page_format;
    uint64_t payload;
    uint64_t metadata;
};
HalfPlace half_of(const PageEntry &entry, bool is_value) {
    return is_value ? HalfPlace{entry.value_format, entry.value_payload, entry.value_metadata}
                    : HalfPlace{entry.key_format, entry.key_payload, entry.key_metadata};
}

// A row of the new layout.
struct NewRow {
    uint32_t first_run;
    uint32_t n_runs;
    uint8_t width;
    Row *row;         // null until it is made
    uint64_t source;  // its row of now, when it stays as it is
    uint64_t twin;    // the row of now with its bytes, which others have too
    bool is_made;
};

constexpr uint64_t kNoRow = UINT64_MAX;

class Rebuild {
  public:
    Rebuild(lk_cache *cache, Sequence *sequence)
        : cache_(*cache),
          sequence_(*sequence),
          shape_(cache->plan.model),
          first_row_(sink_blocks(cache->plan.model)),
          runs_(cache->context->allocator),
          chunks_(cache->context->allocator),
          rows_(cache->context->allocator),
          copies_(cache->context->allocator),
          is_raw_(cache->context->allocator) {}
    ~Rebuild();

    lk_status plan(const ChunkLayout &layout, const Array<TokenRun> &tail);
    lk_status make();
    void put(uint64_t n_tokens);

  private:
    bool add_run(const TokenRun &run, uint8_t width, uint32_t *n_filled);
    lk_status list_runs(const ChunkLayout &layout, const Array<TokenRun> &tail);
    lk_status look();
    void take_originals(const NewRow &wanted);
    // The row of now that holds just these tokens in this order, else kNoRow.
    uint64_t same_row(const NewRow &wanted) const;
    bool may_stay(const NewRow &wanted, uint64_t from, uint64_t to) const;
    bool has_class(const Row &row, uint64_t index, uint8_t width) const;
    bool has_bytes(const NewRow &wanted, uint64_t index) const;
    lk_status check_bytes();
    lk_status make_row(NewRow *wanted);
    lk_status fill(const NewRow &wanted);
    lk_status copy(const Row &from, const Row &to);
    lk_status gather(const NewRow &wanted);
    lk_status gather_run(const NewRow &wanted, const TokenRun &run, uint32_t first_target);
    lk_status move(const HalfPlace &from, const HalfPlace &to, const TokenRun &run,
                   uint32_t first_target);
    lk_status dequantize(uint64_t index);
    lk_status load(uint64_t index);
    lk_status pack(const NewRow &wanted, const Row &from);
    lk_status queue_pack(const HalfPlace &from, const HalfPlace &to);
    bool is_whole_row(const NewRow &wanted) const;

    lk_cache &cache_;
    Sequence &sequence_;
    const ChunkShape shape_;
    const uint64_t first_row_;
    Array<TokenRun> runs_;
    Array<uint32_t> chunks_;  // by run: the chunk times its rows, and the row of it
    Array<NewRow> rows_;
    Array<ShrinkItem> copies_;
    Array<uint8_t> is_raw_;           // by row of now: at 16 bits as a whole
    bool packs_[kAt16Bits + 1] = {};  // by width: has a row of it packed halves?
    Row *gathered_ = nullptr;         // 16-bit rows: where tokens wait to be packed,
    Row *reopened_ = nullptr;         // and where packed ones and originals are brought to
    uint64_t reopened_index_ = kNoRow;
    uint64_t loaded_index_ = kNoRow;  // an original's
};

Rebuild::~Rebuild() {
    for (const NewRow &row : rows_)
        if (row.is_made)
            release_row(&cache_, row.row);
    if (gathered_)
        release_row(&cache_, gathered_);
    if (reopened_)
        release_row(&cache_, reopened_);
    cache_.slots.trim();
}

bool Rebuild::add_run(const TokenRun &run, uint8_t width, uint32_t *n_filled) {
    if (!*n_filled) {
        NewRow row{};
        row.first_run = static_cast<uint32_t>(runs_.size());
        row.width = width;
        row.source = row.twin = kNoRow;
        if (!rows_.push(row))
            return false;
    }
    ++rows_.back().n_runs;
    *n_filled = (*n_filled + run.n_tokens) % shape_.row_tokens;
    return runs_.push(run);
}

// By the places of now, what the places of the layout hold. Runs never cross the end of a row:
// chunks are parts of rows or rows, and what follows them begins where a chunk of now does.
lk_status Rebuild::list_runs(const ChunkLayout &layout, const Array<TokenRun> &tail) {
    const Chunks *now = sequence_.chunks;
    Array<uint32_t> places(cache_.context->allocator);  // by chunk
    bool fits = places.resize(layout.wanted.size());
    for (uint32_t c = 0; fits && c < places.size(); ++c)
        places[c] = c;
    for (uint32_t p = 0; fits && now && p < now->size(); ++p)
        places[now->order[p]] = p;
    const uint32_t run_tokens =
        shape_.chunk_tokens < shape_.row_tokens ? shape_.chunk_tokens : shape_.row_tokens;
    uint32_t n_filled = 0;
    for (const uint32_t chunk : layout.order)
        for (uint32_t i = 0; fits && i < shape_.chunk_rows; ++i) {
            const size_t at = rows_.size() - (n_filled ? 1 : 0);
            const uint8_t width =
                at < layout.row_classes.size() ? layout.row_classes[at] : kAt16Bits;
            fits = add_run({first_row_ + shape_.row_of_place(places[chunk]) + i,
                            shape_.token_of_place(places[chunk]), run_tokens, false},
                           width, &n_filled);
            fits = fits && chunks_.push(chunk * shape_.chunk_rows + i);
        }
    for (const TokenRun &run : tail)
        fits = fits && add_run(run, kAt16Bits, &n_filled);
    return fits ? LK_OK
                : fail(LK_E_NOMEM, "no memory for the rows of %zu chunks", layout.wanted.size());
}

lk_status Rebuild::look() {
    if (!is_raw_.resize(sequence_.rows.size()))
        return fail(LK_E_NOMEM, "no memory for a list of %zu rows", sequence_.rows.size());
    for (uint64_t r = first_row_; r < is_raw_.size(); ++r)
        is_raw_[r] = is_raw_row(&cache_, *sequence_.row(r));
    for (const uint8_t width : {LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_HIGH})
        for (const EntryInfo &info : cache_.entries)
            for (const bool is_value : {false, true})
                packs_[width] =
                    packs_[width] ||
                    !is_raw(&cache_, packed_need(&cache_, info, is_value, width).page_format);
    return LK_OK;
}

// Rows at 16 bits are so by their class or without one.
bool Rebuild::has_class(const Row &row, uint64_t index, uint8_t width) const {
    return (row.chunk_class == width && row.n_packed == row.n_entries) ||
           (is_raw_[index] && !packs_[width]);
}

// A row that others have too does not move.
bool Rebuild::may_stay(const NewRow &wanted, uint64_t from, uint64_t to) const {
    const Row &row = *sequence_.row(from);
    return has_class(row, from, wanted.width) && (from == to || row.n_holders == 1);
}

// Packed halves, all at the rungs of now.
bool Rebuild::has_bytes(const NewRow &wanted, uint64_t index) const {
    const Row &row = *sequence_.row(index);
    bool is_same = packs_[wanted.width] && has_class(row, index, wanted.width) && !lacks_pages(row);
    for (uint32_t e = 0; is_same && e < row.n_entries; ++e)
        for (const bool is_value : {false, true})
            is_same =
                is_same &&
                half_of(row.entries[e], is_value).page_format ==
                    packed_need(&cache_, cache_.entries[e], is_value, wanted.width).page_format;
    return is_same;
}

uint64_t Rebuild::same_row(const NewRow &wanted) const {
    const TokenRun &first = runs_[wanted.first_run];
    uint32_t token = 0;
    for (uint32_t i = 0; i < wanted.n_runs; ++i) {
        const TokenRun &run = runs_[wanted.first_run + i];
        if (run.row != first.row || run.first != token || run.is_original)
            return kNoRow;
        token += run.n_tokens;
    }
    return first.row;
}

lk_status Rebuild::plan(const ChunkLayout &layout, const Array<TokenRun> &tail) {
    lk_status status = look();
    if (!status)
        status = list_runs(layout, tail);
    if (status)
        return status;
    for (size_t i = 0; i < rows_.size(); ++i) {
        NewRow *wanted = &rows_[i];
        const uint64_t source = same_row(*wanted);
        if (source != kNoRow && may_stay(*wanted, source, first_row_ + i)) {
            wanted->source = source;
            wanted->row = sequence_.row(source);
        } else if (source != kNoRow && has_bytes(*wanted, source)) {
            wanted->twin = source;
        } else {
            take_originals(*wanted);
        }
    }
    return LK_OK;
}

// What is made anew is made of originals where there are some.
void Rebuild::take_originals(const NewRow &wanted) {
    for (uint32_t i = wanted.first_run; i < wanted.first_run + wanted.n_runs; ++i) {
        const uint32_t chunk = i < chunks_.size() ? chunks_[i] / shape_.chunk_rows : UINT32_MAX;
        if (!has_original(&cache_, sequence_, chunk))
            continue;
        runs_[i].row = first_row_ + shape_.row_of_place(chunk) + chunks_[i] % shape_.chunk_rows;
        runs_[i].first = shape_.token_of_place(chunk);
        runs_[i].is_original = true;
    }
}

bool Rebuild::is_whole_row(const NewRow &wanted) const {
    const uint64_t source = same_row(wanted);
    return source != kNoRow && is_raw_[source];
}

// Also tells which of the two 16-bit rows are needed.
lk_status Rebuild::check_bytes() {
    bool gathers = false;
    bool reopens = false;
    uint64_t n_rows = 0;
    for (uint64_t &n : cache_.slot_needs)
        n = 0;
    for (const NewRow &wanted : rows_) {
        if (wanted.row)
            continue;
        ++n_rows;
        add_row_slots(&cache_, kind_of(wanted.width));
        if (wanted.twin != kNoRow)
            continue;
        gathers = gathers || (packs_[wanted.width] && !is_whole_row(wanted));
        for (uint32_t i = 0; i < wanted.n_runs; ++i)
            reopens = reopens || !is_raw_[runs_[wanted.first_run + i].row] ||
                      runs_[wanted.first_run + i].is_original;
    }
    for (const bool is_needed : {gathers, reopens})
        if (is_needed) {
            ++n_rows;
            add_row_slots(&cache_, RowKind::kRecent);
        }
    lk_status status = check_room(&cache_, n_rows * block_bytes(cache_.plan.model),
                                  "laying out chunks beside what is there");
    if (!status && gathers)
        status = create_row(&cache_, first_row_, RowKind::kRecent, &gathered_);
    if (!status && reopens)
        status = create_row(&cache_, first_row_, RowKind::kRecent, &reopened_);
    return status;
}

lk_status Rebuild::make() {
    lk_status status = check_bytes();
    for (size_t i = 0; !status && i < rows_.size(); ++i) {
        NewRow *wanted = &rows_[i];
        if (wanted->row)
            continue;
        status = create_row(&cache_, first_row_ + i, kind_of(wanted->width), &wanted->row);
        if (status)
            break;
        wanted->is_made = true;
        status = fill(*wanted);
    }
    return status;
}

lk_status Rebuild::fill(const NewRow &wanted) {
    if (wanted.twin != kNoRow)
        return copy(*sequence_.row(wanted.twin), *wanted.row);
    if (packs_[wanted.width] && is_whole_row(wanted))
        return pack(wanted, *sequence_.row(runs_[wanted.first_run].row));
    const lk_status status = gather(wanted);
    return status || !packs_[wanted.width] ? status : pack(wanted, *gathered_);
}

// What its codes stand for, packed again, need not give the same codes.
lk_status Rebuild::copy(const Row &from, const Row &to) {
    copies_.clear();
    const auto add = [this](uint64_t source, uint64_t target) {
        return !target || copies_.push(copy_item(source, target, cache_.slots.bytes_at(target)));
    };
    bool fits = true;
    for (uint32_t e = 0; e < from.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const HalfPlace source = half_of(from.entries[e], is_value);
            const HalfPlace target = half_of(to.entries[e], is_value);
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
    return status ? status : copy_raw_halves(&cache_, from, to, from.capacity_tokens);
}

lk_status Rebuild::gather(const NewRow &wanted) {
    lk_status status = LK_OK;
    uint32_t first_target = 0;
    for (uint32_t i = 0; !status && i < wanted.n_runs; ++i) {
        const TokenRun &run = runs_[wanted.first_run + i];
        status = gather_run(wanted, run, first_target);
        first_target += run.n_tokens;
    }
    return status ? status : flush_moves(&cache_);
}

// Halves that stay at 16 bits go to the new row at once.
lk_status Rebuild::gather_run(const NewRow &wanted, const TokenRun &run, uint32_t first_target) {
    const Row &source = *sequence_.row(run.row);
    lk_status status = run.is_original    ? load(run.row)
                       : is_raw_[run.row] ? LK_OK
                                          : dequantize(run.row);
    for (uint32_t e = 0; e < source.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            HalfPlace from = half_of(source.entries[e], is_value);
            HalfPlace to = half_of(wanted.row->entries[e], is_value);
            if (run.is_original || !is_raw(&cache_, from.page_format))
                from = half_of(reopened_->entries[e], is_value);
            if (!is_raw(&cache_, to.page_format))
                to = half_of(gathered_->entries[e], is_value);
            if (!status)
                status = move(from, to, run, first_target);
        }
    return status;
}

lk_status Rebuild::move(const HalfPlace &from, const HalfPlace &to, const TokenRun &run,
                        uint32_t first_target) {
    for (uint32_t done = 0; done < run.n_tokens; done += kMoveTokens) {
        const uint32_t n = run.n_tokens - done < kMoveTokens ? run.n_tokens - done : kMoveTokens;
        cache_.moves.push({&cache_.classes[from.page_format], from.payload,
                           &cache_.classes[to.page_format], to.payload, run.first + done,
                           first_target + done, low_bits(n)});
        const lk_status status = cache_.moves.size() < kBatch ? LK_OK : flush_moves(&cache_);
        if (status)
            return status;
    }
    return LK_OK;
}

// Bring back a packed row, whose chunks often come one after the other.
lk_status Rebuild::dequantize(uint64_t index) {
    if (reopened_index_ == index)
        return LK_OK;
    const Row &row = *sequence_.row(index);
    lk_status status = flush_moves(&cache_);  // they read what was there
    for (uint32_t e = 0; e < row.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const HalfPlace from = half_of(row.entries[e], is_value);
            const HalfPlace to = half_of(reopened_->entries[e], is_value);
            if (status || is_raw(&cache_, from.page_format))
                continue;
            ++cache_.stats.pages_dequantized;
            cache_.reopens.push({&cache_.classes[from.page_format], from.payload, from.metadata,
                                 &cache_.classes[to.page_format], to.payload, row.capacity_tokens});
            if (cache_.reopens.size() == kBatch)
                status = flush_reopens(&cache_);
        }
    loaded_index_ = kNoRow;
    reopened_index_ = status ? kNoRow : index;
    return status ? status : flush_reopens(&cache_);
}

lk_status Rebuild::load(uint64_t index) {
    if (loaded_index_ == index)
        return LK_OK;
    lk_status status = flush_moves(&cache_);  // they read what was there
    if (!status)
        status = load_original(&cache_, *sequence_.originals, index - first_row_, *reopened_);
    reopened_index_ = kNoRow;
    loaded_index_ = status ? kNoRow : index;
    return status;
}

lk_status Rebuild::queue_pack(const HalfPlace &from, const HalfPlace &to) {
    cache_.packs.push({&cache_.classes[to.page_format], to.payload, to.metadata,
                       &cache_.classes[from.page_format], from.payload, nullptr, 0});
    ++cache_.stats.pages_packed;
    return cache_.packs.size() < kBatch ? LK_OK : flush_packs(&cache_);
}

// A row of the sequence itself has the halves too that stay at 16 bits.
lk_status Rebuild::pack(const NewRow &wanted, const Row &from) {
    lk_status status = LK_OK;
    for (uint32_t e = 0; e < from.n_entries; ++e)
        for (const bool is_value : {false, true}) {
            const HalfPlace source = half_of(from.entries[e], is_value);
            const HalfPlace target = half_of(wanted.row->entries[e], is_value);
            if (!status && !is_raw(&cache_, target.page_format))
                status = queue_pack(source, target);
        }
    if (!status)
        status = flush_packs(&cache_);
    return status || &from == gathered_
               ? status
               : copy_raw_halves(&cache_, from, *wanted.row, from.capacity_tokens);
}

// The rows of now that do not stay go, with all behind the new ones.
void Rebuild::put(uint64_t n_tokens) {
    const uint64_t n_rows = block_count(cache_.plan.model, n_tokens);
    const uint64_t end = first_row_ + rows_.size();
    for (const NewRow &wanted : rows_)
        if (wanted.source != kNoRow)
            sequence_.rows[wanted.source] = nullptr;
    for (uint64_t r = first_row_; r < sequence_.rows.size(); ++r)
        if (sequence_.rows[r] && (r < end || r >= n_rows))
            release_row(&cache_, sequence_.row(r));
    while (sequence_.rows.size() > n_rows)
        sequence_.rows.pop();
    for (size_t i = 0; i < rows_.size(); ++i) {
        NewRow *wanted = &rows_[i];
        Row *row = wanted->row;
        sequence_.rows[first_row_ + i] = row;
        wanted->is_made = false;
        if (wanted->source == kNoRow || !may_remake(*row))
            continue;
        part_twins(row);
        row->first_token = block_first_token(cache_.plan.model, first_row_ + i);
        row->chunk_class = chunk_class_of(kind_of(wanted->width));
        row->n_packed = row->chunk_class ? row->n_entries : 0;
        (void)cache_.device->entries_changed(row);
    }
}

}  // namespace

bool is_raw_row(const lk_cache *cache, const Row &row) {
    for (uint32_t e = 0; e < row.n_entries; ++e)
        if (!is_raw(cache, row.entries[e].key_format) ||
            !is_raw(cache, row.entries[e].value_format))
            return false;
    return true;
}

lk_status lay_chunks(lk_cache *cache, Sequence *sequence, const ChunkLayout &layout,
                     const Array<TokenRun> &tail, Chunks *chunks, uint64_t n_tokens) {
    Rebuild rebuild(cache, sequence);
    lk_status status = rebuild.plan(layout, tail);
    if (!status)
        status = rebuild.make();
    if (status)
        return status;
    rebuild.put(n_tokens);
    if (!layout.order.empty())
        std::memcpy(chunks->order.data(), layout.order.data(),
                    layout.order.size() * sizeof layout.order[0]);
    release_chunks(cache, sequence->chunks);
    sequence->chunks = chunks;
    sequence->first_open = sink_blocks(cache->plan.model);
    for (uint32_t l = 0; l < cache->layers.size(); ++l)
        unsettle(cache, l);
    return LK_OK;
}

}  // namespace lk
