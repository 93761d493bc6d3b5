// Scenes: what they hold, and the bound of the CPU's fast paths.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "harness.h"

using namespace lk;

std::string describe(const Case &c) {
    char text[512];
    std::snprintf(text, sizeof text,
                  "D %u group %u heads %u K%u V%u boosted %u shared %u kgroup %u vgroup %u ktoken "
                  "%u f8 %u P %u sinkrow %u pages %u raw between %u tail %u new %u window %u+%u "
                  "cap %g sinks %u "
                  "centers %u scales %u tree %u dtype %u seqs %u spread %u lse %u",
                  c.head_dim, c.group, c.n_kv_heads, c.key_bits, c.value_bits, c.boosted,
                  c.n_shared, c.key_group, c.value_group, c.per_token_keys, c.f8, c.page_tokens,
                  c.sink_tokens, c.packed_pages, c.raw_between, c.tail_tokens, c.n_new, c.window,
                  c.window_sinks, static_cast<double>(c.soft_cap), c.sinks, c.centers, c.scales,
                  c.tree, c.dtype, c.n_sequences, c.spread, c.has_lse);
    return text + std::string(c.ordered ? " ordered" : "") + (c.stepped ? " stepped" : "") +
           (c.ones ? " ones " + std::to_string(c.ones) : "") + (c.wider ? " wider" : "") +
           (c.mixed ? " mixed" : "") + (c.mixed == 2 ? ", more formats" : "") +
           (c.spans ? " spans " + std::to_string(c.spans) : "") +
           (c.windowed_spans ? " in windows" : "") +
           (c.value_dim ? " value dim " + std::to_string(c.value_dim) : "") +
           (c.latent ? " latent" : "") + (c.rotated ? " rotated" : "");
}

PageLayout packed_shape(const Case &c, Side side) {
    const uint32_t bits = side == Side::kKey ? c.key_bits : c.value_bits;
    const uint32_t dim = c.page_dim(side);
    if (!dim)
        return absent_layout(c.page_tokens);
    if (bits == 16)
        return raw_layout(side, dim, c.page_tokens);
    PageLayout layout;
    layout.side = side;
    layout.axis = side == Side::kKey && !c.per_token_keys ? Axis::kChannel : Axis::kToken;
    layout.metadata = c.f8 ? Metadata::kF8 : Metadata::kF16;
    layout.head_dim = static_cast<uint16_t>(dim);
    layout.page_tokens = static_cast<uint16_t>(c.page_tokens);
    const uint32_t group =
        layout.axis == Axis::kChannel
            ? (c.key_group ? std::min(c.key_group, c.page_tokens) : c.page_tokens)
            : (c.value_group ? std::min(c.value_group, dim) : dim);
    layout.group = static_cast<uint16_t>(group);
    const Plane plane = plane_of(bits);
    const auto strips = static_cast<uint16_t>(dim / 16);
    layout.strips[plane] = strips;
    if (side == Side::kKey && bits == 2) {
        const uint32_t boosted = c.stepped ? 1 : std::min(c.boosted / 16, strips - 1u);
        layout.strips[kPlane16] = layout.strips[kPlane8] = c.stepped ? 1 : 0;
        layout.strips[kPlane4] = static_cast<uint16_t>(boosted);
        const uint32_t others = boosted + (c.stepped ? 2 : 0);
        const uint32_t ones = c.ones ? std::min(c.ones, strips - others - 1) : 0;
        layout.strips[kPlane1] = static_cast<uint16_t>(ones);
        layout.strips[kPlane2] = static_cast<uint16_t>(strips - others - ones);
        layout.permutes = boosted > 0 && !c.ordered && !c.stepped;
        layout.n_shared = static_cast<uint16_t>(std::min(c.n_shared, layout.strips[kPlane2] * 8u));
    }
    return layout;
}

Strides strides_of(const Case &c, uint32_t n_tokens, uint32_t n_heads, uint32_t n_channels) {
    const size_t offset = c.spread ? 1 : 0;
    const size_t head = n_channels + (c.spread ? 3 : 0);
    const size_t token = n_heads * head + (c.spread ? 5 : 0);
    return {offset, token, head,
            offset + (n_tokens - 1) * token + (n_heads - 1) * head + n_channels};
}

bool Outputs::operator==(const Outputs &other) const {
    const auto same_bits = [](float a, float b) { return float_to_bits(a) == float_to_bits(b); };
    return std::equal(out.begin(), out.end(), other.out.begin(), other.out.end(), same_bits) &&
           std::equal(lse.begin(), lse.end(), other.lse.begin(), other.lse.end(), same_bits);
}

Scene::Scene(const Case &c, SceneValues values)
    : case_(c), values_(values), state_(1469598103934665603ull) {
    for (const char letter : describe(c))
        state_ = (state_ ^ static_cast<uint8_t>(letter)) * 1099511628211ull;
    derives_values_ = c.latent && values == SceneValues::kMagnitudes;
    if (derives_values_)
        case_.latent = 0;
    make_formats();
    sequences_.resize(c.n_sequences);
    for (uint32_t s = 0; s < c.n_sequences; ++s)
        make_sequence(s);
    make_queries();
    make_staged();
}

uint64_t Scene::next() {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
float Scene::random_normal() {
    double sum = 0;
    for (int i = 0; i < 4; ++i)
        sum += static_cast<double>(next() >> 11) * 0x1p-53 - 0.5;
    return static_cast<float>(sum * 1.7320508);
}
uint16_t Scene::random_f16(double scale) {
    bool saturated = false;
    return float_to_half(static_cast<float>(static_cast<double>(random_normal()) * scale),
                         &saturated);
}

namespace {
// Keys; + 1 values.
enum : uint16_t { kPackedFormat = 0, kOtherFormat = 2, kPageFormat = 4, kLastSinkFormat = 6 };
}  // namespace

EntryFormats Scene::entry_formats() const {
    const bool differs = case_.mixed && formats_[kPackedFormat].permutation;
    return {kPageFormat, kPackedFormat, kPageFormat + 1, kPackedFormat + 1,
            differs ? kNoFormat : uint16_t{kPackedFormat}};
}

// The case of the pages that differ, where cases have such.
Case Scene::other_pages() const {
    Case other = case_;
    other.key_bits = 4;
    other.value_bits = case_.mixed ? 2 : 4;
    if (case_.mixed) {
        other.key_group = other.value_group = 64;
        other.boosted = other.n_shared = 0;
    }
    return other;
}

void Scene::make_formats() {
    std::vector<uint32_t> channels(case_.head_dim);
    for (uint32_t i = 0; i < case_.head_dim; ++i)
        channels[i] = i;
    if (case_.n_shared || case_.ordered || case_.stepped)
        for (uint32_t i = case_.head_dim - 1; i > 0; --i)
            std::swap(channels[i], channels[next() % (i + 1)]);
    permutation_.resize(permutation_bytes(case_.head_dim));
    for (uint32_t i = 0; i < case_.head_dim; ++i)
        store_channel(permutation_.data(), case_.head_dim, i, channels[i]);
    const PageLayout keys = packed_shape(case_, Side::kKey);
    const bool is_ordered = keys.n_shared || (!keys.is_raw() && (case_.ordered || case_.stepped));
    const uint8_t *order = is_ordered ? permutation_.data() : nullptr;
    formats_.push_back({keys, order, keys.permutes ? Ranking::kKey : Ranking::kNone,
                        static_cast<uint16_t>(keys.permutes ? keys.strips[kPlane4] * 16 : 0)});
    formats_.push_back({packed_shape(case_, Side::kValue), nullptr, Ranking::kNone, 0});
    const Case other = other_pages();
    formats_.push_back(
        {packed_shape(other, Side::kKey), other.mixed ? nullptr : order, Ranking::kNone, 0});
    formats_.push_back({packed_shape(other, Side::kValue), nullptr, Ranking::kNone, 0});
    if (case_.wider || case_.mixed)
        packed_formats_ = {kPackedFormat, kPackedFormat + 1, kOtherFormat, kOtherFormat + 1};
    for (const uint32_t tokens : {case_.page_tokens, case_.sink_tokens % case_.page_tokens})
        for (const Side side : {Side::kKey, Side::kValue})
            if (tokens) {
                const uint32_t dim = case_.page_dim(side);
                formats_.push_back({dim ? raw_layout(side, dim, tokens) : absent_layout(tokens),
                                    nullptr, Ranking::kNone, 0});
            }
    if (case_.mixed == 2) {
        Case unused = other;
        unused.value_bits = 8;
        unused.value_group = 32;
        packed_formats_.push_back(static_cast<uint16_t>(formats_.size()));
        formats_.push_back({packed_shape(unused, Side::kValue), nullptr, Ranking::kNone, 0});
    }
}

uint16_t Scene::key_format(uint32_t block, uint32_t head, uint32_t tokens, bool packed) const {
    if (!packed)
        return tokens == case_.page_tokens ? kPageFormat : kLastSinkFormat;
    const bool is_other =
        (case_.mixed && (block + head) % 3 == 0) || (case_.wider && block % 3 == 1);
    return is_other ? kOtherFormat : kPackedFormat;
}

// used: tokens that are filled; a raw page holds NaN after them.
ScenePage Scene::make_page(uint16_t page_format, uint32_t used) {
    const PageLayout &layout = formats_[page_format].layout;
    const uint32_t head_dim = layout.head_dim;
    const bool is_value = layout.side == Side::kValue;
    std::vector<uint16_t> values(static_cast<size_t>(layout.page_tokens) * head_dim, 0x7E00);
    for (uint32_t t = 0; t < used; ++t)
        for (uint32_t c = 0; c < head_dim; ++c)
            values[t * head_dim + c] = random_f16(is_value ? 2.0 : c % 16 == 3 ? 4.0 : 1.0);
    ScenePage page;
    page.page_format = page_format;
    page.payload.resize(payload_bytes(layout));
    page.metadata.resize(metadata_bytes(layout));
    if (layout.is_absent())
        return page;
    std::vector<uint8_t> own(permutation_);
    if (layout.permutes)
        rank_by_key({values.data(), head_dim}, head_dim, layout.page_tokens,
                    layout.strips[kPlane4] * 16, own.data());
    pack_page(layout, formats_[page_format].ranges, {values.data(), head_dim},
              layout.permutes ? own.data() : formats_[page_format].permutation, page.payload.data(),
              page.metadata.empty() ? nullptr : page.metadata.data());
    measure_page(used, &page);
    if (is_value && values_ == SceneValues::kMagnitudes)
        make_absolute(used, &page);
    return page;
}

void Scene::measure_page(uint32_t used, ScenePage *page) {
    const PageFormat &kind = formats_[page->page_format];
    const bool is_value = kind.layout.side == Side::kValue;
    float &range = is_value ? value_range_ : key_range_;
    float &highest = is_value ? value_max_ : key_max_;
    page->reach.assign(kind.layout.head_dim, 0);
    for (uint32_t slot = 0; slot < kind.layout.head_dim; ++slot) {
        const uint32_t channel =
            channel_of(kind.layout, page->metadata.data(), kind.permutation, slot);
        const bool is_also_value = case_.latent && channel < case_.output_dim();
        float &reach = page->reach[channel];
        const StoredChannel stored(kind.layout, page->payload.data(), page->metadata.data(), slot);
        const uint32_t bits = stored.bits();
        Parameters p = {};
        for (uint32_t t = 0; t < used; ++t) {
            if (bits < 16 && (kind.layout.axis == Axis::kToken || t % kind.layout.group == 0))
                p = stored.parameters(t);
            const float value = std::fabs(
                bits < 16 ? dequantize(stored.code(t), p.range, p.minimum, bits) : stored.value(t));
            highest = std::max(highest, value);
            value_max_ = is_also_value ? std::max(value_max_, value) : value_max_;
            reach = std::max(reach, value);
            if (bits == 16)
                continue;
            range = std::max(range, p.range);
            reach = std::max(reach, std::fabs(p.minimum) + p.range);
        }
    }
}

void Scene::make_absolute(uint32_t used, ScenePage *page) const {
    const PageFormat &from = formats_[page->page_format];
    const uint32_t tokens = from.layout.page_tokens;
    const uint32_t dim = from.layout.head_dim;
    std::vector<uint16_t> values(static_cast<size_t>(tokens) * dim);
    unpack_page(from.layout, page->payload.data(), page->metadata.data(), from.permutation, used,
                values.data(), dim);
    for (uint16_t &value : values)
        value &= 0x7FFF;
    if (!from.layout.is_raw())
        page->page_format = kPageFormat + 1;
    const PageLayout &to = formats_[page->page_format].layout;
    page->payload.resize(payload_bytes(to));
    page->metadata.clear();
    pack_page(to, {OneBit::kRange, 1}, {values.data(), dim}, nullptr, page->payload.data(),
              nullptr);
}

// The absolute values of a latent layer, a 16-bit page of the first channels of its keys.
ScenePage Scene::values_of_keys(uint32_t used, const ScenePage &keys) const {
    const PageFormat &from = formats_[keys.page_format];
    const uint32_t tokens = from.layout.page_tokens;
    std::vector<uint16_t> values(static_cast<size_t>(tokens) * case_.head_dim);
    unpack_page(from.layout, keys.payload.data(), keys.metadata.data(), from.permutation, used,
                values.data(), case_.head_dim);
    for (uint16_t &value : values)
        value &= 0x7FFF;
    ScenePage page;
    page.page_format = static_cast<uint16_t>(
        (from.layout.is_raw() ? keys.page_format : uint16_t{kPageFormat}) + 1);
    const PageLayout &to = formats_[page.page_format].layout;
    page.payload.resize(payload_bytes(to));
    pack_page(to, {OneBit::kRange, 1}, {values.data(), case_.head_dim}, nullptr,
              page.payload.data(), nullptr);
    page.reach.assign(keys.reach.begin(), keys.reach.begin() + to.head_dim);
    return page;
}

void Scene::add_row(SceneSequence *sequence, uint32_t tokens, bool packed, uint32_t used) {
    SceneBlock block;
    block.first_token = 0;
    if (!sequence->blocks.empty())
        block.first_token = sequence->blocks.back().first_token + sequence->blocks.back().n_tokens;
    block.n_tokens = tokens;
    block.is_packed = packed;
    const auto index = static_cast<uint32_t>(sequence->blocks.size());
    for (uint32_t head = 0; head < case_.n_kv_heads; ++head) {
        const uint16_t keys = key_format(index, head, tokens, packed);
        const bool shares_values = keys == kOtherFormat && case_.wider == 2;
        const uint16_t values = shares_values ? uint16_t{kPackedFormat} : keys;
        block.pages.push_back(make_page(keys, used));
        block.pages.push_back(derives_values_ ? values_of_keys(used, block.pages.back())
                                              : make_page(static_cast<uint16_t>(values + 1), used));
    }
    sequence->blocks.push_back(std::move(block));
}

void Scene::make_sequence(uint32_t index) {
    SceneSequence &sequence = sequences_[index];
    for (uint32_t rest = case_.sink_tokens; rest;) {
        const uint32_t tokens = std::min(rest, case_.page_tokens);
        add_row(&sequence, tokens, false, tokens);
        rest -= tokens;
    }
    for (uint32_t i = 0; i < case_.packed_pages + index; ++i) {
        const bool is_packed = !case_.raw_between || i % 2 == 0;
        add_row(&sequence, case_.page_tokens, is_packed, case_.page_tokens);
    }
    const uint32_t tail = case_.tail_tokens + 3 * index;
    sequence.n_history = tail;
    if (!sequence.blocks.empty())
        sequence.n_history += sequence.blocks.back().first_token + sequence.blocks.back().n_tokens;
    sequence.n_new = index == 0 ? case_.n_new : index == 1 ? 1 + case_.n_new / 3 : 1;
    sequence.first_new = n_tokens_;
    uint32_t rest = tail + (sequence.is_draft() ? sequence.n_new : 0);
    while (rest) {
        const uint32_t used = std::min(rest, case_.page_tokens);
        add_row(&sequence, case_.page_tokens, false, used);
        rest -= used;
    }
    for (uint32_t i = 0; case_.tree && i < sequence.n_new; ++i)
        sequence.parent.push_back(static_cast<int32_t>(next() % (i + 1)) - 1);
    if (case_.spans)
        add_spans(&sequence);
    n_tokens_ += sequence.n_new;
}

// Spans and single tokens by turns; the middle one of three sequences has none.
void Scene::add_spans(SceneSequence *sequence) {
    if (sequence->first_new && sequence - sequences_.data() == 1)
        return;
    for (uint32_t i = 0; i < sequence->n_new; ++i)
        sequence->reach.push_back(i);
    for (uint32_t i = static_cast<uint32_t>(next() % 3); i < sequence->n_new;) {
        const uint32_t n = 1 + static_cast<uint32_t>(next() % case_.spans);
        const uint32_t end = std::min(i + n, sequence->n_new);
        std::fill(sequence->reach.begin() + i, sequence->reach.begin() + end, end - 1);
        i = end + static_cast<uint32_t>(next() % 5);
    }
}

void Scene::make_queries() {
    const Strides strides = strides_of(case_, n_tokens_, n_query_heads(), case_.head_dim);
    q_.assign(strides.end * (case_.dtype == LK_F32 ? 4 : 2), kPoison);
    for (uint32_t t = 0; t < n_tokens_; ++t)
        for (uint32_t h = 0; h < n_query_heads(); ++h)
            for (uint32_t c = 0; c < case_.head_dim; ++c) {
                float f = random_normal() * 1.5f;
                bool saturated = false;
                f = case_.dtype == LK_F16    ? half_to_float(float_to_half(f, &saturated))
                    : case_.dtype == LK_BF16 ? bits_to_float(float_to_bits(f) & 0xFFFF0000u)
                                             : f;
                store_query(strides.at(t, h) + c, f);
                q_values_.push_back(f);
            }
    for (uint32_t h = 0; h < n_query_heads(); ++h)
        sink_logits_.push_back(random_normal() * 2);
    for (uint32_t i = 0; case_.centers && i < case_.n_kv_heads * case_.head_dim; ++i) {
        key_centers_.push_back(random_normal() * (i % 16 == 5 ? 16.0f : 2.0f));
        center_max_ = std::max(center_max_, std::fabs(key_centers_.back()));
    }
    for (uint32_t i = 0; case_.scales && i < case_.n_kv_heads * case_.head_dim; ++i)
        key_scales_.push_back(std::exp(random_normal()));
    change_queries();
}

void Scene::change_queries() {
    changed_q_values_ = q_values_;
    for (size_t i = 0; case_.scales && i < q_values_.size(); ++i) {
        const size_t head = i / case_.head_dim % n_query_heads() / case_.group;
        changed_q_values_[i] *= key_scales_[head * case_.head_dim + i % case_.head_dim];
    }
    if (case_.rotated)
        rotate_blocks(changed_q_values_.data(), static_cast<uint32_t>(changed_q_values_.size()),
                      case_.key_rotation());
    for (const std::vector<float> &queries : {q_values_, changed_q_values_})
        for (const float q : queries)
            q_max_ = std::max(q_max_, std::fabs(q));
}

// f is a number of the case's dtype, an infinity or a NaN.
void Scene::store_query(size_t element, float f) {
    const uint32_t bits = float_to_bits(f);
    if (case_.dtype == LK_F32) {
        std::memcpy(q_.data() + element * 4, &bits, 4);
        return;
    }
    bool saturated = false;
    const auto special =
        static_cast<uint16_t>((bits >> 16 & 0x8000u) | 0x7C00u | (bits & 0x7FFFFFu ? 0x200u : 0u));
    const auto half = case_.dtype == LK_BF16 ? static_cast<uint16_t>(bits >> 16)
                      : float_is_finite(f)   ? float_to_half(f, &saturated)
                                             : special;
    std::memcpy(q_.data() + element * 2, &half, 2);
}

float Scene::query_limit(const Case &c) {
    return 0x1p50f * (c.soft_cap > 0 && c.soft_cap < 1 ? c.soft_cap : 1);
}

// Every third row, beginning with the last; each kind of what a query may not hold in turn, in
// channels that differ.
void Scene::spoil_queries() {
    const float limit = query_limit(case_);
    const float kinds[] = {NAN, INFINITY, -INFINITY, -2 * limit, 2 * limit};
    const uint32_t n_kinds = case_.dtype == LK_F16 ? 3 : 5;
    const Strides strides = strides_of(case_, n_tokens_, n_query_heads(), case_.head_dim);
    const size_t n_rows = size_t{n_tokens_} * n_query_heads();
    is_spoiled_.assign(n_rows, false);
    for (size_t row = n_rows, n = 0; row > 0; row = row > 3 ? row - 3 : 0, ++n) {
        const size_t at = strides.at((row - 1) / n_query_heads(), (row - 1) % n_query_heads());
        is_spoiled_[row - 1] = true;
        store_query(at + n * 7 % case_.head_dim, kinds[n % n_kinds]);
        if (n % 2)  // two that would take each other away
            store_query(at + (n * 7 + 5) % case_.head_dim, -kinds[n % n_kinds]);
    }
}

std::string Scene::restore_spoiled(const Outputs &expected, Outputs *outputs) const {
    char text[160];
    for (size_t row = 0; row < is_spoiled_.size(); ++row) {
        if (!is_spoiled_[row])
            continue;
        const size_t n = case_.output_dim();
        for (size_t i = row * n; i < (row + 1) * n; ++i) {
            if (!std::isnan(outputs->out[i])) {
                std::snprintf(text, sizeof text, "output %zu of a spoiled query is %g, not NaN", i,
                              static_cast<double>(outputs->out[i]));
                return text;
            }
            outputs->out[i] = expected.out[i];
        }
        if (outputs->lse.empty())
            continue;
        if (!std::isnan(outputs->lse[row])) {
            std::snprintf(text, sizeof text, "LSE %zu of a spoiled query is %g, not NaN", row,
                          static_cast<double>(outputs->lse[row]));
            return text;
        }
        outputs->lse[row] = expected.lse[row];
    }
    return "";
}

void Scene::make_staged() {
    const size_t n_rows = static_cast<size_t>(n_tokens_) * case_.n_kv_heads;
    const size_t n_keys = n_rows * case_.page_dim(Side::kKey);
    const size_t n_values = derives_values_ ? 0 : n_rows * case_.page_dim(Side::kValue);
    for (size_t i = 0; i < std::max(n_keys, n_values); ++i) {
        if (i < n_keys) {
            staged_keys_.push_back(random_f16(1.0));
            const float key = std::fabs(half_to_float(staged_keys_.back()));
            key_max_ = std::max(key_max_, key);
            value_max_ = case_.latent ? std::max(value_max_, key) : value_max_;
        }
        if (i >= n_values)
            continue;
        staged_values_.push_back(random_f16(2.0));
        if (values_ == SceneValues::kMagnitudes)
            staged_values_.back() &= 0x7FFF;
        value_max_ = std::max(value_max_, std::fabs(half_to_float(staged_values_.back())));
    }
    for (size_t i = 0; derives_values_ && i < n_keys; ++i)
        if (i % case_.head_dim < case_.output_dim())
            staged_values_.push_back(staged_keys_[i] & 0x7FFF);
}

std::string Scene::compare(const Outputs &fast, const Outputs &reference) const {
    // A logit: FP32 sums of head_dim products, and the rounding of q * range to 16 bits of the
    // page's largest, times codes up to their top: half a unit for each channel.
    const double scale = 1.0 / std::sqrt(static_cast<double>(case_.head_dim));
    const double head_dim = case_.head_dim;
    const double q_max = static_cast<double>(q_max_);
    const double key_max = static_cast<double>(key_max_) + static_cast<double>(center_max_);
    const double value_max = static_cast<double>(value_max_);
    // The largest factor is that of the lowest top code, and may meet the highest: 15 / 3 in pages
    // with 4-bit slots. Of shared slots, bits worth 1, 2 and, with the partner's factor, 2 are
    // rounded apart.
    const double apart = case_.n_shared ? 2.5 : case_.boosted ? 5.0 : 1.0;
    const double largest = case_.head_dim > 256 ? 16383 : 32767;
    const double folded =
        apart * head_dim * 0.5 / largest * q_max * static_cast<double>(key_range_);
    // A rotation rounds a query by 2^-24 of its norm in each stage, in its factor and with that.
    const double roundings = 4 + (case_.rotated ? std::log2(case_.key_rotation()) + 2 : 0);
    const double logit = scale * (folded + roundings * head_dim * 0x1p-24 * q_max * key_max) +
                         static_cast<double>(case_.soft_cap) * 5e-7 + 1e-5;
    // An output: weights off by exp(2 * logit error), and half a unit of the page's largest weight
    // times range for each token; the largest weights of all pages sum to 1 at most.
    constexpr double kBlock = LK_MAX_PAGE_TOKENS * 0.5 / 32767;
    const double dtype = case_.dtype == LK_F32 ? 0x1p-22 : case_.dtype == LK_F16 ? 0x1p-10 : 0x1p-7;
    const double bound = std::expm1(2 * logit) * value_max +
                         kBlock * static_cast<double>(value_range_) + 2e-5 * value_max +
                         dtype * value_max;
    char text[160];
    for (size_t i = 0; i < reference.out.size(); ++i)
        if (!(std::fabs(static_cast<double>(fast.out[i]) - static_cast<double>(reference.out[i])) <=
              bound)) {
            std::snprintf(text, sizeof text, "output %zu is %g, not %g within %g", i,
                          static_cast<double>(fast.out[i]), static_cast<double>(reference.out[i]),
                          bound);
            return text;
        }
    for (size_t i = 0; i < reference.lse.size(); ++i)
        if (!(std::fabs(static_cast<double>(fast.lse[i]) - static_cast<double>(reference.lse[i])) <=
              2 * logit)) {
            std::snprintf(text, sizeof text, "lse %zu is %g, not %g within %g", i,
                          static_cast<double>(fast.lse[i]), static_cast<double>(reference.lse[i]),
                          2 * logit);
            return text;
        }
    return "";
}
