// logits-tool FOLDER IDS OUT: the logits of a model of transformers for token ids, F32
// [n_tokens][n_vocabulary] to the file OUT.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>
#include <iterator>

#include "llama/session.h"

namespace {

void write_logits(const char *folder, const char *ids, const char *out) {
    llama::Model model(llama::read_model_folder(folder), 0);
    std::ifstream in(ids);
    const llama::Tokens tokens{std::istream_iterator<llama::Token>(in), {}};
    const llama::ContextHandle context = llama::open_context(LK_BACKEND_CPU, 0, 0, 0);
    const llama::PlanHandle plan = llama::make_preset("fp16", model.geometry());
    llama::HostSpace space;
    llama::Session session(context.get(), space, model, plan.get(), tokens.size(),
                           static_cast<std::uint32_t>(tokens.size()));
    const std::vector<float> logits = session.provisional(tokens);
    std::ofstream file(out, std::ios::binary);
    file.write(reinterpret_cast<const char *>(logits.data()),
               static_cast<std::streamsize>(logits.size() * sizeof(float)));
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 4) {
        std::fputs("usage: logits-tool FOLDER IDS OUT\n", stderr);
        return 2;
    }
    try {
        write_logits(argv[1], argv[2], argv[3]);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "logits-tool: %s\n", error.what());
        return 1;
    }
}
