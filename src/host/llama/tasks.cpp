// SPDX-License-Identifier: Apache-2.0
#include "tasks.h"

#include "documents.h"
#include "safetensors.h"

namespace llama {
namespace {

constexpr std::size_t kLeadTokens = 128;  // of a question, and of the item that ends its answer

using Maker = Document (*)(std::size_t, Random &, const Material &);

struct NamedTask {
    Task task;
    Maker make;
};

const std::vector<NamedTask> &entries() {
    static const std::vector<NamedTask> list = {
        {{"needle", "six digits after a sentence hidden in the text", Scoring::kAlone},
         make_needle},
        {{"needle-1", "the same with one sentence alone", Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &m) { return make_needles(n, r, m, 1); }},
        {{"kv-easy", "a dense list of keys and six-digit values", Scoring::kAlone}, make_kv_easy},
        {{"kv-hard", "the same with keys that differ in one letter", Scoring::kAlone},
         make_kv_hard},
        {{"trace", "a variable followed through 2 to 6 assignments, written out", Scoring::kAlone},
         make_trace},
        {{"trace-1", "the value of a variable one assignment away, requested directly",
          Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &) { return make_trace_direct(n, r, 1); }},
        {{"trace-2", "the value of a variable two assignments away, requested directly",
          Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &) { return make_trace_direct(n, r, 2); }},
        {{"repeat-512", "a list of 512 bytes repeated word for word", Scoring::kStream},
         [](std::size_t n, Random &r, const Material &m) { return make_repeat(n, r, m, 512); }},
        {{"repeat-1024", "a list of 1024 bytes repeated word for word", Scoring::kStream},
         [](std::size_t n, Random &r, const Material &m) { return make_repeat(n, r, m, 1024); }},
        {{"walk-2048", "a cycle of assignments, written out over 2048 bytes", Scoring::kItems,
          2048 + kLeadTokens},
         [](std::size_t n, Random &r, const Material &) { return make_walk(n, r, 2048); }},
        {{"walk-4096", "the same over 4096 bytes", Scoring::kItems, 4096 + kLeadTokens},
         [](std::size_t n, Random &r, const Material &) { return make_walk(n, r, 4096); }},
        {{"recite-2048", "a list of 512 bytes repeated 4 times in a row", Scoring::kItems,
          2048 + kLeadTokens},
         [](std::size_t n, Random &r, const Material &m) { return make_recital(n, r, m, 2048); }},
        {{"recite-4096", "the same 8 times in a row", Scoring::kItems, 4096 + kLeadTokens},
         [](std::size_t n, Random &r, const Material &m) { return make_recital(n, r, m, 4096); }},
        {{"text", "bits per byte of the text's second half", Scoring::kText}, make_text}};
    return list;
}

}  // namespace

std::uint64_t Random::next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

std::size_t Random::below(std::size_t n) { return static_cast<std::size_t>(next() % n); }

std::size_t Random::between(std::size_t low, std::size_t high) {
    return low + below(high - low + 1);
}

std::string Random::letters(std::size_t low, std::size_t high) {
    std::string out(between(low, high), 'a');
    for (char &letter : out)
        letter = static_cast<char>('a' + below(26));
    return out;
}

std::string Random::digits() {
    std::string out(6, '0');
    for (char &digit : out)
        digit = static_cast<char>('0' + below(10));
    return out;
}

const std::vector<Task> &all_tasks() {
    static const std::vector<Task> tasks = [] {
        std::vector<Task> list;
        for (const NamedTask &entry : entries())
            list.push_back(entry.task);
        return list;
    }();
    return tasks;
}

const Task *find_task(const std::string &name) {
    for (const Task &task : all_tasks()) {
        if (name == task.name)
            return &task;
    }
    return nullptr;
}

Document make_document(const Task &task, std::size_t n_tokens, std::uint64_t seed,
                       const Material &material) {
    if (n_tokens < 128)
        throw Error("a context has at least 128 tokens");
    std::uint64_t mixed = seed * 0x100000001b3u + n_tokens;
    for (const char *c = task.name; *c != '\0'; ++c) {
        mixed = (mixed ^ static_cast<unsigned char>(*c)) * 0x100000001b3u;
    }
    Random random(mixed);
    for (const NamedTask &entry : entries()) {
        if (std::string(task.name) != entry.task.name)
            continue;
        Document document = entry.make(n_tokens, random, material);
        random.shuffle(document.questions);
        return document;
    }
    throw Error(std::string("there is no task ") + task.name);
}

}  // namespace llama
