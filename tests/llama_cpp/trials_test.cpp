// SPDX-License-Identifier: Apache-2.0
#include "trials_test.h"

#include <lowkey/lowkey.h>

#include <cstring>

#include "session.h"

namespace {

constexpr size_t kFilled = 600, kPredicted = 100;
const char *const kPlans[] = {"fp16", "kivi2", "kitty-pro"};

// A preset for gguf_models.llama().
lk_plan *plan_of(const char *name) {
    lk_layer layers[2];
    for (lk_layer &layer : layers) {
        require(lk_layer_init(&layer, sizeof layer) == LK_OK, "a layer");
        layer.n_query_heads = 8;
        layer.n_kv_heads = 2;
        layer.head_dim = 64;
    }
    lk_geometry geometry;
    require(lk_geometry_init(&geometry, sizeof geometry) == LK_OK, "a geometry");
    geometry.n_layers = 2;
    geometry.layers = layers;
    lk_plan *plan = nullptr;
    require(lk_plan_preset(name, &geometry, &plan) == LK_OK, "a plan");
    return plan;
}

Options options_of(const char *plan) {
    Options options;
    options.plan = plan;
    options.n_ubatch = 1024;
    return options;
}

void require_sentence(const char *sentence, const char *words) {
    require(sentence != nullptr && std::strstr(sentence, words) != nullptr,
            std::string("refused with \"") + words + "\": " + (sentence ? sentence : "done"));
}

void make_trials(Session &session) {
    std::vector<lk_plan *> plans;
    for (const char *name : kPlans)
        plans.push_back(plan_of(name));
    require(llama_lowkey_make_trials(session.get(), plans.data(), 3) == nullptr, "trials");
    for (lk_plan *plan : plans)
        lk_plan_destroy(&plan);
}

// Each trial predicts, to the bit, what a context of its plan predicts.
void check_predictions(Session &session, const Model &model, const Text &text) {
    const Text first = part(text, 0, kFilled), rest = part(text, kFilled, text.size());
    session.feed(0, 0, first);
    for (uint32_t trial : {2u, 0u, 1u, 2u}) {
        require(llama_lowkey_choose_trial(session.get(), trial) == nullptr, "a trial is chosen");
        const std::vector<Logits> logits = session.feed_all(0, kFilled, rest);
        require(llama_memory_seq_rm(session.memory(), 0, kFilled, -1), "the predicted tokens go");
        Session alone(model, options_of(kPlans[trial]));
        alone.feed(0, 0, first);
        require(logits == alone.feed_all(0, kFilled, rest),
                std::string("a trial of ") + kPlans[trial] + " predicts as its own context");
    }
}

void check_refusals(Session &session, const Text &text) {
    require_sentence(llama_lowkey_choose_trial(session.get(), 3), "there is no trial 3, only 3");
    // Too far, then of two sequences: the batch fails, and the next one goes on.
    llama_memory_clear(session.memory(), true);
    clear_log();
    std::vector<Token> batch = {{text[0], 0, {0}, true}};
    require(session.decode(batch) != 0, "a batch before the trial's tokens end");
    require_log("whose caches hold 600 tokens");
    llama_memory_clear(session.memory(), true);
    batch.push_back({text[1], 0, {1}, true});
    require(session.decode(batch) != 0, "a batch of two sequences");
    require_log("batches of one sequence");
    llama_memory_clear(session.memory(), true);
    require(llama_lowkey_make_trials(session.get(), nullptr, 0) == nullptr, "no trials");
    require_sentence(llama_lowkey_choose_trial(session.get(), 0), "has no trials");
    require(session.decode(batch) == 0, "without trials two sequences run");
}

}  // namespace

void test_trials(const std::vector<std::string> &paths) {
    const Model model(paths.at(0));
    const Text text = random_text(9, kFilled + kPredicted, model.n_vocab());
    Options options = options_of("fp16");
    options.n_sequences = 2;
    Session session(model, options);
    require_sentence(llama_lowkey_choose_trial(session.get(), 0), "has no trials");
    make_trials(session);
    check_predictions(session, model, text);
    check_refusals(session, text);
    llama_memory_clear(session.memory(), true);
    make_trials(session);  // left for the context's end
    session.feed(0, 0, part(text, 0, 10));
}
