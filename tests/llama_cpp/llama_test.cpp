// lowkey in llama.cpp, as a program of llama.cpp's C interface meets it.
//
//   llama-test CASE MODEL [MODEL...]
//
// SPDX-License-Identifier: Apache-2.0
#include <lowkey/lowkey.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>

#include "device_test.h"
#include "hybrid_test.h"
#include "session.h"
#include "text_test.h"
#include "trials_test.h"
#include "windows_test.h"

namespace {

using Models = std::vector<std::string>;

void require_refused(const Model &model, const Options &options, const std::string &words) {
    clear_log();
    llama_context *context = Session::make(model, options);
    require(context == nullptr, "refused: " + words);
    require_log(words);
}

// Logits of a long text in pieces, then of single tokens, against llama.cpp's F32 cache: lowkey at
// 16 bits is as close to it as llama.cpp's own F16 cache. Both round keys and values once;
// llama.cpp rounds queries and sums of values to F16 too, lowkey does not.
void test_logits(const Models &paths) {
    for (const std::string &path : paths) {
        const Model model(path);
        const Text text = random_text(1, 700, model.n_vocab());
        const auto run = [&](const std::string &plan, ggml_type type) {
            Options options;
            options.plan = plan;
            options.type = type;
            Session session(model, options);
            std::vector<Logits> logits = session.feed_all(0, 0, part(text, 0, 600));
            for (size_t i = 600; i < text.size(); ++i)
                logits.push_back(session.feed(0, static_cast<llama_pos>(i), {text[i]}));
            Logits all;
            for (const Logits &row : logits)
                all.insert(all.end(), row.begin(), row.end());
            return all;
        };
        const Logits exact = run("", GGML_TYPE_F32), theirs = run("", GGML_TYPE_F16);
        const Logits ours = run("fp16", GGML_TYPE_F16);
        const double bound = relative_difference(theirs, exact);
        const double difference = relative_difference(ours, exact);
        std::printf(
            "%s: relative difference from an F32 cache: f16 %.3g, fp16 %.3g, of each other %.3g\n",
            path.c_str(), bound, difference, relative_difference(ours, theirs));
        require(difference <= 1.25 * bound + 1e-6, "fp16 is as close as llama.cpp's F16 cache");
        const Logits packed = run("kitty-pro", GGML_TYPE_F16);
        std::printf("%s: kitty-pro %.3g\n", path.c_str(), relative_difference(packed, exact));
        require(std::isfinite(relative_difference(packed, exact)), "kitty-pro gives numbers");
    }
}

// Four sequences in one cache, against each of them alone.
void test_sequences(const Models &paths) {
    const Model model(paths.at(0));
    const Text prompt = random_text(2, 300, model.n_vocab());
    for (const char *plan : {"fp16", "kitty-pro"}) {
        for (const bool is_unified : {true, false}) {
            Options options;
            options.plan = plan;
            options.n_ctx = 4096;
            options.n_sequences = 4;
            options.is_unified = is_unified;
            Session shared(model, options);
            shared.feed(0, 0, prompt);
            for (llama_seq_id s = 1; s < 4; ++s)
                llama_memory_seq_cp(shared.memory(), 0, s, -1, -1);
            // One token of each in one batch, several times.
            std::vector<Text> tails(4);
            std::vector<Logits> logits;
            for (llama_pos step = 0; step < 20; ++step) {
                std::vector<Token> batch;
                for (llama_seq_id s = 0; s < 4; ++s) {
                    tails[s].push_back(random_text(10 + s, 20, model.n_vocab())[step]);
                    batch.push_back({tails[s].back(), 300 + step, {s}, step == 19});
                }
                require(shared.decode(batch, &logits) == 0, "four sequences decode");
            }
            // Back to the prompt for two of them, then another text.
            const Text other = random_text(3, 40, model.n_vocab());
            for (llama_seq_id s : {1, 2})
                require(llama_memory_seq_rm(shared.memory(), s, 300, -1), "truncation");
            require(llama_memory_seq_pos_max(shared.memory(), 1) == 299, "the last position");
            const Logits again = shared.feed(1, 300, other);
            llama_memory_seq_keep(shared.memory(), 1);
            require(llama_memory_seq_pos_max(shared.memory(), 0) == -1 &&
                        llama_memory_seq_pos_max(shared.memory(), 1) == 339,
                    "seq_keep keeps one");

            Session alone(model, options);
            for (llama_seq_id s = 0; s < 4; ++s) {
                llama_memory_clear(alone.memory(), true);
                alone.feed(0, 0, prompt);
                Logits last;
                for (size_t i = 0; i < tails[s].size(); ++i)
                    last = alone.feed(0, 300 + static_cast<llama_pos>(i), {tails[s][i]});
                require_close(logits[s], last, same_numbers(), std::string(plan) + " sequence");
            }
            llama_memory_clear(alone.memory(), true);
            alone.feed(0, 0, prompt);
            require_close(again, alone.feed(0, 300, other), same_numbers(), "after a truncation");
        }
    }
}

// Batches whose sequences are interleaved, or whose tokens belong to several sequences.
void test_batches(const Models &paths) {
    const Model model(paths.at(0));
    const Text a = random_text(4, 50, model.n_vocab()), b = random_text(5, 30, model.n_vocab());
    Options options;
    options.plan = "fp16";
    options.n_sequences = 3;
    options.n_threads = 2;
    Session session(model, options), alone(model, options);
    std::vector<Token> mixed;
    for (size_t i = 0; i < a.size(); ++i) {
        mixed.push_back({a[i], static_cast<llama_pos>(i), {0}, i + 1 == a.size()});
        if (i < b.size())
            mixed.push_back({b[i], static_cast<llama_pos>(i), {1}, i + 1 == b.size()});
    }
    std::vector<Logits> logits;
    require(session.decode(mixed, &logits) == 0, "an interleaved batch decodes");
    require_close(logits[1], alone.feed(0, 0, a), same_numbers(), "the longer of two");
    llama_memory_clear(alone.memory(), true);
    require_close(logits[0], alone.feed(0, 0, b), same_numbers(), "the shorter of two");

    llama_memory_clear(session.memory(), true);
    std::vector<Token> common;
    for (size_t i = 0; i < a.size(); ++i)
        common.push_back({a[i], static_cast<llama_pos>(i), {0, 1, 2}, false});
    require(session.decode(common) == 0, "tokens of three sequences decode");
    const Logits third = session.feed(2, 50, b);
    llama_memory_clear(alone.memory(), true);
    alone.feed(0, 0, a);
    require_close(third, alone.feed(0, 50, b), same_numbers(), "a sequence that shared its prompt");
    clear_log();
    require(session.decode({{1, 80, {2, 0}, true}}) != 0, "sequences that differ share no token");
}

// A draft is decoded at once, and the part that was not accepted is removed.
void test_drafts(const Models &paths) {
    const Model model(paths.at(0));
    const Text text = random_text(6, 400, model.n_vocab());
    for (const char *plan : {"fp16", "kitty-pro"}) {
        Options options;
        options.plan = plan;
        Session drafted(model, options), plain(model, options);
        drafted.feed(0, 0, part(text, 0, 300));
        plain.feed(0, 0, part(text, 0, 300));
        for (llama_pos at = 300; at < 390; at += 3) {
            Text draft = part(text, at, at + 3);
            draft = joined(draft, random_text(at, 5, model.n_vocab()));  // not accepted
            const std::vector<Logits> logits = drafted.feed_all(0, at, draft);
            require(llama_memory_seq_rm(drafted.memory(), 0, at + 3, -1), "the rest is removed");
            for (llama_pos i = 0; i < 3; ++i)
                require_close(logits[i], plain.feed(0, at + i, {text[at + i]}), same_numbers(),
                              std::string(plan) + " draft at " + std::to_string(at + i));
        }
    }
}

size_t count_threads() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

// Any number of threads gives the bits of one, in prompts, in decoded tokens and with several
// sequences; lowkey adds no thread to those of ggml.
void test_threads(const Models &paths) {
    const Model model(paths.at(0));
    const Text text = random_text(12, 420, model.n_vocab());
    const auto run = [&](const std::string &plan, int n_threads, int n_batch_threads) {
        Options options;
        options.plan = plan;
        options.n_sequences = 2;
        options.n_threads = n_threads;
        Session session(model, options);
        llama_set_n_threads(session.get(), n_threads, n_batch_threads);
        std::vector<Logits> logits = session.feed_all(0, 0, part(text, 0, 390));
        llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
        for (llama_pos i = 390; i < 410; ++i) {
            std::vector<Logits> both;
            const Token first{text[static_cast<size_t>(i)], i, {0}, true};
            const Token second{text[static_cast<size_t>(i) + 10], i, {1}, true};
            require(session.decode({first, second}, &both) == 0, "two sequences decode");
            logits.insert(logits.end(), both.begin(), both.end());
            if (i % 5 == 0)
                require(llama_memory_seq_rm(session.memory(), 1, i, -1) &&
                            session.decode({second}) == 0,
                        "a token again");
        }
        return std::make_pair(logits, count_threads());
    };
    for (const char *plan : {"fp16", "kitty-pro"}) {
        const std::vector<Logits> expected = run(plan, 1, 1).first;
        for (const auto &[n_threads, n_batch_threads] :
             {std::pair(2, 2), std::pair(3, 3), std::pair(1, 3), std::pair(3, 2)}) {
            const size_t n_theirs = run("", n_threads, n_batch_threads).second;
            const auto [logits, n_ours] = run(plan, n_threads, n_batch_threads);
            const std::string what = std::string(plan) + " with " + std::to_string(n_threads) +
                                     " and " + std::to_string(n_batch_threads) + " threads";
            require(logits == expected, what + " gives the bits of one thread");
            require(n_ours <= n_theirs, what + ": lowkey starts no thread");
        }
    }
}

std::string path_of(const char *name) {
    const char *folder = std::getenv("TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/" + name;
}

// Loads damaged states of one sequence as sequence 1.
void check_damaged_states(Session &target, const std::vector<uint8_t> &one) {
    for (size_t at :
         {size_t{0}, size_t{13}, size_t{24}, size_t{33}, one.size() / 2, one.size() - 1}) {
        std::vector<uint8_t> damaged = one;
        damaged[at] ^= 0x40;
        clear_log();
        require(llama_state_seq_set_data(target.get(), damaged.data(), damaged.size(), 1) == 0,
                "a damaged byte " + std::to_string(at) + " is found");
    }
    require(llama_state_seq_set_data(target.get(), one.data(), one.size() / 2, 1) == 0,
            "half a state is refused");
    require(llama_memory_seq_pos_max(target.memory(), 1) == -1, "nothing is left of it");
}

// A state goes on as the original does, bit for bit; a damaged one changes nothing else.
void test_states(const Models &paths) {
    const Model model(paths.at(0));
    const Text text = random_text(7, 330, model.n_vocab()),
               more = random_text(8, 9, model.n_vocab());
    for (const char *plan : {"fp16", "kitty-pro"}) {
        Options options;
        options.plan = plan;
        options.n_sequences = 3;
        Session source(model, options), target(model, options);
        source.feed(0, 0, text);
        llama_memory_seq_cp(source.memory(), 0, 1, 0, 200);
        source.feed(1, 200, part(text, 0, 20));

        std::vector<uint8_t> whole(llama_state_get_size(source.get()));
        require(llama_state_get_data(source.get(), whole.data(), whole.size()) == whole.size(),
                "the whole state");
        std::vector<uint8_t> one(llama_state_seq_get_size(source.get(), 1));
        require(llama_state_seq_get_data(source.get(), one.data(), one.size(), 1) == one.size(),
                "the state of a sequence");
        const std::string file = path_of("lowkey-state.bin");
        require(llama_state_save_file(source.get(), file.c_str(), text.data(), text.size()),
                "a file");

        const Logits goes_on = source.feed(0, 330, more), goes_on_1 = source.feed(1, 220, more);
        target.feed(2, 0, more);  // gone after the load of a whole state
        require(llama_state_set_data(target.get(), whole.data(), whole.size()) == whole.size(),
                "the whole state loads");
        require(llama_memory_seq_pos_max(target.memory(), 2) == -1, "a whole state replaces all");
        require(target.feed(0, 330, more) == goes_on, "sequence 0 goes on bit for bit");
        require(target.feed(1, 220, more) == goes_on_1, "sequence 1 goes on bit for bit");
        require(llama_state_seq_set_data(target.get(), one.data(), one.size(), 2) == one.size(),
                "a sequence loads under another number");
        require(target.feed(2, 220, more) == goes_on_1, "it goes on bit for bit");

        Text tokens(text.size());
        size_t n_tokens = 0;
        require(llama_state_load_file(target.get(), file.c_str(), tokens.data(), tokens.size(),
                                      &n_tokens) &&
                    n_tokens == text.size(),
                "the file loads");
        require(target.feed(0, 330, more) == goes_on, "from the file bit for bit");
        std::remove(file.c_str());

        check_damaged_states(target, one);
        require(llama_memory_seq_rm(target.memory(), 0, 330, -1), "the other sequence is there");
        require(target.feed(0, 330, more) == goes_on, "and unchanged");
    }
}

// What the host may request and lowkey does not do: a sentence, a failed batch, and no harm.
void check_refused_requests(const Model &model) {
    const Text text = random_text(9, 100, model.n_vocab());
    Options options;
    options.plan = "fp16";
    Session session(model, options), plain(model, options);
    require(!llama_memory_can_shift(session.memory()), "no context shift is offered");
    session.feed(0, 0, text);
    clear_log();
    require(!llama_memory_seq_rm(session.memory(), 0, 10, 20), "the middle stays");
    require_log("lowkey removes tokens at the end alone");
    require(!llama_memory_seq_rm(session.memory(), 0, 0, 20), "the beginning stays");

    clear_log();
    llama_memory_seq_add(session.memory(), 0, 20, -1, -10);
    require(session.decode({{1, 100, {0}, true}}) == -3, "a shift fails the next batch");
    require_log("a context shift of sequence 0 was requested");
    clear_log();
    llama_set_causal_attn(session.get(), false);
    require(session.decode({{1, 100, {0}, true}}) == -3, "attention that is not causal fails");
    require_log("attention that is not causal was requested");
    llama_set_causal_attn(session.get(), true);
    clear_log();
    require(session.decode({{1, 0, {5}, false}, {2, 3, {5}, true}}) != 0, "gaps fail");
    plain.feed(0, 0, text);
    require_close(session.feed(0, 100, {7}), plain.feed(0, 100, {7}), 0, "nothing was harmed");
}

// A budget that ends in the middle: the batch fails, what was there goes on.
void check_full_budget(const Model &model) {
    Options options;
    options.plan = "kivi4";
    options.n_ctx = 8192;
    options.n_ubatch = 64;
    options.budget = "1536K";
    clear_log();
    Session small(model, options);
    llama_pos at = 0;
    int result = 0;
    for (; result == 0 && at < 8192 - 64; at += 64) {
        const Text piece = random_text(at + 100, 64, model.n_vocab());
        std::vector<Token> tokens;
        for (size_t i = 0; i < piece.size(); ++i)
            tokens.push_back(
                {piece[i], at + static_cast<llama_pos>(i), {0}, i + 1 == piece.size()});
        result = small.decode(tokens);
    }
    require(result == 1 && at > 256, "a full budget refuses a batch");
    require_log("LK_E_BUDGET");
    const llama_pos last = llama_memory_seq_pos_max(small.memory(), 0);
    require(last + 1 == at - 64, "the batch left nothing");
    require(llama_memory_seq_rm(small.memory(), 0, last - 500, -1), "tokens are removed");
    require(small.decode({{1, last - 500, {0}, true}}) == 0, "and the sequence goes on");

    // In one batch of many micro-batches those stay that ran.
    llama_memory_clear(small.memory(), true);
    std::vector<Token> tokens;
    for (llama_pos i = 0; i < 8000; ++i)
        tokens.push_back({i % model.n_vocab(), i, {0}, i + 1 == 8000});
    require(small.decode(tokens) == -3, "a later micro-batch fails");
    const llama_pos n_left = llama_memory_seq_pos_max(small.memory(), 0) + 1;
    require(n_left > 512 && n_left % 64 == 0, "the micro-batches before it stay");
    require(llama_memory_seq_rm(small.memory(), 0, n_left - 500, -1) &&
                small.decode({{1, n_left - 500, {0}, true}}) == 0,
            "and the sequence goes on from them");
}

void test_requests(const Models &paths) {
    const Model model(paths.at(0));
    check_refused_requests(model);
    check_full_budget(model);
}

// Writes plan kivi4 for a model of so many layers of the random llama's shape; returns the path.
std::string write_plan(uint32_t n_layers) {
    std::vector<lk_layer> layers(n_layers);
    for (lk_layer &layer : layers) {
        require(lk_layer_init(&layer, sizeof layer) == LK_OK, "a layer");
        layer.n_query_heads = 8;
        layer.n_kv_heads = 2;
        layer.head_dim = 64;
    }
    lk_geometry geometry;
    require(lk_geometry_init(&geometry, sizeof geometry) == LK_OK, "a geometry");
    geometry.n_layers = n_layers;
    geometry.layers = layers.data();
    lk_plan *plan = nullptr;
    require(lk_plan_preset("kivi4", &geometry, &plan) == LK_OK, "a plan");
    size_t n_bytes = 0;
    require(lk_plan_to_json(plan, nullptr, 0, &n_bytes) == LK_OK, "its size");
    std::string text(n_bytes, ' ');
    require(lk_plan_to_json(plan, text.data(), text.size(), &n_bytes) == LK_OK, "its text");
    lk_plan_destroy(&plan);
    const std::string path = path_of("lowkey-plan.json");
    std::FILE *file = std::fopen(path.c_str(), "w");
    require(file != nullptr && std::fwrite(text.data(), 1, n_bytes - 1, file) == n_bytes - 1,
            "a plan file");
    std::fclose(file);
    return path;
}

void test_refusals(const Models &paths) {
    require(llama_lowkey_set_plan("kitten") != nullptr, "no such plan");
    require(std::strstr(llama_lowkey_set_plan("kitten"), "no preset (fp16, int8"),
            "presets are named");
    require(llama_lowkey_set_budget("12 bananas") != nullptr, "no such number");
    require(llama_lowkey_set_budget("0") != nullptr, "no budget");
    const std::string json = write_plan(2);
    {
        const Model model(paths.at(0));
        Options options;
        options.plan = json;
        Session(model, options).feed(0, 0, random_text(11, 300, model.n_vocab()));
        write_plan(3);
        require_refused(model, options, "lowkey-plan.json\": ");
        std::FILE *file = std::fopen(json.c_str(), "w");
        std::fputs("{\"format\": 1", file);
        std::fclose(file);
        require(llama_lowkey_set_plan(json.c_str()) != nullptr, "a damaged plan");
        std::remove(json.c_str());
    }
    Options options;
    options.plan = "kitty-pro";
    {
        const Model model(paths.at(0));
        options.budget = "64K";
        require_refused(model, options, "is too small: under the plan \"kitty-pro\" one step");
        options.budget = "";
        options.plan = "cocktail";
        require_refused(model, options, "needs classes of chunks");
        options.plan = "kitty-pro";
        options.type = GGML_TYPE_Q8_0;
        require_refused(model, options, "the plan states the widths");
        options.type = GGML_TYPE_F16;
    }
    // The other models: PATH=WORDS.
    for (size_t i = 1; i < paths.size(); ++i) {
        const size_t at = paths[i].find('=');
        const Model model(paths[i].substr(0, at));
        require_refused(model, options, paths[i].substr(at + 1));
        options.plan = "";
        llama_context *context = Session::make(model, options);
        require(context != nullptr, "llama.cpp's own cache runs it");
        llama_free(context);
        options.plan = "kitty-pro";
    }
}

}  // namespace

int main(int argc, char **argv) {
    const std::map<std::string, std::function<void(const Models &)>> cases = {
        {"logits", test_logits},
        {"sequences", test_sequences},
        {"batches", test_batches},
        {"drafts", test_drafts},
        {"states", test_states},
        {"requests", test_requests},
        {"windows", test_windows},
        {"refusals", test_refusals},
        {"threads", test_threads},
        {"generate", generate},
        {"answers", answers},
        {"graphs", print_graphs},
        {"placement", test_placement},
        {"hybrids", test_hybrids},
        {"perplexity", print_perplexity},
        {"trials", test_trials}};
    const auto found = argc > 2 ? cases.find(argv[1]) : cases.end();
    if (found == cases.end()) {
        std::fputs("usage: llama-test CASE MODEL...\n", stderr);
        return 2;
    }
    found->second(Models(argv + 2, argv + argc));
}
