// SPDX-License-Identifier: Apache-2.0
#include "device_test.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "session.h"

namespace {

class Hash {
  public:
    void add(const std::vector<Logits> &rows) {
        for (const Logits &row : rows)
            for (const float value : row) {
                uint32_t bits = 0;
                std::memcpy(&bits, &value, sizeof bits);
                hash_ = (hash_ ^ bits) * 1099511628211u;
            }
    }
    uint64_t value() const { return hash_; }

  private:
    uint64_t hash_ = 14695981039346656037u;
};

// Shapes of steps that take turns, each for several steps: so that ggml captures each, and batches
// of three tokens whose sequences have two and one, or one and two, look alike to ggml.
constexpr llama_pos kShapes[][2] = {{1, 0}, {1, 1}, {2, 1}, {1, 2}, {5, 0}};
constexpr int kStepsOfShape = 6;

uint64_t decode_shapes(const Model &model, const std::string &plan) {
    const Text text = random_text(40, 2000, model.n_vocab());
    Options options;
    options.plan = plan;
    options.n_ctx = 4096;
    options.n_sequences = 2;
    Session session(model, options);
    Hash hash;
    hash.add(session.feed_all(0, 0, part(text, 0, 200)));
    llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
    hash.add(session.feed_all(0, 200, part(text, 200, 300)));
    llama_pos next[] = {300, 200};
    for (int round = 0; round < 4; ++round) {
        for (const auto &shape : kShapes) {
            for (int step = 0; step < kStepsOfShape; ++step) {
                std::vector<Token> batch;
                for (llama_seq_id s = 0; s < 2; ++s)
                    for (llama_pos i = 0; i < shape[s]; ++i, ++next[s])
                        batch.push_back(
                            {text[static_cast<size_t>(next[s] + 7 * s)], next[s], {s}, true});
                std::vector<Logits> logits;
                require(session.decode(batch, &logits) == 0, plan + ": a batch decodes");
                hash.add(logits);
            }
        }
        // A draft of which two tokens are kept, and a prompt between decoded tokens.
        hash.add(session.feed_all(0, next[0], part(text, 100, 105)));
        next[0] += 2;
        require(llama_memory_seq_rm(session.memory(), 0, next[0], -1), "the rest is removed");
        hash.add(session.feed_all(1, next[1], part(text, 300, 400)));
        next[1] += 100;
    }
    return hash.value();
}

}  // namespace

void print_graphs(const std::vector<std::string> &paths) {
    for (const std::string &path : paths) {
        const Model model(path);
        for (const char *plan : {"fp16", "kitty-pro"}) {
            const size_t before = count_replays();
            const uint64_t hash = decode_shapes(model, plan);
            std::printf("%016" PRIx64 " %zu\n", hash, count_replays() - before);
        }
    }
}

void test_placement(const std::vector<std::string> &paths) {
    Options options;
    options.plan = "kitty-pro";
    const Text text = random_text(41, 200, 256);
    {
        const Model on_gpu(paths.at(0)), on_cpu(paths.at(0), 0);
        Session there(on_gpu, options), here(on_cpu, options);
        options.is_offloaded = false;
        Session kept_here(on_gpu, options);  // of a model on the GPU, whose cache stays
        const Logits expected = here.feed(0, 0, text);
        require_close(there.feed(0, 0, text), expected, 0.02, "the GPU's and the CPU's");
        require_close(kept_here.feed(0, 0, text), expected, 0.02, "a cache on the CPU");
    }
    options.is_offloaded = true;
    const Model split(paths.at(0), 2);  // the last layer and the output
    clear_log();
    require(Session::make(split, options) == nullptr, "layers on two devices are refused");
    require_log("attention layers are on several (CPU, " + device_name() + ")");
    require_log("--no-kv-offload keeps the cache on the CPU");
    options.is_offloaded = false;
    (void)Session(split, options).feed(0, 0, text);
}
