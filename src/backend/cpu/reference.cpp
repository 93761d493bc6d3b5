// SPDX-License-Identifier: Apache-2.0
#include "backend/cpu/reference.h"

#include <cmath>

#include "backend/cpu/element.h"
#include "base/status.h"
#include "format/codec.h"
#include "format/rotation.h"

namespace lk {
namespace cpu {

namespace {

constexpr double kNaN = __builtin_nan("");
constexpr uint32_t kAtOnce = 4;  // channels or tokens whose products are added in one pass

// Keys and values of one (sequence, KV head), history first, then the new tokens. Keys lie by
// channel, so that the products of many tokens are summed next to each other.
struct Decoded {
    double *keys;    // [head_dim][most_tokens]
    double *values;  // [most_tokens][value_dim]
    uint64_t most_tokens;
};

// Where decoded numbers go, in doubles.
struct Target {
    double *first;
    uint64_t token_stride;
    uint64_t channel_stride;

    double &at(uint64_t token, uint64_t channel) const {
        return first[token * token_stride + channel * channel_stride];
    }
};
Target key_target(const Decoded &out, uint64_t first_token) {
    return {out.keys + first_token, 1, out.most_tokens};
}
Target value_target(const Decoded &out, uint64_t first_token, uint64_t value_dim) {
    return {out.values + first_token * value_dim, value_dim, 1};
}

// A thread's memory: everything for the longest sequence.
struct Scratch {
    Decoded decoded;
    double *logits;       // [tokens], then weights
    double *output;       // [value_dim]
    double *query;        // [head_dim]
    uint64_t *positions;  // [n_new]
    uint8_t *visible;     // [n_new]
};

void decode_page(const PageFormat &format, uint64_t payload_address, uint64_t metadata_address,
                 uint32_t n_tokens, const Target &to) {
    const PageLayout &layout = format.layout;
    const auto *payload = reinterpret_cast<const uint8_t *>(payload_address);
    const auto *metadata = reinterpret_cast<const uint8_t *>(metadata_address);
    const bool by_token = layout.axis == Axis::kToken;
    Parameters of_tokens[LK_MAX_PAGE_TOKENS];  // by token, of the group that was read last
    uint32_t read_group = UINT32_MAX;
    for (uint32_t stored = 0; stored < layout.head_dim; ++stored) {
        const StoredChannel values(layout, payload, metadata, stored);
        const uint32_t channel = channel_of(layout, metadata, format.permutation, stored);
        if (values.bits() == 16) {
            for (uint32_t token = 0; token < n_tokens; ++token)
                to.at(token, channel) =
                    static_cast<double>(half_to_float(static_cast<uint16_t>(values.code(token))));
            continue;
        }
        if (by_token && stored / layout.group != read_group) {
            read_group = stored / layout.group;
            for (uint32_t token = 0; token < n_tokens; ++token)
                of_tokens[token] = values.parameters(token);
        }
        const double step = static_cast<double>(code_step(values.bits()));
        Parameters of_group = {};
        for (uint32_t token = 0; token < n_tokens; ++token) {
            if (!by_token && token % layout.group == 0)
                of_group = values.parameters(token);
            const Parameters &p = by_token ? of_tokens[token] : of_group;
            to.at(token, channel) =
                static_cast<double>(p.minimum) +
                static_cast<double>(values.code(token)) * static_cast<double>(p.range) * step;
        }
    }
}

// Values of n tokens from `first` on that are channels of their keys.
void copy_values(const LayerView &layer, uint64_t first, uint64_t n, const Decoded &out) {
    const Target keys = key_target(out, first), values = value_target(out, first, layer.value_dim);
    for (uint64_t t = 0; t < n; ++t)
        for (uint32_t c = 0; c < layer.value_dim; ++c)
            values.at(t, c) = keys.at(t, c);
}

// Tokens [0, n_tokens) that lie in rows.
void decode_blocks(const AttendCall &args, const BatchSequence &sequence, uint32_t kv_head,
                   uint64_t n_tokens, const Decoded &out) {
    const LayerView &layer = args.layer;
    for (uint32_t r = 0; r < sequence.n_attended; ++r) {
        const Block &block = *sequence.blocks[r];
        if (block.first_token >= n_tokens)
            break;
        const uint64_t rest = n_tokens - block.first_token;
        const auto n =
            static_cast<uint32_t>(rest < block.capacity_tokens ? rest : block.capacity_tokens);
        const PageEntry &entry = block.entries[args.first_entry + kv_head];
        if (entry.is_absent)
            continue;
        decode_page(args.classes[entry.key_format], entry.key_payload, entry.key_metadata, n,
                    key_target(out, block.first_token));
        if (layer.is_latent)
            copy_values(layer, block.first_token, n, out);
        else
            decode_page(args.classes[entry.value_format], entry.value_payload, entry.value_metadata,
                        n, value_target(out, block.first_token, layer.value_dim));
    }
}

void decode_staged(const AttendCall &args, const BatchSequence &sequence, uint32_t kv_head,
                   const Decoded &out) {
    const LayerView &layer = args.layer;
    const uint64_t first = uint64_t{kv_head} * args.staging.n_tokens + sequence.first_new;
    const auto decode = [&](const uint16_t *area, uint64_t dim, const Target &to) {
        for (uint64_t t = 0; t < sequence.n_new; ++t)
            for (uint64_t c = 0; c < dim; ++c)
                to.at(t, c) = static_cast<double>(half_to_float(area[(first + t) * dim + c]));
    };
    decode(args.staging.k, layer.head_dim, key_target(out, sequence.n_history));
    if (layer.is_latent)
        copy_values(layer, sequence.n_history, sequence.n_new, out);
    else
        decode(args.staging.v, layer.value_dim,
               value_target(out, sequence.n_history, layer.value_dim));
}

// Positions of the new tokens.
void fill_positions(const BatchSequence &sequence, uint64_t *positions) {
    for (uint32_t i = 0; i < sequence.n_new; ++i) {
        const int32_t parent = sequence.parent ? sequence.parent[i] : static_cast<int32_t>(i) - 1;
        positions[i] = parent < 0 ? sequence.n_history : positions[parent] + 1;
    }
}

// Which new tokens are visible to `query`: its ancestors and itself, or all up to its reach.
void mark_visible(const LayerView &layer, const BatchSequence &sequence, uint32_t query,
                  uint8_t *visible) {
    const uint32_t *reach = layer_reach(layer, sequence);
    std::memset(visible, 0, sequence.n_new);
    if (reach)
        std::memset(visible, 1, reach[query] + size_t{1});
    for (int32_t i = static_cast<int32_t>(query); i >= 0;) {
        visible[i] = 1;
        i = sequence.parent ? sequence.parent[i] : i - 1;
    }
}

bool in_window(const LayerView &layer, uint64_t query, uint64_t key) {
    return !layer.window_tokens || key + layer.window_tokens > query ||
           key < layer.window_sink_tokens;
}

// q . c, which joins q . (k - c).
double dot_centers(const LayerView &layer, const double *q, const float *centers) {
    double dot = 0;
    for (uint32_t c = 0; centers && c < layer.head_dim; ++c)
        dot += q[c] * static_cast<double>(centers[c]);
    return dot;
}

// Logits of n keys, whether they are visible or not.
void multiply_keys(const AttendCall &args, uint32_t kv_head, uint64_t n, const Scratch &scratch) {
    const LayerView &layer = args.layer;
    const float *scales = head_numbers(layer, layer.key_scales, kv_head);  // of keys, or null
    const double start =
        dot_centers(layer, scratch.query, head_numbers(layer, layer.key_centers, kv_head));
    for (uint64_t t = 0; t < n; ++t)
        scratch.logits[t] = start;
    if (layer.key_rotation) {
        // The scales come before the rotation, so they are the query's.
        for (uint32_t c = 0; scales && c < layer.head_dim; ++c)
            scratch.query[c] *= static_cast<double>(scales[c]);
        rotate_blocks(scratch.query, layer.head_dim, layer.key_rotation);
        scales = nullptr;
    }
    // Four channels at a time, added one after the other: a logit is loaded and stored for all
    // four.
    const auto scale = [&](uint32_t c) { return scales ? static_cast<double>(scales[c]) : 1.0; };
    const uint64_t stride = scratch.decoded.most_tokens;
    for (uint32_t c = 0; c < layer.head_dim; c += kAtOnce) {
        const double *q = scratch.query + c;
        const double s[kAtOnce] = {scale(c), scale(c + 1), scale(c + 2), scale(c + 3)};
        const double *column = scratch.decoded.keys + c * stride;
        for (uint64_t t = 0; t < n; ++t) {
            double sum = scratch.logits[t];
            sum += q[0] * (s[0] * column[t]);
            sum += q[1] * (s[1] * column[t + stride]);
            sum += q[2] * (s[2] * column[t + 2 * stride]);
            sum += q[3] * (s[3] * column[t + 3 * stride]);
            scratch.logits[t] = sum;
        }
    }
}

// Sum values times weights in the order of their tokens, without hidden ones, whose values may be
// NaN.
void add_values(const Scratch &scratch, uint64_t n_tokens, uint32_t value_dim) {
    double w[kAtOnce];
    const double *v[kAtOnce];
    uint32_t n = 0;
    for (uint64_t t = 0; t < n_tokens; ++t) {
        if (scratch.logits[t] == 0)
            continue;
        w[n] = scratch.logits[t];
        v[n++] = scratch.decoded.values + t * value_dim;
        if (n < kAtOnce)
            continue;
        n = 0;
        for (uint32_t c = 0; c < value_dim; ++c) {
            double sum = scratch.output[c];
            sum += w[0] * v[0][c];
            sum += w[1] * v[1][c];
            sum += w[2] * v[2][c];
            sum += w[3] * v[3][c];
            scratch.output[c] = sum;
        }
    }
    for (uint32_t i = 0; i < n; ++i)
        for (uint32_t c = 0; c < value_dim; ++c)
            scratch.output[c] += w[i] * v[i][c];
}

double scale_and_cap(const LayerView &layer, double dot) {
    dot *= static_cast<double>(layer.scale);
    const double cap = static_cast<double>(layer.soft_cap);
    return cap > 0 ? cap * std::tanh(dot / cap) : dot;
}

void compute_logits(const AttendCall &args, const BatchSequence &sequence, uint32_t query,
                    const uint8_t *q, uint32_t kv_head, const Scratch &scratch) {
    const double hidden = -HUGE_VAL;
    const uint64_t n_tokens = sequence.n_history + sequence.n_new;
    for (uint32_t c = 0; c < args.layer.head_dim; ++c)
        scratch.query[c] = static_cast<double>(load_element(q, args.q.dtype, c));
    multiply_keys(args, kv_head, n_tokens, scratch);
    const uint64_t position = scratch.positions[query];
    for (uint64_t t = 0; t < n_tokens; ++t) {
        const bool is_new = t >= sequence.n_history;
        const uint64_t at = is_new ? scratch.positions[t - sequence.n_history] : t;
        const bool seen = (!is_new || scratch.visible[t - sequence.n_history]) &&
                          in_window(args.layer, position, at);
        scratch.logits[t] = seen ? scale_and_cap(args.layer, scratch.logits[t]) : hidden;
    }
}

// Turn logits into weights; returns their sum with the sink's, relative to *top.
double compute_weights(double *logits, uint64_t n, const float *sink, double *top) {
    *top = sink ? static_cast<double>(*sink) : -HUGE_VAL;
    for (uint64_t t = 0; t < n; ++t)
        *top = logits[t] > *top ? logits[t] : *top;
    double sum = sink ? std::exp(static_cast<double>(*sink) - *top) : 0;
    for (uint64_t t = 0; t < n; ++t) {
        logits[t] = std::exp(logits[t] - *top);
        sum += logits[t];
    }
    return sum;
}

void store_row(const AttendCall &args, uint64_t token, uint32_t head, const double *output,
               double divisor, double lse) {
    uint8_t *out = tensor_row(args.out, token, head);
    for (uint32_t c = 0; c < args.layer.value_dim; ++c)
        store_element(out, args.out.dtype, c, static_cast<float>(output[c] / divisor));
    if (args.lse)
        args.lse[static_cast<int64_t>(token) * args.lse_token_stride +
                 static_cast<int64_t>(head) * args.lse_head_stride] = static_cast<float>(lse);
}

void attend_row(const AttendCall &args, const BatchSequence &sequence, uint32_t query,
                uint32_t head, const Scratch &scratch) {
    const uint64_t n_tokens = sequence.n_history + sequence.n_new;
    const uint32_t value_dim = args.layer.value_dim;
    const uint64_t token = static_cast<uint64_t>(sequence.first_new) + query;
    const uint32_t kv_head = head / (args.layer.n_query_heads / args.layer.n_kv_heads);
    for (uint32_t c = 0; c < value_dim; ++c)
        scratch.output[c] = 0;
    const uint8_t *q = tensor_row(args.q, token, head);
    if (is_beyond_limit(args.layer, q, args.q.dtype)) {
        store_row(args, token, head, scratch.output, kNaN, kNaN);
        return;
    }
    compute_logits(args, sequence, query, q, kv_head, scratch);
    double top;
    const float *sink = args.layer.sink_logits ? args.layer.sink_logits + head : nullptr;
    const double sum = compute_weights(scratch.logits, n_tokens, sink, &top);
    add_values(scratch, n_tokens, value_dim);
    store_row(args, token, head, scratch.output, sum, top + std::log(sum));
}

void attend_head(const AttendCall &args, const BatchSequence &sequence, uint32_t kv_head,
                 const Scratch &scratch) {
    const uint32_t group = args.layer.n_query_heads / args.layer.n_kv_heads;
    decode_blocks(args, sequence, kv_head,
                  sequence.n_history + (sequence.new_in_blocks ? sequence.n_new : 0),
                  scratch.decoded);
    if (!sequence.new_in_blocks)
        decode_staged(args, sequence, kv_head, scratch.decoded);
    fill_positions(sequence, scratch.positions);
    for (uint32_t query = 0; query < sequence.n_new; ++query) {
        mark_visible(args.layer, sequence, query, scratch.visible);
        for (uint32_t h = 0; h < group; ++h)
            attend_row(args, sequence, query, kv_head * group + h, scratch);
    }
}

struct Sizes {
    uint64_t tokens = 0;
    uint64_t n_new = 0;
};

Sizes longest(const AttendCall &args) {
    Sizes sizes;
    for (uint32_t s = 0; s < args.n_sequences; ++s) {
        const uint64_t tokens = args.sequences[s].n_history + args.sequences[s].n_new;
        sizes.tokens = tokens > sizes.tokens ? tokens : sizes.tokens;
        sizes.n_new = args.sequences[s].n_new > sizes.n_new ? args.sequences[s].n_new : sizes.n_new;
    }
    return sizes;
}

// Doubles that a thread's scratch takes.
uint64_t scratch_doubles(const Sizes &sizes, const LayerView &layer) {
    return sizes.tokens * (uint64_t{layer.head_dim} + layer.value_dim + 1) + layer.value_dim +
           layer.head_dim + sizes.n_new + (sizes.n_new + 7) / 8;
}

Scratch cut_scratch(double *memory, const Sizes &sizes, const LayerView &layer) {
    Scratch scratch;
    scratch.decoded = {memory, memory + sizes.tokens * layer.head_dim, sizes.tokens};
    scratch.logits = scratch.decoded.values + sizes.tokens * layer.value_dim;
    scratch.output = scratch.logits + sizes.tokens;
    scratch.query = scratch.output + layer.value_dim;
    scratch.positions = reinterpret_cast<uint64_t *>(scratch.query + layer.head_dim);
    scratch.visible = reinterpret_cast<uint8_t *>(scratch.positions + sizes.n_new);
    return scratch;
}

}  // namespace

lk_status reference_attend(const AttendCall &args, ThreadPool *pool, const Allocator &allocator) {
    const Sizes sizes = longest(args);
    const uint64_t each = scratch_doubles(sizes, args.layer);
    Array<double> memory(allocator);
    if (!memory.reserve(each * pool->size()))
        return fail(LK_E_NOMEM, "no memory for the reference's %llu values",
                    static_cast<unsigned long long>(each * pool->size()));
    return pool->parallel_for(
        args.n_sequences * args.layer.n_kv_heads, [&](uint32_t index, uint32_t thread) {
            const Scratch scratch = cut_scratch(memory.data() + each * thread, sizes, args.layer);
            attend_head(args, args.sequences[index / args.layer.n_kv_heads],
                        index % args.layer.n_kv_heads, scratch);
        });
}

}  // namespace cpu
}  // namespace lk
