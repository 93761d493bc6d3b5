// SPDX-License-Identifier: Apache-2.0
#include "cli/calibrate/token_texts.h"

#include <algorithm>
#include <cstring>

#include "llama/mapped_file.h"
#include "llama/session.h"

namespace cli {

const char *const kProbeSentence =
    "The river runs slowly past the old mill, and on quiet mornings a thin mist lies over the "
    "green "
    "fields. ";

namespace {

constexpr std::size_t kIdDigits = 9;  // of a number that fits 32 bits

// A line of a file of token ids.
class Line {
  public:
    Line(const char *begin, const char *end, std::string where)
        : at_(begin), end_(end), where_(std::move(where)) {}

    // Empty at the end of the line.
    std::string word() {
        const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
        at_ = std::find_if_not(at_, end_, is_space);
        const char *const first = at_;
        at_ = std::find_if(at_, end_, is_space);
        return std::string(first, std::min(at_, first + kMostLetters));
    }
    // The ids from `first`, a word, to the end of the line.
    llama::Tokens ids(std::string first, std::uint32_t n_vocabulary) {
        llama::Tokens tokens;
        for (; !first.empty(); first = word()) {
            if (first.size() > kIdDigits ||
                first.find_first_not_of("0123456789") != std::string::npos)
                throw llama::Error(where_ + " has \"" + first + "\", which is no token id");
            const unsigned long id = std::stoul(first);
            if (id >= n_vocabulary)
                throw llama::Error(where_ + " has the token " + first +
                                   ", the model's vocabulary has " + std::to_string(n_vocabulary));
            tokens.push_back(static_cast<llama::Token>(id));
        }
        return tokens;
    }
    [[noreturn]] void refuse(const std::string &why) const { throw llama::Error(where_ + why); }

  private:
    static constexpr std::ptrdiff_t kMostLetters = 32;  // of a word, for sentences

    const char *at_, *end_;
    std::string where_;
};

bool begins_with(const llama::Tokens &tokens, const llama::Tokens &prefix) {
    return tokens.size() >= prefix.size() &&
           std::equal(prefix.begin(), prefix.end(), tokens.begin());
}

void cut_prefix(llama::Tokens &tokens, const llama::Tokens &prefix) {
    if (begins_with(tokens, prefix))
        tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(prefix.size()));
}

void add_line(Line line, std::uint32_t n_vocabulary, TokenTexts &texts) {
    const std::string first = line.word();
    if (first.empty())
        return;
    if (first == "cost") {
        texts.costs.push_back(line.ids(line.word(), n_vocabulary));
    } else if (first == "sentence") {
        if (!texts.sentence.empty())
            line.refuse(" is a second sentence, the probe has one");
        texts.sentence = line.ids(line.word(), n_vocabulary);
    } else {
        texts.documents.push_back(line.ids(first, n_vocabulary));
    }
}

}  // namespace

TokenTexts read_token_ids(const std::string &path, const llama::Config &config) {
    const llama::MappedFile file(path);
    TokenTexts texts;
    const char *at = reinterpret_cast<const char *>(file.data());
    const char *const end = at + file.size();
    for (std::size_t number = 1; at != end; ++number) {
        const char *const line_end = std::find(at, end, '\n');
        add_line(Line(at, line_end, path + ", line " + std::to_string(number)), config.n_vocabulary,
                 texts);
        at = line_end == end ? end : line_end + 1;
    }
    if (texts.documents.empty())
        throw llama::Error(path + " has no document: a document is a line of token ids");
    if (begins_with(texts.documents.front(), config.prefix))
        texts.prefix = config.prefix;
    cut_prefix(texts.sentence, texts.prefix);
    for (auto *const lines : {&texts.documents, &texts.costs})
        for (llama::Tokens &tokens : *lines)
            cut_prefix(tokens, texts.prefix);
    if (texts.sentence.empty()) {
        const llama::Tokens &first = texts.documents.front();
        const auto n = static_cast<std::ptrdiff_t>(std::min(first.size(), kSentenceTokens));
        texts.sentence.assign(first.begin(), first.begin() + n);
    }
    if (texts.sentence.size() < 2)
        throw llama::Error(path + " has a sentence of " + std::to_string(texts.sentence.size()) +
                           " tokens, a probe needs at least 2");
    return texts;
}

TokenTexts byte_texts(const std::string &text, const std::string &sentence) {
    return {{0}, {llama::as_tokens(text)}, llama::as_tokens(sentence), {}};
}

CutTexts cut_texts(const TokenTexts &texts, std::size_t n_tokens, std::size_t document_tokens) {
    const std::size_t most = document_tokens - texts.prefix.size();
    const auto cut = [&](const llama::Tokens &document, std::size_t n_taken,
                         std::vector<llama::Tokens> &out) {
        for (std::size_t at = 0; at < n_taken; at += most) {
            const auto first = document.begin() + static_cast<std::ptrdiff_t>(at);
            out.push_back(texts.prefix);
            out.back().insert(out.back().end(), first,
                              first + static_cast<std::ptrdiff_t>(std::min(most, n_taken - at)));
        }
    };
    CutTexts out;
    for (const llama::Tokens &document : texts.documents) {
        const std::size_t n_taken = std::min(document.size(), n_tokens);
        cut(document, n_taken, out.documents);
        n_tokens -= n_taken;
    }
    for (const llama::Tokens &document : texts.costs)
        cut(document, document.size(), out.costs);
    return out;
}

}  // namespace cli
