// Random sequences of every verb of a cache, compared with the model after each step.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_TESTS_STATEFUL_MACHINE_H
#define LK_TESTS_STATEFUL_MACHINE_H

#include <cstdlib>
#include <memory>
#include <string>

#include "api/rig_device.h"
#include "choices.h"
#include "memory.h"
#include "model.h"

namespace stateful {

struct Options {
    const rig_device *device = rig_host();
    uint32_t most_tokens = 220;  // of a sequence
    bool is_full = false;        // of the budget, nearly always
    double tolerance = 2e-2;     // of an output
    Memory *memory = nullptr;    // of the context's hooks, to be held to budgets
};

// What was done, for the report.
struct Counts {
    uint64_t operations = 0;
    uint64_t caches = 0;
    uint64_t answers = 0;  // outputs of one token and head that were compared
    uint64_t forks = 0;
    uint64_t truncations = 0;
    uint64_t discards = 0;
    uint64_t saves = 0;
    uint64_t loads = 0;
    uint64_t shrinks = 0;
    uint64_t deferrals = 0;
    uint64_t assignments = 0;
    uint64_t scorings = 0;  // whose scores were compared
    uint64_t budgets = 0;
    uint64_t evictions = 0;
    uint64_t faults = 0;    // infinities that were refused
    uint64_t spoiled = 0;   // outputs of queries with a NaN, an infinity or too large a number
    double fullest = 0;     // what hooks gave for a cache, as a share of what it may hold
    uint64_t refusals = 0;  // LK_E_BUDGET
    double worst = 0;       // distance of an answer, as a share of its tolerance
};

// A failure of what the test itself needs.
inline void require(bool condition) {
    if (!condition)
        std::abort();
}

// One cache with a plan of its own, from its creation to its end.
class Machine {
  public:
    Machine(lk_context *context, const Options &options, Choices *choices, Counts *counts);
    ~Machine();
    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;

    // One verb, or all verbs of a step. false: an answer was wrong; why() says which.
    bool run();
    const std::string &why() const { return why_; }
    std::string describe() const;

  private:
    // Of recurrent states.
    struct Version {
        uint64_t n_tokens;
        uint64_t number;  // 0 is never one
    };
    struct Live {
        lk_sequence id;
        Sequence tokens;
        uint32_t scored_chunks = 0;
        std::vector<Version> versions;  // of its states, by tokens; the last is after all of them
        uint64_t next_number = 0;       // of the version that a commit makes
    };
    // The pages of a sequence with chunks that a call packs: none; some of those that are due; all
    // that are due; any page.
    enum class Packs { kNothing, kMay, kDue, kAll };
    struct Saved {
        std::vector<uint8_t> bytes;
        std::vector<Sequence> sequences;
        std::vector<std::vector<Version>> versions;
    };
    struct NewTokens {
        Live *live;
        Fresh fresh;
        uint32_t first;
        std::vector<std::vector<float>> queries;  // [layer][n][heads][head_dim]
    };
    // A step.
    struct Request {
        std::vector<NewTokens> parts;
        std::vector<lk_sequence> ids;
        std::vector<uint32_t> counts;
        std::vector<int32_t> parents;  // of all new tokens; empty: no tree
        std::vector<uint32_t> spans;   // of lk_step_begin_spans(); empty: none
        uint32_t flags = 0;
        uint32_t n_tokens = 0;
    };
    static constexpr uint32_t kMostStep = 160;  // tokens

    void choose_layers();
    void choose_values(lk_layer *layer);
    void choose_rules();
    void choose_ladder(uint32_t layer);
    void choose_key_rule(uint32_t layer, lk_key_rule *rule, std::vector<uint8_t> *classes);
    void choose_relief();
    void open_cache();
    lk_pressure_action on_pressure(lk_pressure *pressure);
    bool drop_evicted(const std::vector<lk_sequence> &stepping);
    bool expect(bool condition, const char *what);
    bool expect_status(lk_status status, const char *verb);
    bool check_lengths();
    bool check_budget();
    bool check_memory(const lk_cache_stats &stats);

    // Recurrent states (machine_states.cpp).
    void choose_states();
    uint64_t newest_state(const Live &live, uint64_t n_tokens) const;
    static void cut_states(Live *live, uint64_t n_tokens);
    bool check_states(uint32_t index, const Live &live);
    bool write_states(uint32_t index, Live *live);
    void grow_states(Live *live);
    bool roll_back(Live *live, uint64_t n_tokens, uint64_t *kept, lk_status *status);

    // Chunks (machine_chunks.cpp).
    void choose_chunks();
    bool use_chunks();
    bool defer(Live *live);
    bool retain(Live *live);
    bool retain_nothing(Live *live);
    bool assign(Live *live);
    bool check_assigned(const Live &live, const Sequence &before,
                        const std::vector<lk_chunk_class> &classes);
    bool score_attention(Live *live);
    bool check_scores(Live *live, const std::vector<double> &wanted);
    uint32_t listed_chunks(const Sequence &sequence) const;
    void forget_pending(Live *live);
    bool follow_pending(Live *live);
    bool follow(Live *live, Packs packs);
    bool follow_all(Packs packs);
    bool has_window() const;
    bool frees_windowed() const;
    bool may_be_cut(uint64_t page, uint64_t length) const;
    bool run_verb();
    bool add();
    bool remove(size_t i);
    bool fork();
    bool truncate();
    bool save();
    bool load();
    bool dequantize_all();
    bool shrink();
    bool has_unsettled_budget() const;
    bool follow_budgets();
    bool change_budget();
    bool misuse();

    // Steps (machine_step.cpp, machine_tokens.cpp).
    bool step();
    Request choose_request();
    static void choose_tree(Request *request);
    lk_status begin(const Request &request);
    bool remove_refused(const std::vector<lk_sequence> &ids);
    bool follow_begin(const Request &request);
    std::vector<uint32_t> choose_spans(std::vector<NewTokens> *parts, uint32_t *flags);
    bool commit(std::vector<NewTokens> *parts);
    std::vector<uint32_t> choose_kept(const Fresh &fresh, bool takes_paths);
    uint32_t choose_count(const Live &live);
    void fill_new_tokens(uint32_t n, NewTokens *part);
    lk_status run_layer(uint32_t layer, uint32_t n_tokens, std::vector<NewTokens> *parts,
                        bool *right);
    bool compare(uint32_t layer, const std::vector<NewTokens> &parts,
                 const std::vector<float> &out);
    float value(float scale);

    lk_context *const context_;
    const Options options_;
    Choices &choices_;
    Counts &counts_;
    std::vector<lk_layer> layers_;
    lk_geometry geometry_{};
    lk_plan *plan_ = nullptr;
    lk_cache *cache_ = nullptr;
    lk_cache_desc desc_{};
    std::unique_ptr<Model> model_;
    std::vector<std::unique_ptr<Live>> live_;
    std::vector<Saved> saved_;
    std::string why_;
    uint64_t noise_ = 1;  // of numbers, which need not be chosen one by one
    bool may_cut_ = true;
    bool has_chunks_ = false;
    bool has_ladder_ = false;
    std::vector<lk_sequence> spoken_for_;  // of the step, or named by the callback
    uint64_t n_evicted_ = 0;               // by this cache
    uint64_t next_number_ = 0;             // of versions
};

}  // namespace stateful

#endif
