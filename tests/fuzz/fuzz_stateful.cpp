// Bytes as verbs of a cache: every answer is the model's (tests/stateful), and nothing crashes.
//
// SPDX-License-Identifier: Apache-2.0
#include "stateful/machine.h"

#include <cstdio>
#include <cstdlib>

namespace {

constexpr uint64_t kMostRuns = 60;

void require(bool condition) {
    if (!condition)
        std::abort();
}

struct Context {
    Context() {
        lk_context_desc desc;
        require(lk_context_desc_init(&desc, sizeof desc) == LK_OK);
        desc.n_threads = 1;
        require(lk_context_open(&desc, LK_ABI_VERSION, &open) == LK_OK);
    }
    ~Context() { require(lk_context_close(&open) == LK_OK); }
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;

    lk_context *open = nullptr;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const Context context;
    stateful::Choices choices(data, size);
    stateful::Counts counts;
    stateful::Options options;
    options.most_tokens = 120;
    stateful::Machine machine(context.open, options, &choices, &counts);
    for (uint64_t i = 0; i < kMostRuns && choices.has_more(); ++i)
        if (!machine.run()) {
            std::fprintf(stderr, "%s\nplan %s\n", machine.why().c_str(),
                         machine.describe().c_str());
            std::abort();
        }
    return 0;
}
