// From statistics to a ChanMix plan: retrieval heads, classes of channels, pairs of 3 and 1 bits.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "plan/check.h"
#include "planner/planner.h"
#include "stats/clusters.h"
#include "stats/sums.h"

namespace lk {

namespace {

constexpr uint8_t kOrdinaryBits = 2;
constexpr uint8_t kRetrievalBits = 4;
constexpr double kShareGrouped = 0.30;  // reproduces the published sizes, with KV heads shared
constexpr double kShareAlone = 0.19;    // and with one for each query head

using ull = unsigned long long;

struct RankedHead {
    double score;
    uint32_t layer;
    uint32_t head;
};

class ChanmixBuilder {
  public:
    ChanmixBuilder(const Calibrator &calibrator, const lk_chanmix &options, Plan *plan)
        : calibrator_(calibrator),
          options_(options),
          plan_(plan),
          ordinary_(*calibrator.allocator),
          ranked_(*calibrator.allocator) {}

    lk_status build();

  private:
    lk_status check_samples() const;
    lk_status set_ordinary();
    lk_status set_classes(uint32_t layer, uint32_t head);
    lk_status rank_heads();
    uint64_t heads_by_share() const;
    lk_status heads_by_budget(uint64_t most, uint64_t *n);
    lk_status bytes_with(uint64_t n, uint64_t *bytes);
    lk_status set_retrieval(uint64_t n);

    const Calibrator &calibrator_;
    const lk_chanmix &options_;
    Plan *plan_;
    Plan ordinary_;             // as if no head were a retrieval head
    Array<RankedHead> ranked_;  // all heads, the best first
};

lk_status ChanmixBuilder::check_samples() const {
    const bool needs_probe = options_.retrieval != LK_RETRIEVAL_NONE;
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l) {
        if (!owns_kv(calibrator_.geometry[l]))
            continue;
        const LayerSamples *own = calibrator_.layers[l];
        if (!own || !own->n_keys)
            return fail(LK_E_STATE, "layer %u has had no keys", l);
        if (needs_probe && !own->n_probe_queries)
            return fail(LK_E_STATE,
                        "layer %u has had no probe, which retrieval heads are chosen by", l);
    }
    return LK_OK;
}

// 3 bits for outliers and 1 bit for as many subnormals; of what is too many, the extremes.
void pair_channels(const ChannelSums *sums, uint32_t head_dim, const uint8_t *classes,
                   uint8_t *bits) {
    uint16_t order[LK_MAX_HEAD_DIM];
    uint32_t n_low = 0;
    uint32_t n_high = 0;
    for (uint32_t c = 0; c < head_dim; ++c) {
        order[c] = static_cast<uint16_t>(c);
        bits[c] = kOrdinaryBits;
        n_low += classes[c] == LK_CHANNEL_SUBNORMAL;
        n_high += classes[c] == LK_CHANNEL_OUTLIER;
    }
    std::sort(order, order + head_dim, [&](uint16_t a, uint16_t b) {
        const float x = channel_range(sums[a]);
        const float y = channel_range(sums[b]);
        return x != y ? x < y : a < b;
    });
    for (uint32_t i = 0; i < std::min(n_low, n_high); ++i) {
        bits[order[i]] = 1;
        bits[order[head_dim - 1 - i]] = 3;
    }
}

lk_status ChanmixBuilder::set_classes(uint32_t layer, uint32_t head) {
    const uint32_t head_dim = calibrator_.geometry[layer].head_dim;
    uint8_t classes[LK_MAX_HEAD_DIM];
    uint8_t bits[LK_MAX_HEAD_DIM];
    Clusters clusters;
    LK_TRY(classify_head(calibrator_, layer, head, options_.scope, classes, &clusters));
    const ChannelSums *sums =
        calibrator_.layers[layer]->keys.data() + static_cast<size_t>(head) * head_dim;
    pair_channels(sums, head_dim, classes, bits);
    if (std::find(bits, bits + head_dim, 3) == bits + head_dim)
        return LK_OK;
    lk_key_rule rule;
    key_rule_of(*plan_, layer, head, &rule);
    rule.channel_bits = bits;
    return set_key(plan_, layer, head, rule);
}

// Every head as it is without retrieval heads.
lk_status ChanmixBuilder::set_ordinary() {
    lk_key_rule key;
    lk_value_rule value;
    key_rule_of(*plan_, 0, 0, &key);
    value_rule_of(*plan_, 0, 0, &value);
    key.bits = kOrdinaryBits;
    key.group = options_.group;
    key.one_bit = options_.one_bit;
    value.bits = kOrdinaryBits;
    value.one_bit = LK_ONE_BIT_DEVIATION;
    LK_TRY(set_key(plan_, LK_ALL, LK_ALL, key));
    LK_TRY(set_metadata(plan_, LK_ALL, options_.metadata));
    for (uint32_t l = 0; l < plan_->layers.size(); ++l) {
        const uint32_t n_heads = own_kv_heads(plan_->layers[l].geometry);
        const bool is_head = options_.group > plan_->layers[l].geometry.head_dim;
        value.group = is_head ? 0 : options_.group;
        if (n_heads != 0)
            LK_TRY(set_value(plan_, l, LK_ALL, value));
        for (uint32_t h = 0; h < n_heads; ++h) {
            if (options_.outliers)
                LK_TRY(set_classes(l, h));
            if (options_.centers)
                LK_TRY(set_mean_centers(calibrator_, l, h, plan_));
        }
    }
    return copy_plan(*plan_, &ordinary_) ? LK_OK
                                         : fail(LK_E_NOMEM, "no memory for a copy of the plan");
}

lk_status ChanmixBuilder::rank_heads() {
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l)
        for (uint32_t h = 0; h < own_kv_heads(calibrator_.geometry[l]); ++h)
            if (!ranked_.push({retrieval_score(calibrator_, l, h), l, h}))
                return fail(LK_E_NOMEM, "no memory to rank the heads");
    std::sort(ranked_.begin(), ranked_.end(), [](const RankedHead &a, const RankedHead &b) {
        return a.score != b.score   ? a.score > b.score
               : a.layer != b.layer ? a.layer < b.layer
                                    : a.head < b.head;
    });
    return LK_OK;
}

uint64_t ChanmixBuilder::heads_by_share() const {
    double share = options_.retrieval_share;
    if (share < 0 && options_.budget_bytes)
        share = 1;
    if (share < 0) {
        bool grouped = false;
        for (const lk_layer &layer : calibrator_.geometry)
            grouped |= layer.n_query_heads != layer.n_kv_heads;
        share = grouped ? kShareGrouped : kShareAlone;
    }
    return static_cast<uint64_t>(std::llround(share * static_cast<double>(ranked_.size())));
}

// The best n heads are retrieval heads.
lk_status ChanmixBuilder::set_retrieval(uint64_t n) {
    Array<uint8_t> bits(*calibrator_.allocator);  // of all heads
    if (!copy_plan(ordinary_, plan_) || !bits.resize(plan_->n_entries()))
        return fail(LK_E_NOMEM, "no memory for a plan of %llu heads", ull{n});
    for (uint64_t i = 0; i < n; ++i)
        bits[plan_->layers[ranked_[i].layer].first_head + ranked_[i].head] = kRetrievalBits;
    const uint8_t none[kMaxKvHeads] = {};
    for (uint32_t l = 0; l < plan_->layers.size() && n; ++l) {
        const uint8_t *own = bits.data() + plan_->layers[l].first_head;
        const bool has_values = options_.retrieval == LK_RETRIEVAL_KEY_VALUE;
        LK_TRY(set_head_bits(plan_, l, own, has_values ? own : none));
    }
    follow_kv_layers(plan_);
    return LK_OK;
}

lk_status ChanmixBuilder::bytes_with(uint64_t n, uint64_t *bytes) {
    lk_plan_size size = {};
    LK_TRY(set_retrieval(n));
    LK_TRY(plan_bytes(*plan_, options_.budget_tokens, options_.budget_sequences,
                      options_.budget_step_tokens, &size));
    *bytes = size.cache_bytes;
    return LK_OK;
}

lk_status ChanmixBuilder::heads_by_budget(uint64_t most, uint64_t *n) {
    uint64_t bytes;
    LK_TRY(bytes_with(most, &bytes));
    if (bytes <= options_.budget_bytes) {
        *n = most;
        return LK_OK;
    }
    LK_TRY(bytes_with(0, &bytes));
    if (bytes > options_.budget_bytes)
        return fail(LK_E_BUDGET,
                    "budget_bytes is %llu, %u sequences of %llu tokens need %llu without any "
                    "retrieval head",
                    ull{options_.budget_bytes}, options_.budget_sequences,
                    ull{options_.budget_tokens}, ull{bytes});
    *n = 0;
    return most_within(
        options_.budget_bytes, most, 1,
        [this](uint64_t heads, uint64_t *needed) { return bytes_with(heads, needed); }, n);
}

lk_status ChanmixBuilder::build() {
    LK_TRY(check_samples());
    LK_TRY(begin_plan(calibrator_, "chanmix", options_.sink_tokens, options_.recent_tokens, plan_));
    LK_TRY(set_ordinary());
    LK_TRY(validate_plan(*plan_));
    if (options_.retrieval != LK_RETRIEVAL_NONE)
        LK_TRY(rank_heads());
    uint64_t n = heads_by_share();
    if (options_.budget_bytes)
        LK_TRY(heads_by_budget(n, &n));
    LK_TRY(set_retrieval(n));
    return validate_plan(*plan_);
}

}  // namespace

lk_status make_chanmix(const Calibrator &calibrator, const lk_chanmix &options, Plan *plan) {
    return ChanmixBuilder(calibrator, options, plan).build();
}

}  // namespace lk
