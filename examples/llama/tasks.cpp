// SPDX-License-Identifier: Apache-2.0
#include "tasks.h"

#include <algorithm>
#include <functional>
#include <set>

#include "safetensors.h"

namespace llama {
namespace {

constexpr std::size_t kTokensPerNeedle = 170;
constexpr std::size_t kMaxNeedles = 24;
constexpr std::size_t kLineBytes = 48;
constexpr std::size_t kFamily = 8;
constexpr std::size_t kStemLetters = 6;
constexpr std::size_t kMaxHops = 6;
const std::string kNeedle = "The code of ";

std::string filler_of(const Material &material, std::size_t n_bytes, Random &random) {
    if (material.filler.empty())
        throw Error("the filler text is empty");
    std::string out;
    out.reserve(n_bytes);
    std::size_t at = random.below(material.filler.size());
    while (out.size() < n_bytes) {
        const std::size_t count = std::min(n_bytes - out.size(), material.filler.size() - at);
        out.append(material.filler, at, count);
        at = 0;
    }
    return clean_filler(std::move(out));
}

std::vector<std::string> needle_words(std::size_t n, const Material &material, Random &random) {
    std::set<std::string> seen;
    std::vector<std::string> words;
    const bool listed = material.words.size() >= n;
    while (words.size() < n) {
        std::string word =
            listed ? material.words[random.below(material.words.size())] : random.letters(4, 9);
        if (seen.insert(word).second)
            words.push_back(std::move(word));
    }
    return words;
}

bool ends_word(char c) { return c == ' ' || c == '\n'; }

// Text with too few places for n needles gets line ends.
void break_lines(std::string &text, std::size_t n) {
    const auto n_places = std::count_if(text.begin(), text.end(), ends_word);
    if (static_cast<std::size_t>(n_places) > n) {
        return;
    }
    for (std::size_t i = kLineBytes; i < text.size(); i += kLineBytes) {
        text[i] = '\n';
    }
}

// n distinct offsets at which a needle may start: 0, or behind a space or a line end.
std::vector<std::size_t> insertion_points(const std::string &text, std::size_t n, Random &random) {
    std::vector<std::size_t> points = {0};
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
        if (ends_word(text[i])) {
            points.push_back(i + 1);
        }
    }
    if (points.size() < n) {
        throw Error("the context is too short for its needles");
    }
    random.shuffle(points);
    points.resize(n);
    std::sort(points.begin(), points.end());
    return points;
}

Document make_needles(std::size_t n_tokens, Random &random, const Material &material,
                      std::size_t n) {
    std::vector<std::string> sentences;
    Document document;
    std::size_t inserted_bytes = 0;
    for (const std::string &word : needle_words(n, material, random)) {
        const std::string start = kNeedle + word + " is ";
        const std::string answer = random.digits() + ".";
        document.questions.push_back({"\n" + start, answer});
        sentences.push_back(start + answer);
        inserted_bytes += sentences.back().size() + 1;
    }
    if (n_tokens < inserted_bytes + 64)
        throw Error("the context is too short for a needle");
    std::string text = filler_of(material, n_tokens - 1 - inserted_bytes, random);
    break_lines(text, n);
    const std::vector<std::size_t> points = insertion_points(text, n, random);
    document.context.push_back('\0');
    std::size_t last = 0;
    for (std::size_t i = 0; i < n; ++i) {
        document.context.append(text, last, points[i] - last);
        document.context += sentences[i];
        document.context.push_back(points[i] == 0 ? '\n' : text[points[i] - 1]);
        last = points[i];
    }
    document.context.append(text, last, std::string::npos);
    return document;
}

// As many as fit: all but the one that is asked for distract.
Document make_needle(std::size_t n_tokens, Random &random, const Material &material) {
    const std::size_t n = std::clamp<std::size_t>(n_tokens / kTokensPerNeedle, 1, kMaxNeedles);
    return make_needles(n_tokens, random, material, n);
}

// Byte 0, padding, then the lines; together n_tokens.
std::string padded(const std::vector<std::string> &lines, std::size_t n_tokens) {
    std::string body;
    for (const std::string &line : lines)
        body += line;
    std::string context(1, '\0');
    const std::size_t room = n_tokens - 1 - body.size();
    if (room > 0)
        context += std::string(room - 1, '#') + "\n";
    return context + body;
}

// One family of keys: a stem with one letter replaced.
std::vector<std::string> family_keys(Random &random) {
    const std::string stem = random.letters(kStemLetters, kStemLetters);
    std::set<std::string> family;
    while (family.size() < kFamily) {
        std::string key = stem;
        key[random.below(kStemLetters)] = random.letters(1, 1)[0];
        if (key != stem)
            family.insert(key);
    }
    std::vector<std::string> keys(family.begin(), family.end());
    random.shuffle(keys);
    return keys;
}

Document make_pairs(std::size_t n_tokens, Random &random,
                    const std::function<std::vector<std::string>(Random &)> &next_keys) {
    std::set<std::string> seen;
    std::vector<std::string> lines;
    Document document;
    std::size_t room = n_tokens - 1;
    for (bool full = false; !full;) {
        for (const std::string &key : next_keys(random)) {
            const std::string answer = random.digits() + ".";
            const std::string line = key + " = " + answer + "\n";
            full = line.size() > room;
            if (full)
                break;
            if (!seen.insert(key).second)
                continue;
            room -= line.size();
            lines.push_back(line);
            document.questions.push_back({"\n? " + key + " = ", answer});
        }
    }
    random.shuffle(lines);
    document.context = padded(lines, n_tokens);
    return document;
}

Document make_kv_easy(std::size_t n_tokens, Random &random, const Material &) {
    return make_pairs(n_tokens, random,
                      [](Random &r) { return std::vector<std::string>{r.letters(4, 8)}; });
}

Document make_kv_hard(std::size_t n_tokens, Random &random, const Material &) {
    return make_pairs(n_tokens, random, family_keys);
}

struct Chain {
    std::vector<std::string> variables;  // v0 .. vh
    std::string digits;

    std::vector<std::string> lines() const {
        std::vector<std::string> out = {variables[0] + " := " + digits + ".\n"};
        for (std::size_t i = 1; i < variables.size(); ++i) {
            out.push_back(variables[i] + " := " + variables[i - 1] + ".\n");
        }
        return out;
    }
};

Chain make_chain(Random &random, std::set<std::string> &seen) {
    Chain chain;
    const std::size_t n_hops = random.between(2, kMaxHops);
    while (chain.variables.size() <= n_hops) {
        std::string name = random.letters(4, 6);
        if (seen.insert(name).second)
            chain.variables.push_back(std::move(name));
    }
    chain.digits = random.digits();
    return chain;
}

// Chains while all lines of the next one fit.
std::vector<Chain> make_chains(std::size_t room_bytes, Random &random) {
    std::set<std::string> seen;
    std::vector<Chain> chains;
    for (;;) {
        Chain chain = make_chain(random, seen);
        std::size_t n_bytes = 0;
        for (const std::string &line : chain.lines())
            n_bytes += line.size();
        if (n_bytes > room_bytes)
            return chains;
        room_bytes -= n_bytes;
        chains.push_back(std::move(chain));
    }
}

// All lines in a random interleaving that keeps the order inside a chain.
std::vector<std::string> interleave(const std::vector<Chain> &chains, Random &random) {
    std::vector<std::size_t> owners;
    std::vector<std::vector<std::string>> lines;
    for (std::size_t c = 0; c < chains.size(); ++c) {
        lines.push_back(chains[c].lines());
        owners.insert(owners.end(), lines[c].size(), c);
    }
    random.shuffle(owners);
    std::vector<std::size_t> next(chains.size(), 0);
    std::vector<std::string> out;
    for (const std::size_t owner : owners)
        out.push_back(lines[owner][next[owner]++]);
    return out;
}

Document make_trace(std::size_t n_tokens, Random &random, const Material &) {
    const std::vector<Chain> chains = make_chains(n_tokens - 1, random);
    Document document;
    document.context = padded(interleave(chains, random), n_tokens);
    for (const Chain &chain : chains) {
        const std::size_t last = chain.variables.size() - 1;
        std::string answer;
        for (std::size_t i = last; i-- > 0;)
            answer += chain.variables[i] + " := ";
        document.questions.push_back(
            {"\n> " + chain.variables[last] + " := ", answer + chain.digits + "."});
    }
    return document;
}

Document make_trace_direct(std::size_t n_tokens, Random &random, std::size_t n_hops) {
    const std::vector<Chain> chains = make_chains(n_tokens - 1, random);
    Document document;
    document.context = padded(interleave(chains, random), n_tokens);
    for (const Chain &chain : chains) {
        document.questions.push_back(
            {"\n? " + chain.variables[n_hops] + " = ", chain.digits + "."});
    }
    return document;
}

Document make_repeat(std::size_t n_tokens, Random &random, const Material &material,
                     std::size_t list_bytes) {
    const std::string lead = "\nList: ";
    const std::size_t taken = 1 + lead.size() + list_bytes + 2;
    if (n_tokens < taken)
        throw Error("the context is too short for the list");
    std::string list;
    while (list.size() < list_bytes) {
        list += (list.empty() ? "" : " ") + random.letters(2, 6);
    }
    list.resize(list_bytes);
    if (list.back() == ' ')
        list.back() = 'x';
    const std::size_t n_filler = n_tokens - taken;
    const std::string filler = n_filler == 0 ? "" : filler_of(material, n_filler, random);
    const std::size_t place = random.between(0, n_filler);
    Document document;
    document.context =
        std::string(1, '\0') + filler.substr(0, place) + lead + list + ".\n" + filler.substr(place);
    document.questions.push_back({lead, list + "."});
    return document;
}

Document make_text(std::size_t n_tokens, Random &random, const Material &material) {
    Document document;
    document.context = std::string(1, '\0') + filler_of(material, n_tokens - 1, random);
    return document;
}

using Maker = Document (*)(std::size_t, Random &, const Material &);

struct Entry {
    Task task;
    Maker make;
};

const std::vector<Entry> &entries() {
    static const std::vector<Entry> list = {
        {{"needle", "six digits behind a sentence hidden in the text", Scoring::kAlone},
         make_needle},
        {{"needle-1", "the same with one sentence alone", Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &m) { return make_needles(n, r, m, 1); }},
        {{"kv-easy", "a dense list of keys and six-digit values", Scoring::kAlone}, make_kv_easy},
        {{"kv-hard", "the same with keys that differ in one letter", Scoring::kAlone},
         make_kv_hard},
        {{"trace", "a variable followed through 2 to 6 assignments, written out", Scoring::kAlone},
         make_trace},
        {{"trace-1", "the value of a variable one assignment away, asked directly",
          Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &) { return make_trace_direct(n, r, 1); }},
        {{"trace-2", "the value of a variable two assignments away, asked directly",
          Scoring::kAlone},
         [](std::size_t n, Random &r, const Material &) { return make_trace_direct(n, r, 2); }},
        {{"repeat-512", "a list of 512 bytes repeated word for word", Scoring::kStream},
         [](std::size_t n, Random &r, const Material &m) { return make_repeat(n, r, m, 512); }},
        {{"repeat-1024", "a list of 1024 bytes repeated word for word", Scoring::kStream},
         [](std::size_t n, Random &r, const Material &m) { return make_repeat(n, r, m, 1024); }},
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
        for (const Entry &entry : entries())
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
    for (const Entry &entry : entries()) {
        if (std::string(task.name) != entry.task.name)
            continue;
        Document document = entry.make(n_tokens, random, material);
        random.shuffle(document.questions);
        return document;
    }
    throw Error(std::string("there is no task ") + task.name);
}

std::string clean_filler(std::string text) {
    std::replace(text.begin(), text.end(), '\0', ' ');
    for (std::size_t at = text.find(kNeedle); at != std::string::npos;
         at = text.find(kNeedle, at + 1)) {
        text[at] = 't';
    }
    return text;
}

}  // namespace llama
