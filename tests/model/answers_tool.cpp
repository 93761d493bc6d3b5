// answers-tool WEIGHTS PROMPTS: the greedy answers of a proving model to the prompts of
// golden.safetensors, one a line.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "llama/session.h"

namespace {

constexpr std::size_t kAnswerLimit = 96;

void print_answers(const char *weights, const char *prompts) {
    llama::Model model(weights, 0);
    const llama::SafetensorsFile file(prompts);
    const llama::ContextHandle context = llama::open_context(LK_BACKEND_CPU, 0, 0, 0);
    const llama::PlanHandle plan = llama::make_preset("fp16", model.geometry());
    llama::HostSpace space;
    for (int i = 0;; ++i) {
        const llama::Tensor *tensor = file.find("prompt." + std::to_string(i));
        if (tensor == nullptr)
            return;
        const std::vector<std::int32_t> values = llama::to_ints(*tensor);
        const llama::Tokens prompt(values.begin(), values.end());
        llama::Session session(context.get(), space, model, plan.get(),
                               prompt.size() + kAnswerLimit,
                               static_cast<std::uint32_t>(prompt.size()));
        std::printf("%s\n", llama::as_text(session.generate(prompt, kAnswerLimit, '.')).c_str());
    }
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fputs("usage: answers-tool WEIGHTS PROMPTS\n", stderr);
        return 2;
    }
    try {
        print_answers(argv[1], argv[2]);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "answers-tool: %s\n", error.what());
        return 1;
    }
}
