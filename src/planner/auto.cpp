// From statistics and a limit of bytes alone to a plan. The keys and the values of each head have
// a list of forms with the error that each makes in attention's output and its bytes; of all heads'
// forms those of the least total error are taken that fit (docs/planners.md).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "plan/check.h"
#include "planner/planner.h"
#include "planner/solve_widths.h"
#include "stats/sensitivity.h"
#include "stats/sums.h"

namespace lk {

namespace {

using ull = unsigned long long;

constexpr uint32_t kStrip = LK_STRIP_CHANNELS;
constexpr uint32_t kMaxStrips = LK_MAX_HEAD_DIM / kStrip;
constexpr uint32_t kGroups[] = {128, 64, 32};  // of tokens (keys) and channels (values)
constexpr uint32_t kGroupCount = 3;
constexpr uint32_t kValueBits[] = {1, 2, 4, 8};  // that decode reads as they lie
constexpr uint32_t kMostForms = kGroupCount * (2 * kMaxStrips + 1 + 3 * kMaxStrips) + 1;
constexpr uint64_t kLimitStep = 64;   // of the page bytes that a byte budget is translated into
constexpr uint64_t kLimitTries = 16;  // when the fewest take too much

// Squared range of 32, 64, 128 and 256 numbers of a normal distribution, in variances.
constexpr double kNormalSpread[] = {16.7, 22.5, 28.7, 35.2};
// Of as many as a calibration has tokens.
constexpr double kTotalSpread = 58;
// Mean square over squared mean magnitude, likewise.
constexpr double kSquareOfMagnitude = 1.5707963267948966;
// FP8 ranges are rounded up and minima down: steps grow by 8 % in the mean.
constexpr double kF8Spread = 1.17;
// Of a head whose attention never leaves the sinks and the recent tokens.
constexpr double kLeastWeight = 0.01;
// Of the mean of the costs that a host gave, for keys or values that its texts did not need.
constexpr double kLeastCost = 0.01;
// Of what a host says that values cost: what they move predictions by turns fewer answers.
constexpr double kValueCost = 0.3;
// Squared error of values at 1 bit, in squared ranges: about four times what - and + deviation lose
// of a normal distribution. With less, too many heads get it.
constexpr double kOneBitValue = 0.05;
// Of the whole range's cost, the least that a clip is believed to leave.
constexpr double kLeastClipCost = 0.1;
// How they are measured.
constexpr uint32_t kMeasuredBits = 2;
constexpr uint32_t kMeasuredGroup = 128;

double normal_spread(uint32_t n) {
    uint32_t i = 0;
    for (uint32_t count = 64; count <= n && i < 3; count *= 2)
        ++i;
    return kNormalSpread[i];
}
double metadata_spread(lk_metadata metadata) { return metadata == LK_METADATA_F8 ? kF8Spread : 1; }

// Squared error of a code in squared ranges of its group: steps of 1 / (2^b - 1), errors uniform in
// them. 1 bit, mean - and + deviation, has a smaller mean square than this says (1/30 of a sine),
// but what it loses of a channel is not noise: counted so, more 1-bit channels turned answers
// wrong.
constexpr double code_error(uint32_t bits) {
    const double levels = static_cast<double>((1u << bits) - 1);
    return bits == 1 ? 1.0 / 6 : 1 / (12 * levels * levels);
}

// Keys: the heaviest channels at 8 bits, the next at 4, the lightest at 1, the others at 2, of
// which pairs have 3 and 1. Values: bits alone.
struct Form {
    uint32_t bits;  // 16 = raw
    uint32_t group;
    uint32_t n_eights;  // strips
    uint32_t n_fours;
    uint32_t n_ones;
    uint32_t n_pairs;  // of channels; none next to strips of 1 bit, whose plane they would enter
    double error;
};

// What the groups of a page keep of their range at 2 bits, and what that does to their error.
struct Clip {
    float share = 1;
    double error = 1;
};
double two_bit_error(const Clip &clip) { return code_error(2) * clip.error; }

// Channels of a head by their part in the error of a logit, the heaviest first.
struct Channels {
    uint32_t head_dim;
    uint16_t order[LK_MAX_HEAD_DIM];
    double weight[LK_MAX_HEAD_DIM];  // of order[i]: squared error of the logit, per squared range

    double strips(uint32_t begin, uint32_t end) const {
        double total = 0;
        for (uint32_t i = begin * kStrip; i < end * kStrip; ++i)
            total += weight[i];
        return total;
    }
};

// The forms of the keys, or the values, of a head.
struct Forms {
    uint32_t n = 0;
    Form of[kMostForms];

    void add(const Form &form) { of[n++] = form; }
};

class AutoBuilder {
  public:
    AutoBuilder(const Calibrator &calibrator, const lk_auto &options, Plan *plan)
        : calibrator_(calibrator),
          options_(options),
          plan_(plan),
          costs_(*calibrator.allocator),
          bytes_(*calibrator.allocator),
          choices_(*calibrator.allocator),
          chosen_(*calibrator.allocator) {}

    lk_status build();

  private:
    lk_status check_samples() const;
    lk_status set_centers();
    void find_least_cost();
    bool has_costs() const { return least_cost_ > 0; }
    double weight_of(uint32_t layer, uint32_t head, bool is_value, double measured_error) const;
    Clip clip_of(uint32_t layer, uint32_t head, bool is_value) const;
    Channels rank_channels(uint32_t layer, uint32_t head) const;
    void list_keys(uint32_t layer, uint32_t head, lk_metadata metadata, Forms *out) const;
    void list_values(uint32_t layer, uint32_t head, lk_metadata metadata, Forms *out) const;
    void list_forms(lk_metadata metadata);
    void find_least_bytes();  // sets two_bit_bytes_ and least_bytes_
    void put_forms(const Forms &forms, Side side, uint32_t head_dim, lk_metadata metadata,
                   uint64_t item);
    lk_status choose(uint64_t limit);
    lk_status apply();
    lk_status apply_head(uint32_t layer, uint32_t head, uint64_t item);
    lk_status fits_budget(uint64_t limit, uint64_t *bytes);
    lk_status find_fitting(uint64_t least, uint64_t above, uint64_t *limit, uint64_t *bytes);
    lk_status limit_by_budget(uint64_t least, uint64_t *limit);

    const Calibrator &calibrator_;
    const lk_auto &options_;
    Plan *plan_;
    uint64_t n_items_ = 0;        // keys and values of each head
    uint64_t n_values_ = 0;       // of a block
    uint64_t two_bit_bytes_ = 0;  // of a block, the fewest without 1 bit
    uint64_t least_bytes_ = 0;    // of a block
    bool is_narrow_ = false;      // the forms that are listed have 1 bit wherever it may be
    double least_cost_ = 0;       // 0: weights are those of attention
    bool has_clip_costs_ = false;
    lk_metadata metadata_ = LK_METADATA_F8;
    Array<double> costs_;  // [n_items][kMostForms]; the last form is repeated
    Array<uint64_t> bytes_;
    Array<uint32_t> choices_;
    Array<uint32_t> chosen_;  // those of the better kind of metadata
};

lk_status AutoBuilder::check_samples() const {
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l) {
        if (!owns_kv(calibrator_.geometry[l]))
            continue;
        const LayerSamples *own = calibrator_.layers[l];
        const char *missing = !own || !own->n_keys    ? "keys"
                              : !own->n_queries       ? "queries"
                              : !own->n_probe_queries ? "probe"
                                                      : nullptr;
        if (missing)
            return fail(LK_E_STATE, "layer %u has had no %s", l, missing);
    }
    return LK_OK;
}

lk_status AutoBuilder::set_centers() {
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l)
        for (uint32_t h = 0; h < own_kv_heads(calibrator_.geometry[l]); ++h)
            LK_TRY(set_mean_centers(calibrator_, l, h, plan_));

    return LK_OK;
}

// Where all layers have costs.
void AutoBuilder::find_least_cost() {
    double sum = 0;
    size_t n = 0;
    bool is_clipped = true;
    for (const LayerSamples *own : calibrator_.layers) {
        if (!own)  // of a reading layer
            continue;
        if (!own->costs.size())
            return;
        is_clipped = is_clipped && own->clip_costs.size();
        for (const double cost : own->costs)
            sum += cost;
        n += own->costs.size();
    }
    least_cost_ = kLeastCost * sum / static_cast<double>(n);
    has_clip_costs_ = is_clipped;
}

// With costs the error that they were measured with weighs as much as they say. Else: attention
// that passes the A-shape mask falls on packed tokens, whose errors reach the output in that
// proportion.
double AutoBuilder::weight_of(uint32_t layer, uint32_t head, bool is_value,
                              double measured_error) const {
    if (has_costs() && measured_error > 0)
        return (is_value ? kValueCost : 1) *
               (least_cost_ + calibrator_.layers[layer]->costs[size_t{head} * 2 + is_value]) /
               measured_error;
    return kLeastWeight + retrieval_score(calibrator_, layer, head);
}

// Of equal costs the whole range, then the wider clip.
Clip AutoBuilder::clip_of(uint32_t layer, uint32_t head, bool is_value) const {
    Clip out;
    if (!has_clip_costs_)
        return out;
    const LayerSamples &own = *calibrator_.layers[layer];
    const size_t kind = size_t{head} * 2 + is_value;
    double least = own.costs[kind];
    for (size_t i = 0; i < LK_COST_CLIPS; ++i) {
        const double cost = own.clip_costs[kind * LK_COST_CLIPS + i];
        if (cost < least) {
            least = cost;
            // The least of several measurements promises more than it keeps: half of it, in powers.
            out = {kCostClips[i], std::sqrt(std::max(kLeastClipCost, cost / own.costs[kind]))};
        }
    }
    return out;
}

Channels AutoBuilder::rank_channels(uint32_t layer, uint32_t head) const {
    const lk_layer &shape = calibrator_.geometry[layer];
    const LayerSamples &own = *calibrator_.layers[layer];
    const size_t first = static_cast<size_t>(head) * shape.head_dim;
    const double n_queries =
        static_cast<double>(own.n_queries) * (shape.n_query_heads / shape.n_kv_heads);
    const double scale = shape.scale != 0 ? double{shape.scale} : 1 / std::sqrt(shape.head_dim);
    Channels out;
    double weights[LK_MAX_HEAD_DIM];
    out.head_dim = shape.head_dim;
    for (uint32_t c = 0; c < shape.head_dim; ++c) {
        const double range = double{channel_range(own.keys[first + c])};
        const double query = own.queries[first + c] / n_queries * scale;
        weights[c] = kSquareOfMagnitude * query * query * range * range / kTotalSpread;
        out.order[c] = static_cast<uint16_t>(c);
    }
    std::sort(out.order, out.order + shape.head_dim, [&](uint16_t a, uint16_t b) {
        return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
    });
    for (uint32_t i = 0; i < shape.head_dim; ++i)
        out.weight[i] = weights[out.order[i]];
    return out;
}

// The error of the strips from `first` on at 2 bits, with as many pairs of 3 and 1 bits as lessen
// it: the heaviest with the lightest, and so on.
double paired_error(const Channels &channels, uint32_t first, const Clip &clip, uint32_t *n_pairs) {
    const double gain = two_bit_error(clip) - code_error(3);
    const double loss = code_error(1) - two_bit_error(clip);
    const uint32_t begin = first * kStrip;
    double error = channels.strips(first, channels.head_dim / kStrip) * two_bit_error(clip);
    uint32_t n = 0;
    for (; begin + 2 * (n + 1) <= channels.head_dim; ++n) {
        const double change =
            channels.weight[channels.head_dim - 1 - n] * loss - channels.weight[begin + n] * gain;
        if (change >= 0)
            break;
        error += change;
    }
    *n_pairs = n;
    return error;
}

// Channels by width, in strips: those before `eights` have 8 bits, before `wide` 4, before
// `twos` 2.
struct Strips {
    uint32_t eights;
    uint32_t wide;
    uint32_t twos;
};

Form key_form(const Channels &channels, const Strips &strips, uint32_t group, double spread,
              const Clip &clip) {
    const uint32_t n_strips = channels.head_dim / kStrip;
    Form form = {2, group, strips.eights, strips.wide - strips.eights, n_strips - strips.twos,
                 0, 0};
    form.error = strips.twos == n_strips
                     ? paired_error(channels, strips.wide, clip, &form.n_pairs)
                     : channels.strips(strips.wide, strips.twos) * two_bit_error(clip) +
                           channels.strips(strips.twos, n_strips) * code_error(1);
    form.error += channels.strips(0, strips.eights) * code_error(8);
    form.error += channels.strips(strips.eights, strips.wide) * code_error(4);
    form.error *= spread;
    return form;
}

// Widens the strip that saves most error for a bit. False when all have 8 bits.
bool widen(const Channels &channels, const Clip &clip, Strips *strips) {
    const uint32_t n_strips = channels.head_dim / kStrip;
    const auto saved = [&](uint32_t strip, uint32_t end, double from, double to, uint32_t bits) {
        return strip < end ? channels.strips(strip, strip + 1) * (from - to) / bits : -1;
    };
    const double narrow = two_bit_error(clip);
    const double to_eight = saved(strips->eights, strips->wide, code_error(4), code_error(8), 4);
    const double to_four = saved(strips->wide, strips->twos, narrow, code_error(4), 2);
    const double to_two = saved(strips->twos, n_strips, code_error(1), narrow, 1);
    const double most = std::max({to_eight, to_four, to_two});
    if (most < 0)
        return false;
    ++(to_two == most ? strips->twos : to_four == most ? strips->wide : strips->eights);
    return true;
}

// From 2 bits for all channels to 8 bits for all, or from 1 bit for all to the last form that has 1
// bit.
void add_key_path(const Channels &channels, uint32_t group, double spread, const Clip &clip,
                  bool has_ones, Forms *out) {
    const uint32_t n_strips = channels.head_dim / kStrip;
    Strips strips = {0, 0, has_ones ? 0 : n_strips};
    do
        out->add(key_form(channels, strips, group, spread, clip));
    while (widen(channels, clip, &strips) && (!has_ones || strips.twos < n_strips));
}

void AutoBuilder::list_keys(uint32_t layer, uint32_t head, lk_metadata metadata, Forms *out) const {
    const Channels channels = rank_channels(layer, head);
    const double measured = channels.strips(0, channels.head_dim / kStrip) *
                            code_error(kMeasuredBits) * normal_spread(kMeasuredGroup);
    const double weight = weight_of(layer, head, false, measured) * metadata_spread(metadata);
    const Clip clip = clip_of(layer, head, false);
    for (const uint32_t group : kGroups) {
        const double spread = weight * normal_spread(group);
        if (is_narrow_)  // else decode reads the layer as it lies
            add_key_path(channels, group, spread, clip, true, out);
        add_key_path(channels, group, spread, clip, false, out);
    }
    out->add({16, 0, 0, 0, 0, 0, 0});
}

// Errors in squares of the values, which have no statistics.
void AutoBuilder::list_values(uint32_t layer, uint32_t head, lk_metadata metadata,
                              Forms *out) const {
    const uint32_t head_dim = calibrator_.geometry[layer].head_dim;
    const double measured =
        code_error(kMeasuredBits) * normal_spread(std::min(kMeasuredGroup, head_dim));
    const double weight = weight_of(layer, head, true, measured) * metadata_spread(metadata);
    const Clip clip = clip_of(layer, head, true);
    for (const uint32_t group : kGroups)
        for (const uint32_t bits : kValueBits) {
            if (bits == 1 && !has_costs() && !is_narrow_)
                continue;  // which heads get by with it is not in the other statistics
            const uint32_t n = std::min(group, head_dim);
            const double error = bits == 1   ? kOneBitValue
                                 : bits == 2 ? two_bit_error(clip)
                                             : code_error(bits);
            out->add({bits, n, 0, 0, 0, 0, weight * normal_spread(n) * error});
        }
    out->add({16, 0, 0, 0, 0, 0, 0});
}

uint64_t form_bytes(const Form &form, Side side, uint32_t head_dim, lk_metadata metadata) {
    PageLayout shape = raw_layout(side, head_dim, kPageTokens);
    if (form.bits == 16)
        return payload_bytes(shape);
    const auto n_strips = static_cast<uint16_t>(head_dim / kStrip);
    const auto n_classed = static_cast<uint16_t>(form.n_eights + form.n_fours + form.n_ones);
    shape.axis = side == Side::kKey ? Axis::kChannel : Axis::kToken;
    shape.metadata = static_cast<Metadata>(metadata);
    shape.group =
        static_cast<uint16_t>(side == Side::kKey ? form.group : std::min(form.group, head_dim));
    shape.strips[kPlane16] = 0;
    shape.strips[kPlane8] = static_cast<uint16_t>(form.n_eights);
    shape.strips[kPlane4] = static_cast<uint16_t>(form.n_fours);
    shape.strips[kPlane1] = static_cast<uint16_t>(form.n_ones);
    shape.n_shared = static_cast<uint16_t>(form.n_pairs);
    for (uint32_t plane = 0; plane < kPlaneCount; ++plane)
        if (kPlaneBits[plane] == form.bits)
            shape.strips[plane] = static_cast<uint16_t>(shape.strips[plane] + n_strips - n_classed);
    return payload_bytes(shape) + metadata_bytes(shape);
}

void AutoBuilder::put_forms(const Forms &forms, Side side, uint32_t head_dim, lk_metadata metadata,
                            uint64_t item) {
    for (uint32_t i = 0; i < kMostForms; ++i) {
        const Form &form = forms.of[std::min(i, forms.n - 1)];
        costs_[item * kMostForms + i] = form.error;
        bytes_[item * kMostForms + i] = form_bytes(form, side, head_dim, metadata);
    }
}

void AutoBuilder::list_forms(lk_metadata metadata) {
    uint64_t item = 0;
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l)
        for (uint32_t h = 0; h < own_kv_heads(calibrator_.geometry[l]); ++h) {
            const uint32_t head_dim = calibrator_.geometry[l].head_dim;
            Forms keys;
            Forms values;
            list_keys(l, h, metadata, &keys);
            list_values(l, h, metadata, &values);
            put_forms(keys, Side::kKey, head_dim, metadata, item++);
            put_forms(values, Side::kValue, head_dim, metadata, item++);
        }
}

void AutoBuilder::find_least_bytes() {
    const Form two_bits = {2, kGroups[0], 0, 0, 0, 0, 0};
    for (const lk_layer &layer : calibrator_.geometry)
        two_bit_bytes_ += own_kv_heads(layer) *
                          (form_bytes(two_bits, Side::kKey, layer.head_dim, LK_METADATA_F8) +
                           form_bytes(two_bits, Side::kValue, layer.head_dim, LK_METADATA_F8));
    is_narrow_ = true;
    list_forms(LK_METADATA_F8);
    for (uint64_t i = 0; i < n_items_; ++i)
        least_bytes_ +=
            *std::min_element(bytes_.data() + i * kMostForms, bytes_.data() + (i + 1) * kMostForms);
}

// The forms of the least error within so many bytes of a block, with FP8 or FP16 metadata.
lk_status AutoBuilder::choose(uint64_t limit) {
    double least = INFINITY;
    is_narrow_ = limit < two_bit_bytes_;
    for (const lk_metadata metadata : {LK_METADATA_F8, LK_METADATA_F16}) {
        list_forms(metadata);
        const WidthProblem problem = {static_cast<uint32_t>(n_items_), kMostForms, costs_.data(),
                                      bytes_.data(), limit};
        const lk_status status = solve_widths(problem, choices_.data());
        if (status == LK_E_BUDGET && metadata == LK_METADATA_F16)
            break;  // FP16 takes more
        LK_TRY(status);
        double error = 0;
        for (uint64_t i = 0; i < n_items_; ++i)
            error += costs_[i * kMostForms + choices_[i]];
        if (error < least) {
            least = error;
            metadata_ = metadata;
            std::memcpy(chosen_.data(), choices_.data(), n_items_ * sizeof *choices_.data());
        }
    }
    return LK_OK;
}

lk_status AutoBuilder::apply_head(uint32_t layer, uint32_t head, uint64_t item) {
    const uint32_t head_dim = calibrator_.geometry[layer].head_dim;
    Forms forms;
    list_keys(layer, head, metadata_, &forms);
    const Form &form = forms.of[std::min(chosen_[item], forms.n - 1)];
    const Channels channels = rank_channels(layer, head);
    const uint32_t eights = form.n_eights * kStrip;
    const uint32_t wide = eights + form.n_fours * kStrip;
    const uint32_t ones = head_dim - form.n_ones * kStrip - form.n_pairs;
    uint8_t bits[LK_MAX_HEAD_DIM];
    for (uint32_t i = 0; i < head_dim; ++i)
        bits[channels.order[i]] = i < eights                ? 8
                                  : i < wide                ? 4
                                  : i < wide + form.n_pairs ? 3
                                  : i >= ones               ? 1
                                                            : 2;
    lk_key_rule key;
    key_rule_of(*plan_, layer, head, &key);
    key.bits = form.bits;
    key.group = form.group;
    key.clip = form.bits == 2 ? clip_of(layer, head, false).share : 1;
    const bool is_uniform = std::all_of(bits, bits + head_dim, [&](uint8_t b) { return b == 2; });
    key.channel_bits = form.bits == 16 || is_uniform ? nullptr : bits;
    LK_TRY(set_key(plan_, layer, head, key));
    forms.n = 0;
    list_values(layer, head, metadata_, &forms);
    const Form &other = forms.of[std::min(chosen_[item + 1], forms.n - 1)];
    lk_value_rule value;
    value_rule_of(*plan_, layer, head, &value);
    value.bits = other.bits;
    value.group = other.group;
    value.clip = other.bits == 2 ? clip_of(layer, head, true).share : 1;
    return set_value(plan_, layer, head, value);
}

lk_status AutoBuilder::apply() {
    LK_TRY(set_metadata(plan_, LK_ALL, metadata_));
    uint64_t item = 0;
    for (uint32_t l = 0; l < calibrator_.geometry.size(); ++l)
        for (uint32_t h = 0; h < own_kv_heads(calibrator_.geometry[l]); ++h, item += 2)
            LK_TRY(apply_head(l, h, item));
    follow_kv_layers(plan_);
    return LK_OK;
}

// cache_bytes of the plan within a limit.
lk_status AutoBuilder::fits_budget(uint64_t limit, uint64_t *bytes) {
    LK_TRY(choose(limit));
    LK_TRY(apply());
    lk_plan_size size = {};
    LK_TRY(plan_bytes(*plan_, options_.budget_tokens, options_.budget_sequences,
                      options_.budget_step_tokens, &size));
    *bytes = size.cache_bytes;
    return LK_OK;
}

// Page bytes whose plan fits the byte budget, the fewest first: a cache takes whole extents for
// each size of slot, so that of narrower pages can be the larger one. *bytes is what the least
// cache of those tried takes.
lk_status AutoBuilder::find_fitting(uint64_t least, uint64_t above, uint64_t *limit,
                                    uint64_t *bytes) {
    const uint64_t kept = options_.sink_tokens + options_.recent_tokens;
    const uint64_t blocks = options_.budget_tokens > kept + kPageTokens
                                ? (options_.budget_tokens - kept) / kPageTokens
                                : 1;
    // Beyond, pages alone take more.
    const uint64_t top =
        std::min(above, options_.budget_bytes / options_.budget_sequences / blocks);
    const uint64_t step = std::max(kLimitStep, (std::max(top, least) - least) / kLimitTries);
    *bytes = UINT64_MAX;
    for (uint64_t at = least; at == least || at < top; at += step) {
        uint64_t needed;
        LK_TRY(fits_budget(at, &needed));
        *limit = at;
        *bytes = std::min(*bytes, needed);
        if (*bytes <= options_.budget_bytes)
            break;
    }
    return LK_OK;
}

// The most page bytes, up to *limit, whose plan fits the byte budget.
lk_status AutoBuilder::limit_by_budget(uint64_t least, uint64_t *limit) {
    uint64_t bytes;
    LK_TRY(fits_budget(*limit, &bytes));
    if (bytes <= options_.budget_bytes)
        return LK_OK;
    const uint64_t above = *limit;
    LK_TRY(find_fitting(least, above, limit, &bytes));
    if (bytes > options_.budget_bytes)
        return fail(
            LK_E_BUDGET,
            "budget_bytes is %llu, %u sequences of %llu tokens need %llu at the fewest bits",
            ull{options_.budget_bytes}, options_.budget_sequences, ull{options_.budget_tokens},
            ull{bytes});
    return most_within(
        options_.budget_bytes, above, kLimitStep,
        [this](uint64_t at, uint64_t *needed) { return fits_budget(at, needed); }, limit);
}

lk_status AutoBuilder::build() {
    LK_TRY(check_samples());
    LK_TRY(begin_plan(calibrator_, "auto", options_.sink_tokens, options_.recent_tokens, plan_));
    if (options_.centers)
        LK_TRY(set_centers());
    for (const lk_layer &layer : calibrator_.geometry)
        n_values_ += uint64_t{2} * own_kv_heads(layer) * layer.head_dim * kPageTokens;
    n_items_ = 2 * plan_->n_entries();
    if (!costs_.resize(n_items_ * kMostForms) || !bytes_.resize(n_items_ * kMostForms) ||
        !choices_.resize(n_items_) || !chosen_.resize(n_items_))
        return fail(LK_E_NOMEM, "no memory for the forms of %llu page formats", ull{n_items_});
    find_least_cost();
    find_least_bytes();
    uint64_t limit = n_values_ * 2;
    if (options_.bits_per_value > 0)
        limit = std::min(limit, static_cast<uint64_t>(options_.bits_per_value *
                                                      static_cast<double>(n_values_ / 8)));
    if (limit < least_bytes_)
        return fail(LK_E_BUDGET, "bits_per_value is %g, must be at least %g",
                    options_.bits_per_value,
                    static_cast<double>(least_bytes_) * 8 / static_cast<double>(n_values_));
    if (options_.budget_bytes)
        LK_TRY(limit_by_budget(least_bytes_, &limit));
    LK_TRY(choose(limit));
    LK_TRY(apply());
    return validate_plan(*plan_);
}

}  // namespace

lk_status make_auto(const Calibrator &calibrator, const lk_auto &options, Plan *plan) {
    return AutoBuilder(calibrator, options, plan).build();
}

}  // namespace lk
