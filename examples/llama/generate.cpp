// llama-generate: continue a prompt from a quantized cache.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "llama/session.h"

namespace {

const char kHelp[] =
    "usage: llama-generate [--model FILE] [--plan NAME] [--prompt TEXT] [--tokens N]\n"
    "Continue TEXT greedily; keys and values stay in a lowkey cache.\n"
    "  --model FILE   safetensors weights (default tests/model/prover.safetensors)\n"
    "  --plan NAME    a preset of lk_plan_preset() (default kitty-pro)\n"
    "  --prompt TEXT  bytes to continue\n"
    "  --tokens N     bytes to make (default 120)\n";

std::map<std::string, std::string> read_options(int argc, char **argv) {
    std::map<std::string, std::string> options = {{"--model", "tests/model/prover.safetensors"},
                                                  {"--plan", "kitty-pro"},
                                                  {"--prompt", "In the beginning"},
                                                  {"--tokens", "120"}};
    for (int i = 1; i < argc; i += 2) {
        if (options.find(argv[i]) == options.end() || i + 1 == argc) {
            std::fputs(kHelp, stderr);
            std::exit(2);
        }
        options[argv[i]] = argv[i + 1];
    }
    return options;
}

int generate(const std::map<std::string, std::string> &options) {
    llama::Model model(options.at("--model"), 0);
    const llama::Geometry geometry = model.geometry();
    const llama::ContextHandle context = llama::open_context(LK_BACKEND_CPU, 0, 0, 0);
    const llama::PlanHandle plan = llama::make_preset(options.at("--plan"), geometry);

    const std::string prompt = std::string(1, '\0') + options.at("--prompt");
    const std::size_t n_tokens = std::stoul(options.at("--tokens"));
    llama::HostSpace space;
    llama::Session session(context.get(), space, model, plan.get(), prompt.size() + n_tokens,
                           static_cast<std::uint32_t>(prompt.size()));
    const std::string made = llama::as_text(session.generate(llama::as_tokens(prompt), n_tokens));
    std::printf("%s%s\n", prompt.c_str() + 1, made.c_str());
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    const std::map<std::string, std::string> options = read_options(argc, argv);
    try {
        return generate(options);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "llama-generate: %s\n", error.what());
        return 1;
    }
}
