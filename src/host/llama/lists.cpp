// Dense lists: keys and their values, chains of assignments.
//
// SPDX-License-Identifier: Apache-2.0
#include "documents.h"

#include <functional>
#include <set>

namespace llama {
namespace {

constexpr std::size_t kFamily = 8;
constexpr std::size_t kStemLetters = 6;
constexpr std::size_t kMaxHops = 6;

// Byte 0, padding, then the lines; together n_tokens.
std::string padded(const std::vector<std::string> &lines, std::size_t n_tokens) {
    std::string body;
    for (const std::string &line : lines)
        body += line;
    std::string context(1, '\0');
    const std::size_t n_free = n_tokens - 1 - body.size();
    if (n_free > 0)
        context += std::string(n_free - 1, '#') + "\n";
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
    std::size_t n_free = n_tokens - 1;
    for (bool full = false; !full;) {
        for (const std::string &key : next_keys(random)) {
            const std::string answer = random.digits() + ".";
            const std::string line = key + " = " + answer + "\n";
            full = line.size() > n_free;
            if (full)
                break;
            if (!seen.insert(key).second)
                continue;
            n_free -= line.size();
            lines.push_back(line);
            document.questions.push_back({"\n? " + key + " = ", answer});
        }
    }
    random.shuffle(lines);
    document.context = padded(lines, n_tokens);
    return document;
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

}  // namespace

Document make_kv_easy(std::size_t n_tokens, Random &random, const Material &) {
    return make_pairs(n_tokens, random,
                      [](Random &r) { return std::vector<std::string>{r.letters(4, 8)}; });
}

Document make_kv_hard(std::size_t n_tokens, Random &random, const Material &) {
    return make_pairs(n_tokens, random, family_keys);
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

Document make_walk(std::size_t n_tokens, Random &random, std::size_t n_bytes) {
    constexpr std::size_t marks = 6;  // " := " and ".\n"
    std::set<std::string> seen;
    std::vector<std::string> names;
    std::size_t room_bytes = n_tokens - 1;
    for (;;) {
        std::string name = random.letters(4, 6);
        if (2 * name.size() + marks > room_bytes)
            break;
        if (!seen.insert(name).second)
            continue;
        room_bytes -= 2 * name.size() + marks;
        names.push_back(std::move(name));
    }
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < names.size(); ++i)
        lines.push_back(names[i] + " := " + names[(i + 1) % names.size()] + ".\n");
    random.shuffle(lines);
    Question question = {"\n> " + names[0] + " := ", ""};
    for (std::size_t i = 1; question.answer.size() < n_bytes; ++i) {
        const std::size_t begin = question.answer.size();
        question.answer += names[i % names.size()] + " := ";
        question.items.push_back({begin, question.answer.size()});
    }
    return {padded(lines, n_tokens), {std::move(question)}};
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

}  // namespace llama
