// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <algorithm>
#include <cmath>

#include "format/codec.h"
#include "format/fp16.h"
#include "format/rotation.h"

namespace stateful {

namespace {

uint16_t rounded(float x) {
    bool saturated = false;
    return lk::float_to_half(x, &saturated);
}

// Blocks of n numbers, 0 = none, times Hadamard's matrix, stage by stage as docs/FORMAT.md has it.
template <class Number>
void rotate(uint32_t n, std::vector<Number> *numbers) {
    for (uint32_t h = 1; h < n; h *= 2)
        for (size_t i = 0; i < numbers->size(); ++i) {
            if (i & h)
                continue;
            const Number a = (*numbers)[i], b = (*numbers)[i + h];
            (*numbers)[i] = a + b;
            (*numbers)[i + h] = a - b;
        }
    const auto root = static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
    for (size_t i = 0; n && i < numbers->size(); ++i)
        (*numbers)[i] *= static_cast<Number>(root);
}

std::vector<uint16_t> bits_of(const std::vector<Token> &tokens, bool is_value, uint64_t first,
                              uint32_t n) {
    std::vector<uint16_t> out;
    for (uint64_t t = first; t < first + n; ++t) {
        const std::vector<uint16_t> &from = is_value ? tokens[t].value_bits : tokens[t].key_bits;
        out.insert(out.end(), from.begin(), from.end());
    }
    return out;
}

// Bits of the plane that a ladder makes narrower; 0 when there is none.
uint32_t wide_bits(const lk::PageLayout &layout) {
    return layout.strips[lk::kPlane8] ? 8 : layout.strips[lk::kPlane4] ? 4 : 0;
}

// The widest codes of 2b bits become the nearest ones of b bits (docs/FORMAT.md, section 11).
void narrow(StoredPage *stored) {
    const uint32_t bits = wide_bits(stored->layout);
    lk::PageLayout to = stored->layout;
    const lk::Plane wide = bits == 8 ? lk::kPlane8 : lk::kPlane4;
    const lk::Plane next = bits == 8 ? lk::kPlane4 : lk::kPlane2;
    to.strips[next] = static_cast<uint16_t>(to.strips[next] + to.strips[wide]);
    to.strips[wide] = 0;
    std::vector<uint8_t> payload(lk::payload_bytes(to));
    for (uint32_t s = 0; s < to.head_dim; ++s)
        for (uint32_t t = 0; t < to.page_tokens; ++t) {
            uint32_t code = lk::read_code(stored->layout, stored->payload.data(), s, t);
            if (lk::code_bits(stored->layout, s) == bits) {
                const uint32_t step = (1u << bits / 2) + 1;
                code = (code + step / 2) / step;
            }
            lk::write_code(to, payload.data(), s, t, code);
        }
    stored->layout = to;
    stored->payload = std::move(payload);
}

}  // namespace

StoredPage packed_page(const lk::PageLayout &layout, const lk::RangeRule &ranges,
                       const std::vector<uint16_t> &input, const uint8_t *permutation) {
    StoredPage stored;
    stored.layout = layout;
    stored.payload.resize(lk::payload_bytes(layout));
    stored.metadata.resize(lk::metadata_bytes(layout));
    for (uint32_t s = 0; s < layout.head_dim; ++s)
        stored.channels.push_back(permutation ? lk::load_channel(permutation, layout.head_dim, s)
                                              : s);
    lk::pack_page(layout, ranges, {input.data(), layout.head_dim}, permutation,
                  stored.payload.data(), stored.metadata.data());
    return stored;
}

StoredPage packed_key(const lk::KeyFormat &rule, const std::vector<uint16_t> &input,
                      const uint64_t *query_stats) {
    const uint32_t n = rule.layout.head_dim;
    uint8_t own[lk::kMaxPermutationBytes];
    for (uint32_t s = 0; s < n; ++s)
        lk::store_channel(own, n, s, rule.permutation[s]);
    if (rule.layout.permutes) {
        if (rule.boost_ranking == LK_RANKING_QUERY_RANGE)
            lk::rank_by_query_range({input.data(), n}, n, rule.layout.page_tokens, query_stats,
                                    rule.boosted_channels, own);
        else
            lk::rank_by_key({input.data(), n}, n, rule.layout.page_tokens, rule.boosted_channels,
                            own);
    }
    const bool has_order = rule.has_permutation || rule.layout.permutes;
    return packed_page(rule.layout, rule.ranges, input, has_order ? own : nullptr);
}

Model::Model(const lk::Plan &plan, const std::vector<lk_layer> &layers)
    : plan_(plan), layers_(layers) {
    for (uint32_t l = 0; l < layers.size(); ++l) {
        first_entries_.push_back(plan.owns_kv(l) ? n_entries() : first_entries_[plan.kv_layer(l)]);
        for (uint32_t h = 0; h < lk::own_kv_heads(plan.layers[l].geometry); ++h) {
            Entry entry{};
            entry.layer = l;
            entry.head = h;
            entry.centers = plan.key_centers(l, h);
            entry.scales = plan.key_scales(l, h);
            const uint32_t head_dim = plan.layers[l].geometry.head_dim;
            entry.rotation = plan.layers[l].key_rotation ? lk::rotation_channels(head_dim) : 0;
            entries_.push_back(entry);
        }
    }
    reset_rungs();
}

void Model::resolve(Entry *entry) const {
    lk::resolve_key_at(plan_, entry->layer, entry->head, rungs_[entry->layer], &entry->key);
    lk::resolve_value_at(plan_, entry->layer, entry->head, rungs_[entry->layer], &entry->value);
}

void Model::reset_rungs() {
    rungs_.clear();
    for (const lk::LayerPlan &layer : plan_.layers)
        rungs_.push_back(layer.rung);
    for (Entry &entry : entries_)
        resolve(&entry);
}

void Model::set_rung(uint32_t layer, uint32_t bits) {
    rungs_[layer] = bits;
    for (Entry &entry : entries_)
        if (entry.layer == layer)
            resolve(&entry);
}

void Model::shrink(Sequence *sequence, uint32_t layer) const {
    for (uint64_t p = 0; p < sequence->pages.size(); ++p) {
        Page &page = sequence->pages[p];
        if (!page.is_packed)
            continue;
        for (uint32_t e = 0; e < n_entries(); ++e) {
            if (entries_[e].layer != layer)
                continue;
            if (page.keys[e].payload.empty())
                pack_keys(e, sequence, p);
            if (page.values[e].payload.empty())
                pack_values(e, sequence, p);
            for (const bool is_value : {false, true}) {
                StoredPage &stored = is_value ? page.values[e] : page.keys[e];
                while (!stored.payload.empty() && wide_bits(stored.layout) > rungs_[layer])
                    narrow(&stored);
                show(stored, is_value, positions({}, page_end(p), p), &sequence->heads[e]);
            }
        }
    }
}

bool Model::ranks_by_queries() const {
    for (const Entry &entry : entries_)
        if (entry.key.boosted_channels && entry.key.boost_ranking == LK_RANKING_QUERY_RANGE)
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
    const Entry &own = entries_[entry];
    Token made;
    made.query_sum.assign(n, 0);
    std::vector<float> changed;
    for (uint32_t c = 0; c < n; ++c) {
        const float centered = own.centers ? key[c] - own.centers[c] : key[c];
        const float cut = own.rotation ? lk::cut_for_rotation(centered) : centered;
        changed.push_back(own.scales ? cut * (1.0f / own.scales[c]) : cut);
    }
    rotate(own.rotation, &changed);
    for (uint32_t c = 0; c < n; ++c) {
        made.key_bits.push_back(rounded(changed[c]));
        made.key.push_back(lk::half_to_float(made.key_bits[c]));
    }
    for (uint32_t c = 0; c < lk::stored_value_dim(layers_[own.layer]); ++c) {
        made.value_bits.push_back(rounded(value[c]));
        made.value.push_back(lk::half_to_float(made.value_bits[c]));
    }
    return made;
}

// Soft-caps are 15 or off and scales below 1, so the limit is 2^50.
bool is_spoiled(const float *query, uint32_t head_dim) {
    for (uint32_t c = 0; c < head_dim; ++c)
        if (!(std::fabs(query[c]) <= 0x1p50f))
            return true;
    return false;
}

void Model::add_queries(uint32_t entry, const float *queries, Token *token) const {
    const lk_layer &layer = layers_[entries_[entry].layer];
    const Entry &own = entries_[entry];
    const uint32_t n = layer.head_dim;
    for (uint32_t g = 0; g < layer.n_query_heads / layer.n_kv_heads; ++g) {
        std::vector<float> changed(queries + size_t{g} * n, queries + (size_t{g} + 1) * n);
        for (uint32_t c = 0; c < n; ++c) {
            changed[c] = own.rotation ? lk::cut_for_rotation(changed[c]) : changed[c];
            changed[c] *= own.scales ? own.scales[c] : 1;
        }
        rotate(own.rotation, &changed);
        for (uint32_t c = 0; c < n; ++c) {
            const float q = std::fabs(lk::half_to_float(rounded(changed[c])));
            token->query_sum[c] += static_cast<uint64_t>(std::ldexp(double{q}, 24));
        }
    }
}

uint64_t Model::page_end(uint64_t page) const {
    return plan_.sink_tokens + (page + 1) * plan_.page_tokens;
}

void Model::begin(Sequence *sequence) const {
    if (plan_.chunks.tokens)
        return;
    for (uint64_t page = 0; page_end(page) + plan_.recent_tokens <= sequence->length; ++page)
        if (!sequence->pages[page].is_packed)
            pack(sequence, page);
}

void Model::commit(Sequence *sequence, const Fresh &fresh,
                   const std::vector<uint32_t> &kept) const {
    const uint64_t before = sequence->length;
    for (uint32_t e = 0; e < n_entries(); ++e)
        for (const uint32_t t : kept)
            sequence->heads[e].push_back(fresh.heads[e][t]);
    sequence->length += kept.size();
    if (plan_.chunks.tokens)
        return;
    while (plan_.sink_tokens + sequence->pages.size() * plan_.page_tokens < sequence->length)
        sequence->pages.push_back({false, LK_CHUNK_NONE, std::vector<StoredPage>(n_entries()),
                                   std::vector<StoredPage>(n_entries())});
    if (fresh.n <= LK_DRAFT_TOKENS || kept.empty())
        return;
    for (uint64_t page = 0; page_end(page) + plan_.recent_tokens <= sequence->length; ++page)
        if (page_end(page) - plan_.page_tokens >= before)
            pack(sequence, page);
}

void Model::truncate(Sequence *sequence, uint64_t length) const {
    sequence->length = length;
    for (std::vector<Token> &tokens : sequence->heads)
        tokens.resize(length);
    if (plan_.chunks.tokens) {
        cut_chunks(sequence);
        return;
    }
    size_t n_pages = 0;
    while (plan_.sink_tokens + n_pages * plan_.page_tokens < length)
        ++n_pages;
    sequence->pages.resize(n_pages);
    if (!n_pages || page_end(n_pages - 1) == length || !sequence->pages.back().is_packed)
        return;
    // The cut page is at 16 bits again, with what its codes stood for.
    sequence->pages.back() = {false, LK_CHUNK_NONE, std::vector<StoredPage>(n_entries()),
                              std::vector<StoredPage>(n_entries())};
    const uint64_t first = page_end(n_pages - 1) - plan_.page_tokens;
    for (uint32_t e = 0; e < n_entries(); ++e)
        for (uint64_t t = first; t < length; ++t) {
            Token &token = sequence->heads[e][t];
            for (size_t c = 0; c < token.key.size(); ++c) {
                token.key_bits[c] = rounded(token.key[c]);
                token.key[c] = lk::half_to_float(token.key_bits[c]);
            }
            for (size_t c = 0; c < token.value.size(); ++c) {
                token.value_bits[c] = rounded(token.value[c]);
                token.value[c] = lk::half_to_float(token.value_bits[c]);
            }
        }
}

Sequence Model::fork(const Sequence &from, uint64_t length) const {
    Sequence made = from;
    truncate(&made, length);
    return made;
}

void Model::show(const StoredPage &stored, bool is_value, const std::vector<uint64_t> &positions,
                 std::vector<Token> *tokens) const {
    if (stored.payload.empty())
        return;
    for (uint32_t t = 0; t < positions.size(); ++t) {
        Token &token = (*tokens)[positions[t]];
        for (uint32_t s = 0; s < stored.layout.head_dim; ++s)
            (is_value ? token.value : token.key)[stored.channels[s]] = lk::unpack_value(
                stored.layout, stored.payload.data(), stored.metadata.data(), s, t);
    }
}

void Model::pack_keys(uint32_t entry, Sequence *sequence, uint64_t page) const {
    const lk::KeyFormat &rule = entries_[entry].key;
    const lk::PageLayout &layout = rule.layout;
    if (rule.raw)
        return;
    const std::vector<Token> &tokens = sequence->heads[entry];
    const uint32_t n = layout.head_dim;
    const uint64_t first = page_end(page) - plan_.page_tokens;
    const std::vector<uint16_t> input = bits_of(tokens, false, first, layout.page_tokens);
    std::vector<uint64_t> sums(n);
    for (uint64_t t = 0; t < first + layout.page_tokens; ++t)
        for (uint32_t c = 0; c < n; ++c)
            sums[c] += tokens[t].query_sum[c];
    sequence->pages[page].keys[entry] = packed_key(rule, input, sums.data());
}

void Model::pack_values(uint32_t entry, Sequence *sequence, uint64_t page) const {
    const lk::ValueFormat &rule = entries_[entry].value;
    if (rule.raw)
        return;
    const std::vector<uint16_t> input = bits_of(
        sequence->heads[entry], true, page_end(page) - plan_.page_tokens, rule.layout.page_tokens);
    sequence->pages[page].values[entry] = packed_page(rule.layout, rule.ranges, input, nullptr);
}

void Model::pack(Sequence *sequence, uint64_t page) const {
    const std::vector<uint64_t> own = positions({}, page_end(page), page);
    for (uint32_t e = 0; e < n_entries(); ++e) {
        pack_keys(e, sequence, page);
        pack_values(e, sequence, page);
        show(sequence->pages[page].keys[e], false, own, &sequence->heads[e]);
        show(sequence->pages[page].values[e], true, own, &sequence->heads[e]);
    }
    sequence->pages[page].is_packed = true;
}

double Model::logit(const lk_layer &layer, uint32_t entry, const float *query,
                    const Token &token) const {
    const Entry &own = entries_[entry];
    const uint32_t n = layer.head_dim;
    std::vector<double> changed;
    double dot = 0;
    for (uint32_t c = 0; c < n; ++c) {
        dot += own.centers ? double{query[c]} * double{own.centers[c]} : 0;
        changed.push_back(double{query[c]} * (own.scales ? double{own.scales[c]} : 1));
    }
    rotate(own.rotation, &changed);
    for (uint32_t c = 0; c < n; ++c)
        dot += changed[c] * double{token.key[c]};
    const double scale =
        layer.scale != 0 ? double{layer.scale} : 1 / std::sqrt(static_cast<double>(n));
    const double cap = double{layer.soft_cap};
    return cap != 0 ? cap * std::tanh(dot * scale / cap) : dot * scale;
}

void Model::attend(const Sequence &sequence, const Fresh &fresh, uint32_t t, uint32_t layer,
                   uint32_t query_head, const float *query, std::vector<double> *out) const {
    const lk_layer &own = layers_[layer];
    const uint32_t n = lk::value_dim_of(own);
    const uint32_t e = first_entries_[layer] + query_head / (own.n_query_heads / own.n_kv_heads);
    // The new tokens visible to it, and how many come before it in its branch.
    std::vector<uint32_t> seen;
    const bool reaches = !fresh.reach.empty() && (own.window_tokens || !fresh.reach_is_windowed);
    for (uint32_t i = reaches ? fresh.reach[t] - t : 0; i; --i)
        seen.push_back(t + i);
    const size_t n_after = seen.size();
    for (int64_t at = t; at >= 0;) {
        seen.push_back(static_cast<uint32_t>(at));
        at = fresh.parent.empty() ? at - 1 : fresh.parent[static_cast<size_t>(at)];
    }
    const uint64_t position = sequence.length + seen.size() - n_after - 1;
    std::vector<double> logits;
    std::vector<const Token *> tokens;
    double highest = -INFINITY;
    const auto add = [&](const Token &token, uint64_t place) {
        const bool is_near = !own.window_tokens || place + own.window_tokens > position;
        if (!is_near && place >= own.window_sink_tokens)
            return;
        const double logit = this->logit(own, e, query, token);
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
        const std::vector<float> &values = lk::is_latent(own) ? tokens[i]->key : tokens[i]->value;
        for (uint32_t c = 0; c < n; ++c)
            (*out)[c] += weight * double{values[c]};
    }
    for (double &x : *out)
        x /= sum;
}

}  // namespace stateful
