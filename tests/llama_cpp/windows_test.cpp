// SPDX-License-Identifier: Apache-2.0
#include "windows_test.h"

#include <algorithm>

#include "session.h"

namespace {

constexpr char kPlans[][10] = {"fp16", "kitty-pro"};

Options options_of(const std::string &plan, bool has_full_windows) {
    Options options;
    options.plan = plan;
    options.n_ctx = 4096;
    options.n_sequences = 3;
    options.has_full_windows = has_full_windows;
    return options;
}

std::vector<uint8_t> state_of(Session &session, llama_seq_id sequence) {
    std::vector<uint8_t> state(llama_state_seq_get_size(session.get(), sequence));
    require(llama_state_seq_get_data(session.get(), state.data(), state.size(), sequence) ==
                state.size(),
            "the state of a sequence");
    return state;
}

void load(Session &session, const std::vector<uint8_t> &state, llama_seq_id sequence) {
    require(llama_state_seq_set_data(session.get(), state.data(), state.size(), sequence) ==
                state.size(),
            "a state loads");
}

// Pages that windows have left change no bit; without them a state is smaller. It goes on bit for
// bit in either kind of cache.
void check_freed_pages(const Model &model, const std::string &plan) {
    const Text text = random_text(21, 900, model.n_vocab());
    const Text more = random_text(22, 40, model.n_vocab());
    Session full(model, options_of(plan, true)), freed(model, options_of(plan, false));
    require(full.feed_all(0, 0, text) == freed.feed_all(0, 0, text),
            plan + ": full windows give the same bits");
    const std::vector<uint8_t> whole = state_of(full, 0), small = state_of(freed, 0);
    require(small.size() < whole.size(),
            plan + ": windows free pages: " + std::to_string(small.size()) + " of " +
                std::to_string(whole.size()) + " bytes");
    const Logits goes_on = full.feed(0, 900, more);
    require(freed.feed(0, 900, more) == goes_on, plan + ": and so do later tokens");
    for (Session *session : {&full, &freed}) {
        load(*session, small, 1);
        load(*session, whole, 2);
        require(session->feed(1, 900, more) == goes_on, plan + ": a small state goes on");
        require(session->feed(2, 900, more) == goes_on, plan + ": a whole state goes on");
    }
    require(!llama_memory_seq_rm(full.memory(), 1, 300, -1), "freed pages stay freed after a load");
    require(llama_memory_seq_rm(full.memory(), 2, 300, -1), "pages that were kept are there");
}

// Each length that seq_pos_min() allows can be reached, the ones below the least are refused with a
// sentence and nothing changes.
void check_truncation(const Model &model, const std::string &plan, bool has_full_windows) {
    const Text text = random_text(23, 900, model.n_vocab());
    const Text more = random_text(24, 10, model.n_vocab());
    const llama_pos window = llama_model_n_swa(model.get());
    Session session(model, options_of(plan, has_full_windows)),
        alone(model, options_of(plan, true));
    for (const llama_pos n_fed : {500, 900, 837}) {
        llama_memory_clear(session.memory(), true);
        session.feed(0, 0, part(text, 0, static_cast<size_t>(n_fed)));
        const llama_pos first = llama_memory_seq_pos_min(session.memory(), 0);
        require(has_full_windows ? first == 0 : first > 0 && first < n_fed - window,
                "the first position is " + std::to_string(first) + " of " + std::to_string(n_fed));
        const llama_pos least = has_full_windows ? 1 : first + window + 1;
        clear_log();
        if (!has_full_windows) {
            require(!llama_memory_seq_rm(session.memory(), 0, least - 1, -1), "a cut too far");
            require_log("cannot go back to " + std::to_string(least - 1) + " tokens");
            require(llama_memory_seq_pos_max(session.memory(), 0) == n_fed - 1, "nothing is cut");
        }
        for (const llama_pos n_kept : {std::max(n_fed - 20, least), least}) {
            require(llama_memory_seq_rm(session.memory(), 0, n_kept, -1), "an allowed cut");
            llama_memory_clear(alone.memory(), true);
            alone.feed(0, 0, part(text, 0, static_cast<size_t>(n_kept)));
            require_close(session.feed(0, n_kept, more), alone.feed(0, n_kept, more),
                          plan == "fp16" ? same_numbers() : 0.2,
                          plan + " after a cut to " + std::to_string(n_kept));
            require(llama_memory_seq_rm(session.memory(), 0, n_kept, -1), "the tokens are cut");
        }
    }
}

// Drafts that are partly accepted, over many blocks: windows keep the pages that a rejection needs.
void check_drafts(const Model &model, const std::string &plan) {
    const Text text = random_text(25, 1000, model.n_vocab());
    Session drafted(model, options_of(plan, false)), plain(model, options_of(plan, false));
    drafted.feed(0, 0, part(text, 0, 300));
    plain.feed(0, 0, part(text, 0, 300));
    for (llama_pos at = 300; at < 900; at += 5) {
        const size_t begin = static_cast<size_t>(at);
        const Text draft = joined(part(text, begin, begin + 5),
                                  random_text(static_cast<uint32_t>(at), 40, model.n_vocab()));
        const std::vector<Logits> logits = drafted.feed_all(0, at, draft);
        require(llama_memory_seq_rm(drafted.memory(), 0, at + 20, -1) &&
                    llama_memory_seq_rm(drafted.memory(), 0, at + 5, -1),
                plan + ": a rejection at " + std::to_string(at));
        const Logits expected = plain.feed_all(0, at, part(text, begin, begin + 5)).back();
        require_close(logits[4], expected, plan == "fp16" ? same_numbers() : 5 * same_numbers(),
                      plan + " draft at " + std::to_string(at));
    }
}

// A prompt of three sequences, which share its pages although windows have left them.
void check_copies(const Model &model, const std::string &plan) {
    const Text prompt = random_text(26, 600, model.n_vocab());
    Session shared(model, options_of(plan, false)), alone(model, options_of(plan, false));
    shared.feed(0, 0, prompt);
    llama_memory_seq_cp(shared.memory(), 0, 1, -1, -1);
    llama_memory_seq_cp(shared.memory(), 0, 2, 0, 590);
    for (llama_seq_id s = 0; s < 3; ++s) {
        const llama_pos begin = s == 2 ? 590 : 600;
        const Text tail = random_text(30 + static_cast<uint32_t>(s), 330, model.n_vocab());
        llama_memory_clear(alone.memory(), true);
        alone.feed(0, 0, part(prompt, 0, static_cast<size_t>(begin)));
        require_close(shared.feed(s, begin, tail), alone.feed(0, begin, tail),
                      plan == "fp16" || s < 2 ? same_numbers() : 0.2,
                      plan + " sequence " + std::to_string(s));
    }
    clear_log();
    require(llama_memory_seq_rm(shared.memory(), 1, -1, -1), "a sequence is removed");
    llama_memory_seq_cp(shared.memory(), 0, 1, 0, 300);
    require(shared.decode({{1, 930, {0}, true}}) == -3, "a copy of what is gone fails a batch");
    require_log("are gone, which 300 tokens would see");
    require(shared.decode({{1, 930, {0}, true}}) == 0, "and the sequence goes on");
}

}  // namespace

void test_windows(const std::vector<std::string> &paths) {
    for (const std::string &path : paths) {
        const Model model(path);
        for (const char *plan : kPlans) {
            check_freed_pages(model, plan);
            check_truncation(model, plan, false);
            check_truncation(model, plan, true);
            check_drafts(model, plan);
            check_copies(model, plan);
        }
    }
}
