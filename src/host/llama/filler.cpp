// Filler, alone and with something hidden in it.
//
// SPDX-License-Identifier: Apache-2.0
#include "documents.h"

#include <algorithm>
#include <set>

#include "safetensors.h"

namespace llama {
namespace {

constexpr std::size_t kTokensPerNeedle = 170;
constexpr std::size_t kMaxNeedles = 24;
constexpr std::size_t kLineBytes = 48;
constexpr std::size_t kRecitedBytes = 512;
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

// n distinct offsets at which a needle may start: 0, or after a space or a line end.
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

}  // namespace

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

// As many as fit: all but the requested one distract.
Document make_needle(std::size_t n_tokens, Random &random, const Material &material) {
    const std::size_t n = std::clamp<std::size_t>(n_tokens / kTokensPerNeedle, 1, kMaxNeedles);
    return make_needles(n_tokens, random, material, n);
}

Document make_text(std::size_t n_tokens, Random &random, const Material &material) {
    Document document;
    document.context = std::string(1, '\0') + filler_of(material, n_tokens - 1, random);
    return document;
}

Document make_repeat(std::size_t n_tokens, Random &random, const Material &material,
                     std::size_t n_bytes) {
    const std::string lead = "\nList: ";
    const std::size_t taken = 1 + lead.size() + n_bytes + 2;
    if (n_tokens < taken)
        throw Error("the context is too short for the list");
    std::string list;
    while (list.size() < n_bytes) {
        list += (list.empty() ? "" : " ") + random.letters(2, 6);
    }
    list.resize(n_bytes);
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

// Items are words with the byte after each; the lead of each further time belongs to none.
Document make_recital(std::size_t n_tokens, Random &random, const Material &material,
                      std::size_t n_bytes) {
    Document document = make_repeat(n_tokens, random, material, kRecitedBytes);
    Question &question = document.questions.front();
    const std::string list = question.answer, lead = question.prompt;
    question.answer.clear();
    while (question.answer.size() < n_bytes) {
        if (!question.answer.empty())
            question.answer += lead;
        for (std::size_t at = 0, end; at < list.size(); at = end) {
            end = list.find_first_of(" .", at) + 1;
            question.items.push_back({question.answer.size(), question.answer.size() + end - at});
            question.answer += list.substr(at, end - at);
        }
    }
    return document;
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
