// SPDX-License-Identifier: Apache-2.0
#include "machine.h"

#include <algorithm>
#include <cmath>

namespace stateful {

namespace {

constexpr uint32_t kMostSequences = 5;
constexpr size_t kMostSaved = 3;

}  // namespace

Machine::Machine(lk_context *context, const Options &options, Choices *choices, Counts *counts)
    : context_(context), options_(options), choices_(*choices), counts_(*counts) {
    choose_layers();
    require(lk_plan_preset("fp16", &geometry_, &plan_) == LK_OK);
    do
        choose_rules();
    while (lk_plan_validate(plan_, &geometry_) != LK_OK);
    model_ = std::make_unique<Model>(plan_->model, layers_);
    may_cut_ = !model_->ranks_by_queries();
    require(lk_cache_desc_init(&desc_, sizeof desc_) == LK_OK);
    desc_.max_sequences = kMostSequences;
    desc_.max_step_tokens = kMostStep;
    desc_.slab_bytes = 256u << 10;
    // The cache chooses the pages that a ladder shrinks on a shortfall.
    const bool is_scarce = options_.is_full || choices_.one_in(4);
    desc_.budget_bytes = is_scarce && !has_ladder_ ? 2u << 20 : 64u << 20;
    choose_relief();
    choose_states();
    open_cache();
    ++counts_.caches;
}

Machine::~Machine() {
    lk_cache_destroy(&cache_);
    lk_plan_destroy(&plan_);
}

void Machine::choose_layers() {
    const uint32_t n = 1 + choices_.below(2);
    for (uint32_t l = 0; l < n; ++l) {
        lk_layer layer;
        require(lk_layer_init(&layer, sizeof layer) == LK_OK);
        layer.n_kv_heads = 1 + choices_.below(2);
        layer.n_query_heads = layer.n_kv_heads * (1 + 19 * choices_.below(2));
        // Permutations of more than 256 channels have other bytes.
        const uint32_t other = options_.is_full || l ? 48 : 272;
        layer.head_dim = choices_.one_in(3) ? other : 32;
        if (choices_.one_in(4)) {
            layer.window_tokens = 20 + choices_.below(60);
            layer.window_sink_tokens = choices_.below(6);
        }
        if (choices_.one_in(4))
            layer.soft_cap = 15;
        choose_values(&layer);
        layers_.push_back(layer);
    }
    // The first steps of a cache with a full budget are those of a chosen seed.
    if (!options_.is_full && choices_.one_in(4)) {
        const uint32_t kv_layer = choices_.below(n);
        lk_layer layer = layers_[kv_layer];
        layer.n_query_heads = layer.n_kv_heads * (1 + choices_.below(3));
        layer.soft_cap = choices_.one_in(2) ? 15 : 0;
        layer.kv_layer = kv_layer;
        layers_.push_back(layer);
    }
    require(lk_geometry_init(&geometry_, sizeof geometry_) == LK_OK);
    geometry_.n_layers = static_cast<uint32_t>(layers_.size());
    geometry_.layers = layers_.data();
}

// Values of another dim than keys, or channels of these. The first steps of a cache with a full
// budget are those of a chosen seed.
void Machine::choose_values(lk_layer *layer) {
    if (options_.is_full)
        return;
    if (choices_.one_in(4)) {
        layer->value_dim = 32 + 16 * choices_.below(3);
    } else if (choices_.one_in(4)) {
        layer->flags = LK_LAYER_LATENT;
        layer->value_dim = choices_.one_in(2) ? 32 : 0;
    }
}

void Machine::choose_key_rule(uint32_t layer, lk_key_rule *rule, std::vector<uint8_t> *classes) {
    constexpr uint32_t kBits[] = {16, 8, 4, 3, 2, 1};
    require(lk_key_rule_init(rule, sizeof *rule) == LK_OK);
    rule->bits = kBits[choices_.below(6)];
    rule->one_bit = choices_.one_in(2) ? LK_ONE_BIT_RANGE : LK_ONE_BIT_DEVIATION;
    // One draw decides both: one_bit is for codes of 1 bit, the clip for codes of 2.
    rule->clip = rule->one_bit == LK_ONE_BIT_RANGE ? 0.7f : 1;
    const uint32_t n = layers_[layer].head_dim;
    switch (choices_.below(5)) {
        case 0: {
            rule->bits = 2;
            rule->boost_channels = 16;
            rule->boost_bits = 4;
            rule->boost_ranking = choices_.one_in(3) ? LK_RANKING_QUERY_RANGE : LK_RANKING_KEY;
            break;
        }
        case 1:
            rule->axis = LK_AXIS_TOKEN;
            rule->group = choices_.one_in(2) ? 16 : 0;
            break;
        case 2: {
            // As many outliers of 3 bits as partners of 1.
            classes->assign(n, 2);
            for (uint32_t i = 0, pairs = 1 + choices_.below(8); i < pairs; ++i) {
                (*classes)[(7 * i + 3) % n] = 3;
                (*classes)[(7 * i + 5) % n] = 1;
            }
            rule->bits = 2;
            rule->channel_bits = classes->data();
            break;
        }
        default: rule->group = choices_.one_in(2) ? 16u << choices_.below(2) : 0;
    }
}

void Machine::choose_ladder(uint32_t layer) {
    struct Ladder {
        uint8_t rungs[4];
        uint32_t n;
    };
    constexpr Ladder kLadders[] = {{{16, 8, 4, 2}, 4}, {{8, 4, 2}, 3}, {{16, 4}, 2}, {{8, 2}, 2}};
    const bool is_chosen = has_ladder_ && choices_.one_in(2);
    const Ladder &ladder = kLadders[choices_.below(4)];
    const uint32_t n = is_chosen ? ladder.n : 0;
    require(lk_plan_set_ladder(plan_, layer, ladder.rungs, n,
                               n ? ladder.rungs[choices_.below(n)] : 0) == LK_OK);
    if (is_chosen && choices_.one_in(2))
        require(lk_plan_set_layer_budget(plan_, layer, 4096u << choices_.below(6)) == LK_OK);
}

void Machine::choose_rules() {
    constexpr uint32_t kBits[] = {16, 8, 4, 3, 2, 1};
    // A fuzzer whose bytes have ended would choose the same plan, valid or not, for ever.
    has_ladder_ = choices_.has_more() && choices_.one_in(4);
    const uint32_t page = choices_.one_in(3) ? 64 : 32;
    require(lk_plan_set_pages(plan_, page) == LK_OK);
    require(lk_plan_set_recent(plan_, 16 * choices_.below(4), choices_.below(3) * 20) == LK_OK);
    for (uint32_t l = 0; l < layers_.size(); ++l) {
        if (!lk::owns_kv(layers_[l]))
            continue;
        choose_ladder(l);
        require(lk_plan_set_metadata(
                    plan_, l, choices_.one_in(3) ? LK_METADATA_F8 : LK_METADATA_F16) == LK_OK);
        const lk_rotation rotation = choices_.one_in(3) ? LK_ROTATION_HADAMARD : LK_ROTATION_NONE;
        require(lk_plan_set_key_rotation(plan_, l, rotation) ==
                (rotation && lk::is_latent(layers_[l]) ? LK_E_ARGUMENT : LK_OK));
        for (uint32_t h = 0; h < layers_[l].n_kv_heads; ++h) {
            lk_key_rule key;
            std::vector<uint8_t> classes;
            choose_key_rule(l, &key, &classes);
            if (lk_plan_set_key(plan_, l, h, &key) != LK_OK) {
                require(lk_key_rule_init(&key, sizeof key) == LK_OK);
                require(lk_plan_set_key(plan_, l, h, &key) == LK_OK);
            }
            lk_value_rule value;
            require(lk_value_rule_init(&value, sizeof value) == LK_OK);
            value.bits = kBits[choices_.below(6)];
            value.one_bit = choices_.one_in(2) ? LK_ONE_BIT_RANGE : LK_ONE_BIT_DEVIATION;
            value.clip = value.one_bit == LK_ONE_BIT_RANGE ? 0.55f : 1;
            value.group = choices_.one_in(2) ? 16 : 0;
            require(lk_plan_set_value(plan_, l, h, &value) ==
                    (lk::is_latent(layers_[l]) ? LK_E_ARGUMENT : LK_OK));
            if (lk::is_latent(layers_[l]))
                continue;
            std::vector<float> centers(layers_[l].head_dim);
            for (float &center : centers)
                center = this->value(2);
            const bool is_centered = choices_.one_in(4);
            require(lk_plan_set_key_centers(plan_, l, h, is_centered ? centers.data() : nullptr) ==
                    LK_OK);
            std::vector<float> scales(layers_[l].head_dim);
            for (float &scale : scales)
                scale = std::exp2(this->value(2));
            const bool is_scaled = choices_.one_in(4);
            require(lk_plan_set_key_scales(plan_, l, h, is_scaled ? scales.data() : nullptr) ==
                    LK_OK);
        }
    }
    choose_chunks();
}

// What a shortfall takes: nothing, the sequence used least recently, or what a callback says.
void Machine::choose_relief() {
    desc_.max_budget_bytes = desc_.budget_bytes + (choices_.below(3) << 20);
    if (has_window() && choices_.one_in(2))
        desc_.flags |= LK_CACHE_KEEP_WINDOWED;
    switch (choices_.below(3)) {
        case 0: desc_.flags |= LK_CACHE_EVICT; break;
        case 1:
            desc_.pressure = [](void *user, lk_pressure *pressure) {
                return static_cast<Machine *>(user)->on_pressure(pressure);
            };
            desc_.pressure_user = this;
            break;
        default: break;
    }
}

lk_pressure_action Machine::on_pressure(lk_pressure *pressure) {
    switch (choices_.below(4)) {
        case 0: return LK_PRESSURE_REFUSE;
        case 1:
            if (pressure->budget_bytes == desc_.max_budget_bytes)
                return LK_PRESSURE_REFUSE;
            pressure->budget_bytes +=
                std::min<uint64_t>(desc_.max_budget_bytes - pressure->budget_bytes, 300000);
            return LK_PRESSURE_BUDGET;
        default: break;
    }
    // It calls nothing of the cache, so it remembers what it has named.
    for (const std::unique_ptr<Live> &live : live_)
        if (std::find(spoken_for_.begin(), spoken_for_.end(), live->id) == spoken_for_.end()) {
            pressure->ids[pressure->n_ids++] = live->id;
            spoken_for_.push_back(live->id);
            return LK_PRESSURE_REMOVE;
        }
    return LK_PRESSURE_REFUSE;
}

// Forget the sequences that a step has evicted; none of its own.
bool Machine::drop_evicted(const std::vector<lk_sequence> &stepping) {
    for (size_t i = live_.size(); i; --i) {
        const lk_sequence id = live_[i - 1]->id;
        uint64_t length = 0;
        if (lk_sequence_length(cache_, id, &length) == LK_OK)
            continue;
        if (!expect(std::find(stepping.begin(), stepping.end(), id) == stepping.end(),
                    "a sequence of the step is evicted"))
            return false;
        live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        ++n_evicted_;
        ++counts_.evictions;
    }
    lk_cache_stats stats;
    require(lk_cache_stats_init(&stats, sizeof stats) == LK_OK);
    require(lk_cache_get_stats(cache_, &stats) == LK_OK);
    return expect(stats.sequences_evicted == n_evicted_, "other sequences are evicted");
}

void Machine::open_cache() {
    const Memory::Outside fixed(options_.memory);
    n_evicted_ = 0;
    const lk_status status = lk_cache_create(context_, &geometry_, plan_, &desc_, &cache_);
    if (status == LK_E_BUDGET) {
        desc_.budget_bytes = 64u << 20;
        desc_.max_budget_bytes = 0;
        require(lk_cache_create(context_, &geometry_, plan_, &desc_, &cache_) == LK_OK);
    } else {
        require(status == LK_OK);
    }
    ++counts_.operations;
}

std::string Machine::describe() const {
    size_t needed = 0;
    require(lk_plan_to_json(plan_, nullptr, 0, &needed) == LK_OK);
    std::string text(needed, ' ');
    require(lk_plan_to_json(plan_, &text[0], needed, &needed) == LK_OK);
    text.pop_back();
    return text;
}

bool Machine::add() {
    lk_sequence id = 0;
    const lk_status status = lk_sequence_add(cache_, &id);
    if (status == LK_E_BUDGET) {
        ++counts_.operations;
        ++counts_.refusals;
        return expect(!id, "a refused sequence has an id");
    }
    if (!expect_status(status, "add"))
        return false;
    live_.push_back(std::make_unique<Live>(Live{id, model_->empty(), 0, {}, 0}));
    return true;
}

bool Machine::remove(size_t i) {
    const bool right = expect_status(lk_sequence_remove(cache_, live_[i]->id), "remove");
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    return right;
}

bool Machine::has_window() const {
    for (const lk_layer &layer : layers_)
        if (layer.window_tokens)
            return true;
    return false;
}

// Pages outside of a window are given back unless the cache keeps them, so a cut that would make
// them visible again is refused.
bool Machine::frees_windowed() const {
    return has_window() && !(desc_.flags & LK_CACHE_KEEP_WINDOWED);
}

// The cache packs a page of forks with ladders once for all, at the rung of the first that needs
// it, which this model of single sequences does not know.
bool Machine::fork() {
    if (has_ladder_)
        return check_lengths();
    const Live &parent = *live_[choices_.below(static_cast<uint32_t>(live_.size()))];
    const auto most = static_cast<uint32_t>(parent.tokens.length);
    const bool is_whole = !may_cut_ || choices_.one_in(2);
    const uint64_t length = is_whole ? most : choices_.below(most + 1);
    lk_sequence id = 0;
    const lk_status status = lk_sequence_fork(cache_, parent.id, length, &id);
    if (status == LK_E_UNSUPPORTED)
        return expect(length < most && (frees_windowed() || newest_state(parent, length) < length),
                      "a fork is refused") &&
               check_lengths();
    if (status == LK_E_BUDGET) {
        ++counts_.operations;
        ++counts_.refusals;
        return true;
    }
    if (!expect_status(status, "fork"))
        return false;
    ++counts_.forks;
    live_.push_back(std::make_unique<Live>(
        Live{id, model_->fork(parent.tokens, length), 0, parent.versions, 0}));
    cut_states(live_.back().get(), length);
    return follow(live_.back().get(), Packs::kNothing);
}

bool Machine::truncate() {
    Live &live = *live_[choices_.below(static_cast<uint32_t>(live_.size()))];
    uint64_t length = choices_.below(static_cast<uint32_t>(live.tokens.length) + 1);
    lk_status status = LK_OK;
    const bool rolls_back = desc_.n_states && choices_.one_in(2);
    if (rolls_back && !roll_back(&live, length, &length, &status))
        return false;
    if (!rolls_back)
        status = lk_sequence_truncate(cache_, live.id, length);
    if (status == LK_E_UNSUPPORTED)
        return expect(length < live.tokens.length &&
                          (frees_windowed() || newest_state(live, length) < length),
                      "a truncation is refused") &&
               check_lengths();
    if (status == LK_E_BUDGET) {
        ++counts_.operations;
        ++counts_.refusals;
        return true;
    }
    ++counts_.truncations;
    model_->truncate(&live.tokens, length);
    cut_states(&live, length);
    const uint64_t scored = uint64_t{live.scored_chunks} * plan_->model.chunks.tokens;
    const bool is_cut = length < plan_->model.sink_tokens + scored;
    if (is_cut)
        live.scored_chunks = 0;
    return expect_status(status, "truncate") && follow(&live, Packs::kNothing) &&
           (!is_cut || expect_status(lk_chunks_score_attention(cache_, live.id, nullptr),
                                     "end of a request for scores"));
}

bool Machine::save() {
    std::vector<lk_sequence> ids;
    Saved saved;
    for (const std::unique_ptr<Live> &live : live_)
        if (choices_.one_in(2)) {
            ids.push_back(live->id);
            saved.sequences.push_back(live->tokens);
            saved.versions.push_back(live->versions);
        }
    if (ids.empty())
        return true;
    uint64_t needed = 0;
    const auto n = static_cast<uint32_t>(ids.size());
    bool right = expect_status(
        lk_snapshot_save_memory(cache_, n, ids.data(), nullptr, nullptr, 0, &needed), "measure");
    saved.bytes.resize(needed);
    right = right && expect_status(lk_snapshot_save_memory(cache_, n, ids.data(), nullptr,
                                                           saved.bytes.data(), needed, &needed),
                                   "save");
    ++counts_.saves;
    if (saved_.size() == kMostSaved)
        saved_.erase(saved_.begin());
    saved_.push_back(saved);
    return right;
}

bool Machine::load() {
    if (saved_.empty())
        return true;
    const Saved &saved = saved_[choices_.below(static_cast<uint32_t>(saved_.size()))];
    lk_sequence ids[kMostSequences] = {};
    uint32_t n = 0;
    const lk_status status = lk_snapshot_load_memory(cache_, nullptr, saved.bytes.data(),
                                                     saved.bytes.size(), kMostSequences, ids, &n);
    if (status == LK_E_BUDGET) {
        ++counts_.operations;
        ++counts_.refusals;
        return check_lengths();
    }
    if (!expect_status(status, "load") || !expect(n == saved.sequences.size(), "another number"))
        return false;
    ++counts_.loads;
    for (uint32_t i = 0; i < n; ++i) {
        live_.push_back(
            std::make_unique<Live>(Live{ids[i], saved.sequences[i], 0, saved.versions[i], 0}));
        model_->forget(&live_.back()->tokens);
        forget_pending(live_.back().get());
    }
    return follow_all(Packs::kNothing);
}

// All that there is goes through a file of bytes into a cache of its own.
bool Machine::dequantize_all() {
    uint64_t needed = 0;
    if (!expect_status(lk_snapshot_save_memory(cache_, 0, nullptr, nullptr, nullptr, 0, &needed),
                       "measure"))
        return false;
    std::vector<uint8_t> bytes(needed);
    if (!expect_status(
            lk_snapshot_save_memory(cache_, 0, nullptr, nullptr, bytes.data(), needed, nullptr),
            "save"))
        return false;
    lk_cache_destroy(&cache_);
    open_cache();
    model_->reset_rungs();
    lk_sequence ids[kMostSequences] = {};
    uint32_t n = 0;
    const lk_status status =
        lk_snapshot_load_memory(cache_, nullptr, bytes.data(), needed, kMostSequences, ids, &n);
    ++counts_.saves;
    if (status == LK_E_BUDGET) {
        // Blocks in which forks end are no longer shared, so fewer bytes may be free.
        ++counts_.operations;
        ++counts_.refusals;
        live_.clear();
        return check_lengths();
    }
    ++counts_.loads;
    if (!expect_status(status, "load") || !expect(n == live_.size(), "another number"))
        return false;
    for (uint32_t i = 0; i < n; ++i) {
        live_[i]->id = ids[i];
        live_[i]->scored_chunks = 0;
        model_->forget(&live_[i]->tokens);
        forget_pending(live_[i].get());
    }
    return follow_all(Packs::kNothing);
}

// Shrink to a rung of a layer's ladder, also to the present one: loaded pages may be above it.
bool Machine::shrink() {
    const uint32_t layer = choices_.below(geometry_.n_layers);
    uint8_t rungs[4];
    uint32_t n_rungs = 0;
    require(lk_plan_get_ladder(plan_, layer, rungs, &n_rungs, nullptr, nullptr) == LK_OK);
    const uint32_t bits = n_rungs ? rungs[choices_.below(n_rungs)] : 8;
    const lk_status status = lk_cache_shrink(cache_, layer, bits);
    if (!n_rungs || bits > model_->rung(layer) || bits == 16 || !lk::owns_kv(layers_[layer])) {
        ++counts_.operations;
        return expect(status == LK_E_ARGUMENT, "a step up a ladder, or of none, is taken") &&
               check_lengths();
    }
    ++counts_.shrinks;
    model_->set_rung(layer, bits);
    for (const std::unique_ptr<Live> &live : live_)
        model_->shrink(&live->tokens, layer);
    return expect_status(status, "shrink");
}

// Down to what is held, and back.
bool Machine::change_budget() {
    lk_cache_stats stats;
    require(lk_cache_stats_init(&stats, sizeof stats) == LK_OK);
    if (!expect_status(lk_cache_get_stats(cache_, &stats), "stats"))
        return false;
    counts_.operations += 2;
    ++counts_.budgets;
    const uint64_t spare_bytes = has_ladder_ ? LK_EXTENT_BYTES : 0;  // for pages that move
    return expect(lk_cache_set_budget(cache_, 1) == LK_E_BUDGET, "a budget of one byte is taken") &&
           expect(lk_cache_set_budget(cache_, ~uint64_t{0}) == LK_E_ARGUMENT,
                  "a budget above the highest is taken") &&
           expect_status(lk_cache_set_budget(cache_, stats.reserved_bytes + spare_bytes),
                         "a lower budget") &&
           check_lengths() &&
           expect_status(lk_cache_set_budget(cache_, stats.budget_bytes), "the budget as before") &&
           follow_all(Packs::kNothing);
}

// Calls that must be refused and change nothing.
bool Machine::misuse() {
    counts_.operations += 4;
    const lk_sequence unknown = ~lk_sequence{0};
    uint64_t length = 0;
    bool right = expect(lk_sequence_remove(cache_, unknown) == LK_E_NOT_FOUND, "an unknown id");
    right = expect(lk_sequence_length(cache_, unknown, &length) == LK_E_NOT_FOUND, "its length") &&
            right;
    right =
        expect(lk_step_commit(cache_, nullptr) == LK_E_STATE, "a commit without a step") && right;
    const Live &live = *live_[choices_.below(static_cast<uint32_t>(live_.size()))];
    return expect(lk_sequence_truncate(cache_, live.id, live.tokens.length + 1) == LK_E_ARGUMENT,
                  "a truncation after the end") &&
           right;
}

float Machine::value(float scale) {
    noise_ = noise_ * 6364136223846793005u + 1442695040888963407u;
    return scale * (static_cast<float>(static_cast<int32_t>(noise_ >> 40)) / 8388608.0f - 1.0f);
}

bool Machine::run() {
    if (live_.empty())
        return add() && (!live_.empty() || expect(false, "an empty cache has no free bytes"));
    return run_verb() && check_budget();
}

bool Machine::run_verb() {
    switch (choices_.below(40)) {
        case 0:
        case 1:
            return live_.size() == kMostSequences ? remove(choices_.below(kMostSequences)) : add();
        case 2: return remove(choices_.below(static_cast<uint32_t>(live_.size())));
        case 3:
        case 4: return fork();
        case 5: return !may_cut_ || truncate();
        case 6: return save();
        case 7: return load();
        case 8: return choices_.one_in(4) ? dequantize_all() : check_lengths();
        case 9: return misuse();
        case 10: return change_budget();
        case 11:
        case 12: return has_ladder_ ? shrink() : has_chunks_ ? use_chunks() : step();
        case 13:
        case 14:
        case 15: return has_chunks_ ? use_chunks() : step();
        default: return step();
    }
}

}  // namespace stateful
