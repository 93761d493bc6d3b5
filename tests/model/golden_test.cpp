// Compares this host on the library with what PyTorch answered (tests/model/README.md).
// Arguments: the weights, the golden file.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>

#include "llama/session.h"

namespace {

// PyTorch rounds K and V at the same places; the rest is the order of float32 sums, and queries
// that a fast path may round. Logits reach 20.
constexpr double kMaxLogitError = 0.05;
constexpr double kMaxRelativeError = 1e-3;
constexpr std::size_t kAnswerLimit = 96;

class Golden {
  public:
    Golden(const std::string &weights, const std::string &golden)
        : model_(weights, 0),
          file_(golden),
          context_(llama::open_context(LK_BACKEND_CPU, 0, 0, 0)),
          geometry_(model_.geometry()) {}

    bool logits_agree();
    bool answers_agree(const std::string &plan_name);

  private:
    llama::Tokens tokens(const std::string &name) const {
        const std::vector<std::int32_t> values = llama::to_ints(file_.at(name));
        return llama::Tokens(values.begin(), values.end());
    }

    llama::Model model_;
    llama::SafetensorsFile file_;
    llama::ContextHandle context_;
    llama::HostSpace space_;
    llama::Geometry geometry_;
};

bool Golden::logits_agree() {
    const llama::Tokens prompt = tokens("tokens");
    const std::vector<std::int32_t> positions = llama::to_ints(file_.at("positions"));
    const std::vector<float> expected = llama::to_floats(file_.at("logits"));
    const llama::PlanHandle plan = llama::make_preset("fp16", geometry_);
    llama::Session session(context_.get(), space_, model_, plan.get(), prompt.size(),
                           static_cast<std::uint32_t>(prompt.size()));
    const std::vector<float> got = session.provisional(prompt);
    const std::size_t n_vocabulary = model_.config().n_vocabulary;
    double worst = 0, error = 0, norm = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const float *row = got.data() + static_cast<std::size_t>(positions[i]) * n_vocabulary;
        for (std::size_t j = 0; j < n_vocabulary; ++j) {
            const double want = expected[i * n_vocabulary + j];
            const double difference = double{row[j]} - want;
            worst = std::max(worst, std::fabs(difference));
            error += difference * difference;
            norm += want * want;
        }
    }
    const double relative = std::sqrt(error / norm);
    const bool ok = worst <= kMaxLogitError && relative <= kMaxRelativeError;
    std::printf("%s logits: largest difference %.2e (limit %.2e), relative %.2e (limit %.2e)\n",
                ok ? "ok" : "FAIL", worst, kMaxLogitError, relative, kMaxRelativeError);
    return ok;
}

bool Golden::answers_agree(const std::string &plan_name) {
    const llama::PlanHandle plan = llama::make_preset(plan_name, geometry_);
    bool ok = true;
    for (int i = 0; file_.find("prompt." + std::to_string(i)) != nullptr; ++i) {
        const llama::Tokens prompt = tokens("prompt." + std::to_string(i));
        const llama::Tokens answer = tokens("answer." + std::to_string(i));
        llama::Session session(context_.get(), space_, model_, plan.get(),
                               prompt.size() + kAnswerLimit,
                               static_cast<std::uint32_t>(prompt.size()));
        const llama::Tokens got = session.generate(prompt, kAnswerLimit, '.');
        const bool same = got == answer;
        std::printf("%s %s prompt %d: \"%s\"%s\n", same ? "ok" : "FAIL", plan_name.c_str(), i,
                    llama::as_text(got).c_str(),
                    same ? "" : (", expected \"" + llama::as_text(answer) + "\"").c_str());
        ok = ok && same;
    }
    return ok;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::fputs("usage: golden_test WEIGHTS GOLDEN\n", stderr);
        return 2;
    }
    try {
        Golden golden(argv[1], argv[2]);
        const bool logits = golden.logits_agree();
        const bool answers = golden.answers_agree("fp16");
        return logits && answers ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "golden_test: %s\n", error.what());
        return 1;
    }
}
