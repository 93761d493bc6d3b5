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

// A half whose new slot is taken and whose work is queued.
struct Pending {
    Row *row;
    uint16_t *half_class;
    uint64_t *payload;
    uint64_t target;  // = *payload: in place
    uint16_t to;
};

uint32_t rung_bits(const lk_cache *cache, uint32_t layer) {
    return cache->plan.model.layers[layer].rungs[cache->layers[layer].rung];
}

Plane wide_plane(uint32_t bits) { return bits == 8 ? kPlane8 : kPlane4; }

class Shrinker {
  public:
    explicit Shrinker(lk_cache *cache)
        : cache_(cache), serial_(++cache->next_walk), spare_(&cache->ledger) {}

    // False when the row was asked for before: forks list it once more, and until flush() its
    // halves look as if they were still to be taken.
    bool enter(Row *row) {
        const bool is_new = row->shrinker != serial_;
        row->shrinker = serial_;
        return is_new;
    }
    // Take a half of an entry one step down; *n_done is raised when it was above its layer's rung.
    // LK_E_BUDGET, LK_E_DEVICE.
    lk_status add(Row *row, uint32_t entry, bool is_value, uint32_t *n_done);
    lk_status flush();
    // Are some of the halves above the rung even so?
    bool has_more() const { return has_more_; }

  private:
    lk_status take(const Pending &half, uint64_t *target);
    void queue(const Pending &half, uint64_t metadata);
    void apply(const Pending &half);
    // Bytes of the half behind the plane that gets narrower.
    uint32_t tail_bytes(const Pending &half) const;

    lk_cache *cache_;
    const uint64_t serial_;
    SpareScope spare_;
    Pending pending_[kShrinkBatch];
    uint32_t n_ = 0;
    bool has_more_ = false;
};

uint32_t Shrinker::tail_bytes(const Pending &half) const {
    const HalfClass &wide = cache_->classes[*half.half_class];
    const uint32_t bits = class_bits(wide);
    const uint64_t n_strips = wide.shape.strips[wide_plane(bits)];
    return static_cast<uint32_t>(payload_bytes(cache_->classes[half.to].shape) -
                                 n_strips * strip_bytes(wide.shape.page_tokens, bits / 2));
}

lk_status Shrinker::take(const Pending &half, uint64_t *target) {
    *target = *half.payload;
    if (!cache_->classes[*half.half_class].shape.is_raw() && !tail_bytes(half))
        return LK_OK;
    return cache_->slots.take(slot_bytes(payload_bytes(cache_->classes[half.to].shape)), target);
}

void Shrinker::queue(const Pending &half, uint64_t metadata) {
    const HalfClass &from = cache_->classes[*half.half_class];
    const uint32_t bits = class_bits(from);
    pending_[n_++] = half;
    if (bits == 16)
        cache_->packs.push({&cache_->classes[half.to], half.target, metadata, &from, *half.payload,
                            nullptr, nullptr});
    else
        cache_->shrinks.push({*half.payload, half.target, from.shape.strips[wide_plane(bits)],
                              bits / 2, from.shape.page_tokens, tail_bytes(half)});
}

// Entries from n_packed on are packed when their row's turn comes (pack.cpp).
lk_status Shrinker::add(Row *row, uint32_t entry, bool is_value, uint32_t *n_done) {
    const EntryInfo &info = cache_->entries[entry];
    const HalfInfo &rules = is_value ? info.value : info.key;
    PageEntry &page = row->entries[entry];
    if (page.is_absent)
        return LK_OK;
    Pending half = {row, is_value ? &page.value_class : &page.key_class,
                    is_value ? &page.value_payload : &page.key_payload, 0, 0};
    const uint32_t rung = rung_bits(cache_, info.layer);
    const uint32_t bits = class_bits(cache_->classes[*half.half_class]);
    if (bits <= rung || (bits == 16 && (entry >= row->n_packed || !rules.packs())))
        return LK_OK;
    half.to = bits == 16 ? rules.packed_class : cache_->shrunk_class[*half.half_class];
    lk_status status = n_ == kShrinkBatch ? flush() : LK_OK;
    if (!status)
        status = take(half, &half.target);
    if (status == LK_E_BUDGET && n_) {
        status = flush();
        if (!status)
            status = take(half, &half.target);
    }
    if (status == LK_E_BUDGET && compact(cache_))
        status = take(half, &half.target);
    if (status)
        return status;
    queue(half, is_value ? page.value_metadata : page.key_metadata);
    has_more_ = has_more_ || class_bits(cache_->classes[half.to]) > rung;
    ++*n_done;
    return LK_OK;
}

void Shrinker::apply(const Pending &half) {
    if (half.row->n_holders > 1) {
        const HalfBytes before = half_bytes(cache_->classes[*half.half_class]);
        const HalfBytes after = half_bytes(cache_->classes[half.to]);
        cache_->stats.shared_bytes +=
            after.payload + after.metadata - before.payload - before.metadata - before.recent;
    }
    count_half(cache_, *half.half_class, false);
    count_half(cache_, half.to, true);
    if (half.target == *half.payload)
        cache_->slots.halve(half.target);
    else
        cache_->slots.give(*half.payload);
    *half.payload = half.target;
    *half.half_class = half.to;
    ++cache_->stats.halves_shrunk;
}

// Do what is queued; when the device fails, the new slots go back.
lk_status Shrinker::flush() {
    lk_status status = LK_OK;
    if (!cache_->packs.empty())
        status =
            cache_->device->pack(cache_->packs.data(), static_cast<uint32_t>(cache_->packs.size()));
    if (!status && !cache_->shrinks.empty())
        status = cache_->device->shrink(cache_->shrinks.data(),
                                        static_cast<uint32_t>(cache_->shrinks.size()));
    cache_->packs.clear();
    cache_->shrinks.clear();
    const Row *last = nullptr;
    lk_status changed = LK_OK;
    for (uint32_t i = 0; i < n_; ++i) {
        const Pending &half = pending_[i];
        if (status) {
            if (half.target != *half.payload)
                cache_->slots.give(half.target);
            continue;
        }
        apply(half);
        if (half.row != last && !changed)
            changed = cache_->device->entries_changed(half.row);
        last = half.row;
    }
    n_ = 0;
    return status ? status : changed;
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
    half->packed_class = half->rung_class[rung];
    const HalfShape &shape = cache->classes[half->packed_class].shape;
    half->slots.packed_payload = shape.is_raw() ? 0 : slot_bytes(payload_bytes(shape));
    half->slots.packed_metadata = shape.is_raw() ? 0 : half->slots.recent_metadata;
}

lk_status settle_row(Shrinker *shrinker, const LayerInfo &layer, Row *row, uint32_t *n_done) {
    if (!shrinker->enter(row))
        return LK_OK;
    lk_status status = LK_OK;
    for (uint32_t h = 0; !status && h < layer.view.n_kv_heads; ++h)
        for (const bool is_value : {false, true})
            if (!status)
                status = shrinker->add(row, layer.first_entry + h, is_value, n_done);
    return status;
}

}  // namespace

uint32_t class_bits(const HalfClass &half) {
    return half.shape.is_raw()          ? 16
           : half.shape.strips[kPlane8] ? 8
           : half.shape.strips[kPlane4] ? 4
                                        : 0;
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

lk_status settle_layer(lk_cache *cache, uint32_t layer, uint32_t n_halves, uint32_t *n_done) {
    LayerInfo &info = cache->layers[layer];
    Shrinker shrinker(cache);
    lk_status status = LK_OK;
    uint32_t n = 0;
    for (size_t s = 0; !status && n < n_halves && s < cache->sequences.size(); ++s) {
        Sequence *sequence = cache->sequences[s];
        if (sequence->id < info.next_sequence)
            continue;
        const uint64_t sinks = sink_rows(cache->plan.model);
        if (sequence->id > info.next_sequence || info.next_row < sinks)
            info.next_row = sinks;
        info.next_sequence = sequence->id;
        while (!status && n < n_halves && info.next_row < sequence->rows.size()) {
            status = settle_row(&shrinker, info, sequence->row(info.next_row), &n);
            info.next_row += !status;
        }
        if (!status && info.next_row >= sequence->rows.size()) {
            ++info.next_sequence;
            info.next_row = 0;
        }
    }
    const lk_status flushed = shrinker.flush();
    info.has_more = info.has_more || shrinker.has_more();
    *n_done += n;
    if (status || flushed)
        return status ? status : flushed;
    if (n < n_halves) {  // through all rows: once more when some went two steps
        const bool has_more = info.has_more;
        unsettle(cache, layer);
        info.is_unsettled = has_more;
    }
    return LK_OK;
}

lk_status shrink_halves(lk_cache *cache, uint32_t n_halves, uint32_t *n_done) {
    *n_done = 0;
    while (*n_done < n_halves) {
        uint32_t layer = 0;
        while (layer < cache->layers.size() && !cache->layers[layer].is_unsettled)
            ++layer;
        if (layer == cache->layers.size()) {
            layer = next_layer(cache);
            if (layer == kNoLayer)
                return LK_OK;
            set_rung(cache, layer, cache->layers[layer].rung + 1);
        }
        const lk_status status = settle_layer(cache, layer, n_halves - *n_done, n_done);
        if (status)
            return status;
    }
    return LK_OK;
}

}  // namespace lk
