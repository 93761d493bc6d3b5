// Caches of several plans that a context fills with the same keys and values, so that a program
// compares what each plan does to the model's predictions. They know no llama.cpp. A call that
// fails throws std::runtime_error with one sentence.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LOWKEY_TRIALS_H
#define LOWKEY_TRIALS_H

#include <lowkey/lowkey.h>

#include <cstdint>
#include <vector>

namespace lowkey {

class Trials {
  public:
    // A cache of one sequence under each plan, for n_tokens tokens in steps of as many.
    Trials(lk_context *context, const lk_geometry &geometry,
           const std::vector<const lk_plan *> &plans, uint32_t n_tokens);
    ~Trials();
    Trials(const Trials &) = delete;
    Trials &operator=(const Trials &) = delete;

    // Later steps attend to the cache of one plan and leave no token in it. Before the first call
    // steps add their tokens to all caches.
    void choose(uint32_t trial);
    // A layer of a step of one sequence, from position `first` on. `out` is changed where a trial
    // is chosen.
    void attend(uint32_t layer, const lk_tensor &q, const lk_tensor &k, const lk_tensor &v,
                const lk_tensor &out, uint64_t first, uint32_t n_tokens);
    // After the last layer, or where a step ends without all of them.
    void finish(bool is_whole);

  private:
    struct Trial {
        lk_cache *cache = nullptr;
        lk_sequence sequence = 0;
    };

    void open(uint64_t first, uint32_t n_tokens);

    std::vector<Trial> trials_;
    bool is_chosen_ = false, is_open_ = false;
    uint32_t chosen_ = 0;
    uint64_t n_tokens_ = 0;       // of each cache
    uint32_t n_step_tokens_ = 0;  // of the open step
};

}  // namespace lowkey

#endif
