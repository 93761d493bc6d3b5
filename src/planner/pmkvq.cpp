// From sensitivities to a PM-KVQ plan: the width that each layer ends at within a byte budget, and
// the ladder that leads there.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/status.h"
#include "plan/check.h"
#include "plan/layer_budget.h"
#include "planner/planner.h"
#include "planner/solve_widths.h"
#include "stats/scales.h"
#include "stats/sensitivity.h"

namespace lk {

namespace {

constexpr uint8_t kLadder[kMaxRungs] = {16, 8, 4, 2};

using ull = unsigned long long;

// What ends at one width: heads of a layer, their keys, values or both.
struct Item {
    uint32_t layer;
    uint32_t first_head;
    uint32_t n_heads;
    bool has_keys;
    bool has_values;
};

class PmkvqBuilder {
  public:
    PmkvqBuilder(const Calibrator &calibrator, const lk_pmkvq &options, Plan *plan)
        : calibrator_(calibrator),
          options_(options),
          plan_(plan),
          items_(*calibrator.allocator),
          costs_(*calibrator.allocator),
          bytes_(*calibrator.allocator),
          choices_(*calibrator.allocator),
          key_bits_(*calibrator.allocator),
          value_bits_(*calibrator.allocator) {}

    lk_status build();

  private:
    lk_status check_samples() const;
    lk_status set_frame();
    lk_status set_scales();
    lk_status list_items();
    bool push_items(uint32_t layer, uint32_t first_head, uint32_t n_heads);
    lk_status price_items();
    uint64_t pages_of(uint32_t layer) const;
    uint64_t bytes_at(const Item &item, uint32_t bits) const;
    double cost_of(const Item &item, uint32_t bits) const;
    lk_status choose();
    lk_status try_bytes(uint64_t limit, uint64_t *chosen, uint64_t *cache_bytes);
    // What a cache keeps for pages that move on their way down the ladders.
    uint64_t kept_bytes() const;
    lk_status refuse(uint64_t cache_bytes) const;
    // Rules of the choices; every ladder stands at its last rung, so that bytes are the final ones.
    lk_status set_widths();
    lk_status set_layer(uint32_t layer);
    void start_ladders();
    lk_status set_order();
    lk_status set_budgets();

    uint32_t narrowest() const { return options_.widths[options_.n_widths - 1]; }
    uint8_t &bits_of(uint32_t layer, uint32_t head, bool is_value) {
        return (is_value ? value_bits_ : key_bits_)[plan_->layers[layer].first_head + head];
    }

    const Calibrator &calibrator_;
    const lk_pmkvq &options_;
    Plan *plan_;
    Array<Item> items_;
    Array<double> costs_;    // [n_items][n_widths]
    Array<uint64_t> bytes_;  // likewise
    Array<uint32_t> choices_;
    Array<uint8_t> key_bits_;    // of all heads
    Array<uint8_t> value_bits_;  // likewise
};

lk_status PmkvqBuilder::check_samples() const {
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l) {
        if (!owns_kv(calibrator_.geometry[l]))
            continue;
        LK_TRY(check_sensitivity(calibrator_, l, false, options_.sensitivity));
        LK_TRY(check_sensitivity(calibrator_, l, true, options_.sensitivity));
        const LayerSamples *own = calibrator_.layers[l];
        if (options_.key_scales && !own->n_searched)
            return fail(LK_E_STATE, "layer %u has had no search for key scales", l);
    }
    return LK_OK;
}

// All but widths.
lk_status PmkvqBuilder::set_frame() {
    LK_TRY(begin_plan(calibrator_, "pm-kvq", options_.sink_tokens, options_.recent_tokens, plan_));
    lk_key_rule key;
    lk_value_rule value;
    key_rule_of(*plan_, 0, 0, &key);
    value_rule_of(*plan_, 0, 0, &value);
    key.axis = options_.key_axis;
    for (uint32_t l = 0; l < plan_->layers.size(); ++l) {
        // A group as wide as the head is the head.
        const bool is_head = options_.group >= plan_->layers[l].geometry.head_dim;
        value.group = is_head ? 0 : options_.group;
        key.group = options_.key_axis == LK_AXIS_TOKEN ? value.group : 0;
        LK_TRY(set_key(plan_, l, LK_ALL, key));
        LK_TRY(set_value(plan_, l, LK_ALL, value));
    }
    return options_.key_scales ? set_scales() : LK_OK;
}

lk_status PmkvqBuilder::set_scales() {
    float scales[LK_MAX_HEAD_DIM];
    for (uint32_t l = 0; l < plan_->layers.size(); ++l) {
        if (!plan_->owns_kv(l))
            continue;
        const LayerSamples &own = *calibrator_.layers[l];
        const uint32_t head_dim = plan_->layers[l].geometry.head_dim;
        const double exponent = exponent_of(best_exponent(own));
        for (uint32_t h = 0; h < plan_->layers[l].geometry.n_kv_heads; ++h) {
            key_scales(own.pair_maxima.data() + size_t{h} * head_dim, head_dim, exponent, scales);
            LK_TRY(set_key_scales(plan_, l, h, scales, {"scales", false, LK_E_ARGUMENT}));
        }
    }
    return LK_OK;
}

bool PmkvqBuilder::push_items(uint32_t layer, uint32_t first_head, uint32_t n_heads) {
    if (!options_.separate_values)
        return items_.push({layer, first_head, n_heads, true, true});
    return items_.push({layer, first_head, n_heads, true, false}) &&
           items_.push({layer, first_head, n_heads, false, true});
}

lk_status PmkvqBuilder::list_items() {
    bool has_memory = true;
    for (uint32_t l = 0; l < plan_->layers.size() && has_memory; ++l) {
        const uint32_t n_heads = own_kv_heads(plan_->layers[l].geometry);
        const uint32_t step = options_.scope == LK_SCOPE_HEAD ? 1 : n_heads;
        for (uint32_t h = 0; h < n_heads && has_memory; h += step)
            has_memory = push_items(l, h, step);
    }
    const size_t n = items_.size() * options_.n_widths;
    if (!has_memory || !costs_.resize(n) || !bytes_.resize(n) || !choices_.resize(items_.size()))
        return fail(LK_E_NOMEM, "no memory for the widths of %zu layers", plan_->layers.size());
    return LK_OK;
}

// Packed pages of a layer that a full sequence holds; at least 1.
uint64_t PmkvqBuilder::pages_of(uint32_t layer) const {
    const uint64_t packed = due_blocks(*plan_, options_.budget_tokens);
    const uint64_t hidden =
        hidden_blocks(*plan_, plan_->layers[layer].geometry, options_.budget_tokens);
    return packed > hidden ? packed - hidden : 1;
}

// Slots of an item's pages; the plan has the width already.
uint64_t PmkvqBuilder::bytes_at(const Item &item, uint32_t bits) const {
    uint64_t n = 0;
    for (uint32_t h = item.first_head; h < item.first_head + item.n_heads; ++h)
        for (const bool is_value : {false, true}) {
            if (!(is_value ? item.has_values : item.has_keys))
                continue;
            const PageSlots slots =
                is_value ? value_slots(*plan_, item.layer, h) : key_slots(*plan_, item.layer, h);
            n += bits == 16 ? slots.recent_payload : slots.packed_payload + slots.packed_metadata;
        }
    return n;
}

double PmkvqBuilder::cost_of(const Item &item, uint32_t bits) const {
    double sum = 0;
    for (uint32_t h = item.first_head; h < item.first_head + item.n_heads; ++h)
        for (const bool is_value : {false, true})
            if (is_value ? item.has_values : item.has_keys)
                sum += sensitivity_of(calibrator_, item.layer, h, is_value, options_.sensitivity,
                                      bits);
    return sum;
}

lk_status PmkvqBuilder::price_items() {
    for (uint32_t w = 0; w < options_.n_widths; ++w) {
        std::fill(choices_.begin(), choices_.end(), w);
        LK_TRY(set_widths());
        for (size_t i = 0; i < items_.size(); ++i) {
            const size_t at = i * options_.n_widths + w;
            costs_[at] = cost_of(items_[i], options_.widths[w]);
            if (!checked_mul(bytes_at(items_[i], options_.widths[w]), pages_of(items_[i].layer),
                             &bytes_[at]) ||
                !checked_mul(bytes_[at], options_.budget_sequences, &bytes_[at]))
                return fail(LK_E_ARGUMENT, "options.budget_tokens is %llu: pages beyond 64 bits",
                            ull{options_.budget_tokens});
        }
    }
    return LK_OK;
}

lk_status PmkvqBuilder::set_widths() {
    if (!key_bits_.resize(plan_->n_entries()) || !value_bits_.resize(plan_->n_entries()))
        return fail(LK_E_NOMEM, "no memory for the widths of %llu heads", ull{plan_->n_entries()});
    for (size_t i = 0; i < items_.size(); ++i) {
        const Item &item = items_[i];
        const auto bits = static_cast<uint8_t>(options_.widths[choices_[i]]);
        for (uint32_t h = item.first_head; h < item.first_head + item.n_heads; ++h) {
            if (item.has_keys)
                bits_of(item.layer, h, false) = bits;
            if (item.has_values)
                bits_of(item.layer, h, true) = bits;
        }
    }
    for (uint32_t l = 0; l < plan_->layers.size(); ++l)
        if (plan_->owns_kv(l))
            LK_TRY(set_layer(l));
    follow_kv_layers(plan_);
    return LK_OK;
}

// Heads at the widest of a layer follow its ladder, others have a class of their own.
lk_status PmkvqBuilder::set_layer(uint32_t layer) {
    const uint32_t n_heads = plan_->layers[layer].geometry.n_kv_heads;
    uint8_t most = 0;
    for (uint32_t h = 0; h < n_heads; ++h)
        most = std::max({most, bits_of(layer, h, false), bits_of(layer, h, true)});
    uint32_t n_rungs = 0;
    while (most < 16 && n_rungs < kMaxRungs && kLadder[n_rungs] >= most)
        ++n_rungs;
    (void)set_ladder(plan_, layer, kLadder, n_rungs, most);
    for (uint32_t h = 0; h < n_heads; ++h)
        for (const bool is_value : {false, true})
            if (bits_of(layer, h, is_value) == most)
                bits_of(layer, h, is_value) = 16;
    return set_head_bits(plan_, layer, &bits_of(layer, 0, false), &bits_of(layer, 0, true));
}

lk_status PmkvqBuilder::try_bytes(uint64_t limit, uint64_t *chosen, uint64_t *cache_bytes) {
    const auto n_items = static_cast<uint32_t>(items_.size());
    LK_TRY(solve_widths({n_items, options_.n_widths, costs_.data(), bytes_.data(), limit},
                        choices_.data()));
    LK_TRY(set_widths());
    lk_plan_size size = {};
    LK_TRY(plan_bytes(*plan_, options_.budget_tokens, options_.budget_sequences,
                      options_.budget_step_tokens, &size));
    *cache_bytes = size.cache_bytes + kept_bytes();
    *chosen = 0;
    for (size_t i = 0; i < items_.size(); ++i)
        *chosen += bytes_[i * options_.n_widths + choices_[i]];
    return LK_OK;
}

uint64_t PmkvqBuilder::kept_bytes() const {
    for (const LayerPlan &layer : plan_->layers)
        if (layer.n_rungs)
            return LK_EXTENT_BYTES;
    return 0;
}

lk_status PmkvqBuilder::refuse(uint64_t cache_bytes) const {
    return fail(LK_E_BUDGET,
                "options.budget_bytes is %llu, %u sequences of %llu tokens need %llu at %u bits",
                ull{options_.budget_bytes}, options_.budget_sequences, ull{options_.budget_tokens},
                ull{cache_bytes}, narrowest());
}

// The largest limit of slot bytes whose plan fits, by halving what is between a limit that does
// and one that does not.
lk_status PmkvqBuilder::choose() {
    uint64_t fits = 0;
    uint64_t most = 0;
    for (size_t i = 0; i < items_.size(); ++i) {
        const uint64_t *own = bytes_.data() + i * options_.n_widths;
        fits += *std::min_element(own, own + options_.n_widths);
        most += *std::max_element(own, own + options_.n_widths);
    }
    uint64_t chosen;
    uint64_t cache_bytes;
    LK_TRY(try_bytes(fits, &chosen, &cache_bytes));
    if (cache_bytes > options_.budget_bytes)
        return refuse(cache_bytes);
    LK_TRY(try_bytes(most, &chosen, &cache_bytes));
    if (cache_bytes <= options_.budget_bytes)
        return LK_OK;
    for (uint64_t exceeds = chosen; fits + 1 < exceeds;) {
        const uint64_t middle = fits + (exceeds - fits) / 2;
        LK_TRY(try_bytes(middle, &chosen, &cache_bytes));
        if (cache_bytes <= options_.budget_bytes)
            fits = middle;
        else
            exceeds = chosen;
    }
    return try_bytes(fits, &chosen, &cache_bytes);
}

void PmkvqBuilder::start_ladders() {
    for (LayerPlan &layer : plan_->layers)
        if (layer.n_rungs)
            layer.rung = kLadder[0];
}

// Layers by what they cost at the narrowest width.
lk_status PmkvqBuilder::set_order() {
    struct Ranked {
        double cost;
        uint32_t layer;
    };
    Array<Ranked> ranked(*calibrator_.allocator);
    for (uint32_t l = 0; l < plan_->layers.size(); ++l) {
        if (!plan_->owns_kv(l))
            continue;
        const Item all = {l, 0, plan_->layers[l].geometry.n_kv_heads, true, true};
        if (!ranked.push({cost_of(all, narrowest()), l}))
            return fail(LK_E_NOMEM, "no memory to order the layers");
    }
    std::sort(ranked.begin(), ranked.end(), [](const Ranked &a, const Ranked &b) {
        return a.cost != b.cost ? a.cost < b.cost : a.layer < b.layer;
    });
    for (uint32_t i = 0; i < ranked.size(); ++i)
        LK_TRY(set_shrink_order(plan_, ranked[i].layer, i));
    return LK_OK;
}

lk_status PmkvqBuilder::set_budgets() {
    const Replay replay = {options_.budget_tokens, options_.budget_sequences,
                           options_.budget_step_tokens};
    for (uint32_t l = 0; l < plan_->layers.size(); ++l) {
        const uint32_t n_rungs = plan_->layers[l].n_rungs;
        if (n_rungs && plan_->owns_kv(l))
            LK_TRY(set_layer_budget(plan_, l, most_layer_bytes(*plan_, l, n_rungs - 1, replay)));
    }
    return LK_OK;
}

lk_status PmkvqBuilder::build() {
    LK_TRY(check_samples());
    LK_TRY(set_frame());
    LK_TRY(list_items());
    LK_TRY(price_items());
    LK_TRY(choose());
    start_ladders();
    LK_TRY(set_order());
    if (options_.layer_budgets)
        LK_TRY(set_budgets());
    follow_kv_layers(plan_);
    return validate_plan(*plan_);
}

}  // namespace

lk_status make_pmkvq(const Calibrator &calibrator, const lk_pmkvq &options, Plan *plan) {
    return PmkvqBuilder(calibrator, options, plan).build();
}

}  // namespace lk
