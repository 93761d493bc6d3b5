// Rules to planes: which slot holds which channel at which width.
//
// SPDX-License-Identifier: Apache-2.0
#include "plan/footprint.h"
#include "plan/plan.h"

namespace lk {

namespace {

void add_channels(PageLayout *layout, uint32_t bits, uint32_t n_channels) {
    uint16_t &strips = layout->strips[plane_of(bits)];
    strips = static_cast<uint16_t>(strips + n_channels / LK_STRIP_CHANNELS);
}

PageLayout empty_shape(const Plan &plan, const LayerPlan &layer, Side side, Axis axis,
                       uint32_t group) {
    PageLayout layout;
    layout.side = side;
    layout.axis = axis;
    layout.metadata = layer.metadata;
    const uint32_t dim =
        side == Side::kKey ? layer.geometry.head_dim : stored_value_dim(layer.geometry);
    layout.head_dim = static_cast<uint16_t>(dim);
    layout.page_tokens = static_cast<uint16_t>(plan.page_tokens);
    const uint32_t whole = axis == Axis::kChannel ? plan.page_tokens : dim;
    layout.group = static_cast<uint16_t>(group ? group : whole);
    return layout;
}

// Gives the channels of one width, ascending, to the stored channels from `stored` on. Returns the
// first stored channel that is left.
uint32_t place_channels(const uint8_t *width, uint32_t head_dim, uint32_t bits, uint32_t stored,
                        uint16_t *permutation) {
    for (uint32_t c = 0; c < head_dim; ++c)
        if (width[c] == bits)
            permutation[stored++] = static_cast<uint16_t>(c);
    return stored;
}

uint32_t count_channels(const uint8_t *width, uint32_t head_dim, uint32_t bits) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < head_dim; ++c)
        n += width[c] == bits;
    return n;
}

// Static classes: planes in descending width. As many 1-bit as 3-bit channels go, partners first
// and then their outliers, to the head of the 2-bit plane. `order` is the widths under the layer's
// widest cap below 16: slots stay where they are when a page shrinks.
void place_classes(const uint8_t *order, const uint8_t *width, KeyFormat *out) {
    const uint32_t head_dim = out->layout.head_dim;
    const uint32_t ones = count_channels(width, head_dim, 1);
    const bool shared = ones && ones == count_channels(width, head_dim, 3);
    const auto is_of_pair = [&](uint32_t bits) { return shared && (bits == 1 || bits == 3); };
    uint32_t slot = 0;
    for (const uint32_t plane_bits : kPlaneBits) {
        if (is_of_pair(plane_bits))
            continue;
        if (shared && plane_bits == 2) {
            slot = place_channels(order, head_dim, 1, slot, out->permutation);
            slot = place_channels(order, head_dim, 3, slot, out->permutation);
        }
        slot = place_channels(order, head_dim, plane_bits, slot, out->permutation);
        if (!shared || plane_bits != 2)
            add_channels(&out->layout, plane_bits, count_channels(width, head_dim, plane_bits));
    }
    if (shared) {
        add_channels(&out->layout, 2, 2 * ones + count_channels(width, head_dim, 2));
        out->layout.n_shared = static_cast<uint16_t>(ones);
    }
    for (uint32_t s = 0; s < head_dim; ++s)
        out->has_permutation |= out->permutation[s] != s;
}

// The cap whose widths order the stored channels of a page under `cap`.
uint32_t order_cap(const Plan &plan, uint32_t layer, uint32_t cap) {
    if (cap == kNoRung)
        return kNoRung;
    const WidthCaps of_layer = width_caps(plan, layer);
    for (uint32_t i = 0; i < of_layer.n; ++i)
        if (of_layer.caps[i] != kNoRung && of_layer.caps[i] < 16)
            return of_layer.caps[i];
    return cap;
}

void place_boost(const KeyRule &rule, uint32_t cap, KeyFormat *out) {
    const uint32_t ordinary = channel_width(rule.bits, cap);
    const uint32_t boosted = boost_width(rule, cap);
    const uint32_t n = boosted > ordinary ? boost_count(rule) : 0;
    add_channels(&out->layout, ordinary, out->layout.head_dim - n);
    if (!n)
        return;
    add_channels(&out->layout, boosted, n);
    out->layout.permutes = 1;
    out->boosted_channels = static_cast<uint16_t>(n);
    out->boost_ranking = rule.boost_ranking;
}

// Halves without channels at 1 bit do not differ by the rule for them. The clip stays: what is
// wider than 2 bits may shrink into the class of what was packed there.
RangeRule ranges_of(const PageLayout &layout, const RangeRule &rule) {
    const bool has_one_bit = layout.n_shared || layout.strips[kPlane1];
    return {has_one_bit ? rule.one_bit : OneBit::kDeviation, rule.clip};
}

void make_raw(Side side, PageLayout *layout) {
    const Metadata metadata = layout->metadata;
    *layout = raw_layout(side, layout->head_dim, layout->page_tokens);
    layout->metadata = metadata;
}

}  // namespace

bool WidthCaps::has(uint32_t cap) const {
    for (uint32_t i = 0; i < n; ++i)
        if (caps[i] == cap)
            return true;
    return false;
}

WidthCaps width_caps(const Plan &plan, uint32_t layer) {
    const LayerPlan &own = plan.layers[layer];
    const uint32_t n_classes = plan.chunks.tokens ? kChunkClasses : 0;
    WidthCaps out = {};
    for (const uint32_t cap : {kNoRung, 16u, 8u, 4u, 2u}) {
        bool taken = false;
        for (uint32_t r = 0; r < (own.n_rungs ? own.n_rungs : 1u); ++r) {
            const uint32_t rung = own.n_rungs ? own.rungs[r] : kNoRung;
            taken |= rung == cap;
            for (uint32_t c = 0; c < n_classes; ++c)
                taken |= width_cap(rung, plan.chunks.bits[c]) == cap;
        }
        if (taken)
            out.caps[out.n++] = cap;
    }
    return out;
}

void resolve_key_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap, KeyFormat *out) {
    const LayerPlan &own = plan.layers[layer];
    const KeyRule &rule = plan.key(layer, head);
    const uint8_t *channel_bits = plan.channel_bits(layer, head);
    *out = {};
    out->layout = empty_shape(plan, own, Side::kKey, static_cast<Axis>(rule.axis), rule.group);
    for (uint32_t s = 0; s < out->layout.head_dim; ++s)
        out->permutation[s] = static_cast<uint16_t>(s);
    if (channel_bits && cap != 16) {
        const uint32_t ordering = order_cap(plan, layer, cap);
        uint8_t order[LK_MAX_HEAD_DIM];
        uint8_t width[LK_MAX_HEAD_DIM];
        for (uint32_t c = 0; c < out->layout.head_dim; ++c) {
            order[c] = static_cast<uint8_t>(channel_width(channel_bits[c], ordering));
            width[c] = static_cast<uint8_t>(channel_width(channel_bits[c], cap));
        }
        place_classes(order, width, out);
    } else {
        place_boost(rule, cap, out);
    }
    out->ranges = ranges_of(out->layout, rule.ranges);
    out->raw = out->layout.is_raw();
    if (out->raw)
        make_raw(Side::kKey, &out->layout);
}

void resolve_value_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap,
                      ValueFormat *out) {
    const LayerPlan &own = plan.layers[layer];
    const ValueRule &rule = plan.value(layer, head);
    if (is_latent(own.geometry)) {
        *out = {absent_layout(plan.page_tokens), true, {}};
        out->layout.metadata = own.metadata;
        return;
    }
    out->layout = empty_shape(plan, own, Side::kValue, Axis::kToken, rule.group);
    add_channels(&out->layout, channel_width(rule.bits, cap), out->layout.head_dim);
    out->ranges = ranges_of(out->layout, rule.ranges);
    out->raw = out->layout.is_raw();
    if (out->raw)
        make_raw(Side::kValue, &out->layout);
}

void resolve_key(const Plan &plan, uint32_t layer, uint32_t head, KeyFormat *out) {
    resolve_key_at(plan, layer, head, plan.layers[layer].rung, out);
}

void resolve_value(const Plan &plan, uint32_t layer, uint32_t head, ValueFormat *out) {
    resolve_value_at(plan, layer, head, plan.layers[layer].rung, out);
}

namespace {

PageSlots slots_of(const PageLayout &layout, uint64_t recent_metadata) {
    PageSlots slots = {};
    slots.recent_payload =
        slot_bytes(payload_bytes(raw_layout(layout.side, layout.head_dim, layout.page_tokens)));
    slots.recent_metadata = recent_metadata;
    if (!layout.is_raw()) {
        slots.packed_payload = slot_bytes(payload_bytes(layout));
        slots.packed_metadata =
            recent_metadata ? recent_metadata : slot_bytes(metadata_bytes(layout));
    }
    return slots;
}

uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Is one the other times a power of two?
bool are_kin(uint64_t a, uint64_t b) { return a >> __builtin_ctzll(a) == b >> __builtin_ctzll(b); }

// To n families the one of these sizes; returns how many there are then.
uint32_t add_family(const SlotFamily &sizes, uint32_t n, SlotFamily *out) {
    uint32_t f = 0;
    while (f < n && !are_kin(out[f].top, sizes.top))
        ++f;
    if (f == n)
        out[f] = sizes;
    out[f].top = larger(out[f].top, sizes.top);
    out[f].least = sizes.least < out[f].least ? sizes.least : out[f].least;
    return f == n ? n + 1 : n;
}

// With a ladder, a metadata slot that a shrink in place never outgrows: the largest of all caps.
template <class Format>
PageSlots page_slots(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap,
                     void (*resolve_at)(const Plan &, uint32_t, uint32_t, uint32_t, Format *)) {
    const WidthCaps of_layer = plan.layers[layer].n_rungs ? width_caps(plan, layer) : WidthCaps{};
    Format format;
    uint64_t metadata = 0;
    for (uint32_t i = 0; i < of_layer.n; ++i) {
        resolve_at(plan, layer, head, of_layer.caps[i], &format);
        metadata = larger(metadata, slot_bytes(metadata_bytes(format.layout)));
    }
    resolve_at(plan, layer, head, cap, &format);
    return slots_of(format.layout, metadata);
}

}  // namespace

PageSlots key_slots_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap) {
    return page_slots(plan, layer, head, cap, resolve_key_at);
}

PageSlots value_slots_at(const Plan &plan, uint32_t layer, uint32_t head, uint32_t cap) {
    return page_slots(plan, layer, head, cap, resolve_value_at);
}

PageSlots key_slots(const Plan &plan, uint32_t layer, uint32_t head) {
    return key_slots_at(plan, layer, head, plan.layers[layer].rung);
}

PageSlots value_slots(const Plan &plan, uint32_t layer, uint32_t head) {
    return value_slots_at(plan, layer, head, plan.layers[layer].rung);
}

uint32_t slot_families(const Plan &plan, SlotFamily *out) {
    uint32_t n = 0;
    for (const LayerPlan &layer : plan.layers) {
        if (!layer.n_rungs || !owns_kv(layer.geometry))
            continue;
        for (const uint32_t dim : {layer.geometry.head_dim, stored_value_dim(layer.geometry)}) {
            if (!dim)
                continue;
            const uint64_t top =
                slot_bytes(payload_bytes(raw_layout(Side::kKey, dim, plan.page_tokens)));
            n = add_family({top, top / 16 * layer.rungs[layer.n_rungs - 1]}, n, out);
        }
    }
    return n;
}

uint64_t staging_bytes(const Plan &plan, uint64_t *offsets) {
    bool is_read[kMaxLayers] = {};
    for (uint32_t l = 0; l < plan.layers.size(); ++l)
        is_read[plan.kv_layer(l)] |= !plan.owns_kv(l);
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < plan.layers.size(); ++l)
        if (!is_read[plan.kv_layer(l)])
            bytes = larger(bytes, staged_token_bytes(plan.layers[l].geometry));
    for (uint32_t l = 0; l < plan.layers.size(); ++l) {
        const bool is_kept = plan.owns_kv(l) && is_read[l];
        if (offsets)
            offsets[l] = is_kept ? bytes : plan.owns_kv(l) ? 0 : offsets[plan.kv_layer(l)];
        bytes += is_kept ? staged_token_bytes(plan.layers[l].geometry) : 0;
    }
    return bytes;
}

bool can_shrink(const Plan &plan) {
    for (const LayerPlan &layer : plan.layers)
        if (layer.n_rungs && layer.rungs[layer.n_rungs - 1] < layer.rung && owns_kv(layer.geometry))
            return true;
    return false;
}

uint64_t sequence_stat_bytes(const Plan &plan) {
    uint64_t bytes = 0;
    for (uint32_t l = 0; l < plan.layers.size(); ++l)
        for (uint32_t h = 0, end; h < own_kv_heads(plan.layers[l].geometry); h = end) {
            KeyFormat key;
            resolve_key(plan, l, h, &key);
            end = plan.run(l, h).end;
            if (ranks_by_queries(key))
                bytes += (end - h) * query_stat_entry_bytes(plan, key.layout.head_dim);
        }
    return bytes ? bytes + query_stat_list_bytes(plan) : 0;
}

}  // namespace lk
