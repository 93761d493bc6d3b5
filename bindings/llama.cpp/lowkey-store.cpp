// SPDX-License-Identifier: Apache-2.0
#include "lowkey-store.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace lowkey {
namespace {

constexpr uint64_t kSequenceBytes = 1024;  // more than the tables of an empty sequence

}  // namespace

std::string sequence_name(int32_t sequence) { return "sequence " + std::to_string(sequence); }

float factor_of(float scale, uint32_t head_dim) {
    return scale == 1.0f / std::sqrt(static_cast<float>(head_dim)) ? 0.0f : scale;
}

Store::Store(std::vector<Layer> layers, const Settings &settings, const Limits &limits,
             const Place &place, std::string fingerprint)
    : layers_(std::move(layers)),
      limits_(limits),
      place_(place),
      fingerprint_(std::move(fingerprint)),
      plan_name_(settings.plan) {
    if (fingerprint_.size() > LK_FINGERPRINT_BYTES)
        fingerprint_.resize(LK_FINGERPRINT_BYTES);
    try {
        make_first_plan();
        lk_chunk_rule chunks;
        check(lk_chunk_rule_init(&chunks, sizeof chunks));
        check(lk_plan_get_chunks(plan_, &chunks));
        if (chunks.chunk_tokens != 0)
            throw std::runtime_error("the plan \"" + std::string(lk_plan_name(plan_)) +
                                     "\" needs classes of chunks, and llama.cpp scores no chunks");
        choose_budget(settings.budget_bytes);

        lk_context_desc where;
        check(lk_context_desc_init(&where, sizeof where));
        where.backend = place_.backend;
        where.device_index = place_.device_index;
        where.vulkan = place_.backend == LK_BACKEND_VULKAN ? &place_.vulkan : nullptr;
        where.n_threads = limits_.n_threads;
        where.parallel_for = HostThreads::run_tasks;
        where.parallel_for_user = &threads_;
        check(lk_context_open(&where, LK_ABI_VERSION, &context_));
    } catch (...) {
        lk_plan_destroy(&plan_);
        throw;
    }
}

Store::~Store() {
    trials_.reset();
    lk_cache_destroy(&cache_);
    lk_plan_destroy(&plan_);
    if (context_ != nullptr)
        (void)lk_context_close(&context_);
}

std::vector<lk_layer> Store::geometry_layers() const {
    std::vector<lk_layer> described(layers_.size());
    for (size_t i = 0; i < layers_.size(); ++i) {
        const Layer &layer = layers_[i];
        lk_layer &out = described[i];
        check(lk_layer_init(&out, sizeof out));
        out.n_query_heads = layer.n_query_heads;
        out.n_kv_heads = layer.n_kv_heads;
        out.head_dim = layer.head_dim;
        out.soft_cap = layer.soft_cap;
        out.window_tokens = layer.window_tokens;
        out.scale = layer.scale;
        out.sink_logits = layer.sink_logits.empty() ? nullptr : layer.sink_logits.data();
    }
    return described;
}

lk_geometry Store::geometry_of(const std::vector<lk_layer> &described) const {
    lk_geometry geometry;
    check(lk_geometry_init(&geometry, sizeof geometry));
    geometry.n_layers = n_layers();
    geometry.layers = described.data();
    return geometry;
}

void Store::remake_plan() {
    const std::vector<lk_layer> described = geometry_layers();
    const lk_geometry geometry = geometry_of(described);
    lk_plan *plan = make_plan(plan_name_, geometry);
    lk_plan_destroy(&plan_);
    plan_ = plan;
}

// Graphs of some models scale the queries themselves, and a plan of such a model states a factor of
// 1. Which models, only their graphs say.
void Store::make_first_plan() {
    try {
        remake_plan();
    } catch (const std::runtime_error &mismatch) {
        for (Layer &layer : layers_)
            layer.scale = factor_of(1, layer.head_dim);
        try {
            remake_plan();
        } catch (const std::runtime_error &) {
            throw mismatch;
        }
    }
}

lk_plan_size Store::size_of(uint64_t n_tokens, uint32_t n_sequences, uint32_t step_tokens) const {
    lk_plan_size size;
    check(lk_plan_size_init(&size, sizeof size));
    // Windows free no page that several sequences share.
    const bool keeps = limits_.keeps_windowed || limits_.n_sequences > 1;
    check(lk_cache_bytes(plan_, keeps ? LK_CACHE_KEEP_WINDOWED : 0, n_tokens, n_sequences,
                         step_tokens, &size));
    return size;
}

bool Store::frees_windowed() const {
    return !limits_.keeps_windowed &&
           std::any_of(layers_.begin(), layers_.end(),
                       [](const Layer &layer) { return layer.window_tokens > 0; });
}

// What no division of the context's tokens among its sequences exceeds: one sequence with all of
// them, or all sequences with equal shares, of which each has sinks and recent tokens at 16 bits;
// and for each sequence two blocks at 16 bits, which forks copy and truncations dequantize.
uint64_t Store::whole_bytes() const {
    uint32_t page_tokens = 0;
    check(lk_plan_get_pages(plan_, &page_tokens, nullptr, nullptr));
    const uint32_t n = limits_.n_sequences;
    const lk_plan_size one = size_of(limits_.n_tokens, 1, limits_.step_tokens);
    const lk_plan_size shared =
        size_of(limits_.n_tokens / n + page_tokens, n, (limits_.step_tokens + n - 1) / n);
    const uint64_t copied_tokens = 2ull * page_tokens * n + (n > 1 ? limits_.step_tokens : 0);
    return std::max(one.cache_bytes, shared.cache_bytes) + copied_tokens * raw_token_bytes_ +
           kSequenceBytes * limits_.max_sequences;
}

void Store::choose_budget(uint64_t requested_bytes) {
    for (const Layer &layer : layers_)
        raw_token_bytes_ += 2 * sizeof(uint16_t) * layer.n_kv_heads * layer.head_dim;
    whole_bytes_ = whole_bytes();
    budget_bytes_ = requested_bytes ? requested_bytes : whole_bytes_;
    const uint64_t least = size_of(limits_.step_tokens, 1, limits_.step_tokens).cache_bytes +
                           kSequenceBytes * limits_.max_sequences;
    if (budget_bytes_ < least)
        throw std::runtime_error(
            "a budget of " + text_of_bytes(budget_bytes_) + " is too small: under the plan \"" +
            lk_plan_name(plan_) + "\" one step of " + std::to_string(limits_.step_tokens) +
            " tokens needs " + text_of_bytes(least) + ", and the whole context of " +
            std::to_string(limits_.n_tokens) + " tokens needs " + text_of_bytes(whole_bytes_));
}

std::string Store::summary() const {
    const lk_plan_size size = size_of(limits_.n_tokens, 1, limits_.step_tokens);
    std::string text =
        "plan " + std::string(lk_plan_name(plan_)) + ": " + std::to_string(limits_.n_tokens) +
        " tokens take " + text_of_bytes(size.cache_bytes) + ", at 16 bits " +
        text_of_bytes(size.fp16_bytes) + "; the budget is " + text_of_bytes(budget_bytes_);
    if (budget_bytes_ < whole_bytes_)
        text += ", less than the " + text_of_bytes(whole_bytes_) +
                " that the whole context needs: batches beyond the budget will fail";
    return text;
}

void Store::describe(uint32_t layer, float scale, std::vector<float> sink_logits) {
    Layer &known = layers_.at(layer);
    scale = factor_of(scale, known.head_dim);
    if (known.is_described && (known.scale != scale || known.sink_logits != sink_logits))
        throw std::runtime_error("the graph changed the scale or the sinks of layer " +
                                 std::to_string(layer) + " after the cache was made");
    known.is_described = true;
    known.scale = scale;
    known.sink_logits = std::move(sink_logits);
}

bool Store::is_described() const {
    return std::all_of(layers_.begin(), layers_.end(),
                       [](const Layer &layer) { return layer.is_described; });
}

void Store::create() {
    if (cache_ != nullptr)
        return;
    if (!is_described())
        throw std::runtime_error("the model's graph leaves out the attention of some layers");
    remake_plan();  // which names the factors
    const std::vector<lk_layer> described = geometry_layers();
    const lk_geometry geometry = geometry_of(described);
    lk_cache_desc desc;
    check(lk_cache_desc_init(&desc, sizeof desc));
    desc.max_sequences = limits_.max_sequences;
    desc.max_step_tokens = limits_.step_tokens;
    desc.budget_bytes = budget_bytes_;
    desc.flags = limits_.keeps_windowed ? LK_CACHE_KEEP_WINDOWED : 0;
    check(lk_cache_create(context_, &geometry, plan_, &desc, &cache_));
}

uint64_t Store::length(int32_t sequence) const {
    const auto found = sequences_.find(sequence);
    return found == sequences_.end() ? 0 : found->second.n_tokens;
}

std::vector<int32_t> Store::sequences() const {
    std::vector<int32_t> numbers;
    for (const auto &[number, sequence] : sequences_) {
        if (sequence.n_tokens > 0)
            numbers.push_back(number);
    }
    return numbers;
}

Store::Sequence &Store::find_or_add(int32_t sequence) {
    const auto found = sequences_.find(sequence);
    if (found != sequences_.end())
        return found->second;
    lk_sequence id = 0;
    check(lk_sequence_add(cache_, &id));
    return sequences_[sequence] = Sequence{id, 0, ++last_content_};
}

void Store::settle(Sequence &sequence) {
    uint64_t n_tokens = 0;
    check(lk_sequence_length(cache_, sequence.id, &n_tokens));
    if (n_tokens > sequence.n_tokens)
        check(lk_sequence_truncate(cache_, sequence.id, sequence.n_tokens));
}

// The lengths between which a window frees nothing more: whole pages leave it, after the sinks.
uint64_t Store::least_length(int32_t sequence) const {
    const uint64_t freed = freed_length(sequence);
    uint32_t page_tokens = 0, sink_tokens = 0;
    check(lk_plan_get_pages(plan_, &page_tokens, &sink_tokens, nullptr));
    uint64_t least = 0;
    for (const Layer &layer : layers_) {
        const uint64_t kept = static_cast<uint64_t>(sink_tokens) + layer.window_tokens;
        if (layer.window_tokens == 0 || freed + 1 < kept + page_tokens)
            continue;
        least = std::max(least, kept - 1 + (freed + 1 - kept) / page_tokens * page_tokens);
    }
    return least;
}

uint64_t Store::freed_length(int32_t sequence) const {
    const auto found = sequences_.find(sequence);
    return found == sequences_.end() ? 0 : found->second.freed_length;
}

void Store::remove(int32_t sequence) {
    commit();
    const auto found = sequences_.find(sequence);
    if (found == sequences_.end())
        return;
    const lk_sequence id = found->second.id;
    sequences_.erase(found);
    check(lk_sequence_remove(cache_, id));
}

void Store::remove_all() {
    commit();
    while (!sequences_.empty())
        remove(sequences_.begin()->first);
}

// The run of the finished step whose tokens the sequence still ends with, or nullptr.
const Run *Store::uncommitted(int32_t sequence) const {
    const auto found = std::find_if(runs_.begin(), runs_.end(),
                                    [&](const Run &run) { return run.sequence == sequence; });
    return step_ == Step::kFinished && found != runs_.end() ? &*found : nullptr;
}

void Store::truncate(int32_t sequence, uint64_t n_tokens) {
    if (length(sequence) <= n_tokens)
        return;
    if (const Run *run = uncommitted(sequence)) {
        const uint64_t kept = std::max(n_tokens, run->first);
        step_tokens_[static_cast<size_t>(run - runs_.data())] =
            static_cast<uint32_t>(kept - run->first);
        sequences_.at(sequence).n_tokens = kept;
        if (kept == n_tokens && n_tokens > 0)
            return;
    }
    commit();
    const auto found = sequences_.find(sequence);
    if (length(sequence) <= n_tokens)
        return;
    if (n_tokens == 0) {
        remove(sequence);
        return;
    }
    found->second.n_tokens = n_tokens;
    // A full budget may be short of the bytes of a page to dequantize. settle() repeats the cut,
    // and there a failure is one of the step.
    (void)lk_sequence_truncate(cache_, found->second.id, n_tokens);
}

void Store::replace(int32_t from, int32_t to, uint64_t n_tokens) {
    Sequence &parent = sequences_.at(from);
    settle(parent);
    remove(to);
    lk_sequence id = 0;
    check(lk_sequence_fork(cache_, parent.id, n_tokens, &id));
    sequences_[to] = Sequence{id, n_tokens, parent.content, parent.freed_length};
}

void Store::fork(int32_t from, int32_t to, uint64_t n_tokens) {
    commit();
    n_tokens = std::min(n_tokens, length(from));
    if (from == to || n_tokens == 0)
        return;
    if (length(to) > n_tokens)
        throw std::runtime_error("a copy of " + std::to_string(n_tokens) + " tokens of " +
                                 sequence_name(from) + " would replace the " +
                                 std::to_string(length(to)) + " tokens of " + sequence_name(to) +
                                 ": remove that sequence first");
    replace(from, to, n_tokens);
}

// A token that belongs to several sequences is computed once, for the first of them.
void Store::check_same(int32_t first, int32_t other) {
    const auto a = sequences_.find(first), b = sequences_.find(other);
    if (length(first) == 0 && length(other) == 0)
        return;
    if (a == sequences_.end() || b == sequences_.end() || a->second.content != b->second.content ||
        a->second.n_tokens != b->second.n_tokens)
        throw std::runtime_error("a token of " + sequence_name(first) + " and " +
                                 sequence_name(other) +
                                 " needs sequences that hold the same tokens before it");
}

void Store::require_cpu() const {
    if (place_.backend != LK_BACKEND_CPU)
        throw std::runtime_error(
            "statistics and trials need a cache on the CPU: --no-kv-offload keeps it there");
}

void Store::make_trials(const std::vector<const lk_plan *> &plans) {
    require_cpu();
    create();
    trials_.reset();
    if (plans.empty())
        return;
    const std::vector<lk_layer> described = geometry_layers();
    trials_ =
        std::make_unique<Trials>(context_, geometry_of(described), plans, limits_.step_tokens);
}

Trials &Store::trials() {
    if (trials_ == nullptr)
        throw std::runtime_error("the context has no trials");
    return *trials_;
}

Statistics &Store::gather() {
    require_cpu();
    if (statistics_ == nullptr) {
        create();
        const std::vector<lk_layer> described = geometry_layers();
        statistics_ = std::make_unique<Statistics>(geometry_of(described));
    }
    return *statistics_;
}

void Store::fail(const std::string &sentence) {
    if (fault_.empty())
        fault_ = sentence;
}

std::string Store::take_fault() { return std::exchange(fault_, std::string()); }

std::vector<lk_sequence> Store::ids_of(const std::vector<int32_t> &sequences) {
    std::vector<lk_sequence> ids;
    for (const int32_t number : sequences) {
        Sequence &sequence = sequences_.at(number);
        settle(sequence);
        ids.push_back(sequence.id);
    }
    return ids;
}

lk_snapshot_desc Store::snapshot_desc() const {
    lk_snapshot_desc desc;
    check(lk_snapshot_desc_init(&desc, sizeof desc));
    desc.fingerprint = fingerprint_.data();
    desc.fingerprint_bytes = static_cast<uint32_t>(fingerprint_.size());
    return desc;
}

uint64_t Store::snapshot_bytes(const std::vector<int32_t> &sequences) {
    commit();
    const std::vector<lk_sequence> ids = ids_of(sequences);
    const lk_snapshot_desc desc = snapshot_desc();
    uint64_t bytes = 0;
    check(lk_snapshot_save_memory(cache_, static_cast<uint32_t>(ids.size()), ids.data(), &desc,
                                  nullptr, 0, &bytes));
    return bytes;
}

void Store::save(const std::vector<int32_t> &sequences, lk_write_fn write, void *user) {
    commit();
    const std::vector<lk_sequence> ids = ids_of(sequences);
    const lk_snapshot_desc desc = snapshot_desc();
    check(lk_snapshot_save(cache_, static_cast<uint32_t>(ids.size()), ids.data(), &desc, write,
                           user));
}

void Store::load(const std::vector<int32_t> &sequences, const std::vector<uint64_t> &freed_lengths,
                 lk_read_fn read, void *user) {
    commit();
    create();
    for (const int32_t sequence : sequences)
        remove(sequence);
    std::vector<lk_sequence> ids(sequences.size());
    const lk_snapshot_desc desc = snapshot_desc();
    uint32_t n_loaded = 0;
    check(lk_snapshot_load(cache_, &desc, read, user, static_cast<uint32_t>(ids.size()), ids.data(),
                           &n_loaded));
    for (uint32_t i = 0; i < n_loaded; ++i) {
        uint64_t n_tokens = 0;
        check(lk_sequence_length(cache_, ids[i], &n_tokens));
        sequences_[sequences[i]] = Sequence{ids[i], n_tokens, ++last_content_, freed_lengths[i]};
    }
    if (n_loaded != ids.size()) {
        for (const int32_t sequence : sequences)
            remove(sequence);
        throw std::runtime_error("a state of " + std::to_string(ids.size()) +
                                 " sequences has a snapshot of " + std::to_string(n_loaded));
    }
}

}  // namespace lowkey
