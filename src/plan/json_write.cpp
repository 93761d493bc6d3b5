// A plan as JSON text (docs/PLAN.md). Runs of equal layers and heads are written once.
//
// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <cstdio>
#include <cstring>

#include "plan/plan.h"

namespace lk {

namespace {

// Text that grows; after a failed allocation it stays as it is.
class Text {
  public:
    void put(const char *text) { append(text, std::strlen(text)); }
    void put(uint64_t number) {
        char digits[24];
        append(digits, static_cast<size_t>(
                           std::to_chars(digits, digits + sizeof digits, number).ptr - digits));
    }
    // As a double, whose shortest text reads back to the same double and so to the same float.
    void put_real(float number) {
        char digits[40];
        const auto end = std::to_chars(digits, digits + sizeof digits, double{number}).ptr;
        append(digits, static_cast<size_t>(end - digits));
    }
    // A name holds no control characters.
    void put_quoted(const char *text) {
        put("\"");
        for (; *text; ++text) {
            if (*text == '"' || *text == '\\')
                put("\\");
            append(text, 1);
        }
        put("\"");
    }
    void member(const char *name, uint64_t number) {
        put("\"");
        put(name);
        put("\": ");
        put(number);
    }
    bool whole() const { return whole_; }
    const Array<char> &bytes() const { return bytes_; }

  private:
    void append(const char *text, size_t n) {
        const size_t at = bytes_.size();
        if (at + n > bytes_.capacity() && !bytes_.reserve(2 * (at + n) + 256))
            whole_ = false;
        if (!whole_)
            return;
        (void)bytes_.resize(at + n);
        std::memcpy(bytes_.data() + at, text, n);
    }

    Array<char> bytes_;
    bool whole_ = true;
};

void put_count(uint32_t count, Text *out) {
    out->put("{");
    out->member("count", count);
    out->put(", ");
}

void put_geometry_layer(const lk_layer &layer, uint32_t count, Text *out) {
    put_count(count, out);
    out->member("query_heads", layer.n_query_heads);
    out->put(", ");
    out->member("kv_heads", layer.n_kv_heads);
    out->put(", ");
    out->member("head_dim", layer.head_dim);
    out->put(", ");
    out->member("window", layer.window_tokens);
    out->put(", ");
    out->member("window_sinks", layer.window_sink_tokens);
    out->put(", \"scale\": ");
    out->put_real(layer.scale);
    out->put(", \"soft_cap\": ");
    out->put_real(layer.soft_cap);
    if (!owns_kv(layer)) {
        out->put(", ");
        out->member("kv_layer", layer.kv_layer);
    }
    if (layer.value_dim) {
        out->put(", ");
        out->member("value_dim", layer.value_dim);
    }
    if (is_latent(layer))
        out->put(", \"latent\": true");
    out->put("}");
}

void put_geometry(const Plan &plan, Text *out) {
    char hash[20];
    std::snprintf(hash, sizeof hash, "%016llx",
                  static_cast<unsigned long long>(geometry_hash(plan)));
    out->put("  \"geometry\": {\"hash\": ");
    out->put_quoted(hash);
    out->put(", \"layers\": [");
    const auto n = static_cast<uint32_t>(plan.layers.size());
    for (uint32_t l = 0, end; l < n; l = end) {
        for (end = l + 1;
             end < n && same_geometry(plan.layers[l].geometry, plan.layers[end].geometry);)
            ++end;
        out->put(l ? ",\n    " : "\n    ");
        put_geometry_layer(plan.layers[l].geometry, end - l, out);
    }
    out->put("]},\n");
}

template <class Number, class Put>
void put_array(const Number *numbers, uint32_t n, Text *out, const Put &put) {
    out->put("[");
    for (uint32_t i = 0; i < n; ++i) {
        out->put(i ? ", " : "");
        put(numbers[i]);
    }
    out->put("]");
}

void put_bytes(const uint8_t *values, uint32_t n, Text *out) {
    put_array(values, n, out, [out](uint8_t value) { out->put(uint64_t{value}); });
}

void put_ranges(const RangeRule &rule, Text *out) {
    if (rule.one_bit == OneBit::kRange)
        out->put(", \"one_bit\": \"range\"");
    if (rule.clip < 1) {
        out->put(", \"clip\": ");
        out->put_real(rule.clip);
    }
}

void put_key(const Plan &plan, uint32_t layer, uint32_t head, Text *out) {
    const KeyRule &rule = plan.key(layer, head);
    out->put("\"key\": {");
    out->member("bits", rule.bits);
    out->put(rule.axis == LK_AXIS_CHANNEL ? ", \"axis\": \"channel\", "
                                          : ", \"axis\": \"token\", ");
    out->member("group", rule.group);
    put_ranges(rule.ranges, out);
    if (rule.boost_channels) {
        out->put(", \"boost\": {");
        out->member("channels", rule.boost_channels);
        out->put(", ");
        out->member("bits", rule.boost_bits);
        out->put(rule.boost_ranking == LK_RANKING_KEY ? ", \"score\": \"key\"}"
                                                      : ", \"score\": \"query-range\"}");
    }
    if (rule.classes != kNoIndex) {
        out->put(", \"classes\": ");
        put_bytes(plan.channel_bits(layer, head), plan.layers[layer].geometry.head_dim, out);
    }
    const auto put_numbers = [&](const char *name, const float *numbers) {
        if (!numbers)
            return;
        out->put(name);
        put_array(numbers, plan.layers[layer].geometry.head_dim, out,
                  [out](float number) { out->put_real(number); });
    };
    put_numbers(", \"centers\": ", plan.key_centers(layer, head));
    put_numbers(", \"scales\": ", plan.key_scales(layer, head));
    out->put("}");
}

void put_heads(const Plan &plan, uint32_t layer, Text *out) {
    const uint32_t n = plan.layers[layer].geometry.n_kv_heads;
    for (uint32_t h = 0, end; h < n; h = end) {
        end = plan.run(layer, h).end;
        out->put(h ? ",\n      " : "\n      ");
        put_count(end - h, out);
        put_key(plan, layer, h, out);
        if (is_latent(plan.layers[layer].geometry)) {
            out->put("}");
            continue;
        }
        out->put(", \"value\": {");
        out->member("bits", plan.value(layer, h).bits);
        out->put(", ");
        out->member("group", plan.value(layer, h).group);
        put_ranges(plan.value(layer, h).ranges, out);
        out->put("}}");
    }
}

void put_layer(const Plan &plan, uint32_t layer, uint32_t count, Text *out) {
    const LayerPlan &own = plan.layers[layer];
    put_count(count, out);
    out->put("\"metadata\": \"");
    out->put(parameter_text(own.metadata));
    out->put("\", ");
    if (own.key_rotation)
        out->put("\"key_rotation\": \"hadamard\", ");
    if (own.n_rungs) {
        out->put("\"ladder\": ");
        put_bytes(own.rungs, own.n_rungs, out);
        out->put(", ");
        out->member("rung", own.rung);
        out->put(", ");
        if (own.shrink_order) {
            out->member("shrink_order", own.shrink_order);
            out->put(", ");
        }
        if (own.budget_bytes) {
            out->member("budget_bytes", own.budget_bytes);
            out->put(", ");
        }
    }
    out->put("\"heads\": [");
    put_heads(plan, layer, out);
    out->put("]}");
}

void put_layers(const Plan &plan, Text *out) {
    out->put("  \"layers\": [");
    const auto n = static_cast<uint32_t>(plan.layers.size());
    for (uint32_t l = 0, end; l < n; l = end) {
        for (end = l + 1; end < n && same_layer(plan, l, end);)
            ++end;
        out->put(l ? ",\n    " : "\n    ");
        put_layer(plan, l, end - l, out);
    }
    out->put("]\n");
}

void put_chunks(const ChunkRule &chunks, Text *out) {
    if (!chunks.tokens)
        return;
    out->put("  \"chunks\": {");
    out->member("tokens", chunks.tokens);
    constexpr const char *kNames[kChunkClasses] = {"low", "middle", "high"};
    for (uint32_t c = 0; c < kChunkClasses; ++c) {
        out->put(", ");
        out->member(kNames[c], chunks.bits[c]);
    }
    out->put(", \"alpha\": ");
    out->put_real(chunks.alpha);
    out->put(", \"beta\": ");
    out->put_real(chunks.beta);
    out->put(chunks.reorder ? ", \"reorder\": true" : ", \"reorder\": false");
    out->put(chunks.hold ? ", \"hold\": true},\n" : ", \"hold\": false},\n");
}

void put_plan(const Plan &plan, Text *out) {
    out->put("{\n  \"lowkey_plan\": 1,\n  \"name\": ");
    out->put_quoted(plan.name);
    out->put(",\n");
    put_geometry(plan, out);
    out->put("  ");
    out->member("page_tokens", plan.page_tokens);
    out->put(", ");
    out->member("sink_tokens", plan.sink_tokens);
    out->put(", ");
    out->member("window_tokens", plan.recent_tokens);
    out->put(",\n");
    put_chunks(plan.chunks, out);
    put_layers(plan, out);
    out->put("}\n");
}

}  // namespace

lk_status plan_to_json(const Plan &plan, char *buffer, size_t capacity_bytes,
                       size_t *needed_bytes) {
    Text text;
    put_plan(plan, &text);
    if (!text.whole())
        return fail(LK_E_NOMEM, "no memory for the JSON of a plan");
    const size_t length = text.bytes().size();
    if (needed_bytes)
        *needed_bytes = length + 1;
    if (!capacity_bytes)
        return LK_OK;
    if (capacity_bytes <= length)
        return fail(LK_E_ARGUMENT, "capacity_bytes is %zu, the plan's JSON needs %zu",
                    capacity_bytes, length + 1);
    std::memcpy(buffer, text.bytes().data(), length);
    buffer[length] = 0;
    return LK_OK;
}

}  // namespace lk
