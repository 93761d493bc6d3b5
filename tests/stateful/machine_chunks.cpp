// Verbs of chunks. What the cache keeps of them is looked at, must be what the headers allow, and
// is what the model goes on with.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "core/cache.h"
#include "machine.h"

namespace stateful {

namespace {

constexpr double kScoreTolerance = 1e-3;  // of a share of 1; a device rounds to FP16

// How a cache keeps a sequence's pages after the sinks. A page that is packed and not full was cut
// while others had it: it is copied to 16 bits before it is seen.
std::vector<KeptPage> look(const lk_cache *cache, lk_sequence id) {
    lk::Sequence *sequence = cache->sequences.find(id);
    require(sequence);
    std::vector<KeptPage> out;
    for (uint64_t r = lk::sink_blocks(cache->plan.model); r < sequence->block_table.size(); ++r) {
        const lk::CacheBlock &block = *sequence->block(r);
        if (block.first_token >= sequence->length)  // of a step
            break;
        const bool is_cut = block.first_token + block.capacity_tokens > sequence->length;
        KeptPage page{block.n_packed == block.n_entries && !is_cut,
                      is_cut ? lk_chunk_class{LK_CHUNK_NONE} : block.chunk_class,
                      {},
                      {}};
        for (uint32_t e = 0; e < block.n_entries; ++e) {
            const lk::PageEntry &entry = block.entries[e];
            const lk::EntryInfo &info = cache->formats.entries[e];
            page.is_absent.push_back(entry.is_absent != 0);
            page.shapes.push_back(
                cache->formats[is_cut ? info.key.recent_format : entry.key_format].layout);
            page.shapes.push_back(
                cache->formats[is_cut ? info.value.recent_format : entry.value_format].layout);
        }
        out.push_back(std::move(page));
    }
    return out;
}

// Is the page that the sequence's end cuts still packed without a class, as it was before?
bool cuts_packed_page(const lk_cache *cache, lk_sequence id) {
    lk::Sequence *sequence = cache->sequences.find(id);
    require(sequence);
    for (uint64_t r = lk::sink_blocks(cache->plan.model); r < sequence->block_table.size(); ++r) {
        const lk::CacheBlock &block = *sequence->block(r);
        const uint64_t end = block.first_token + block.capacity_tokens;
        if (block.first_token < sequence->length && end > sequence->length && !block.chunk_class &&
            !lk::is_raw_block(cache->formats, block))
            return true;
    }
    return false;
}

// What a window has taken is of no width.
bool is_raw(const KeptPage &page) {
    for (size_t i = 0; i < page.shapes.size(); ++i)
        if (!page.is_absent[i / 2] && !page.shapes[i].is_raw())
            return false;
    return true;
}

bool is_raw(const Page &page) {
    for (size_t e = 0; e < page.keys.size(); ++e)
        if (!page.keys[e].payload.empty() || !page.values[e].payload.empty())
            return false;
    return true;
}

}  // namespace

// With windows a chunk is a page and keeps its place.
void Machine::choose_chunks() {
    constexpr uint32_t kBits[][3] = {{2, 4, 16}, {2, 4, 8}, {4, 8, 16}};
    constexpr uint32_t kTokens[] = {8, 16, 32, 64, 128};
    lk_chunk_rule rule;
    require(lk_chunk_rule_init(&rule, sizeof rule) == LK_OK);
    has_chunks_ = !has_ladder_ && choices_.has_more() && choices_.one_in(3);
    rule.chunk_tokens = 0;
    if (has_chunks_) {
        const uint32_t page = plan_->model.page_tokens;
        const uint32_t(&bits)[3] = kBits[choices_.below(3)];
        rule.reorder = !has_window() && !choices_.one_in(4);
        rule.chunk_tokens = rule.reorder ? kTokens[choices_.below(5)] : page;
        rule.hold = choices_.below(2);
        rule.low_bits = bits[0];
        rule.middle_bits = bits[1];
        rule.high_bits = bits[2];
    }
    require(lk_plan_set_chunks(plan_, &rule) == LK_OK);
}

// Chunks that lk_chunks_get() lists.
uint32_t Machine::listed_chunks(const Sequence &sequence) const {
    const uint32_t n_present = model_->n_chunks(sequence.length);
    return !sequence.is_assigned     ? n_present
           : sequence.pending_tokens ? std::min(n_present, sequence.n_listed)
                                     : sequence.n_listed;
}

// A snapshot and a deferral leave pending classes out: what the cache still lists has a class.
void Machine::forget_pending(Live *live) {
    Sequence &own = live->tokens;
    if (!own.pending_tokens)
        return;
    lk_chunks_info info;
    require(lk_chunks_info_init(&info, sizeof info) == LK_OK);
    require(lk_chunks_get(cache_, live->id, &info, 0, nullptr, nullptr, nullptr) == LK_OK);
    own.pending_tokens = 0;
    own.is_assigned = info.is_assigned != 0;
    own.n_listed = own.is_assigned ? info.n_chunks : 0;
    own.deferral = info.deferral;
}

// A step has begun: chunks of its sequences may be laid out.
bool Machine::follow_pending(Live *live) {
    Sequence &own = live->tokens;
    if (!own.pending_tokens)
        return true;
    if (own.length >= own.pending_tokens)
        own.pending_tokens = 0;
    return follow(live, Packs::kAll);
}

// The model goes on with what the cache keeps, if a verb may have made that of what was there.
bool Machine::follow(Live *live, Packs packs) {
    if (!has_chunks_)
        return true;
    Sequence &own = live->tokens;
    lk_chunks_info info;
    require(lk_chunks_info_init(&info, sizeof info) == LK_OK);
    const uint32_t n = listed_chunks(own);
    std::vector<lk_chunk_class> assigned(n + 1), stored(n + 1);
    std::vector<uint32_t> order(n);
    const lk_status status = lk_chunks_get(cache_, live->id, &info, n, assigned.data(),
                                           stored.data(), n ? order.data() : nullptr);
    if (!expect(status == LK_OK && info.n_chunks == n, "a sequence has other chunks") ||
        !expect((info.is_assigned != 0) == own.is_assigned, "chunks are assigned, or are not") ||
        !expect(info.deferral == own.deferral, "a sequence is deferred otherwise"))
        return false;
    std::vector<bool> seen(n);
    for (uint32_t p = 0; p < n; ++p) {
        const bool is_new = order[p] < n && !seen[order[p]];
        if (!expect(is_new, "the order of chunks is none"))
            return false;
        seen[order[p]] = true;
        if (!expect((own.is_assigned && plan_->model.chunks.reorder) || order[p] == p,
                    "chunks are reordered that should not be"))
            return false;
    }
    if (!own.is_assigned)
        order.clear();
    const std::vector<KeptPage> pages = look(cache_, live->id);
    const uint64_t first = model_->first_to_pack(own);
    for (uint64_t p = 0; p < pages.size(); ++p) {
        const bool was_raw = p >= own.pages.size() || is_raw(own.pages[p]);
        const bool is_due = p >= first && model_->is_due(p, own.length);
        const bool may_pack =
            packs != Packs::kNothing &&
            (packs == Packs::kAll || is_due ||
             (own.deferral == LK_DEFER_PACK && pages[p].chunk_class == LK_CHUNK_MIDDLE));
        if (!expect(!was_raw || may_pack || is_raw(pages[p]), "a page is packed before its time") ||
            !expect(packs != Packs::kDue || !is_due || pages[p].is_packed, "a page is not packed"))
            return false;
    }
    const std::string fault = model_->keep(&own, pages, order);
    return expect(fault.empty(), fault.c_str());
}

bool Machine::follow_all(Packs packs) {
    for (const std::unique_ptr<Live> &live : live_)
        if (!follow(live.get(), packs))
            return false;
    return true;
}

bool Machine::use_chunks() {
    Live &live = *live_[choices_.below(static_cast<uint32_t>(live_.size()))];
    switch (choices_.below(6)) {
        case 0:
        case 1: return defer(&live);
        case 2: return retain(&live);
        case 3: return score_attention(&live);
        default: return assign(&live);
    }
}

bool Machine::defer(Live *live) {
    live->tokens.deferral = choices_.below(3);
    ++counts_.deferrals;
    const lk_defer mode = live->tokens.deferral;
    if (!expect_status(lk_sequence_defer(cache_, live->id, mode), "defer"))
        return false;
    if (mode != LK_DEFER_OFF)
        forget_pending(live);
    return expect(live->tokens.deferral == mode, "a sequence has another deferral") &&
           follow(live, Packs::kNothing);
}

bool Machine::retain(Live *live) {
    const bool is_kept = choices_.below(3) != 0 && !live->tokens.pending_tokens;
    if (!is_kept)
        model_->forget(&live->tokens);
    live->tokens.is_retained = is_kept;
    return expect_status(lk_chunks_retain(cache_, live->id, is_kept ? 64u << 20 : 0), "retain");
}

bool Machine::retain_nothing(Live *live) {
    model_->forget(&live->tokens);
    return expect_status(lk_chunks_retain(cache_, live->id, 0), "retain nothing");
}

bool Machine::assign(Live *live) {
    Sequence &own = live->tokens;
    const lk::Plan &plan = plan_->model;
    const uint32_t n_present = model_->n_chunks(own.length);
    const uint32_t listed = own.is_assigned ? listed_chunks(own) : 0;
    const bool is_ahead = choices_.one_in(3);
    const uint32_t n = is_ahead ? n_present + 1 + choices_.below(8)
                                : listed + choices_.below(n_present - listed + 1);
    uint64_t n_context = plan.sink_tokens + uint64_t{n} * plan.chunks.tokens;
    n_context += choices_.below(plan.chunks.tokens);
    if (!is_ahead)
        n_context = std::min<uint64_t>(n_context, own.length);
    if (is_ahead && !retain_nothing(live))
        return false;
    std::vector<lk_chunk_class> classes(n + 1);
    std::vector<float> scores(n + 1);
    const uint32_t bias = choices_.below(4);  // more of one class fill pages
    for (lk_chunk_class &c : classes)
        c = bias && choices_.one_in(2) ? bias : LK_CHUNK_LOW + choices_.below(3);
    for (float &score : scores)
        score = value(1);
    const lk_status status = lk_chunks_assign(cache_, live->id, n_context, n, classes.data(),
                                              choices_.one_in(2) ? scores.data() : nullptr);
    ++counts_.operations;
    if (status == LK_E_BUDGET) {
        ++counts_.refusals;
        return follow(live, Packs::kNothing);
    }
    if (status == LK_E_STATE) {
        bool is_packed = is_ahead && cuts_packed_page(cache_, live->id);
        const uint64_t n_pages = uint64_t{n} * plan.chunks.tokens / plan.page_tokens;
        for (uint64_t p = 0; p < std::min<uint64_t>(n_pages, own.pages.size()); ++p)
            is_packed = is_packed || (!own.pages[p].chunk_class &&
                                      (own.pages[p].is_packed || !is_raw(own.pages[p])));
        return expect(is_packed, "classes of sound chunks are refused");
    }
    --counts_.operations;
    if (!expect_status(status, "assign"))
        return false;
    ++counts_.assignments;
    const Sequence before = own;
    if (!own.is_assigned && own.is_retained)
        model_->retain(&own, n);
    own.is_assigned = true;
    own.n_listed = n;
    own.pending_tokens = is_ahead ? n_context : 0;
    own.deferral = LK_DEFER_OFF;
    live->scored_chunks = 0;
    classes.pop_back();
    return expect_status(lk_chunks_score_attention(cache_, live->id, nullptr),
                         "end of a request for scores") &&
           follow(live, Packs::kAll) && (is_ahead || check_assigned(*live, before, classes));
}

// May a window have taken a page of a layer? Its row stays as it is then, originals or not.
bool Machine::may_be_cut(uint64_t page, uint64_t length) const {
    return std::any_of(layers_.begin(), layers_.end(), [&](const lk_layer &layer) {
        return layer.window_tokens && model_->page_end(page) + layer.window_tokens <= length + 1;
    });
}

// Never narrower than requested unless it was before, and wider only to fill pages, or where
// windows have taken a part of a page.
bool Machine::check_assigned(const Live &live, const Sequence &before,
                             const std::vector<lk_chunk_class> &classes) {
    const lk::ChunkRule &rule = plan_->model.chunks;
    const auto n = static_cast<uint32_t>(classes.size());
    const auto bits = [&](lk_chunk_class c) { return c ? rule.cap(c) : 16u; };
    std::vector<lk_chunk_class> assigned(n + 1), stored(n + 1);
    std::vector<uint32_t> order(n + 1);
    require(lk_chunks_get(cache_, live.id, nullptr, n, assigned.data(), stored.data(),
                          order.data()) == LK_OK);
    std::vector<uint32_t> place(n);
    for (uint32_t p = 0; p < n; ++p)
        place[before.is_assigned && p < before.order.size() ? before.order[p] : p] = p;
    uint32_t n_wider[4] = {};
    for (uint32_t c = 0; c < n; ++c) {
        const uint64_t first = uint64_t{place[c]} * rule.tokens / plan_->model.page_tokens;
        const Page &page = before.pages[first];
        const uint32_t was = page.chunk_class && page.is_packed ? rule.cap(page.chunk_class) : 16u;
        const bool has_original =
            !may_be_cut(first, live.tokens.length) &&
            !live.tokens.heads[0][plan_->model.sink_tokens + uint64_t{c} * rule.tokens]
                 .key_original.empty();
        const uint32_t least = has_original ? bits(classes[c]) : std::min(was, bits(classes[c]));
        if (!expect(assigned[c] == classes[c], "a chunk has another class") ||
            !expect(bits(stored[c]) >= least, "a chunk is kept narrower than it need be"))
            return false;
        n_wider[classes[c]] += bits(stored[c]) > bits(classes[c]);
    }
    bool is_sorted = true;
    for (uint32_t p = 1; rule.reorder && p < n; ++p)
        is_sorted = is_sorted && bits(stored[order[p]]) >= bits(stored[order[p - 1]]);
    const uint32_t row = std::max(1u, plan_->model.page_tokens / rule.tokens);
    // What windows have taken a part of stays as it is.
    const bool are_few =
        has_window() || (n_wider[LK_CHUNK_LOW] < row && n_wider[LK_CHUNK_MIDDLE] < row);
    return expect(is_sorted, "classes are not neighbours") &&
           expect(are_few, "more chunks are kept wider than fill a page");
}

// All whole chunks, for the last token of the next step that has the sequence.
bool Machine::score_attention(Live *live) {
    lk_chunk_attention score_attention;
    require(lk_chunk_attention_init(&score_attention, sizeof score_attention) == LK_OK);
    score_attention.n_query_tokens = 1;
    score_attention.chunk_tokens = plan_->model.chunks.tokens;
    score_attention.n_chunks = model_->n_chunks(live->tokens.length);
    if (!score_attention.n_chunks)
        return true;
    const lk_status status = lk_chunks_score_attention(cache_, live->id, &score_attention);
    const bool has_layer = std::any_of(layers_.begin(), layers_.end(),
                                       [](const lk_layer &layer) { return !layer.window_tokens; });
    ++counts_.operations;
    if (status == LK_E_BUDGET) {
        ++counts_.refusals;
        return true;
    }
    live->scored_chunks = has_layer ? score_attention.n_chunks : 0;
    return expect(status == (has_layer ? LK_OK : LK_E_UNSUPPORTED),
                  "a request for scores is refused");
}

bool Machine::check_scores(Live *live, const std::vector<double> &wanted) {
    std::vector<float> scores(wanted.size());
    const lk_status status = lk_chunks_attention_scores(
        cache_, live->id, static_cast<uint32_t>(scores.size()), scores.data());
    const bool is_spoiled = !wanted.empty() && std::isnan(wanted[0]);
    const bool is_right = is_spoiled
                              ? expect(status == LK_E_DATA, "a spoiled query has scores of chunks")
                              : expect_status(status, "scores of chunks");
    if (!is_right || !expect_status(lk_chunks_score_attention(cache_, live->id, nullptr),
                                    "end of a request for scores"))
        return false;
    live->scored_chunks = 0;
    ++counts_.scorings;
    if (is_spoiled)
        return true;
    for (size_t c = 0; c < scores.size(); ++c)
        if (!expect(std::fabs(double{scores[c]} - wanted[c]) <= kScoreTolerance,
                    "the score of a chunk is wrong"))
            return false;
    return true;
}

}  // namespace stateful
