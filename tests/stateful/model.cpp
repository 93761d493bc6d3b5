// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <cmath>

#include "format/codec.h"
#include "format/fp16.h"

namespace stateful {

namespace {

uint16_t rounded(float x) {
    bool saturated = false;
    return lk::float_to_half(x, &saturated);
}

}  // namespace

Model::Model(const lk::Plan &plan, const std::vector<lk_layer> &layers)
    : plan_(plan), layers_(layers) {
    for (uint32_t l = 0; l < layers.size(); ++l) {
        first_entries_.push_back(n_entries());
        for (uint32_t h = 0; h < layers[l].n_kv_heads; ++h) {
            Entry entry{};
            entry.layer = l;
            lk::resolve_key(plan, l, h, &entry.key);
            lk::resolve_value(plan, l, h, &entry.value);
            entry.centers = plan.key_centers(l, h);
            entries_.push_back(entry);
        }
    }
}

bool Model::ranks_by_queries() const {
    for (const Entry &entry : entries_)
        if (entry.key.boost_slots && entry.key.boost_score == LK_SCORE_QUERY_RANGE)
            return true;
    return false;
}

Sequence Model::empty() const {
    Sequence made;
    made.heads.resize(entries_.size());
    return made;
}

Token Model::token(uint32_t entry, const float *key, const float *value) const {
    const uint32_t n = head_dim(entry);
    const float *centers = entries_[entry].centers;
    Token made;
    made.query_sum.assign(n, 0);
    for (uint32_t c = 0; c < n; ++c) {
        made.key_bits.push_back(rounded(centers ? key[c] - centers[c] : key[c]));
        made.value_bits.push_back(rounded(value[c]));
        made.key.push_back(lk::half_to_float(made.key_bits[c]));
        made.value.push_back(lk::half_to_float(made.value_bits[c]));
    }
    return made;
}

void Model::add_queries(uint32_t entry, const float *queries, Token *token) const {
    const lk_layer &layer = layers_[entries_[entry].layer];
    const uint32_t n = layer.head_dim;
    for (uint32_t g = 0; g < layer.n_query_heads / layer.n_kv_heads; ++g)
        for (uint32_t c = 0; c < n; ++c) {
            const float q = std::fabs(lk::half_to_float(rounded(queries[g * n + c])));
            token->query_sum[c] += static_cast<uint64_t>(std::ldexp(double{q}, 24));
        }
}

uint64_t Model::page_end(uint64_t page) const {
    return plan_.sink_tokens + (page + 1) * plan_.page_tokens;
}

void Model::begin(Sequence *sequence) const {
    for (uint64_t page = 0; page_end(page) + plan_.window_tokens <= sequence->length; ++page)
        if (!sequence->packed[page])
            pack(sequence, page);
}

void Model::commit(Sequence *sequence, const Fresh &fresh,
                   const std::vector<uint32_t> &kept) const {
    const uint64_t before = sequence->length;
    for (uint32_t e = 0; e < n_entries(); ++e)
        for (const uint32_t t : kept)
            sequence->heads[e].push_back(fresh.heads[e][t]);
    sequence->length += kept.size();
    while (plan_.sink_tokens + sequence->packed.size() * plan_.page_tokens < sequence->length)
        sequence->packed.push_back(false);
    if (fresh.n <= LK_DRAFT_TOKENS || kept.empty())
        return;
    for (uint64_t page = 0; page_end(page) + plan_.window_tokens <= sequence->length; ++page)
        if (page_end(page) - plan_.page_tokens >= before)
            pack(sequence, page);
}

void Model::truncate(Sequence *sequence, uint64_t length) const {
    sequence->length = length;
    for (std::vector<Token> &tokens : sequence->heads)
        tokens.resize(length);
    size_t n_pages = 0;
    while (plan_.sink_tokens + n_pages * plan_.page_tokens < length)
        ++n_pages;
    sequence->packed.resize(n_pages);
    if (!n_pages || page_end(n_pages - 1) == length || !sequence->packed.back())
        return;
    // The cut page is at 16 bits again, with what its codes stood for.
    sequence->packed.back() = false;
    const uint64_t first = page_end(n_pages - 1) - plan_.page_tokens;
    for (uint32_t e = 0; e < n_entries(); ++e)
        for (uint64_t t = first; t < length; ++t) {
            Token &token = sequence->heads[e][t];
            for (size_t c = 0; c < token.key.size(); ++c) {
                token.key_bits[c] = rounded(token.key[c]);
                token.value_bits[c] = rounded(token.value[c]);
                token.key[c] = lk::half_to_float(token.key_bits[c]);
                token.value[c] = lk::half_to_float(token.value_bits[c]);
            }
        }
}

Sequence Model::fork(const Sequence &from, uint64_t length) const {
    Sequence made = from;
    truncate(&made, length);
    return made;
}

void Model::pack_keys(const Entry &entry, std::vector<Token> *tokens, uint64_t first) const {
    const lk::HalfShape &shape = entry.key.shape;
    const uint32_t n = shape.head_dim;
    std::vector<uint16_t> input(size_t{shape.page_tokens} * n);
    for (uint32_t t = 0; t < shape.page_tokens; ++t)
        std::copy((*tokens)[first + t].key_bits.begin(), (*tokens)[first + t].key_bits.end(),
                  input.begin() + t * n);
    uint8_t own[LK_MAX_HEAD_DIM];
    const uint8_t *permutation = entry.key.has_permutation ? entry.key.permutation : nullptr;
    if (shape.permutes) {
        permutation = own;
        std::vector<uint64_t> sums(n);
        for (uint64_t t = 0; t < first + shape.page_tokens; ++t)
            for (uint32_t c = 0; c < n; ++c)
                sums[c] += (*tokens)[t].query_sum[c];
        if (entry.key.boost_score == LK_SCORE_QUERY_RANGE)
            lk::rank_by_query_range({input.data(), n}, n, shape.page_tokens, sums.data(),
                                    entry.key.boost_slots, own);
        else
            lk::rank_by_key({input.data(), n}, n, shape.page_tokens, entry.key.boost_slots, own);
    }
    std::vector<uint8_t> payload(lk::payload_bytes(shape));
    std::vector<uint8_t> metadata(lk::metadata_bytes(shape));
    lk::pack_half(shape, entry.key.one_bit, {input.data(), n}, permutation, payload.data(),
                  metadata.data());
    for (uint32_t t = 0; t < shape.page_tokens; ++t)
        for (uint32_t s = 0; s < n; ++s)
            (*tokens)[first + t].key[permutation ? permutation[s] : s] =
                lk::unpack_value(shape, payload.data(), metadata.data(), s, t);
}

void Model::pack_values(const Entry &entry, std::vector<Token> *tokens, uint64_t first) const {
    const lk::HalfShape &shape = entry.value.shape;
    const uint32_t n = shape.head_dim;
    std::vector<uint16_t> input(size_t{shape.page_tokens} * n);
    for (uint32_t t = 0; t < shape.page_tokens; ++t)
        std::copy((*tokens)[first + t].value_bits.begin(), (*tokens)[first + t].value_bits.end(),
                  input.begin() + t * n);
    std::vector<uint8_t> payload(lk::payload_bytes(shape));
    std::vector<uint8_t> metadata(lk::metadata_bytes(shape));
    lk::pack_half(shape, entry.value.one_bit, {input.data(), n}, nullptr, payload.data(),
                  metadata.data());
    for (uint32_t t = 0; t < shape.page_tokens; ++t)
        for (uint32_t s = 0; s < n; ++s)
            (*tokens)[first + t].value[s] =
                lk::unpack_value(shape, payload.data(), metadata.data(), s, t);
}

void Model::pack(Sequence *sequence, uint64_t page) const {
    const uint64_t first = page_end(page) - plan_.page_tokens;
    for (uint32_t e = 0; e < n_entries(); ++e) {
        if (!entries_[e].key.raw)
            pack_keys(entries_[e], &sequence->heads[e], first);
        if (!entries_[e].value.raw)
            pack_values(entries_[e], &sequence->heads[e], first);
    }
    sequence->packed[page] = true;
}

void Model::attend(const Sequence &sequence, const Fresh &fresh, uint32_t t, uint32_t layer,
                   uint32_t query_head, const float *query, std::vector<double> *out) const {
    const lk_layer &own = layers_[layer];
    const uint32_t n = own.head_dim;
    const uint32_t e = first_entries_[layer] + query_head / (own.n_query_heads / own.n_kv_heads);
    const float *centers = entries_[e].centers;
    // The new ones that it sees, and how many come before it in its branch.
    std::vector<uint32_t> seen;
    for (int64_t at = t; at >= 0;) {
        seen.push_back(static_cast<uint32_t>(at));
        at = fresh.parent.empty() ? at - 1 : fresh.parent[static_cast<size_t>(at)];
    }
    const uint64_t position = sequence.length + seen.size() - 1;
    double center_dot = 0;
    for (uint32_t c = 0; centers && c < n; ++c)
        center_dot += double{query[c]} * double{centers[c]};
    const double scale = own.scale != 0 ? double{own.scale} : 1 / std::sqrt(static_cast<double>(n));
    std::vector<double> logits;
    std::vector<const Token *> tokens;
    double highest = -INFINITY;
    const auto add = [&](const Token &token, uint64_t place) {
        const bool is_near = !own.window_tokens || place + own.window_tokens > position;
        if (!is_near && place >= own.window_sink_tokens)
            return;
        double dot = center_dot;
        for (uint32_t c = 0; c < n; ++c)
            dot += double{query[c]} * double{token.key[c]};
        double logit = dot * scale;
        if (own.soft_cap != 0)
            logit = double{own.soft_cap} * std::tanh(logit / double{own.soft_cap});
        highest = std::max(highest, logit);
        logits.push_back(logit);
        tokens.push_back(&token);
    };
    for (uint64_t i = 0; i < sequence.length; ++i)
        add(sequence.heads[e][i], i);
    for (size_t i = seen.size(); i; --i)
        add(fresh.heads[e][seen[i - 1]], sequence.length + seen.size() - i);
    out->assign(n, 0);
    double sum = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const double weight = std::exp(logits[i] - highest);
        sum += weight;
        for (uint32_t c = 0; c < n; ++c)
            (*out)[c] += weight * double{tokens[i]->value[c]};
    }
    for (double &x : *out)
        x /= sum;
}

}  // namespace stateful
