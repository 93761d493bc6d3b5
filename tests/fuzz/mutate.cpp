// SPDX-License-Identifier: Apache-2.0
#include "mutate.h"

#include <lowkey/plan.h>

#include <algorithm>
#include <cstring>

#include "restamp.h"

namespace mutate {

namespace {

struct Span {
    size_t begin;
    size_t end;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Runs of digits outside words.
std::vector<Span> numbers_of(const std::string &text) {
    std::vector<Span> out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (!is_digit(text[i]))
            continue;
        const size_t begin = i;
        while (i < text.size() && is_digit(text[i]))
            ++i;
        out.push_back({begin, i});
    }
    return out;
}

// Arrays and objects, with what their brackets hold.
std::vector<Span> groups_of(const std::string &text) {
    std::vector<Span> out;
    std::vector<size_t> open;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '{' || text[i] == '[')
            open.push_back(i);
        if ((text[i] == '}' || text[i] == ']') && !open.empty()) {
            out.push_back({open.back(), i + 1});
            open.pop_back();
        }
    }
    return out;
}

void change_number(std::string *text, Random *random) {
    static const char *const kNumbers[] = {"0",          "1",
                                           "2",          "3",
                                           "4",          "8",
                                           "16",         "32",
                                           "64",         "128",
                                           "256",        "1023",
                                           "1024",       "1025",
                                           "65535",      "65536",
                                           "4294967295", "4294967296",
                                           "1.5",        "1e9",
                                           "1e308",      "18446744073709551615"};
    const std::vector<Span> numbers = numbers_of(*text);
    if (numbers.empty())
        return;
    const Span at = numbers[below(random, numbers.size())];
    text->replace(at.begin, at.end - at.begin,
                  kNumbers[below(random, sizeof kNumbers / sizeof *kNumbers)]);
}

// A group once, twice or many times more, as elements of the array around it.
void repeat_group(std::string *text, Random *random) {
    const std::vector<Span> groups = groups_of(*text);
    if (groups.empty())
        return;
    const Span at = groups[below(random, groups.size())];
    const std::string group = text->substr(at.begin, at.end - at.begin);
    const size_t times = size_t{1} << below(random, 9);
    std::string more;
    for (size_t i = 0; i < times && more.size() < 1 << 16; ++i)
        more += "," + group;
    text->insert(at.end, more);
}

void drop_group(std::string *text, Random *random) {
    const std::vector<Span> groups = groups_of(*text);
    if (groups.empty())
        return;
    const Span at = groups[below(random, groups.size())];
    const bool has_comma = at.end < text->size() && (*text)[at.end] == ',';
    text->erase(at.begin, at.end - at.begin + has_comma);
}

void exchange_groups(std::string *text, Random *random) {
    const std::vector<Span> groups = groups_of(*text);
    if (groups.size() < 2)
        return;
    const Span from = groups[below(random, groups.size())];
    const Span to = groups[below(random, groups.size())];
    const std::string group = text->substr(from.begin, from.end - from.begin);
    if (group.size() < 1 << 16)
        text->replace(to.begin, to.end - to.begin, group);
}

// Numbers of channels for a key.
void add_numbers(std::string *text, Random *random) {
    static const char *const kNames[] = {"classes", "centers", "scales"};
    const size_t key = text->find("\"key\":");
    const size_t open = key == std::string::npos ? key : text->find('{', key);
    if (open == std::string::npos)
        return;
    const size_t n = 16u * (2 + below(random, 15));
    std::string numbers = std::string("\"") + kNames[below(random, 3)] + "\":[2";
    for (size_t i = 1; i < n; ++i)
        numbers += ",2";
    text->insert(open + 1, numbers + "],");
}

template <class T>
T load(const std::vector<uint8_t> &bytes, size_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

template <class T>
void store(T value, size_t at, std::vector<uint8_t> *bytes) {
    std::memcpy(bytes->data() + at, &value, sizeof value);
}

// Where the chunks begin; the last one is the end.
std::vector<size_t> chunks_of(const std::vector<uint8_t> &bytes) {
    std::vector<size_t> out;
    size_t at = RESTAMP_HEADER;
    for (; at + RESTAMP_CHUNK <= bytes.size();
         at = snapshot_next_chunk(bytes.data(), at, bytes.size()))
        out.push_back(at);
    out.push_back(at < bytes.size() ? at : bytes.size());
    return out;
}

void change_field(size_t begin, size_t end, std::vector<uint8_t> *bytes, Random *random) {
    if (end < begin + 4)
        return;
    const size_t at = begin + below(random, (end - begin) / 4) * 4;
    const uint32_t old = load<uint32_t>(*bytes, at);
    const uint32_t kValues[] = {0,       1,       2,        old + 1,  old - 1, old * 2,
                                old / 2, 0x10000, 1u << 20, 1u << 28, ~0u,     below(random, 512)};
    store(kValues[below(random, sizeof kValues / sizeof *kValues)], at, bytes);
}

void change_plan(const std::vector<size_t> &chunks, std::vector<uint8_t> *bytes, Random *random) {
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
        if (std::memcmp(bytes->data() + chunks[i], "PLAN", 4) != 0)
            continue;
        const size_t body = chunks[i] + RESTAMP_CHUNK;
        std::string text(bytes->begin() + static_cast<ptrdiff_t>(body),
                         bytes->begin() + static_cast<ptrdiff_t>(chunks[i + 1]));
        json(&text, random);
        fit_geometry_hash(&text);
        const std::vector<uint8_t> rest(bytes->begin() + static_cast<ptrdiff_t>(chunks[i + 1]),
                                        bytes->end());
        bytes->resize(body);
        bytes->insert(bytes->end(), text.begin(), text.end());
        bytes->insert(bytes->end(), rest.begin(), rest.end());
        store<uint64_t>(text.size(), chunks[i] + 16, bytes);
        const size_t hash = text.find("\"hash\": \"");
        if (hash != std::string::npos)
            store<uint64_t>(std::strtoull(text.substr(hash + 9, 16).c_str(), nullptr, 16), 16,
                            bytes);
        return;
    }
}

// A chunk comes again behind itself: a sequence of the same blocks, say.
void repeat_chunk(const std::vector<size_t> &chunks, std::vector<uint8_t> *bytes, Random *random) {
    const size_t i = below(random, chunks.size() - 1);
    const std::vector<uint8_t> chunk(bytes->begin() + static_cast<ptrdiff_t>(chunks[i]),
                                     bytes->begin() + static_cast<ptrdiff_t>(chunks[i + 1]));
    const size_t times = size_t{1} << below(random, 6);
    for (size_t n = 0; n < times && chunk.size() * n < 1 << 16; ++n)
        bytes->insert(bytes->begin() + static_cast<ptrdiff_t>(chunks[i + 1]), chunk.begin(),
                      chunk.end());
}

// Numbers of chunks, and what the header counts.
void fit_frame(std::vector<uint8_t> *bytes) {
    const std::vector<size_t> chunks = chunks_of(*bytes);
    uint64_t n_tokens = 0, n_blocks = 0;
    uint32_t n_sequences = 0;
    for (size_t i = 0; i + 1 < chunks.size(); ++i) {
        const size_t body = chunks[i] + RESTAMP_CHUNK;
        store<uint64_t>(i, chunks[i] + 8, bytes);
        if (!std::memcmp(bytes->data() + chunks[i], "SEQN", 4) && body + 16 <= chunks[i + 1]) {
            ++n_sequences;
            n_tokens += load<uint64_t>(*bytes, body + 8);
        }
        if (!std::memcmp(bytes->data() + chunks[i], "ROWS", 4) && body + 24 <= chunks[i + 1])
            n_blocks += load<uint32_t>(*bytes, body + 20) == 0;
    }
    store(n_tokens, 32, bytes);
    store(n_blocks, 40, bytes);
    store(n_sequences, 48, bytes);
}

}  // namespace

void json(std::string *text, Random *random) {
    constexpr void (*kChanges[])(std::string *, Random *) = {
        change_number, change_number, repeat_group, drop_group, exchange_groups, add_numbers};
    kChanges[below(random, sizeof kChanges / sizeof *kChanges)](text, random);
}

void fit_geometry_hash(std::string *plan) {
    lk_plan *read = nullptr;
    const lk_status status = lk_plan_from_json(plan->data(), plan->size(), &read);
    lk_plan_destroy(&read);
    char sentence[512];
    if (status != LK_E_MISMATCH || lk_last_error(sentence, sizeof sentence, nullptr) != LK_OK)
        return;
    const char *own = std::strstr(sentence, "that of its layers is ");
    const size_t at = plan->find("\"hash\": \"");
    if (own && at != std::string::npos && at + 25 <= plan->size())
        plan->replace(at + 9, 16, own + 22, 16);
}

void snapshot(std::vector<uint8_t> *bytes, Random *random) {
    if (bytes->size() < RESTAMP_HEADER)
        return;
    const std::vector<size_t> chunks = chunks_of(*bytes);
    const size_t i = below(random, chunks.size() - 1);
    const size_t body = chunks.size() < 2 ? bytes->size() : chunks[i] + RESTAMP_CHUNK;
    const size_t end = chunks.size() < 2 ? bytes->size() : chunks[i + 1];
    const uint32_t kind = below(random, 8);
    if (chunks.size() > 1 && kind == 0)
        change_plan(chunks, bytes, random);
    else if (chunks.size() > 1 && kind == 1)
        repeat_chunk(chunks, bytes, random);
    else if (chunks.size() > 1 && kind == 2)
        bytes->erase(bytes->begin() + static_cast<ptrdiff_t>(chunks[i]),
                     bytes->begin() + static_cast<ptrdiff_t>(end));
    else if (kind == 3)
        change_field(8, 88, bytes, random);
    else if (chunks.size() > 1)
        change_field(body, std::min(end, body + 96), bytes, random);
    if (kind != 3)
        fit_frame(bytes);
    snapshot_restamp(bytes->data(), bytes->size());
}

}  // namespace mutate
