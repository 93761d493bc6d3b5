// The lowkey side of one llama_context: a plan, a cache, and its sequences by llama.cpp's numbers.
// It knows no llama.cpp. Calls come from one thread at a time; a call that fails throws
// std::runtime_error with one sentence, except where its comment says otherwise.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_STORE_H
#define LOWKEY_STORE_H

#include <lowkey/lowkey.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lowkey-options.h"
#include "lowkey-statistics.h"
#include "lowkey-threads.h"
#include "lowkey-trials.h"

namespace lowkey {

// An attention layer. The graph of the model gives scale and sink_logits.
struct Layer {
    uint32_t n_query_heads;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    float soft_cap;              // 0 = off
    uint32_t window_tokens = 0;  // 0 = none
    bool is_described = false;
    float scale = 0;  // as factor_of() gives it; before is_described the one to expect
    std::vector<float> sink_logits = {};  // empty = none
};

// A sequence in a sentence.
std::string sequence_name(int32_t sequence);

// A factor of logits as a plan's geometry has it: 0 for 1 / sqrt(head_dim).
float factor_of(float scale, uint32_t head_dim);

// What the context may hold.
struct Limits {
    uint64_t n_tokens;       // over all sequences
    uint32_t n_sequences;    // that share n_tokens equally where the default budget is computed
    uint32_t max_sequences;  // at once, at least n_sequences
    uint32_t step_tokens;    // of one step, over all its sequences
    uint32_t n_threads;      // of the host, in one operation
    bool keeps_windowed;     // LK_CACHE_KEEP_WINDOWED
};

// Where the cache is.
struct Place {
    lk_backend backend = LK_BACKEND_CPU;
    uint32_t device_index = 0;   // CUDA: as in lk_context_desc
    lk_vulkan_desc vulkan = {};  // Vulkan: the host's device
};

// The tokens that a step adds to a sequence.
struct Run {
    int32_t sequence;             // the tokens are computed for this one
    std::vector<int32_t> others;  // sequences that get the same tokens
    uint64_t first;               // position of the first token
    uint32_t n_tokens;
};

class Store {
  public:
    // Makes the plan and checks the budget; create() makes the cache.
    Store(std::vector<Layer> layers, const Settings &settings, const Limits &limits,
          const Place &place, std::string fingerprint);
    ~Store();
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;

    uint32_t n_layers() const { return static_cast<uint32_t>(layers_.size()); }
    uint64_t budget_bytes() const { return budget_bytes_; }
    std::string summary() const;  // the plan and its bytes, for a log

    // The graph states a layer's factor and sinks, with the same values each time.
    void describe(uint32_t layer, float scale, std::vector<float> sink_logits);
    bool is_described() const;
    // Needs all layers described; a second call does nothing.
    void create();

    uint64_t length(int32_t sequence) const;  // 0 = no such sequence
    std::vector<int32_t> sequences() const;   // those with tokens, ascending
    void remove(int32_t sequence);
    void remove_all();
    // The fewest tokens that truncate() can leave of the sequence, 0 aside: sliding windows have
    // freed pages that fewer tokens would attend to.
    uint64_t least_length(int32_t sequence) const;
    // The length at which windows last freed pages of the sequence; 0 = never.
    uint64_t freed_length(int32_t sequence) const;
    // n_tokens: 0, or at least least_length(). Never fails: a cut whose bytes are missing now is
    // made before the sequence is used again.
    void truncate(int32_t sequence, uint64_t n_tokens);
    // Replaces `to`, which must not be longer than the copy.
    void fork(int32_t from, int32_t to, uint64_t n_tokens);

    // Why the budget cannot hold a step of these runs now; empty if it can. Commits the last step.
    std::string shortfall(const std::vector<Run> &runs);
    // Commits the last step and prepares the next one, which the first attend() opens: pages that
    // the step packs are packed by all threads of the host. On CUDA begin() itself opens all steps
    // after the first one, on the stream of the first one.
    void begin(const std::vector<Run> &runs);
    // Appends and attends, on the CPU in threads().run(), on CUDA on a stream (a cudaStream_t), the
    // same in all calls, on Vulkan in a VkCommandBuffer; queue is nullptr on the CPU. A failure
    // becomes the store's fault: nothing is thrown.
    void attend(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                const lk_tensor &out, void *queue) noexcept;
    // Vulkan: makes a VkBuffer of the host known, so that tensors of attend() can be in it.
    void use_buffer(uint64_t buffer, uint64_t bytes, uint32_t usage);
    // Vulkan: after the host has destroyed buffers, whose handles may be those of new ones, and
    // when the work of all calls has run.
    void forget_buffers();
    // The new tokens of each sequence of the step.
    std::vector<uint32_t> shape() const;
    // CUDA: whether the step's attend() calls may go into a CUDA graph, or come from one that holds
    // those of an earlier step of the same shape.
    bool may_capture() const;
    // The statistics of all later attend() calls, each of which has one run; made by the first
    // call, which needs all layers described.
    Statistics &gather();
    // Makes trials in place of earlier ones, which all later attend() calls reach too, each of
    // which has one run; no plans: none. Needs all layers described.
    void make_trials(const std::vector<const lk_plan *> &plans);
    Trials &trials();
    // After the last layer: the step's tokens belong to their sequences. Until commit() a cut among
    // them is exact and frees no page; a step with more tokens than a draft is committed at once.
    // A step with a fault, or without all its layers, is dropped.
    void finish();
    // Closes the last step. A failure becomes the store's fault.
    void commit();

    // A failure that could not be returned where it happened; the first one counts.
    void fail(const std::string &sentence);
    // Threads of the host that compute with the thread in attend().
    HostThreads &threads() { return threads_; }

    const std::string &fault() const { return fault_; }  // empty = none
    std::string take_fault();

    // Snapshots of sequences, in the order of `sequences`. freed_lengths has freed_length() of
    // each.
    uint64_t snapshot_bytes(const std::vector<int32_t> &sequences);
    void save(const std::vector<int32_t> &sequences, lk_write_fn write, void *user);
    void load(const std::vector<int32_t> &sequences, const std::vector<uint64_t> &freed_lengths,
              lk_read_fn read, void *user);

  private:
    struct Sequence {
        lk_sequence id;
        uint64_t n_tokens;  // at most the cache's: see truncate()
        uint64_t content;   // sequences of equal content and length hold the same tokens
        uint64_t freed_length = 0;
    };

    std::vector<lk_layer> geometry_layers() const;
    lk_geometry geometry_of(const std::vector<lk_layer> &described) const;
    void remake_plan();
    void make_first_plan();
    lk_plan_size size_of(uint64_t n_tokens, uint32_t n_sequences, uint32_t step_tokens) const;
    bool frees_windowed() const;
    uint64_t whole_bytes() const;
    bool has_ample_bytes(const std::vector<Run> &runs) const;
    void choose_budget(uint64_t requested_bytes);
    Sequence &find_or_add(int32_t sequence);
    void settle(Sequence &sequence);
    void open(void *queue);
    void set_queue(void *queue);
    void declare_replayed();
    void drop_step();
    bool finish_trials();
    void require_cpu() const;
    void observe(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                 const lk_tensor &out);
    const Run *uncommitted(int32_t sequence) const;
    void copy_to_others();
    void check_same(int32_t first, int32_t other);
    void replace(int32_t from, int32_t to, uint64_t n_tokens);
    std::vector<lk_sequence> ids_of(const std::vector<int32_t> &sequences);
    lk_snapshot_desc snapshot_desc() const;

    std::vector<Layer> layers_;
    Limits limits_;
    const Place place_;
    std::string fingerprint_;
    std::string plan_name_;  // as the settings have it
    uint64_t budget_bytes_ = 0;
    uint64_t whole_bytes_ = 0;
    uint64_t raw_token_bytes_ = 0;  // of a token at 16 bits
    HostThreads threads_;
    lk_context *context_ = nullptr;
    lk_plan *plan_ = nullptr;
    lk_cache *cache_ = nullptr;
    std::unique_ptr<Statistics> statistics_;
    std::unique_ptr<Trials> trials_;
    std::map<int32_t, Sequence> sequences_;
    uint64_t last_content_ = 0;
    enum class Step { kNone, kPrepared, kOpen, kFinished } step_ = Step::kNone;
    std::vector<Run> runs_;              // of the step
    std::vector<lk_sequence> step_ids_;  // for each run
    std::vector<uint32_t> step_tokens_;  // for each run; after finish() those to keep
    uint32_t n_attended_ = 0;            // layers, in the step
    void *stream_ = nullptr;             // of CUDA, once known
    void *commands_ = nullptr;           // of Vulkan, of the last attend()
    std::set<uint64_t> buffers_;         // of Vulkan, known to the context
    bool has_sound_graphs_ = true;       // false after a failure, which a CUDA graph may hold
    std::string fault_;
};

}  // namespace lowkey

#endif
