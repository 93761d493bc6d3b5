// Generators of the proving tasks; tests/model/TASKS.md defines their bytes.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_TASKS_H
#define LLAMA_TASKS_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace llama {

// Bytes of an answer that are graded together.
struct Item {
    std::size_t begin, end;
};

struct Question {
    std::string prompt;
    std::string answer;            // ends in its terminator, a long one in its last item
    std::vector<Item> items = {};  // of a long answer, in their order
};

struct Document {
    std::string context;  // begins with byte 0
    std::vector<Question> questions;
};

// What a document is made from.
struct Material {
    std::string filler;              // running text; repeated where it is short
    std::vector<std::string> words;  // of the needles; empty = random letters
};

// SplitMix64: the same stream from the same seed everywhere.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next();
    std::size_t below(std::size_t n);                        // 0 .. n-1, n > 0
    std::size_t between(std::size_t low, std::size_t high);  // low .. high
    std::string letters(std::size_t low, std::size_t high);
    std::string digits();
    template <typename T>
    void shuffle(std::vector<T> &items) {
        for (std::size_t i = items.size(); i > 1; --i)
            std::swap(items[i - 1], items[below(i)]);
    }

  private:
    std::uint64_t state_;
};

// How a task's questions are put and scored.
enum class Scoring {
    kAlone,   // each question directly after the context, which is then rolled back
    kStream,  // one question, fed in steps of at most 128 tokens
    kItems,   // one question with a long answer, which is graded item by item; fed 16 tokens at a
              // time, so that pages are packed when decoding would pack them
    kText     // no question: bits per byte of the second half
};

struct Task {
    const char *name;
    const char *about;  // one line
    Scoring scoring;
    std::size_t answer_tokens = 1200;  // at most, with the question
};

const std::vector<Task> &all_tasks();
const Task *find_task(const std::string &name);  // nullptr when there is none

// A document of n_tokens tokens with as many questions as the task has about it. The same
// (task, n_tokens, seed, material) gives the same document. Throws Error when n_tokens is too
// small.
Document make_document(const Task &task, std::size_t n_tokens, std::uint64_t seed,
                       const Material &material);

// Text that may serve as filler: no byte 0, no needle sentence of its own.
std::string clean_filler(std::string text);

}  // namespace llama

#endif
