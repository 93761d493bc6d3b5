// New tokens of a step: how many, their queries and tree, and the spans among them.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "machine.h"

namespace stateful {

uint32_t Machine::choose_count(const Live &live) {
    uint32_t n = 1;
    if (choices_.one_in(3))
        n = 1 + choices_.below(12);
    if (choices_.one_in(24))
        n = LK_DRAFT_TOKENS + 1 + choices_.below(80);
    const auto left = static_cast<uint32_t>(
        options_.most_tokens > live.tokens.length ? options_.most_tokens - live.tokens.length : 0);
    return n < left ? n : left;
}

void Machine::fill_new_tokens(uint32_t n, NewTokens *part) {
    part->fresh.n = n;
    part->fresh.heads.resize(model_->n_entries());
    for (uint32_t l = 0; l < layers_.size(); ++l) {
        const lk_layer &layer = layers_[l];
        std::vector<float> queries(size_t{n} * layer.n_query_heads * layer.head_dim);
        for (float &q : queries)
            q = value(1);
        if (choices_.one_in(40)) {
            constexpr float kSpoils[] = {NAN, INFINITY, -INFINITY, 1e16f, -3e38f};
            queries[choices_.below(static_cast<uint32_t>(queries.size()))] =
                kSpoils[choices_.below(5)];
        }
        part->queries.push_back(std::move(queries));
    }
    if (n > 1 && n <= LK_DRAFT_TOKENS && choices_.one_in(4))
        for (uint32_t i = 0; i < n; ++i)
            part->fresh.parent.push_back(static_cast<int32_t>(choices_.below(i + 1)) - 1);
}

// The first steps of a cache with a full budget are those of a chosen seed.
std::vector<uint32_t> Machine::choose_spans(std::vector<NewTokens> *parts, uint32_t *flags) {
    std::vector<uint32_t> spans;
    if (options_.is_full || !choices_.has_more() || !choices_.one_in(5))
        return spans;
    *flags = choices_.one_in(2) ? LK_SPANS_WINDOWED : 0;
    for (uint32_t s = 0; s < parts->size(); ++s) {
        Fresh &fresh = (*parts)[s].fresh;
        fresh.reach_is_windowed = *flags != 0;
        for (uint32_t end = choices_.below(4); end < fresh.n;) {
            const uint32_t first = end;
            end = std::min(first + 1 + choices_.below(30), fresh.n);
            spans.insert(spans.end(), {s, first, end});
            fresh.reach.resize(fresh.n);
            for (uint32_t i = first; i < end; ++i)
                fresh.reach[i] = end - 1;
            end += choices_.below(3);
        }
        for (uint32_t i = 0; i < fresh.reach.size(); ++i)
            fresh.reach[i] = std::max(fresh.reach[i], i);
    }
    return spans;
}

}  // namespace stateful
