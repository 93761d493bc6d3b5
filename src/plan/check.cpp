// Values on their own.
//
// SPDX-License-Identifier: Apache-2.0
#include "plan/check.h"

#include <cmath>
#include <cstring>

namespace lk {

namespace {

lk_status refuse(const Subject &s, const char *name, uint32_t value, const char *rule) {
    return fail(s.status, "%s%s is %u, must be %s", s.prefix, name, value, rule);
}

lk_status check_real(float value, const char *name, const Subject &s) {
    if (std::isfinite(value) && value >= 0)
        return LK_OK;
    return fail(s.status, "%s%s is %g, must be finite and at least 0", s.prefix, name,
                static_cast<double>(value));
}

// Of key channels.
lk_status check_numbers(const float *numbers, uint32_t head_dim, float least, float most,
                        const char *name, const Subject &s) {
    for (uint32_t c = 0; c < head_dim; ++c)
        if (!(numbers[c] >= least && numbers[c] <= most))
            return fail(s.status,
                        s.json ? "%s%s/%u is %g, must be from %g to %g"
                               : "%s%s[%u] is %g, must be from %g to %g",
                        s.prefix, name, c, static_cast<double>(numbers[c]),
                        static_cast<double>(least), static_cast<double>(most));
    return LK_OK;
}

lk_status check_width(uint32_t bits, const char *name, const Subject &s) {
    if (is_width(bits))
        return LK_OK;
    return fail(s.status, "%s%s is %u, must be one of %s", s.prefix, name, bits, kWidthList.text);
}

lk_status check_one_bit(lk_one_bit one_bit, const Subject &s) {
    if (one_bit != LK_ONE_BIT_DEVIATION && one_bit != LK_ONE_BIT_RANGE)
        return refuse(s, "one_bit", one_bit, "1 (deviation) or 2 (range)");
    return LK_OK;
}

lk_status check_clip(float clip, const Subject &s) {
    if (clip > 0 && clip <= 1)
        return LK_OK;
    return fail(s.status, "%sclip is %g, must be above 0 and at most 1", s.prefix,
                static_cast<double>(clip));
}

lk_status check_channel_group(uint32_t group, const Subject &s) {
    if (group % LK_MIN_GROUP || group > LK_MAX_HEAD_DIM)
        return refuse(s, "group", group, "0 or a multiple of 16 up to 576 channels");
    return LK_OK;
}

lk_status check_token_group(uint32_t group, const Subject &s) {
    if (group && (!is_power_of_two(group) || group < LK_MIN_GROUP || group > LK_MAX_PAGE_TOKENS))
        return refuse(s, "group", group, "0 or a power of two from 16 to 128 tokens");
    return LK_OK;
}

lk_status check_no_boost(const lk_key_rule &rule, const Subject &s) {
    if (rule.boost_bits)
        return refuse(s, s.name("boost_bits", "boost/bits"), rule.boost_bits,
                      "0 without boosted channels");
    if (rule.boost_ranking)
        return refuse(s, s.name("boost_ranking", "boost/score"), rule.boost_ranking,
                      "0 without boosted channels");
    return LK_OK;
}

lk_status check_boost(const lk_key_rule &rule, const Subject &s) {
    if (rule.channel_bits)
        return refuse(s, s.name("boost_channels", "boost/channels"), rule.boost_channels,
                      s.name("0 with channel_bits", "absent with classes"));
    if (rule.boost_channels > LK_MAX_HEAD_DIM)
        return refuse(s, s.name("boost_channels", "boost/channels"), rule.boost_channels,
                      "below head_dim");
    const char *bits_name = s.name("boost_bits", "boost/bits");
    const lk_status status = check_width(rule.boost_bits, bits_name, s);
    if (status != LK_OK)
        return status;
    if (rule.boost_bits <= rule.bits)
        return fail(s.status, "%s%s is %u, must be above the %u bits of the other channels",
                    s.prefix, bits_name, rule.boost_bits, rule.bits);
    if (rule.boost_ranking != LK_RANKING_KEY && rule.boost_ranking != LK_RANKING_QUERY_RANGE)
        return refuse(s, s.name("boost_ranking", "boost/score"), rule.boost_ranking,
                      "1 (mean |K|) or 2 (mean |Q| x range of K)");
    return LK_OK;
}

bool is_dim(uint32_t dim, uint32_t most) {
    return dim >= 32 && dim <= most && dim % LK_STRIP_CHANNELS == 0;
}

// Channels of keys and of values.
lk_status check_dims(const lk_layer &layer, const Subject &s) {
    if (layer.flags & ~LK_LAYER_LATENT)
        return refuse(s, "flags", layer.flags, "LK_LAYER_LATENT or 0");
    if (!is_latent(layer) && !is_dim(layer.head_dim, LK_MAX_PLAIN_DIM))
        return refuse(s, "head_dim", layer.head_dim, "a multiple of 16 from 32 to 512");
    if (!is_dim(layer.head_dim, LK_MAX_HEAD_DIM))
        return refuse(s, "head_dim", layer.head_dim,
                      "a multiple of 16 from 32 to 576 in a latent layer");
    const uint32_t dim = value_dim_of(layer);
    if (!is_dim(dim, LK_MAX_PLAIN_DIM))
        return refuse(s, "value_dim", dim, "a multiple of 16 from 32 to 512");
    if (is_latent(layer) && dim > layer.head_dim)
        return fail(s.status, "%svalue_dim is %u, must be at most head_dim %u in a latent layer",
                    s.prefix, dim, layer.head_dim);
    return LK_OK;
}

// Bytes of the UTF-8 character at text, 0 when there is none or it is a control character.
uint32_t character_bytes(const unsigned char *text) {
    const unsigned char first = text[0];
    if (first < 0x80)
        return first >= 0x20 && first != 0x7f;
    const uint32_t n = first >= 0xc2 && first < 0xe0   ? 2
                       : first >= 0xe0 && first < 0xf0 ? 3
                       : first >= 0xf0 && first < 0xf5 ? 4
                                                       : 0;
    for (uint32_t i = 1; i < n; ++i)
        if ((text[i] & 0xc0) != 0x80)
            return 0;
    const bool overlong = (first == 0xe0 && text[1] < 0xa0) || (first == 0xf0 && text[1] < 0x90);
    const bool beyond = (first == 0xed && text[1] > 0x9f) || (first == 0xf4 && text[1] > 0x8f);
    return overlong || beyond ? 0 : n;
}

}  // namespace

lk_status check_layer(const lk_layer &layer, const Subject &s) {
    if (!layer.n_kv_heads || layer.n_kv_heads > kMaxKvHeads)
        return refuse(s, s.name("n_kv_heads", "kv_heads"), layer.n_kv_heads, "from 1 to 1024");
    if (!layer.n_query_heads || layer.n_query_heads % layer.n_kv_heads ||
        layer.n_query_heads / layer.n_kv_heads > kMaxQueryGroup)
        return fail(s.status, "%s%s is %u, must be 1 to %u times the %u KV heads", s.prefix,
                    s.name("n_query_heads", "query_heads"), layer.n_query_heads, kMaxQueryGroup,
                    layer.n_kv_heads);
    LK_TRY(check_dims(layer, s));
    if (layer.window_sink_tokens && !layer.window_tokens)
        return refuse(s, s.name("window_sink_tokens", "window_sinks"), layer.window_sink_tokens,
                      "0 without a window");
    const lk_status status = check_real(layer.scale, "scale", s);
    return status == LK_OK ? check_real(layer.soft_cap, "soft_cap", s) : status;
}

lk_status take_kv_layer(lk_layer *layers, uint32_t layer, const Subject &s) {
    lk_layer &own = layers[layer];
    if (own.kv_layer == layer)
        own.kv_layer = LK_OWN_KV;
    if (owns_kv(own))
        return LK_OK;
    const uint32_t kv = own.kv_layer;
    if (kv > layer)
        return fail(s.status, "%skv_layer is %u, must be an earlier layer than %u, or none",
                    s.prefix, kv, layer);
    const lk_layer &named = layers[kv];
    if (!owns_kv(named))
        return fail(s.status, "%skv_layer is %u, which reads layer %u: name that layer", s.prefix,
                    kv, named.kv_layer);
    const struct {
        const char *name;
        uint32_t own;
        uint32_t named;
    } shared[] = {
        {s.name("n_kv_heads", "kv_heads"), own.n_kv_heads, named.n_kv_heads},
        {"head_dim", own.head_dim, named.head_dim},
        {"value_dim", value_dim_of(own), value_dim_of(named)},
        {s.name("flags", "latent"), own.flags, named.flags},
        {s.name("window_tokens", "window"), own.window_tokens, named.window_tokens},
        {s.name("window_sink_tokens", "window_sinks"), own.window_sink_tokens,
         named.window_sink_tokens},
    };
    for (const auto &field : shared)
        if (field.own != field.named)
            return fail(s.status, "%s%s is %u, must be %u as that of kv_layer %u", s.prefix,
                        field.name, field.own, field.named, kv);
    return LK_OK;
}

lk_status check_key_rule(const lk_key_rule &rule, const Subject &s) {
    lk_status status = check_width(rule.bits, "bits", s);
    if (status != LK_OK)
        return status;
    if (rule.axis != LK_AXIS_CHANNEL && rule.axis != LK_AXIS_TOKEN)
        return refuse(s, "axis", rule.axis, "1 (channel) or 2 (token)");
    status = rule.axis == LK_AXIS_CHANNEL ? check_token_group(rule.group, s)
                                          : check_channel_group(rule.group, s);
    if (status == LK_OK)
        status = check_one_bit(rule.one_bit, s);
    if (status == LK_OK)
        status = check_clip(rule.clip, s);
    if (status != LK_OK)
        return status;
    return rule.boost_channels ? check_boost(rule, s) : check_no_boost(rule, s);
}

lk_status check_classes(const uint8_t *channel_bits, uint32_t head_dim, const Subject &s) {
    for (uint32_t c = 0; c < head_dim; ++c)
        if (!is_width(channel_bits[c]))
            return fail(
                s.status,
                s.json ? "%s%s/%u is %u, must be one of %s" : "%s%s[%u] is %u, must be one of %s",
                s.prefix, s.name("channel_bits", "classes"), c, channel_bits[c], kWidthList.text);
    return LK_OK;
}

lk_status check_centers(const float *centers, uint32_t head_dim, const Subject &s) {
    constexpr float kMost = 65504;  // of FP16
    return check_numbers(centers, head_dim, -kMost, kMost, "centers", s);
}

lk_status check_scales(const float *scales, uint32_t head_dim, const Subject &s) {
    return check_numbers(scales, head_dim, kLeastScale, kMostScale, "scales", s);
}

lk_status check_value_rule(const lk_value_rule &rule, const Subject &s) {
    lk_status status = check_width(rule.bits, "bits", s);
    if (status == LK_OK)
        status = check_one_bit(rule.one_bit, s);
    if (status == LK_OK)
        status = check_clip(rule.clip, s);
    return status == LK_OK ? check_channel_group(rule.group, s) : status;
}

lk_status check_metadata(lk_metadata metadata, const Subject &s) {
    return is_parameter_format(metadata) ? LK_OK
                                         : refuse(s, "metadata", metadata, "1 (f16) or 2 (f8)");
}

lk_status check_rotation(lk_rotation rotation, const Subject &s) {
    return rotation <= LK_ROTATION_HADAMARD
               ? LK_OK
               : refuse(s, "rotation", rotation, "0 (none) or 1 (Hadamard)");
}

lk_status check_pages(uint32_t page_tokens, const Subject &s) {
    if (page_tokens != 32 && page_tokens != 64 && page_tokens != 128)
        return refuse(s, "page_tokens", page_tokens, "32, 64 or 128");
    return LK_OK;
}

lk_status check_chunk_rule(const lk_chunk_rule &rule, const Subject &s) {
    if (!rule.chunk_tokens)
        return LK_OK;
    if (rule.chunk_tokens < kMinChunkTokens || rule.chunk_tokens > kMaxChunkTokens)
        return refuse(s, s.name("chunk_tokens", "tokens"), rule.chunk_tokens, "from 8 to 256");
    const uint32_t bits[] = {rule.low_bits, rule.middle_bits, rule.high_bits};
    const char *names[] = {s.name("low_bits", "low"), s.name("middle_bits", "middle"),
                           s.name("high_bits", "high")};
    for (uint32_t c = 0; c < kChunkClasses; ++c)
        if (!is_rung(bits[c]) || (c && bits[c] <= bits[c - 1]))
            return fail(s.status, "%s%s is %u, must be one of %s and above the class before it",
                        s.prefix, names[c], bits[c], kRungList.text);
    const bool in_range = rule.alpha >= 0 && rule.beta >= 0 && rule.alpha + rule.beta < 1;
    if (!in_range)
        return fail(s.status, "%salpha is %g and beta %g, must be from 0 with a sum below 1",
                    s.prefix, static_cast<double>(rule.alpha), static_cast<double>(rule.beta));
    if (rule.reorder > 1)
        return refuse(s, "reorder", rule.reorder, "0 or 1");
    return rule.hold > 1 ? refuse(s, "hold", rule.hold, "0 or 1") : LK_OK;
}

lk_status check_recent(uint32_t sink_tokens, uint32_t recent_tokens, const Subject &s) {
    if (sink_tokens > kMaxSinkTokens || sink_tokens % LK_TILE_TOKENS)
        return refuse(s, "sink_tokens", sink_tokens, "a multiple of 16 up to 1024");
    if (recent_tokens > kMaxRecentTokens)
        return refuse(s, s.name("recent_tokens", "window_tokens"), recent_tokens, "at most 65536");
    return LK_OK;
}

lk_status check_ladder(const uint8_t *rungs, uint32_t n_rungs, uint32_t rung, const Subject &s) {
    if (n_rungs > kMaxRungs)
        return refuse(s, s.name("n_rungs", "ladder's length"), n_rungs, "at most 4");
    if (!n_rungs)
        return rung ? refuse(s, "rung", rung, "0 without a ladder") : LK_OK;
    bool has_rung = false;
    for (uint32_t i = 0; i < n_rungs; ++i) {
        const uint32_t bits = rungs[i];
        if (!is_rung(bits) || (i && bits >= rungs[i - 1]))
            return fail(s.status,
                        s.json ? "%s%s/%u is %u, must be one of %s and below the rung before it"
                               : "%s%s[%u] is %u, must be one of %s and below the rung before it",
                        s.prefix, s.name("rungs", "ladder"), i, bits, kLadderList.text);
        has_rung |= bits == rung;
    }
    return has_rung ? LK_OK : refuse(s, "rung", rung, "one of the ladder's");
}

lk_status check_shrink_order(uint32_t order, const Subject &s) {
    return order <= UINT16_MAX ? LK_OK
                               : refuse(s, s.name("order", "shrink_order"), order, "at most 65535");
}

lk_status check_layer_budget(uint64_t budget_bytes, const Subject &s) {
    constexpr uint64_t kMost = uint64_t{1} << 53;  // every JSON reader's numbers are exact to here
    return budget_bytes && budget_bytes <= kMost
               ? LK_OK
               : fail(s.status, "%sbudget_bytes is %llu, must be from 1 to 2^53", s.prefix,
                      static_cast<unsigned long long>(budget_bytes));
}

lk_status check_name(const char *name, const Subject &s) {
    const size_t length = std::strlen(name);
    if (!length || length > kMaxNameBytes)
        return fail(s.status, "%sname has %zu bytes, must have 1 to 63", s.prefix, length);
    const auto *text = reinterpret_cast<const unsigned char *>(name);
    for (size_t at = 0; text[at];) {
        const uint32_t n = character_bytes(text + at);
        if (!n)
            return fail(s.status,
                        "%sname has 0x%02x at byte %zu, must be UTF-8 without control "
                        "characters",
                        s.prefix, text[at], at);
        at += n;
    }
    return LK_OK;
}

}  // namespace lk
