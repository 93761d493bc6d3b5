// Ladders: halves go down a rung, by packing where they are at 16 bits and by the equivalent right
// shift below. A uniform half stays where it is and gives the upper half of its slot back; a mixed
// one and one at 16 bits move, for which the budget keeps an extent.
//
// A layer's rung is what its next pages are packed at. Those above it are shrunk a batch at a time,
// the oldest first, so for a while a layer has pages of several rungs. What is shared is shrunk
// once, for all that have it.
//
// SPDX-License-Identifier: Apache-2.0
#include "core/cache.h"

namespace lk {

namespace {

uint32_t rung_bits(const lk_cache *cache, uint32_t layer) {
    return cache->plan.model.layers[layer].rungs[cache->layers[layer].rung];
}

// Their codes lie alike and what is done to them is the same.
bool are_alike(const ShrinkStep &a, const ShrinkStep &b) {
    return a.bits == b.bits && a.n_strips == b.n_strips && a.page_tokens == b.page_tokens &&
           a.tail_bytes == b.tail_bytes;
}

ShrinkStep shrink_step(const lk_cache *cache, const PageFormat &wide, uint16_t to) {
    const PageLayout &layout = wide.layout;
    const uint32_t bits = class_bits(wide);
    ShrinkStep step{static_cast<uint16_t>(bits), to, 0, layout.page_tokens, 0, 0};
    if (!to)
        return step;
    step.n_strips = layout.strips[plane_of(bits)];
    step.tail_bytes =
        static_cast<uint32_t>(payload_bytes(cache->classes[to].layout) -
                              uint64_t{step.n_strips} * strip_bytes(layout.page_tokens, bits / 2));
    return step;
}

uint16_t class_of(const PageEntry &page, bool is_value) {
    return is_value ? page.value_format : page.key_format;
}

// Halves of a layer are gathered, then taken down together. Those that stay where they are go in
// runs of neighbours, and of what is done for each of them nothing is left but its class; those
// that move are listed.
class Shrinker {
  public:
    Shrinker(lk_cache *cache, uint32_t layer)
        : cache_(cache),
          steps_(cache->shrink_steps.data()),
          layer_(cache->layers[layer]),
          rung_(rung_bits(cache, layer)),
          serial_(++cache->next_walk),
          spare_(&cache->ledger) {
        cache->shrinks.clear();
        cache->shrunk_rows.clear();
        cache->moved_halves.clear();
    }

    // Gather the layer's halves of a row that are above its rung. A row is looked at once, though
    // forks list it several times: what was gathered looks as before until it has been taken down.
    // As flush().
    lk_status add(Row *row);
    // Take what was gathered a step down. LK_E_BUDGET, LK_E_DEVICE: some of it is not.
    lk_status flush();
    uint32_t n_gathered() const { return n_gathered_; }
    uint32_t n_done() const { return n_done_; }
    // Are some of the halves above the rung even so?
    bool has_more() const { return has_more_; }

  private:
    bool shrinks(const PageEntry &page, bool is_value) const {
        return steps_[class_of(page, is_value)].bits > rung_ && !page.is_absent;
    }
    void add_staying(uint64_t payload, const ShrinkStep &step);
    void add_moving(Row *row, uint32_t entry, bool is_value);
    uint64_t target_bytes(const MovedHalf &half) const;
    uint32_t take_from_slabs(uint32_t first);
    lk_status take(uint32_t first, uint32_t *end);
    void queue(const MovedHalf *first, const MovedHalf *end);
    void count(const Row &row, uint16_t from, uint16_t to, uint32_t n);
    void count_changes();
    lk_status apply_staying();
    void apply_staying(Row *row);
    lk_status apply(const MovedHalf *first, const MovedHalf *end);
    lk_status run(const MovedHalf *first, const MovedHalf *end);
    lk_status flush_staying();
    uint32_t n_moving() const { return static_cast<uint32_t>(cache_->moved_halves.size()); }

    lk_cache *cache_;
    const ShrinkStep *steps_;
    const LayerInfo &layer_;
    const uint32_t rung_;
    const uint64_t serial_;
    SpareScope spare_;
    uint32_t n_gathered_ = 0;
    uint32_t n_done_ = 0;
    bool has_more_ = false;
    uint64_t next_payload_ = 0;  // that would lengthen the last run
    uint16_t run_class_ = 0;     // its ShrinkStep::alike
};

// A slot behind the first one says how far they are apart.
void Shrinker::add_staying(uint64_t payload, const ShrinkStep &step) {
    has_more_ = has_more_ || steps_[step.to].bits > rung_;
    ++n_gathered_;
    Array<ShrinkItem> &runs = cache_->shrinks;
    if (!runs.empty() && run_class_ == step.alike) {
        ShrinkItem &run = runs.back();
        if (run.n_pages == 1 && payload - run.source < LK_EXTENT_BYTES) {
            run.stride_bytes = static_cast<uint32_t>(payload - run.source);
            next_payload_ = payload;
        }
        if (payload == next_payload_ && run.n_pages < kRunPages) {
            ++run.n_pages;
            next_payload_ += run.stride_bytes;
            return;
        }
    }
    run_class_ = step.alike;
    next_payload_ = 0;
    *runs.extend(1) = {
        payload,         payload, 0, 0, 1, step.n_strips, static_cast<uint16_t>(step.bits / 2),
        step.page_tokens};
}

// A half at 16 bits goes to its layer's rung at once. Some stay, or are packed when their row's
// turn comes (pack.cpp).
void Shrinker::add_moving(Row *row, uint32_t entry, bool is_value) {
    PageEntry *page = &row->entries[entry];
    const uint16_t from = class_of(*page, is_value);
    uint16_t to = steps_[from].to;
    if (steps_[from].bits == 16) {
        const EntryInfo &info = cache_->entries[entry];
        const HalfInfo &rules = is_value ? info.value : info.key;
        to = rules.packed_class;
        if (entry >= row->n_packed || !rules.packs())
            return;
    }
    *cache_->moved_halves.extend(1) = {row, page, 0, from, to, is_value};
    has_more_ = has_more_ || steps_[to].bits > rung_;
    ++n_gathered_;
}

lk_status Shrinker::add(Row *row) {
    if (row->shrinker == serial_)
        return LK_OK;
    const uint32_t n_heads = layer_.view.n_kv_heads;
    const bool is_full = n_moving() + 2 * n_heads > kBatch ||
                         cache_->shrinks.size() + 2 * n_heads > kBatch ||
                         cache_->shrunk_rows.size() == kBatch;
    const lk_status status = is_full ? flush() : LK_OK;
    if (status)
        return status;
    row->shrinker = serial_;
    const uint32_t n_before = n_gathered_ - n_moving();
    for (uint32_t e = layer_.first_entry; e < layer_.first_entry + n_heads; ++e) {
        const PageEntry &page = row->entries[e];
        for (const bool is_value : {false, true}) {
            if (!shrinks(page, is_value))
                continue;
            const ShrinkStep &step = steps_[class_of(page, is_value)];
            if (step.moves())
                add_moving(row, e, is_value);
            else
                add_staying(is_value ? page.value_payload : page.key_payload, step);
        }
    }
    if (n_gathered_ - n_moving() != n_before)
        *cache_->shrunk_rows.extend(1) = row;
    return LK_OK;
}

// Of the slot that the half moves to.
uint64_t Shrinker::target_bytes(const MovedHalf &half) const {
    return slot_bytes(payload_bytes(cache_->classes[half.to].layout));
}

// Targets for halves from the first on, as far as slabs have room. Returns where that ends.
uint32_t Shrinker::take_from_slabs(uint32_t first) {
    constexpr uint32_t kRun = 64;  // halves that move to slots of one size
    MovedHalf *halves = cache_->moved_halves.data();
    uint32_t i = first;
    while (i < n_moving()) {
        const uint64_t bytes = target_bytes(halves[i]);
        uint32_t n = 1;
        while (n < kRun && i + n < n_moving() &&
               (halves[i + n].to == halves[i + n - 1].to || target_bytes(halves[i + n]) == bytes))
            ++n;
        uint64_t addresses[kRun];
        const uint32_t n_taken = cache_->slots.take_many(bytes, n, addresses);
        for (uint32_t taken = 0; taken < n_taken; ++taken)
            halves[i++].target = addresses[taken];
        if (n_taken < n)
            break;
    }
    return i;
}

// Targets for as many as there is room for, at least one. What goes down first leaves room for the
// others, so a slab is added only where nothing else helps.
lk_status Shrinker::take(uint32_t first, uint32_t *end) {
    *end = take_from_slabs(first);
    if (*end != first)
        return LK_OK;
    MovedHalf &half = cache_->moved_halves[first];
    const uint64_t bytes = target_bytes(half);
    lk_status status = cache_->slots.take(bytes, &half.target);
    if (status == LK_E_BUDGET && compact(cache_))
        status = cache_->slots.take(bytes, &half.target);
    if (!status)
        *end = take_from_slabs(first + 1);
    return status;
}

void Shrinker::queue(const MovedHalf *first, const MovedHalf *end) {
    for (const MovedHalf *half = first; half != end; ++half) {
        const ShrinkStep &step = steps_[half->from];
        const uint64_t source = half->payload();
        if (step.bits == 16)
            *cache_->packs.extend(1) = {&cache_->classes[half->to],
                                        half->target,
                                        half->metadata(),
                                        &cache_->classes[half->from],
                                        source,
                                        nullptr,
                                        0};
        else
            *cache_->shrinks.extend(1) = {source,
                                          half->target,
                                          0,
                                          step.tail_bytes,
                                          1,
                                          step.n_strips,
                                          static_cast<uint16_t>(step.bits / 2),
                                          step.page_tokens};
    }
}

// Halves of a row that changed their class.
void Shrinker::count(const Row &row, uint16_t from, uint16_t to, uint32_t n) {
    cache_->class_changes[from] -= static_cast<int32_t>(n);
    cache_->class_changes[to] += static_cast<int32_t>(n);
    cache_->stats.pages_shrunk += n;
    n_done_ += n;
    if (row.n_holders < 2)
        return;
    const HalfBytes before = half_bytes(cache_->classes[from]);
    const HalfBytes after = half_bytes(cache_->classes[to]);
    cache_->stats.shared_bytes +=
        n * (after.payload + after.metadata - before.payload - before.metadata - before.recent);
}

void Shrinker::count_changes() {
    for (size_t c = 0; c < cache_->class_changes.size(); ++c) {
        int32_t &n = cache_->class_changes[c];
        if (n)
            count_halves(cache_, static_cast<uint16_t>(c), n);
        n = 0;
    }
}

// Those that add() found, by sides: a side's classes follow each other.
void Shrinker::apply_staying(Row *row) {
    PageEntry *const first = row->entries + layer_.first_entry;
    PageEntry *const end = first + layer_.view.n_kv_heads;
    for (const bool is_value : {false, true}) {
        uint16_t from = 0;
        uint32_t n = 0;
        for (PageEntry *page = first; page != end; ++page) {
            uint16_t *page_format = is_value ? &page->value_format : &page->key_format;
            if (!shrinks(*page, is_value) || steps_[*page_format].moves())
                continue;
            if (n && *page_format != from) {
                count(*row, from, steps_[from].to, n);
                n = 0;
            }
            from = *page_format;
            *page_format = steps_[from].to;
            ++n;
        }
        if (n)
            count(*row, from, steps_[from].to, n);
    }
}

// Classes change when the device has its work, and slots are free for later work.
lk_status Shrinker::apply_staying() {
    lk_status status = LK_OK;
    for (Row *row : cache_->shrunk_rows) {
        if (!status)
            status = cache_->device->entries_changed(row);
        apply_staying(row);
    }
    for (const ShrinkItem &run : cache_->shrinks)
        cache_->slots.halve({run.source, run.stride_bytes, run.n_pages});
    count_changes();
    return status;
}

// Likewise, with addresses.
lk_status Shrinker::apply(const MovedHalf *first, const MovedHalf *end) {
    lk_status status = LK_OK;
    cache_->left_slots.clear();
    const Row *last = nullptr;
    for (const MovedHalf *half = first; half != end; ++half) {
        if (half->row != last && !status)
            status = cache_->device->entries_changed(half->row);
        last = half->row;
        uint64_t &payload = half->payload();
        *cache_->left_slots.extend(1) = payload;
        payload = half->target;
        half->page_format() = half->to;
        count(*half->row, half->from, half->to, 1);
    }
    cache_->slots.give(cache_->left_slots.data(), cache_->left_slots.size());
    count_changes();
    return status;
}

// Those that have targets; nothing changes when the device fails.
lk_status Shrinker::run(const MovedHalf *first, const MovedHalf *end) {
    queue(first, end);
    lk_status status = flush_packs(cache_);
    if (!status && !cache_->shrinks.empty())
        status = cache_->device->shrink(cache_->shrinks.data(),
                                        static_cast<uint32_t>(cache_->shrinks.size()));
    cache_->shrinks.clear();
    if (!status)
        return apply(first, end);
    for (const MovedHalf *half = first; half != end; ++half)
        cache_->slots.give(half->target);
    return status;
}

lk_status Shrinker::flush_staying() {
    if (cache_->shrinks.empty())
        return LK_OK;
    lk_status status = cache_->device->shrink(cache_->shrinks.data(),
                                              static_cast<uint32_t>(cache_->shrinks.size()));
    if (!status)
        status = apply_staying();
    cache_->shrinks.clear();
    cache_->shrunk_rows.clear();
    return status;
}

// What stays goes first: it leaves room for what moves.
lk_status Shrinker::flush() {
    const MovedHalf *halves = cache_->moved_halves.data();
    lk_status status = flush_staying();
    for (uint32_t first = 0; !status && first < n_moving();) {
        uint32_t end = first;
        status = take(first, &end);
        if (!status)
            status = run(halves + first, halves + end);
        first = end;
    }
    cache_->moved_halves.clear();
    return status;
}

// The layer whose step down costs least: of the widest rung, the first in the plan's order.
uint32_t next_layer(const lk_cache *cache) {
    uint32_t best = kNoLayer;
    for (uint32_t l = 0; l < cache->layers.size(); ++l) {
        const LayerPlan &plan = cache->plan.model.layers[l];
        if (!plan.n_rungs || cache->layers[l].rung + 1 == plan.n_rungs)
            continue;
        const uint32_t bits = rung_bits(cache, l);
        if (best == kNoLayer || bits > rung_bits(cache, best) ||
            (bits == rung_bits(cache, best) &&
             plan.shrink_order < cache->plan.model.layers[best].shrink_order))
            best = l;
    }
    return best;
}

void set_half_rung(lk_cache *cache, uint32_t rung, HalfInfo *half) {
    half->packed_class = half->rung_format[rung];
    const PageLayout &layout = cache->classes[half->packed_class].layout;
    half->slots.packed_payload = layout.is_raw() ? 0 : slot_bytes(payload_bytes(layout));
    half->slots.packed_metadata = layout.is_raw() ? 0 : half->slots.recent_metadata;
}

}  // namespace

uint32_t class_bits(const PageFormat &half) {
    return half.layout.is_raw() ? 16 : shrinking_width(half.layout.strips);
}

void set_rung(lk_cache *cache, uint32_t layer, uint32_t rung) {
    LayerInfo &info = cache->layers[layer];
    info.rung = rung;
    for (uint32_t h = 0; h < info.view.n_kv_heads; ++h) {
        set_half_rung(cache, rung, &cache->entries[info.first_entry + h].key);
        set_half_rung(cache, rung, &cache->entries[info.first_entry + h].value);
    }
    count_direct(cache);
    unsettle(cache, layer);
}

void unsettle(lk_cache *cache, uint32_t layer) {
    LayerInfo &info = cache->layers[layer];
    info.is_unsettled = cache->plan.model.layers[layer].n_rungs != 0;
    info.has_more = false;
    info.next_sequence = 0;
    info.next_row = 0;
}

void fill_shrink_steps(lk_cache *cache) {
    for (size_t c = 0; c < cache->shrink_steps.size(); ++c)
        cache->shrink_steps[c] = shrink_step(cache, cache->classes[c], cache->shrink_steps[c].to);
    for (ShrinkStep &step : cache->shrink_steps) {
        const ShrinkStep *first = cache->shrink_steps.data();
        while (!are_alike(*first, step))
            ++first;
        step.alike = static_cast<uint16_t>(first - cache->shrink_steps.data());
    }
}

lk_status settle_layer(lk_cache *cache, uint32_t layer, uint32_t n_pages, uint32_t *n_done) {
    LayerInfo &info = cache->layers[layer];
    Shrinker shrinker(cache, layer);
    lk_status status = LK_OK;
    for (size_t s = 0; !status && shrinker.n_gathered() < n_pages && s < cache->sequences.size();
         ++s) {
        Sequence *sequence = cache->sequences[s];
        if (sequence->id < info.next_sequence)
            continue;
        const uint64_t sinks = sink_blocks(cache->plan.model);
        if (sequence->id > info.next_sequence || info.next_row < sinks)
            info.next_row = sinks;
        info.next_sequence = sequence->id;
        for (; !status && shrinker.n_gathered() < n_pages && info.next_row < sequence->rows.size();
             ++info.next_row)
            status = shrinker.add(sequence->row(info.next_row));
        if (!status && info.next_row >= sequence->rows.size()) {
            ++info.next_sequence;
            info.next_row = 0;
        }
    }
    const lk_status flushed = status ? status : shrinker.flush();
    *n_done += shrinker.n_done();
    if (flushed) {  // what was gathered and is as it was is found again
        unsettle(cache, layer);
        return flushed;
    }
    info.has_more = info.has_more || shrinker.has_more();
    if (shrinker.n_gathered() < n_pages) {  // through all rows: once more when some went two steps
        const bool has_more = info.has_more;
        unsettle(cache, layer);
        info.is_unsettled = has_more;
    }
    return LK_OK;
}

lk_status shrink_halves(lk_cache *cache, uint32_t n_pages, uint32_t *n_done) {
    *n_done = 0;
    while (*n_done < n_pages) {
        uint32_t layer = 0;
        while (layer < cache->layers.size() && !cache->layers[layer].is_unsettled)
            ++layer;
        if (layer == cache->layers.size()) {
            layer = next_layer(cache);
            if (layer == kNoLayer)
                return LK_OK;
            set_rung(cache, layer, cache->layers[layer].rung + 1);
        }
        const lk_status status = settle_layer(cache, layer, n_pages - *n_done, n_done);
        if (status)
            return status;
    }
    return LK_OK;
}

}  // namespace lk
