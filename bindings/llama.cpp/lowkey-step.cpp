// Steps of a Store.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "lowkey-store.h"

namespace lowkey {

void Store::begin(const std::vector<Run> &runs) {
    commit();
    create();
    step_ids_.clear();
    step_tokens_.clear();
    for (const Run &run : runs) {
        if (run.first != length(run.sequence))
            throw std::runtime_error("a batch continues " + sequence_name(run.sequence) +
                                     " at position " + std::to_string(run.first) +
                                     ", but its cache holds " +
                                     std::to_string(length(run.sequence)) +
                                     " tokens, and lowkey keeps tokens without gaps");
        for (const int32_t other : run.others)
            check_same(run.sequence, other);
        Sequence &sequence = find_or_add(run.sequence);
        settle(sequence);
        step_ids_.push_back(sequence.id);
        step_tokens_.push_back(run.n_tokens);
    }
    runs_ = runs;
    step_ = Step::kPrepared;
    n_attended_ = 0;
    if (stream_ != nullptr)
        open(stream_);
}

// Whether the step fits even if it packs nothing: twice the bytes of its tokens at 16 bits, in
// whole blocks, one more of each sequence among them, which a fork may share.
bool Store::has_ample_bytes(const std::vector<Run> &runs) const {
    lk_cache_stats stats;
    check(lk_cache_stats_init(&stats, sizeof stats));
    check(lk_cache_get_stats(cache_, &stats));
    uint32_t page_tokens = 0;
    check(lk_plan_get_pages(plan_, &page_tokens, nullptr, nullptr));
    uint64_t n_tokens = 0;
    for (const Run &run : runs)
        n_tokens += run.n_tokens + 2ull * page_tokens;
    return (stats.budget_bytes - stats.reserved_bytes) / 2 >= n_tokens * raw_token_bytes_;
}

// Near the end of the budget the step is opened and dropped. Elsewhere that would cost speed: here
// the calling thread alone packs pages, in attend() all threads do. Before the first graph CUDA's
// default stream stands for the one of ggml; on Vulkan lowkey submits this step itself.
std::string Store::shortfall(const std::vector<Run> &runs) {
    create();
    commit();
    if (has_ample_bytes(runs))
        return {};
    try {
        begin(runs);
        open(stream_);
    } catch (const Shortfall &error) {
        step_ = Step::kNone;
        return error.what();
    }
    drop_step();
    return {};
}

namespace {

lk_queue queue_of(lk_queue_kind kind, void *handle) {
    lk_queue queue;
    check(lk_queue_init(&queue, sizeof queue));
    queue.kind = kind;
    queue.handle = handle;
    return queue;
}

}  // namespace

void Store::open(void *handle) {
    if (step_ != Step::kPrepared)
        return;
    const bool is_on_cuda = place_.backend == LK_BACKEND_CUDA;
    const lk_queue queue =
        queue_of(is_on_cuda ? LK_QUEUE_CUDA_STREAM : LK_QUEUE_VULKAN_RECORD, handle);
    check(lk_step_begin(cache_, is_on_cuda || handle != nullptr ? &queue : nullptr,
                        static_cast<uint32_t>(step_ids_.size()), step_ids_.data(),
                        step_tokens_.data(), nullptr));
    step_ = Step::kOpen;
    commands_ = handle;
}

// ggml records a graph into several command buffers, and submits them in their order.
void Store::set_queue(void *handle) {
    if (place_.backend == LK_BACKEND_CUDA) {
        if (stream_ != nullptr && handle != stream_)
            throw std::runtime_error("ggml computes a layer on another CUDA stream than before");
        stream_ = handle;
    } else if (step_ == Step::kOpen && handle != commands_) {
        const lk_queue queue = queue_of(LK_QUEUE_VULKAN_RECORD, handle);
        check(lk_step_set_queue(cache_, &queue));
        commands_ = handle;
    }
}

void Store::use_buffer(uint64_t buffer, uint64_t bytes, uint32_t usage) {
    if (buffers_.count(buffer) != 0)
        return;
    check(lk_vulkan_buffer_add(context_, buffer, bytes, usage));
    buffers_.insert(buffer);
}

void Store::forget_buffers() {
    for (const uint64_t buffer : buffers_)
        check(lk_vulkan_buffer_remove(context_, buffer));
    buffers_.clear();
}

std::vector<uint32_t> Store::shape() const {
    std::vector<uint32_t> n_tokens;
    for (const Run &run : runs_)
        n_tokens.push_back(run.n_tokens);
    return n_tokens;
}

bool Store::may_capture() const {
    return step_ == Step::kOpen && has_sound_graphs_ && fault_.empty() &&
           std::all_of(runs_.begin(), runs_.end(),
                       [](const Run &run) { return run.n_tokens <= LK_DRAFT_TOKENS; });
}

void Store::attend(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                   const lk_tensor &out, void *queue) noexcept {
    if (!fault_.empty())
        return;
    try {
        set_queue(queue);
        open(queue);
        check(lk_append(cache_, layer, &k, &v));
        check(lk_attend(cache_, layer, &q, &out, nullptr));
        observe(layer, q, k, v, out);
        ++n_attended_;
    } catch (const std::exception &error) {
        has_sound_graphs_ = false;
        fail(error.what());
    }
}

void Store::observe(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                    const lk_tensor &out) {
    if (statistics_ == nullptr && trials_ == nullptr)
        return;
    if (runs_.size() != 1)
        throw std::runtime_error("statistics and trials need batches of one sequence");
    const Run &run = runs_[0];
    if (trials_ != nullptr)
        trials_->attend(layer, q, k, v, out, run.first, run.n_tokens);
    else
        statistics_->add(layer, q, k, v, run.first, run.n_tokens);
}

// Layers that did not come to attend() ran from CUDA graphs of ggml.
void Store::declare_replayed() {
    if (stream_ == nullptr || step_ != Step::kOpen || !fault_.empty() || n_attended_ == n_layers())
        return;
    try {
        check(lk_step_replay(cache_));
        n_attended_ = n_layers();
    } catch (const std::exception &error) {
        has_sound_graphs_ = false;
        fail(error.what());
    }
}

void Store::drop_step() {
    if (trials_ != nullptr)
        trials_->finish(false);
    if (std::exchange(step_, Step::kNone) >= Step::kOpen)
        (void)lk_step_discard(cache_);  // a step is open, which is all that it needs
}

bool Store::finish_trials() {
    try {
        if (trials_ != nullptr)
            trials_->finish(true);
        return true;
    } catch (const std::exception &error) {
        fail(error.what());
        return false;
    }
}

void Store::finish() {
    declare_replayed();
    if (step_ != Step::kOpen || !fault_.empty() || n_attended_ != n_layers()) {
        drop_step();
        return;
    }
    if (!finish_trials()) {
        drop_step();
        return;
    }
    step_ = Step::kFinished;
    bool is_draft = true;
    for (const Run &run : runs_) {
        Sequence &sequence = sequences_.at(run.sequence);
        sequence.n_tokens += run.n_tokens;
        sequence.content = ++last_content_;
        is_draft = is_draft && run.n_tokens <= LK_DRAFT_TOKENS && run.others.empty();
    }
    if (!is_draft)
        commit();
}

void Store::commit() {
    if (step_ != Step::kFinished) {
        drop_step();
        return;
    }
    try {
        check(lk_step_commit(cache_, step_tokens_.data()));
        step_ = Step::kNone;
    } catch (const std::exception &error) {
        fail(error.what());
        for (const Run &run : runs_)
            sequences_.at(run.sequence).n_tokens = run.first;
        drop_step();
        return;
    }
    for (const Run &run : runs_) {
        Sequence &sequence = sequences_.at(run.sequence);
        if (frees_windowed())
            sequence.freed_length = std::max(sequence.freed_length, sequence.n_tokens);
    }
    copy_to_others();
}

void Store::copy_to_others() {
    try {
        for (const Run &run : runs_) {
            for (const int32_t other : run.others)
                replace(run.sequence, other, length(run.sequence));
        }
    } catch (const std::exception &error) {
        fail(error.what());
    }
}

}  // namespace lowkey
