// SPDX-License-Identifier: Apache-2.0
#include "lowkey-kv.h"

#include <llama-batch.h>
#include <llama-cparams.h>
#include <llama-impl.h>
#include <llama-lowkey.h>
#include <llama-memory-recurrent.h>
#include <llama-model.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <utility>

#include "lowkey-hooks.h"
#include "lowkey-vulkan.h"

namespace lowkey {
namespace {

Limits limits_of(const llama_model &model, const llama_memory_params &params,
                 const llama_cparams &cparams) {
    Limits limits;
    limits.keeps_windowed = params.swa_full;
    limits.n_tokens = cparams.n_ctx;
    limits.n_sequences = cparams.n_seq_max;
    // A unified cache takes any number of a sequence below this one; recurrent states do not.
    const bool takes_any = cparams.kv_unified && !llm_arch_is_hybrid(model.arch);
    limits.max_sequences = takes_any ? LLAMA_MAX_SEQ : cparams.n_seq_max;
    limits.step_tokens = cparams.n_ubatch;
    limits.n_threads =
        static_cast<uint32_t>(std::max({1, cparams.n_threads, cparams.n_threads_batch}));
    return limits;
}

// The sequences of a batch, each with its tokens in one piece; empty if a sequence has several.
std::vector<Run> runs_of(const llama_ubatch &ubatch) {
    std::vector<Run> runs;
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const llama_seq_id *ids = ubatch.seq_id[i];
        const int32_t n_ids = ubatch.n_seq_id[i];
        const uint64_t position = static_cast<uint64_t>(ubatch.pos[i]);
        if (!runs.empty()) {
            Run &last = runs.back();
            const bool continues =
                ids[0] == last.sequence && position == last.first + last.n_tokens &&
                std::equal(last.others.begin(), last.others.end(), ids + 1, ids + n_ids);
            if (continues) {
                ++last.n_tokens;
                continue;
            }
        }
        const std::vector<int32_t> others(ids + 1, ids + n_ids);
        for (const Run &run : runs) {
            if (run.sequence == ids[0])
                return {};
        }
        runs.push_back(Run{ids[0], others, position, 1});
    }
    return runs;
}

}  // namespace

KvCache::KvCache(const llama_model &model, const llama_memory_params &params,
                 const llama_cparams &cparams, const Settings &settings)
    : is_dry_(model.hparams.no_alloc),
      n_cells_(cparams.n_ctx),
      n_windowed_(static_cast<llama_pos>(model.hparams.n_swa)),
      index_(geometry_of(model).index),
      device_(device_of(model, cparams, index_)),
      store_(geometry_of(model).layers, settings, limits_of(model, params, cparams), device_.place,
             fingerprint_of(model, cparams)),
      cells_(make_cells(model, cparams)),
      recurrent_(cells_->recurrent()) {
    for (uint32_t layer = 0; layer < store_.n_layers(); ++layer) {
        for (const bool is_causal : {false, true})
            nodes_.push_back(Node{this, layer, is_causal});
    }
    LLAMA_LOG_INFO("lowkey %s: %s\n", lk_version(), store_.summary().c_str());
}

llama_memory_context_ptr KvCache::init_batch(llama_batch_allocr &balloc, uint32_t n_ubatch, bool) {
    // In the batch's own order where each sequence lies in one piece there, as prompts and decoded
    // tokens of a server do; else in pieces of equal length, as recurrent layers need them. The
    // tokens that a recurrent state can go back stay in one piece.
    const uint32_t n_back = recurrent_ != nullptr ? recurrent_->n_rs_seq : 0;
    for (const bool in_order : {true, false}) {
        if (in_order && recurrent_ != nullptr)
            continue;
        balloc.split_reset();
        std::vector<llama_ubatch> ubatches;
        for (;;) {
            llama_ubatch ubatch =
                in_order ? balloc.split_simple(n_ubatch)
                         : balloc.split_equal(n_ubatch, false, n_back > 0 ? n_back + 1 : 0);
            if (ubatch.n_tokens == 0)
                break;
            ubatches.push_back(std::move(ubatch));
        }
        const bool is_whole = balloc.get_n_used() == balloc.get_n_tokens();
        if (!is_whole || std::any_of(ubatches.begin(), ubatches.end(),
                                     [](const llama_ubatch &u) { return runs_of(u).empty(); }))
            continue;
        if (!fits(ubatches.front()))
            return cells_->failed();
        llama_memory_context_ptr context = cells_->batch(this, std::move(ubatches));
        return context != nullptr ? std::move(context) : cells_->failed();
    }
    LLAMA_LOG_ERROR("lowkey: a batch has a sequence whose positions do not follow one another\n");
    return cells_->failed();
}

llama_memory_context_ptr KvCache::init_full() { return cells_->full(this); }

llama_memory_context_ptr KvCache::init_update(llama_context *context, bool optimize) {
    return cells_->memory().init_update(context, optimize);
}

bool KvCache::report() {
    if (store_.fault().empty())
        return true;
    LLAMA_LOG_ERROR("lowkey: %s\n", store_.take_fault().c_str());
    return false;
}

// Another error fails the batch in begin().
bool KvCache::fits(const llama_ubatch &ubatch) {
    try {
        const std::string sentence = store_.shortfall(runs_of(ubatch));
        if (!sentence.empty())
            LLAMA_LOG_WARN("lowkey: %s\n", sentence.c_str());
        return sentence.empty();
    } catch (const std::exception &error) {
        store_.fail(error.what());
        return true;
    }
}

bool KvCache::begin(const llama_ubatch &ubatch) {
    if (!report())
        return false;
    try {
        const std::vector<Run> runs = runs_of(ubatch);
        for (const Run &run : runs)
            check_recurrent(run);
        store_.begin(runs);
        return true;
    } catch (const std::exception &error) {
        LLAMA_LOG_ERROR("lowkey: %s\n", error.what());
        return false;
    }
}

// A state that the graph of a failed step has changed, or one that was loaded without the keys of
// its tokens.
void KvCache::check_recurrent(const Run &run) const {
    if (recurrent_ == nullptr)
        return;
    const llama_pos next = recurrent_->seq_pos_max(run.sequence) + 1;
    if (static_cast<uint64_t>(next) != run.first)
        throw std::runtime_error("a batch continues " + sequence_name(run.sequence) +
                                 " at position " + std::to_string(run.first) +
                                 ", but its recurrent layers are at position " +
                                 std::to_string(next) + ": remove the sequence first");
}

bool KvCache::finish() {
    store_.finish();
    return report();
}

void KvCache::clear(bool data) {
    cells_->memory().clear(data);
    try {
        store_.remove_all();
    } catch (const std::exception &error) {
        store_.fail(error.what());
    }
}

// Cells first: they decide what a batch may continue.
bool KvCache::remove_range(llama_seq_id sequence, llama_pos p0, llama_pos p1) {
    const llama_pos last =
        std::max(seq_pos_max(sequence), static_cast<llama_pos>(store_.length(sequence)) - 1);
    if (last < 0 || p0 > last || p0 >= p1)
        return true;
    if (p1 <= last) {
        LLAMA_LOG_ERROR(
            "lowkey: the positions %d to %d of sequence %d, which goes on to %d, cannot "
            "be removed: lowkey removes tokens at the end alone\n",
            p0, p1 - 1, sequence, last);
        return false;
    }
    const uint64_t n_tokens = static_cast<uint64_t>(p0);
    const uint64_t least = store_.least_length(sequence);
    if (n_tokens > 0 && n_tokens < least) {
        LLAMA_LOG_ERROR(
            "lowkey: sequence %d cannot go back to %d tokens, only to %llu or more: sliding "
            "windows "
            "have left the tokens before; a full cache of windows (--swa-full) keeps them\n",
            sequence, p0, static_cast<unsigned long long>(least));
        return false;
    }
    if (!cells_->memory().seq_rm(sequence, p0, p1)) {
        LLAMA_LOG_WARN(
            "lowkey: sequence %d cannot go back to %d tokens: the states of its recurrent layers "
            "are not there\n",
            sequence, p0);
        return false;
    }
    store_.truncate(sequence, n_tokens);
    return true;
}

bool KvCache::seq_rm(llama_seq_id sequence, llama_pos p0, llama_pos p1) {
    p0 = std::max(p0, 0);
    p1 = p1 < 0 ? std::numeric_limits<llama_pos>::max() : p1;
    try {
        if (sequence >= 0)
            return remove_range(sequence, p0, p1);
        bool is_removed = true;
        for (const int32_t number : store_.sequences())
            is_removed = remove_range(number, p0, p1) && is_removed;
        return is_removed;
    } catch (const std::exception &error) {
        LLAMA_LOG_ERROR("lowkey: %s\n", error.what());
        return false;
    }
}

void KvCache::seq_cp(llama_seq_id from, llama_seq_id to, llama_pos p0, llama_pos p1) {
    try {
        const uint64_t n_tokens =
            p1 < 0 ? store_.length(from) : std::min<uint64_t>(store_.length(from), p1);
        if (from == to || n_tokens == 0)
            return;
        if (p0 > 0)
            throw std::runtime_error("a copy of sequence " + std::to_string(from) +
                                     " from position " + std::to_string(p0) +
                                     " was requested: lowkey copies tokens from the first one on");
        check_copy(from, to, n_tokens);
        store_.fork(from, to, n_tokens);
        cells_->memory().seq_rm(to, -1, -1);
        cells_->memory().seq_cp(from, to, -1, static_cast<llama_pos>(n_tokens));
    } catch (const std::exception &error) {
        store_.fail(error.what());
    }
}

// A recurrent state exists at the end of its sequence alone, and a cut of it is made by the next
// batch.
void KvCache::check_copy(llama_seq_id from, llama_seq_id to, uint64_t n_tokens) const {
    if (recurrent_ == nullptr)
        return;
    const bool is_whole =
        n_tokens == store_.length(from) && recurrent_->rs_idx.at(static_cast<size_t>(from)) == 0;
    if (!is_whole || static_cast<uint32_t>(to) >= recurrent_->size)
        throw std::runtime_error("a copy of " + std::to_string(n_tokens) + " tokens of " +
                                 sequence_name(from) + " to " + sequence_name(to) +
                                 " was requested: with recurrent layers a copy holds all tokens up "
                                 "to the last batch, and is one of " +
                                 std::to_string(recurrent_->size) + " sequences");
}

void KvCache::seq_keep(llama_seq_id sequence) {
    try {
        for (const int32_t number : store_.sequences()) {
            if (number != sequence)
                store_.remove(number);
        }
        cells_->memory().seq_keep(sequence);
    } catch (const std::exception &error) {
        store_.fail(error.what());
    }
}

void KvCache::seq_add(llama_seq_id sequence, llama_pos p0, llama_pos p1, llama_pos shift) {
    if (shift == 0 || p0 == p1 || seq_pos_max(sequence) < std::max(p0, 0))
        return;
    store_.fail("a context shift of sequence " + std::to_string(sequence) +
                " was requested: packed keys keep their positions");
}

void KvCache::seq_div(llama_seq_id sequence, llama_pos p0, llama_pos p1, int divisor) {
    if (divisor == 1 || p0 == p1 || seq_pos_max(sequence) < std::max(p0, 0))
        return;
    store_.fail("a division of positions of sequence " + std::to_string(sequence) +
                " was requested: packed keys keep their positions");
}

llama_pos KvCache::seq_pos_min(llama_seq_id sequence) const {
    if (store_.length(sequence) == 0)
        return -1;
    if (recurrent_ != nullptr)
        return recurrent_->seq_pos_min(sequence);
    const llama_pos least = static_cast<llama_pos>(store_.least_length(sequence));
    return least == 0 ? 0 : std::max(least - n_windowed_ - 1, 0);
}

llama_pos KvCache::seq_pos_max(llama_seq_id sequence) const {
    return cells_->memory().seq_pos_max(sequence);
}

std::map<ggml_backend_buffer_type_t, size_t> KvCache::memory_breakdown() const {
    std::map<ggml_backend_buffer_type_t, size_t> bytes = cells_->memory().memory_breakdown();
    bytes[buffer_type_of(device_)] += store_.budget_bytes();
    return bytes;
}

void KvCache::use_buffers(const lowkey_vulkan_bytes *tensors, uint64_t n_destroyed) {
    if (n_destroyed != n_destroyed_) {
        device_.vulkan->wait(device_.of_ggml);
        store_.forget_buffers();
        n_destroyed_ = n_destroyed;
    }
    for (int i = 0; i < LOWKEY_VULKAN_TENSORS; ++i)
        store_.use_buffer(tensors[i].buffer, tensors[i].buffer_bytes, tensors[i].usage);
}

Node *KvCache::describe(int il, bool is_causal, const ggml_tensor *sinks, float scale) {
    const uint32_t layer =
        il >= 0 && static_cast<size_t>(il) < index_.size() ? index_[il] : kNoLayer;
    if (layer == kNoLayer)
        throw std::runtime_error("lowkey cannot run this model: its graph has attention in layer " +
                                 std::to_string(il) + ", which has no keys and values");
    std::vector<float> sink_logits;
    if (sinks != nullptr && !is_dry_) {
        if (sinks->type != GGML_TYPE_F32)
            throw std::runtime_error("lowkey cannot run this model: the sinks of layer " +
                                     std::to_string(il) + " are not F32");
        sink_logits.resize(ggml_nelements(sinks));
        ggml_backend_tensor_get(sinks, sink_logits.data(), 0, ggml_nbytes(sinks));
    }
    store_.describe(layer, scale, std::move(sink_logits));
    if (!is_dry_ && store_.is_described())
        store_.create();
    return &nodes_[2 * layer + is_causal];
}

}  // namespace lowkey

llama_memory_i *lowkey_create_memory(const llama_model &model, const llama_memory_params &params,
                                     const llama_cparams &cparams) {
    const lowkey::Settings settings = lowkey::current_settings();
    if (settings.plan.empty())
        return nullptr;
    lowkey::check_model(model, params, cparams);
    return new lowkey::KvCache(model, params, cparams, settings);
}

namespace lowkey {
namespace {

KvCache &cache_of(llama_context *context) {
    auto *cache = context ? dynamic_cast<KvCache *>(llama_get_memory(context)) : nullptr;
    if (cache == nullptr)
        throw std::runtime_error("the context has no cache of lowkey");
    return *cache;
}

}  // namespace
}  // namespace lowkey

extern "C" const char *llama_lowkey_gather(llama_context *context, uint32_t prefix_tokens,
                                           uint32_t period_tokens) {
    return lowkey::sentence_of(
        [&] { lowkey::cache_of(context).store().gather().expect(prefix_tokens, period_tokens); });
}

extern "C" const char *llama_lowkey_make_trials(llama_context *context, const lk_plan *const *plans,
                                                uint32_t n_plans) {
    return lowkey::sentence_of([&] {
        lowkey::cache_of(context).store().make_trials({plans, plans + n_plans});
    });
}

extern "C" const char *llama_lowkey_choose_trial(llama_context *context, uint32_t trial) {
    return lowkey::sentence_of([&] { lowkey::cache_of(context).store().trials().choose(trial); });
}

extern "C" const char *llama_lowkey_save_statistics(llama_context *context, const char *path) {
    return lowkey::sentence_of([&] {
        const std::vector<char> bytes = lowkey::cache_of(context).store().gather().bytes();
        std::ofstream file(path, std::ios::binary);
        if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size())) || !file.flush())
            throw std::runtime_error(std::string(path) + ": cannot be written");
    });
}
