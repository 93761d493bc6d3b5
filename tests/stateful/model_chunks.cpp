// Chunks in the model. What packs when, and which chunks share a page, is the cache's choice within
// what the headers say; the model takes the choice, checks that it is allowed, and follows what
// that makes of the tokens.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/pages/formats.h"
#include "format/fp16.h"
#include "model.h"

namespace stateful {

namespace {

uint16_t rounded(float x) {
    bool saturated = false;
    return lk::float_to_half(x, &saturated);
}

const StoredPage &page_of(const Page &page, uint32_t entry, bool is_value) {
    return is_value ? page.values[entry] : page.keys[entry];
}

}  // namespace

uint32_t Model::n_chunks(uint64_t length) const {
    const uint64_t tokens = plan_.chunks.tokens;
    return tokens && length > plan_.sink_tokens
               ? static_cast<uint32_t>((length - plan_.sink_tokens) / tokens)
               : 0;
}

bool Model::is_due(uint64_t page, uint64_t length) const {
    return page_end(page) + plan_.recent_tokens <= length;
}

uint64_t Model::first_to_pack(const Sequence &sequence) const {
    if (sequence.deferral || sequence.pending_tokens || (sequence.is_assigned && plan_.chunks.hold))
        return UINT64_MAX;
    const uint64_t n_tokens = uint64_t{sequence.n_listed} * plan_.chunks.tokens;
    return (n_tokens + plan_.page_tokens - 1) / plan_.page_tokens;
}

std::vector<uint64_t> Model::positions(const std::vector<uint32_t> &order, uint64_t length,
                                       uint64_t page) const {
    const uint64_t end = std::min(page_end(page), length);
    std::vector<uint64_t> out;
    for (uint64_t t = page_end(page) - plan_.page_tokens; t < end; ++t) {
        const uint64_t chunk_tokens = plan_.chunks.tokens;
        const uint64_t after_sinks = t - plan_.sink_tokens;
        const bool is_placed = chunk_tokens && after_sinks / chunk_tokens < order.size();
        out.push_back(is_placed
                          ? plan_.sink_tokens + order[after_sinks / chunk_tokens] * chunk_tokens +
                                after_sinks % chunk_tokens
                          : t);
    }
    return out;
}

void Model::retain(Sequence *sequence, uint32_t n_chunks) const {
    const uint64_t chunk_tokens = plan_.chunks.tokens;
    for (uint64_t chunk = 0; chunk < n_chunks; ++chunk) {
        const uint64_t first = chunk * chunk_tokens;
        bool is_raw = true;
        for (uint64_t t = first; t < first + chunk_tokens; ++t)
            for (uint32_t e = 0; e < n_entries(); ++e) {
                const Page &page = sequence->pages[t / plan_.page_tokens];
                is_raw = is_raw && page.keys[e].payload.empty() && page.values[e].payload.empty();
            }
        for (uint64_t t = first; is_raw && t < first + chunk_tokens; ++t)
            for (std::vector<Token> &tokens : sequence->heads) {
                Token &token = tokens[plan_.sink_tokens + t];
                token.key_original = token.key_bits;
                token.value_original = token.value_bits;
            }
    }
}

void Model::cut_chunks(Sequence *sequence) const {
    const uint32_t n = n_chunks(sequence->length);
    if (n >= sequence->n_listed || sequence->pending_tokens)
        return;
    sequence->n_listed = n;
    sequence->is_assigned = n != 0;
}

void Model::forget(Sequence *sequence) const {
    sequence->is_retained = false;
    for (std::vector<Token> &tokens : sequence->heads)
        for (Token &token : tokens) {
            token.key_original.clear();
            token.value_original.clear();
        }
}

// A packed half as the plan and a class have it; without a payload at 16 bits.
StoredPage Model::make_page(uint32_t entry, lk_chunk_class chunk_class, bool is_value,
                            const std::vector<uint16_t> &input) const {
    const Entry &own = entries_[entry];
    const uint32_t cap = lk::width_cap(rungs_[own.layer], plan_.chunks.cap(chunk_class));
    if (is_value) {
        lk::ValueFormat rule;
        lk::resolve_value_at(plan_, own.layer, own.head, cap, &rule);
        return rule.raw ? StoredPage{} : packed_page(rule.layout, rule.ranges, input, nullptr);
    }
    lk::KeyFormat rule;
    lk::resolve_key_at(plan_, own.layer, own.head, cap, &rule);
    return rule.raw ? StoredPage{} : packed_key(rule, input, nullptr);
}

bool Model::has_shape(uint32_t entry, lk_chunk_class chunk_class, bool is_value,
                      const lk::PageLayout &layout) const {
    const Entry &own = entries_[entry];
    const uint32_t cap = lk::width_cap(rungs_[own.layer], plan_.chunks.cap(chunk_class));
    lk::KeyFormat key;
    lk::ValueFormat value;
    lk::resolve_key_at(plan_, own.layer, own.head, cap, &key);
    lk::resolve_value_at(plan_, own.layer, own.head, cap, &value);
    if (is_value ? value.raw : key.raw)
        return layout.is_raw();
    return lk::same_layout(is_value ? value.layout : key.layout, layout);
}

// Pages as they were.
struct Model::Before {
    std::vector<Page> pages;
    std::vector<std::vector<uint64_t>> positions;  // [page]
    std::vector<const Page *> page_of;             // [position], null for sinks and new tokens
};

// FP16 of tokens that are to lie together: originals, or what they stand for.
std::vector<uint16_t> Model::dequantize(uint32_t entry, bool is_value, const Before &before,
                                        const std::vector<uint64_t> &own,
                                        Sequence *sequence) const {
    std::vector<uint16_t> input;
    for (const uint64_t position : own) {
        Token &token = sequence->heads[entry][position];
        std::vector<uint16_t> &bits = is_value ? token.value_bits : token.key_bits;
        std::vector<float> &seen = is_value ? token.value : token.key;
        const std::vector<uint16_t> &original =
            is_value ? token.value_original : token.key_original;
        const Page *page = position < before.page_of.size() ? before.page_of[position] : nullptr;
        const bool was_packed = page && !page_of(*page, entry, is_value).payload.empty();
        for (size_t c = 0; c < bits.size(); ++c) {
            bits[c] = !original.empty() ? original[c] : was_packed ? rounded(seen[c]) : bits[c];
            seen[c] = lk::half_to_float(bits[c]);
        }
        input.insert(input.end(), bits.begin(), bits.end());
    }
    return input;
}

// One half of a page that holds the tokens at `own`. False: it is packed and not full.
bool Model::keep_page(uint32_t entry, bool is_value, const KeptPage &kept, const Before &before,
                      const std::vector<uint64_t> &own, Sequence *sequence, uint64_t page) const {
    StoredPage &stored =
        is_value ? sequence->pages[page].values[entry] : sequence->pages[page].keys[entry];
    const lk::PageLayout &layout = kept.shapes[2 * entry + is_value];
    const Page *from = own[0] < before.page_of.size() ? before.page_of[own[0]] : nullptr;
    if (from) {
        const std::vector<uint64_t> &old =
            before.positions[static_cast<size_t>(from - before.pages.data())];
        const StoredPage &was = page_of(*from, entry, is_value);
        // A page that got another class was packed anew, also to the same widths.
        const bool has_same = layout.is_raw()
                                  ? was.payload.empty()
                                  : !was.payload.empty() && lk::same_layout(was.layout, layout) &&
                                        from->chunk_class == kept.chunk_class;
        if ((kept.is_absent[entry] || has_same) && old.size() >= own.size() &&
            std::equal(own.begin(), own.end(), old.begin())) {
            stored = was;
            return true;
        }
    }
    const std::vector<uint16_t> input = dequantize(entry, is_value, before, own, sequence);
    if (layout.is_raw())
        return true;
    if (own.size() != plan_.page_tokens)
        return false;
    stored = make_page(entry, kept.chunk_class, is_value, input);
    show(stored, is_value, own, &sequence->heads[entry]);
    return true;
}

std::string Model::keep(Sequence *sequence, const std::vector<KeptPage> &pages,
                        const std::vector<uint32_t> &order) const {
    Before before;
    before.pages.swap(sequence->pages);
    before.page_of.resize(sequence->laid_length);
    for (uint64_t p = 0; p < before.pages.size(); ++p) {
        before.positions.push_back(positions(sequence->order, sequence->laid_length, p));
        for (const uint64_t position : before.positions.back())
            before.page_of[position] = &before.pages[p];
    }
    sequence->order = order;
    sequence->laid_length = sequence->length;
    // Originals are of whole chunks.
    const uint64_t end = plan_.sink_tokens + order.size() * plan_.chunks.tokens;
    for (std::vector<Token> &tokens : sequence->heads)
        for (uint64_t t = end; t < tokens.size(); ++t) {
            tokens[t].key_original.clear();
            tokens[t].value_original.clear();
        }
    for (uint64_t p = 0; p < pages.size(); ++p) {
        const KeptPage &kept = pages[p];
        sequence->pages.push_back({kept.is_packed, kept.chunk_class,
                                   std::vector<StoredPage>(n_entries()),
                                   std::vector<StoredPage>(n_entries())});
        const std::vector<uint64_t> own = positions(order, sequence->length, p);
        for (uint32_t e = 0; e < n_entries(); ++e)
            for (const bool is_value : {false, true}) {
                const lk::PageLayout &layout = kept.shapes[2 * e + is_value];
                if (!kept.is_absent[e] && !has_shape(e, kept.chunk_class, is_value, layout) &&
                    (kept.is_packed || !layout.is_raw()))
                    return "a page is kept at a width that its class has not";
                if (!keep_page(e, is_value, kept, before, own, sequence, p))
                    return "a page is packed that is not full";
            }
    }
    return "";
}

std::vector<double> Model::chunk_scores(const Sequence &sequence, const Fresh &fresh, uint32_t t,
                                        const std::vector<std::vector<float>> &queries,
                                        uint32_t n_chunks) const {
    std::vector<double> out(n_chunks);
    uint32_t n_watched = 0;
    const uint64_t first = plan_.sink_tokens;
    const uint64_t n_tokens = uint64_t{n_chunks} * plan_.chunks.tokens;
    for (uint32_t l = 0; l < layers_.size(); ++l)
        for (uint32_t h = 0; !layers_[l].window_tokens && h < layers_[l].n_query_heads; ++h) {
            const lk_layer &own = layers_[l];
            const uint32_t e = first_entries_[l] + h / (own.n_query_heads / own.n_kv_heads);
            const float *query =
                queries[l].data() + (size_t{t} * own.n_query_heads + h) * own.head_dim;
            std::vector<double> weights;
            double sum = is_spoiled(query, own.head_dim) ? NAN : 0.0;
            for (uint64_t i = 0; i < n_tokens; ++i) {
                const uint64_t at = first + i;
                const bool is_new = at >= sequence.length;
                const Token &token =
                    is_new ? fresh.heads[e][at - sequence.length] : sequence.heads[e][at];
                weights.push_back(std::exp(logit(own, e, query, token)));
                sum += weights.back();
            }
            for (uint64_t i = 0; i < n_tokens; ++i)
                out[i / plan_.chunks.tokens] += weights[i] / sum / own.n_query_heads;
            n_watched += h == 0;
        }
    for (double &x : out)
        x /= n_watched;
    return out;
}

}  // namespace stateful
