// SPDX-License-Identifier: Apache-2.0
#include "cli/common/synthetic.h"

#include <algorithm>
#include <cmath>

namespace cli {
namespace {

constexpr std::uint32_t kLargeEvery = 17;
constexpr float kLargeFactor = 4.0f;

// A sum of four uniform numbers: close enough to a normal one, and the same everywhere.
float draw(llama::Random &random) {
    const std::uint64_t bits = random.next();
    float sum = 0;
    for (int i = 0; i < 4; ++i)
        sum += static_cast<float>((bits >> (16 * i)) & 0xffffu) / 65536.0f;
    return (sum - 2.0f) * 1.7320508f;
}

}  // namespace

void fill_random(std::vector<float> &values, std::uint32_t head_dim, bool has_large_channels,
                 llama::Random &random) {
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool large = has_large_channels && i % head_dim % kLargeEvery == 3;
        values[i] = draw(random) * (large ? kLargeFactor : 1.0f);
    }
}

std::vector<std::uint16_t> random_halves(std::size_t count, std::uint32_t head_dim,
                                         bool has_large_channels, llama::Random &random) {
    std::vector<float> values(count);
    fill_random(values, head_dim, has_large_channels, random);
    std::vector<std::uint16_t> words(count);
    std::transform(values.begin(), values.end(), words.begin(), half_from_float);
    return words;
}

std::uint16_t half_from_float(float value) {
    constexpr float kSubnormal = 0x1p-14f, kSubnormalStep = 0x1p-24f;
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude < kSubnormal)
        return sign | static_cast<std::uint16_t>(std::nearbyint(magnitude / kSubnormalStep));
    int exponent = 0;
    const float fraction = std::frexp(magnitude, &exponent);  // 0.5 .. 1
    // 11 significant bits; the leading one counts up the exponent, as does a carry.
    const int digits = static_cast<int>(std::nearbyint(std::ldexp(fraction, 11)));
    return static_cast<std::uint16_t>(sign + ((exponent + 13) << 10) + digits);
}

StepData::StepData(const Shape &shape, std::uint32_t count)
    : n_tokens(count),
      q(std::size_t{count} * shape.n_query_heads * shape.head_dim),
      k(std::size_t{count} * shape.n_kv_heads * shape.head_dim),
      v(std::size_t{count} * shape.n_kv_heads * shape.stored_value_dim()) {}

llama::Geometry Shape::geometry(std::uint32_t n_layers) const {
    lk_layer layer = llama::initialised(lk_layer_init);
    layer.n_query_heads = n_query_heads;
    layer.n_kv_heads = n_kv_heads;
    layer.head_dim = head_dim;
    layer.value_dim = value_dim;
    layer.flags = is_latent ? LK_LAYER_LATENT : 0;
    return {n_layers, layer};
}

StepData::StepData(const Shape &shape, std::uint32_t count, llama::Random &random)
    : StepData(shape, count) {
    fill_random(q, shape.head_dim, false, random);
    fill_random(k, shape.head_dim, true, random);
    fill_random(v, shape.output_dim(), false, random);
}

SyntheticCache::SyntheticCache(lk_context *context, llama::TensorSpace &space, const lk_plan *plan,
                               const Shape &shape, const CacheLimits &limits)
    : shape_(shape), space_(space), ids_(limits.n_sequences) {
    const llama::Geometry geometry = shape.geometry();
    lk_layer layer = geometry.layer();
    layer.sink_logits = shape.sink_logits.empty() ? nullptr : shape.sink_logits.data();
    lk_geometry view = geometry.view();
    view.layers = &layer;
    const std::uint32_t step_tokens =
        (limits.max_step_tokens + limits.n_sequences - 1) / limits.n_sequences;
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, limits.max_tokens + limits.max_step_tokens, limits.n_sequences,
                               step_tokens, &size));
    lk_cache_desc desc = llama::initialised(lk_cache_desc_init);
    desc.max_sequences = limits.n_sequences;
    desc.max_step_tokens = limits.max_step_tokens;
    // Slack for whole slabs: the plan's number is for the sizes of extents.
    desc.budget_bytes = size.cache_bytes + size.fp16_bytes + 2 * limits.slab_bytes;
    desc.slab_bytes = limits.slab_bytes;
    lk_cache *cache = nullptr;
    llama::check(lk_cache_create(context, &view, plan, &desc, &cache));
    cache_.reset(cache);
    for (lk_sequence &id : ids_)
        llama::check(lk_sequence_add(cache, &id));
}

void SyntheticCache::begin(std::uint32_t n_tokens) {
    const std::vector<std::uint32_t> counts(ids_.size(), n_tokens);
    llama::check(lk_step_begin(cache_.get(), space_.queue(), n_sequences(), ids_.data(),
                               counts.data(), nullptr));
}

void SyntheticCache::begin_one(std::uint32_t sequence, std::uint32_t n_tokens) {
    llama::check(
        lk_step_begin(cache_.get(), space_.queue(), 1, &ids_[sequence], &n_tokens, nullptr));
}

void SyntheticCache::append(StepData &data) {
    const llama::Extent keys = {data.n_tokens, shape_.n_kv_heads, shape_.head_dim};
    const llama::Extent values = {data.n_tokens, shape_.n_kv_heads, shape_.stored_value_dim()};
    append(
        space_.input(llama::Role::kKey, data.k.data(), keys),
        shape_.is_latent ? lk_tensor{} : space_.input(llama::Role::kValue, data.v.data(), values));
}

void SyntheticCache::append(const lk_tensor &k, const lk_tensor &v) {
    llama::check(lk_append(cache_.get(), 0, &k, shape_.is_latent ? nullptr : &v));
}

void SyntheticCache::attend(StepData &data, StepResult &result) {
    const llama::Extent extent = {data.n_tokens, shape_.n_query_heads, shape_.head_dim};
    const llama::Extent out_extent = {data.n_tokens, shape_.n_query_heads, shape_.output_dim()};
    const llama::Extent lse_extent = {data.n_tokens, shape_.n_query_heads, 1};
    result.out.resize(out_extent.count());
    result.lse.resize(lse_extent.count());
    const lk_tensor q = space_.input(llama::Role::kQuery, data.q.data(), extent);
    const lk_tensor out = space_.output(llama::Role::kOutput, result.out.data(), out_extent);
    const lk_tensor lse = space_.output(llama::Role::kLse, result.lse.data(), lse_extent);
    llama::check(lk_attend(cache_.get(), 0, &q, &out, &lse));
    space_.collect();
}

void SyntheticCache::attend(const lk_tensor &q, const lk_tensor &out) {
    llama::check(lk_attend(cache_.get(), 0, &q, &out, nullptr));
}

void SyntheticCache::commit() { llama::check(lk_step_commit(cache_.get(), nullptr)); }

void SyntheticCache::discard() { llama::check(lk_step_discard(cache_.get())); }

void SyntheticCache::shrink(std::uint32_t bits) {
    llama::check(lk_cache_shrink(cache_.get(), LK_ALL, bits));
}

void SyntheticCache::set_budget(std::uint64_t n_bytes) {
    llama::check(lk_cache_set_budget(cache_.get(), n_bytes));
}

lk_cache_stats SyntheticCache::stats() const {
    lk_cache_stats stats = llama::initialised(lk_cache_stats_init);
    llama::check(lk_cache_get_stats(cache_.get(), &stats));
    return stats;
}

}  // namespace cli
