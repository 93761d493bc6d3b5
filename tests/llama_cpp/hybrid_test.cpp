// SPDX-License-Identifier: Apache-2.0
#include "hybrid_test.h"

#include <algorithm>
#include <cstdio>

#include "session.h"

namespace {

constexpr llama_pos kPromptTokens = 300;
constexpr double kOwnDifference = 1.25;  // in units of that of llama.cpp's own cache

Options options_of(const std::string &plan) {
    Options options;
    options.plan = plan;
    options.n_ctx = 4096;
    options.n_sequences = 3;
    return options;
}

std::vector<uint8_t> state_of(Session &session, llama_seq_id sequence, uint32_t flags = 0) {
    std::vector<uint8_t> state(llama_state_seq_get_size_ext(session.get(), sequence, flags));
    require(llama_state_seq_get_data_ext(session.get(), state.data(), state.size(), sequence,
                                         flags) == state.size(),
            "the state of a sequence");
    return state;
}

bool load(Session &session, std::vector<uint8_t> state, llama_seq_id sequence, uint32_t flags = 0) {
    return llama_state_seq_set_data_ext(session.get(), state.data(), state.size(), sequence,
                                        flags) == state.size();
}

// Three sequences of one prompt decode together; each has the logits that it has alone.
void check_sequences(const Model &model, const std::string &plan) {
    const Text prompt = random_text(50, kPromptTokens, model.n_vocab());
    const auto tail_of = [&](llama_seq_id s) {
        return random_text(51 + static_cast<uint32_t>(s), 20, model.n_vocab());
    };
    Session shared(model, options_of(plan)), alone(model, options_of(plan));
    shared.feed(0, 0, prompt);
    llama_memory_seq_cp(shared.memory(), 0, 1, -1, -1);
    llama_memory_seq_cp(shared.memory(), 0, 2, -1, -1);
    std::vector<Logits> logits;
    for (llama_pos step = 0; step < 20; ++step) {
        std::vector<Token> batch;
        for (llama_seq_id s = 0; s < 3; ++s)
            batch.push_back(
                {tail_of(s)[static_cast<size_t>(step)], kPromptTokens + step, {s}, step == 19});
        require(shared.decode(batch, &logits) == 0, plan + ": three sequences decode");
    }
    for (llama_seq_id s = 0; s < 3; ++s) {
        llama_memory_clear(alone.memory(), true);
        alone.feed(0, 0, prompt);
        Logits last;
        for (size_t i = 0; i < 20; ++i)
            last = alone.feed(0, kPromptTokens + static_cast<llama_pos>(i), {tail_of(s)[i]});
        require_close(logits[static_cast<size_t>(s)], last, same_numbers(), plan + ": a sequence");
    }
    // Another text in place of a sequence, in one batch with a longer one.
    require(llama_memory_seq_rm(shared.memory(), 1, -1, -1), "a sequence is removed");
    const Text other = random_text(55, 90, model.n_vocab());
    std::vector<Token> mixed;
    for (llama_pos i = 0; i < 90; ++i) {
        mixed.push_back({other[static_cast<size_t>(i)], i, {1}, i == 89});
        if (i < 20)
            mixed.push_back({other[static_cast<size_t>(i)], kPromptTokens + 20 + i, {2}, false});
    }
    logits.clear();
    require(shared.decode(mixed, &logits) == 0, plan + ": sequences of other lengths decode");
    llama_memory_clear(alone.memory(), true);
    require_close(logits[0], alone.feed(0, 0, other), same_numbers(), plan + ": a new sequence");
}

// What a recurrent state cannot give is refused with a sentence, and changes nothing.
void check_refusals(const Model &model, const std::string &plan) {
    const Text prompt = random_text(56, kPromptTokens, model.n_vocab());
    const Text more = random_text(57, 10, model.n_vocab());
    Session session(model, options_of(plan)), plain(model, options_of(plan));
    session.feed(0, 0, prompt);
    plain.feed(0, 0, prompt);
    clear_log();
    require(!llama_memory_seq_rm(session.memory(), 0, 250, -1),
            "a recurrent state does not go back");
    require_log("sequence 0 cannot go back to 250 tokens");
    require(llama_memory_seq_pos_min(session.memory(), 0) == kPromptTokens - 1 &&
                llama_memory_seq_pos_max(session.memory(), 0) == kPromptTokens - 1,
            "the positions say so");
    require(session.feed(0, kPromptTokens, more) == plain.feed(0, kPromptTokens, more),
            plan + ": nothing changed");
    clear_log();
    llama_memory_seq_cp(session.memory(), 0, 1, 0, 250);
    require(session.decode({{1, kPromptTokens + 10, {0}, true}}) == -3, "a partial copy fails");
    require_log("with recurrent layers a copy holds all tokens");
    require(session.feed(0, kPromptTokens + 10, more) == plain.feed(0, kPromptTokens + 10, more),
            plan + ": a refused copy changes nothing");
    // The graph of a failed batch has changed the recurrent state.
    clear_log();
    llama_set_causal_attn(session.get(), false);
    require(session.decode({{1, kPromptTokens + 20, {0}, true}}) == -3, "a batch fails");
    llama_set_causal_attn(session.get(), true);
    require(session.decode({{1, kPromptTokens + 20, {0}, true}}) != 0, "and so does the next");
    require(llama_memory_seq_rm(session.memory(), 0, -1, -1), "the sequence is removed");
    llama_memory_clear(plain.memory(), true);
    require(session.feed(0, 0, more) == plain.feed(0, 0, more), plan + ": and begins again");
}

// States go on bit for bit. A partial one is that of the recurrent layers: with it and a truncation
// a sequence goes back.
void check_states(const Model &model, const std::string &plan) {
    const Text prompt = random_text(58, kPromptTokens, model.n_vocab());
    const Text more = random_text(59, 10, model.n_vocab());
    Session source(model, options_of(plan)), target(model, options_of(plan));
    source.feed(0, 0, prompt);
    llama_memory_seq_cp(source.memory(), 0, 1, -1, -1);
    source.feed(1, kPromptTokens, more);
    const std::vector<uint8_t> one = state_of(source, 0);
    const std::vector<uint8_t> partial = state_of(source, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    require(partial.size() < one.size(), "a partial state has no keys");
    std::vector<uint8_t> whole(llama_state_get_size(source.get()));
    require(llama_state_get_data(source.get(), whole.data(), whole.size()) == whole.size(),
            "the whole state");
    const Logits goes_on = source.feed(0, kPromptTokens, more);
    const Logits goes_on_1 = source.feed(1, kPromptTokens + 10, more);
    target.feed(2, 0, more);
    require(llama_state_set_data(target.get(), whole.data(), whole.size()) == whole.size(),
            "the whole state loads");
    require(target.feed(0, kPromptTokens, more) == goes_on, plan + ": sequence 0 goes on");
    require(target.feed(1, kPromptTokens + 10, more) == goes_on_1, plan + ": sequence 1 goes on");
    require(load(target, one, 2), "a sequence loads under another number");
    require(target.feed(2, kPromptTokens, more) == goes_on, plan + ": it goes on");
    for (const size_t at : {size_t{12}, size_t{33}, one.size() / 8}) {
        std::vector<uint8_t> damaged = one;
        damaged[at] ^= 0x40;
        require(!load(target, damaged, 1), "a damaged byte " + std::to_string(at) + " is found");
        require(llama_memory_seq_pos_max(target.memory(), 1) == -1, "nothing is left of it");
    }
    std::vector<uint8_t> half = one;
    half.resize(one.size() - 8);
    require(!load(target, half, 1), "a short state is refused");
    require(llama_memory_seq_pos_max(target.memory(), 1) == -1, "nothing is left of it");

    // Sequence 0 of the source is at 310.
    require(load(source, partial, 0, LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY), "a partial state loads");
    clear_log();
    require(source.decode({{1, kPromptTokens, {0}, true}}) != 0, "keys after it are in the way");
    require(llama_memory_seq_rm(source.memory(), 0, kPromptTokens, -1), "they are removed");
    require_close(source.feed(0, kPromptTokens, more), goes_on,
                  plan == "fp16" ? same_numbers() : 0.2, plan + ": the sequence goes back");
}

// The largest difference between logits of drafts that are cut and those of single tokens: the
// state of a recurrent layer carries what batches of other shapes round otherwise.
double draft_difference(const Model &model, Session &drafted, const std::string &plan) {
    const Text text = random_text(60, 400, model.n_vocab());
    Session plain(model, options_of(plan));
    drafted.feed(0, 0, part(text, 0, 300));
    plain.feed(0, 0, part(text, 0, 300));
    double largest = 0;
    for (llama_pos at = 300; at < 390; at += 3) {
        const Text draft = joined(part(text, static_cast<size_t>(at), static_cast<size_t>(at) + 3),
                                  random_text(static_cast<uint32_t>(at), 5, model.n_vocab()));
        const std::vector<Logits> logits = drafted.feed_all(0, at, draft);
        require(llama_memory_seq_rm(drafted.memory(), 0, at + 3, -1), "the rest is removed");
        for (llama_pos i = 0; i < 3; ++i) {
            const Logits alone = plain.feed(0, at + i, {text[static_cast<size_t>(at + i)]});
            largest = std::max(largest, relative_difference(logits[static_cast<size_t>(i)], alone));
        }
    }
    return largest;
}

// A model that keeps recurrent states of the last tokens goes back to them.
void check_drafts(const Model &model, const std::string &plan) {
    Options options = options_of(plan), own = options_of("");
    options.n_back = own.n_back = 8;
    Session drafted(model, options), theirs(model, own);
    if (llama_n_rs_seq(drafted.get()) == 0)
        return;
    const double bound =
        std::max(same_numbers(), kOwnDifference * draft_difference(model, theirs, ""));
    const double difference = draft_difference(model, drafted, plan);
    std::printf("%s: drafts differ by %.3g, at most %.3g\n", plan.c_str(), difference, bound);
    require(difference <= bound, plan + ": drafts differ by " + std::to_string(difference) +
                                     ", at most " + std::to_string(bound));
    llama_memory_seq_cp(drafted.memory(), 0, 1, -1, -1);
    require(drafted.decode({{1, 390, {0}, true}}) == -3, "a copy before the cut is made fails");
    require_log("a copy holds all tokens up to the last batch");
}

}  // namespace

void test_hybrids(const std::vector<std::string> &paths) {
    for (const std::string &path : paths) {
        // ggml's products on a CPU with AMX are wrong where several sequences decode together: it
        // reads weights of the second sequence after the end of the matrix.
        const Model model(path, is_on_gpu() ? 999 : 0, /*has_repacked=*/false);
        for (const char *plan : {"fp16", "kitty-pro"}) {
            check_sequences(model, plan);
            check_refusals(model, plan);
            check_states(model, plan);
            check_drafts(model, plan);
        }
    }
}
