// What is checked after each verb: lengths, the budget, what hooks gave, and answers.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "machine.h"

namespace stateful {

namespace {

// What the header of lk_cache_desc.budget_bytes says of slabs' own tables.
constexpr uint64_t kSlabTableBytes = 1280;

}  // namespace

bool Machine::expect(bool condition, const char *what) {
    if (!condition && why_.empty())
        why_ = what;
    return condition;
}

bool Machine::expect_status(lk_status status, const char *verb) {
    ++counts_.operations;
    if (status == LK_OK)
        return true;
    char sentence[512];
    require(lk_last_error(sentence, sizeof sentence, nullptr) == LK_OK);
    return expect(false,
                  (std::string(verb) + ": " + lk_status_name(status) + ": " + sentence).c_str());
}

bool Machine::check_lengths() {
    lk_cache_stats stats;
    require(lk_cache_stats_init(&stats, sizeof stats) == LK_OK);
    bool right = expect_status(lk_cache_get_stats(cache_, &stats), "stats");
    uint64_t n_tokens = 0;
    for (const std::unique_ptr<Live> &live : live_) {
        uint64_t length = 0;
        right = right && expect_status(lk_sequence_length(cache_, live->id, &length), "length");
        right = right && expect(length == live->tokens.length, "a sequence has another length");
        n_tokens += live->tokens.length;
    }
    right = right && expect(stats.n_tokens == n_tokens, "the statistics have other tokens");
    return right && expect(stats.n_sequences == live_.size(), "there are other sequences");
}

bool Machine::check_budget() {
    lk_cache_stats stats;
    require(lk_cache_stats_init(&stats, sizeof stats) == LK_OK);
    require(lk_cache_get_stats(cache_, &stats) == LK_OK);
    return expect(stats.reserved_bytes <= stats.budget_bytes, "the budget is exceeded") &&
           check_memory(stats);
}

// The hooks have not given more than the budget and what the header says is outside of it.
bool Machine::check_memory(const lk_cache_stats &stats) {
    if (!options_.memory)
        return true;
    uint64_t outside = options_.memory->slab_bytes() / LK_EXTENT_BYTES * kSlabTableBytes;
    for (const std::unique_ptr<Live> &live : live_) {
        lk_chunks_info info;
        require(lk_chunks_info_init(&info, sizeof info) == LK_OK);
        if (has_chunks_)
            require(lk_chunks_get(cache_, live->id, &info, 0, nullptr, nullptr, nullptr) !=
                    LK_E_NOT_FOUND);
        // Of originals; each block of them has an offset.
        outside += info.retained_bytes + info.retained_bytes / 1024;
    }
    // Sums of |Q| of a step's tokens, of all heads.
    for (const lk_layer &layer : layers_)
        outside += model_->ranks_by_queries() ? uint64_t{desc_.max_step_tokens} * layer.n_kv_heads *
                                                    layer.head_dim * sizeof(uint64_t)
                                              : 0;
    const uint64_t counted = options_.memory->counted_bytes();
    const uint64_t most = stats.budget_bytes + outside;
    counts_.fullest =
        std::max(counts_.fullest, static_cast<double>(counted) / static_cast<double>(most));
    char text[160];
    std::snprintf(text, sizeof text,
                  "hooks gave %llu bytes, the budget is %llu and %llu are outside",
                  static_cast<unsigned long long>(counted),
                  static_cast<unsigned long long>(stats.budget_bytes),
                  static_cast<unsigned long long>(outside));
    return expect(counted <= most, text);
}

bool Machine::compare(uint32_t layer, const std::vector<NewTokens> &parts,
                      const std::vector<float> &out) {
    const lk_layer &own = layers_[layer];
    const double tolerance = options_.tolerance;
    const uint32_t value_dim = lk::value_dim_of(own);
    std::vector<double> wanted;
    for (const NewTokens &part : parts)
        for (uint32_t t = 0; t < part.fresh.n; ++t) {
            // A long step's tokens are much alike.
            if (part.fresh.n > 8 && t % 16 != 3 && t + 1 != part.fresh.n)
                continue;
            for (uint32_t h = 0; h < own.n_query_heads; ++h) {
                const size_t at = (size_t{t} * own.n_query_heads + h) * own.head_dim;
                model_->attend(part.live->tokens, part.fresh, t, layer, h,
                               part.queries[layer].data() + at, &wanted);
                const float *got =
                    out.data() + ((size_t{part.first} + t) * own.n_query_heads + h) * value_dim;
                ++counts_.answers;
                if (is_spoiled(part.queries[layer].data() + at, own.head_dim)) {
                    ++counts_.spoiled;
                    for (uint32_t c = 0; c < value_dim; ++c)
                        if (!expect(std::isnan(got[c]), "a spoiled query has an output"))
                            return false;
                    continue;
                }
                for (uint32_t c = 0; c < value_dim; ++c) {
                    const double distance = std::fabs(double{got[c]} - wanted[c]);
                    if (!(distance <= tolerance)) {
                        char text[256];
                        std::snprintf(text, sizeof text,
                                      "layer %u, head %u, channel %u of new token %u of %u after "
                                      "%llu is %.7g, not %.7g",
                                      layer, h, c, t, part.fresh.n,
                                      static_cast<unsigned long long>(part.live->tokens.length),
                                      double{got[c]}, wanted[c]);
                        return expect(false, text);
                    }
                    counts_.worst = std::max(counts_.worst, distance / tolerance);
                }
            }
        }
    return true;
}

}  // namespace stateful
