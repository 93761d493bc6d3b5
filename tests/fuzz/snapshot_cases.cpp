// SPDX-License-Identifier: Apache-2.0
#include "snapshot_cases.h"

#include <cstdlib>

namespace {

void require(bool condition) {
    if (!condition)
        std::abort();
}

// Key (0), value (1) or query (2), between -1 and 1, exact in FP16.
float number(uint32_t kind, uint32_t layer, uint32_t head, uint64_t position, uint32_t channel) {
    const auto mixed = static_cast<uint32_t>(position * 2654435761u + channel * 40503u +
                                             head * 9176u + layer * 7919u + kind * 104729u);
    return static_cast<float>(static_cast<int32_t>(mixed * 2246822519u >> 21) - 1024) / 1024.0f;
}

constexpr uint64_t kStateBytes[] = {16, 48};
constexpr uint32_t kStates = 2;

// What tests/second_opinion/snapshot.py knows of states after n tokens.
void write_states(lk_cache *cache, uint64_t n_tokens) {
    for (uint32_t s = 0; s < kStates; ++s) {
        std::vector<uint8_t> bytes(kStateBytes[s]);
        for (size_t b = 0; b < bytes.size(); ++b)
            bytes[b] = static_cast<uint8_t>(n_tokens * 31 + s * 7 + b);
        require(lk_step_write_state(cache, 0, s, bytes.data(), bytes.size()) == LK_OK);
    }
}

lk_tensor tensor(std::vector<float> *data, uint32_t n_heads, uint32_t head_dim) {
    lk_tensor made;
    require(lk_tensor_init(&made, sizeof made) == LK_OK);
    made.dtype = LK_F32;
    made.memory = LK_MEMORY_HOST;
    made.data = data->data();
    made.token_stride = static_cast<int64_t>(n_heads) * head_dim;
    made.head_stride = head_dim;
    return made;
}

void fill_tensor(uint32_t kind, uint32_t layer, uint64_t position, uint32_t n, uint32_t n_heads,
                 uint32_t head_dim, std::vector<float> *out) {
    for (uint32_t t = 0; t < n; ++t)
        for (uint32_t h = 0; h < n_heads; ++h)
            for (uint32_t c = 0; c < head_dim; ++c)
                out->push_back(number(kind, layer, h, position + t, c));
}

lk_status run_layer(lk_cache *cache, uint32_t l, const lk_layer &layer, uint64_t position,
                    uint32_t n) {
    const uint32_t value_dim = layer.value_dim ? layer.value_dim : layer.head_dim;
    std::vector<float> keys, values, queries;
    fill_tensor(0, l, position, n, layer.n_kv_heads, layer.head_dim, &keys);
    fill_tensor(1, l, position, n, layer.n_kv_heads, value_dim, &values);
    fill_tensor(2, l, position, n, layer.n_query_heads, layer.head_dim, &queries);
    std::vector<float> out(size_t{n} * layer.n_query_heads * value_dim);
    const lk_tensor k = tensor(&keys, layer.n_kv_heads, layer.head_dim);
    const lk_tensor v = tensor(&values, layer.n_kv_heads, value_dim);
    const lk_tensor q = tensor(&queries, layer.n_query_heads, layer.head_dim);
    const lk_tensor o = tensor(&out, layer.n_query_heads, value_dim);
    const lk_status status = lk_append(cache, l, &k, layer.flags & LK_LAYER_LATENT ? nullptr : &v);
    return status ? status : lk_attend(cache, l, &q, &o, nullptr);
}

void boost_by_queries(lk_plan *plan) {
    lk_key_rule rule;
    require(lk_key_rule_init(&rule, sizeof rule) == LK_OK);
    rule.bits = 2;
    rule.boost_channels = 16;
    rule.boost_bits = 4;
    rule.boost_ranking = LK_RANKING_QUERY_RANGE;
    lk_value_rule value;
    require(lk_value_rule_init(&value, sizeof value) == LK_OK);
    value.bits = 4;
    require(lk_plan_set_key(plan, LK_ALL, LK_ALL, &rule) == LK_OK);
    require(lk_plan_set_value(plan, LK_ALL, LK_ALL, &value) == LK_OK);
    require(lk_plan_set_recent(plan, 48, 20) == LK_OK);
}

void mix_widths(lk_plan *plan) {
    lk_key_rule shared;
    require(lk_key_rule_init(&shared, sizeof shared) == LK_OK);
    uint8_t bits[32];
    for (uint8_t &b : bits)
        b = 2;
    bits[3] = bits[20] = 3;
    bits[9] = bits[30] = 1;
    shared.bits = 2;
    shared.one_bit = LK_ONE_BIT_RANGE;
    shared.group = 16;
    shared.channel_bits = bits;
    require(lk_plan_set_key(plan, 0, LK_ALL, &shared) == LK_OK);
    require(lk_plan_set_metadata(plan, 0, LK_METADATA_F8) == LK_OK);
    lk_key_rule by_token;
    require(lk_key_rule_init(&by_token, sizeof by_token) == LK_OK);
    by_token.bits = 8;
    by_token.axis = LK_AXIS_TOKEN;
    by_token.group = 32;
    require(lk_plan_set_key(plan, 1, LK_ALL, &by_token) == LK_OK);
    float centers[48];
    for (uint32_t c = 0; c < 48; ++c)
        centers[c] = static_cast<float>(c) / 64.0f;
    require(lk_plan_set_key_centers(plan, 1, 0, centers) == LK_OK);
    lk_value_rule value;
    require(lk_value_rule_init(&value, sizeof value) == LK_OK);
    value.bits = 2;
    value.group = 16;
    require(lk_plan_set_value(plan, 1, LK_ALL, &value) == LK_OK);
    require(lk_plan_set_recent(plan, 16, 0) == LK_OK);
}

void add_chunks(lk_plan *plan) {
    lk_key_rule key;
    require(lk_key_rule_init(&key, sizeof key) == LK_OK);
    key.bits = 16;
    key.group = 32;
    lk_value_rule value;
    require(lk_value_rule_init(&value, sizeof value) == LK_OK);
    value.bits = 16;
    lk_chunk_rule chunks;
    require(lk_chunk_rule_init(&chunks, sizeof chunks) == LK_OK);
    chunks.chunk_tokens = 16;
    chunks.reorder = chunks.hold = 1;
    require(lk_plan_set_key(plan, LK_ALL, LK_ALL, &key) == LK_OK);
    require(lk_plan_set_value(plan, LK_ALL, LK_ALL, &value) == LK_OK);
    require(lk_plan_set_chunks(plan, &chunks) == LK_OK);
    require(lk_plan_set_recent(plan, 16, 0) == LK_OK);
}

void pack_latent(lk_plan *plan) {
    lk_key_rule key;
    require(lk_key_rule_init(&key, sizeof key) == LK_OK);
    key.bits = 4;
    key.axis = LK_AXIS_TOKEN;
    key.group = 32;
    lk_value_rule value;
    require(lk_value_rule_init(&value, sizeof value) == LK_OK);
    value.bits = 4;
    require(lk_plan_set_key(plan, LK_ALL, LK_ALL, &key) == LK_OK);
    require(lk_plan_set_value(plan, LK_ALL, LK_ALL, &value) == LK_OK);
    require(lk_plan_set_recent(plan, 16, 0) == LK_OK);
}

// A rotation alone, under sums of queries, and one after centers and scales.
void rotate_keys(lk_plan *plan) {
    boost_by_queries(plan);
    lk_key_rule key;
    require(lk_key_rule_init(&key, sizeof key) == LK_OK);
    key.bits = 4;
    require(lk_plan_set_key(plan, 1, LK_ALL, &key) == LK_OK);
    float centers[48], scales[48];
    for (uint32_t c = 0; c < 48; ++c) {
        centers[c] = static_cast<float>(c) / 64.0f;
        scales[c] = 0.5f + static_cast<float>(c % 7) / 3.0f;
    }
    require(lk_plan_set_key_centers(plan, 1, 0, centers) == LK_OK);
    require(lk_plan_set_key_scales(plan, 1, 0, scales) == LK_OK);
    require(lk_plan_set_key_rotation(plan, LK_ALL, LK_ROTATION_HADAMARD) == LK_OK);
}

void keep_exact(lk_plan *plan) { require(lk_plan_set_recent(plan, 0, 0) == LK_OK); }

}  // namespace

SnapshotCase::SnapshotCase(lk_context *context, uint32_t which) : which_(which) {
    for (lk_layer &layer : layers_) {
        require(lk_layer_init(&layer, sizeof layer) == LK_OK);
        layer.n_query_heads = 2;
        layer.n_kv_heads = 1;
        layer.head_dim = 32;
    }
    layers_[1].head_dim = 48;
    require(lk_geometry_init(&geometry_, sizeof geometry_) == LK_OK);
    if (which == 4) {
        layers_[0].value_dim = 48;
        layers_[1].head_dim = 64;
        layers_[1].value_dim = 48;
        layers_[1].flags = LK_LAYER_LATENT;
    }
    geometry_.n_layers = which == 1 || which >= 4 ? 2 : 1;
    geometry_.layers = layers_;
    require(lk_plan_preset("fp16", &geometry_, &plan_) == LK_OK);
    require(lk_plan_set_pages(plan_, 32) == LK_OK);
    constexpr void (*kPlans[kSnapshotCases])(lk_plan *) = {
        boost_by_queries, mix_widths, add_chunks, keep_exact, pack_latent, rotate_keys};
    kPlans[which](plan_);
    lk_cache_desc desc;
    require(lk_cache_desc_init(&desc, sizeof desc) == LK_OK);
    desc.max_sequences = kCaseSequences;
    desc.max_step_tokens = 128;
    desc.budget_bytes = kCaseBudget;
    desc.slab_bytes = 1u << 20;
    desc.state_bytes = kStateBytes;
    desc.n_states = which == 3 ? kStates : 0;
    desc.state_versions = 2;
    desc.state_interval_tokens = 24;
    require(lk_cache_create(context, &geometry_, plan_, &desc, &cache_) == LK_OK);
}

SnapshotCase::~SnapshotCase() {
    lk_cache_destroy(&cache_);
    lk_plan_destroy(&plan_);
}

bool SnapshotCase::append(lk_sequence id, uint32_t n, uint32_t chunk) {
    uint64_t position = 0;
    require(lk_sequence_length(cache_, id, &position) == LK_OK);
    for (uint32_t done = 0; done < n;) {
        const uint32_t part = n - done < chunk ? n - done : chunk;
        if (lk_step_begin(cache_, nullptr, 1, &id, &part, nullptr) != LK_OK)
            return false;
        for (uint32_t l = 0; l < geometry_.n_layers; ++l)
            require(run_layer(cache_, l, layers_[l], position, part) == LK_OK);
        if (which_ == 3)
            write_states(cache_, position + part);
        require(lk_step_commit(cache_, nullptr) == LK_OK);
        done += part;
        position += part;
    }
    return true;
}

void SnapshotCase::fill_chunks() {
    constexpr lk_chunk_class kClasses[] = {LK_CHUNK_HIGH, LK_CHUNK_LOW, LK_CHUNK_MIDDLE,
                                           LK_CHUNK_LOW,  LK_CHUNK_LOW, LK_CHUNK_MIDDLE};
    lk_sequence first = 0, second = 0, third = 0;
    require(lk_sequence_add(cache_, &first) == LK_OK);
    require(lk_sequence_defer(cache_, first, LK_DEFER_REFUSE) == LK_OK && append(first, 115, 40));
    require(lk_chunks_assign(cache_, first, 115, 6, kClasses, nullptr) == LK_OK);
    require(append(first, 9, 3));
    require(lk_sequence_fork(cache_, first, LK_ALL_TOKENS, &second) == LK_OK);
    require(append(second, 5, 2));
    require(lk_sequence_add(cache_, &third) == LK_OK);
    require(lk_sequence_defer(cache_, third, LK_DEFER_PACK) == LK_OK && append(third, 59, 30));
}

void SnapshotCase::use_chunks(lk_sequence id) {
    lk_chunks_info info;
    require(lk_chunks_info_init(&info, sizeof info) == LK_OK);
    if (lk_chunks_get(cache_, id, &info, 0, nullptr, nullptr, nullptr) == LK_E_UNSUPPORTED)
        return;
    uint64_t length = 0;
    require(lk_sequence_length(cache_, id, &length) == LK_OK);
    std::vector<lk_chunk_class> classes;
    for (uint64_t t = info.first_token + info.chunk_tokens; t <= length; t += info.chunk_tokens)
        classes.push_back(LK_CHUNK_LOW + static_cast<uint32_t>(t / info.chunk_tokens % 3));
    (void)lk_chunks_assign(cache_, id, length, static_cast<uint32_t>(classes.size()),
                           classes.data(), nullptr);
    require(lk_sequence_defer(cache_, id, LK_DEFER_PACK) == LK_OK);
}

void SnapshotCase::fill() {
    if (which_ == 2) {
        fill_chunks();
        return;
    }
    lk_sequence first = 0, second = 0, third = 0;
    require(lk_sequence_add(cache_, &first) == LK_OK && append(first, 110, 40));
    require(lk_sequence_fork(cache_, first, LK_ALL_TOKENS, &second) == LK_OK);
    require(append(second, 5, 2));
    require(lk_sequence_add(cache_, &third) == LK_OK && append(third, 7, 7));
}

void SnapshotCase::remove(lk_sequence id) { require(lk_sequence_remove(cache_, id) == LK_OK); }

std::vector<uint8_t> SnapshotCase::save() const {
    uint64_t needed = 0;
    require(lk_snapshot_save_memory(cache_, 0, nullptr, nullptr, nullptr, 0, &needed) == LK_OK);
    std::vector<uint8_t> bytes(needed);
    require(lk_snapshot_save_memory(cache_, 0, nullptr, nullptr, bytes.data(), needed, nullptr) ==
            LK_OK);
    return bytes;
}
