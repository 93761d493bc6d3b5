// Texts on which costs show (docs/costs.md), made from the words of another text.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "base/status.h"
#include "stats/api.h"
#include "stats/cost_run.h"

namespace lk {

namespace {

constexpr size_t kShortWord = 3;
constexpr size_t kLongWord = 8;
constexpr uint32_t kListWords = 60, kListCopies = 4;
constexpr uint32_t kValueKeys = 40, kValueCopies = 4;
constexpr uint32_t kChains = 20, kChainWords = 3, kChained = kChains * kChainWords;
constexpr uint32_t kDigits = 6;
constexpr uint32_t kMaxDocumentBytes = 1u << 24;

// SplitMix64.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t below(uint64_t n) {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return (z ^ (z >> 31)) % n;
    }
    template <class T>
    void shuffle(T *items, size_t n) {
        for (size_t i = n; i > 1; --i)
            std::swap(items[i - 1], items[below(i)]);
    }

  private:
    uint64_t state_;
};

// Up to eight letters, the first one lowest, then zeros.
using Word = uint64_t;
static_assert(kLongWord <= sizeof(Word), "a word is a number");

struct FoundWord {
    Word word;
    size_t at;
};

bool is_letter(char c) { return c >= 'a' && c <= 'z'; }

// Distinct words of a text, as they come. LK_E_ARGUMENT, LK_E_NOMEM.
lk_status find_words(const char *text, size_t n_bytes, Array<Word> *words) {
    Array<FoundWord> found;
    for (size_t at = 0, end; at < n_bytes; at = end + 1) {
        for (end = at; end < n_bytes && is_letter(text[end]);)
            ++end;
        if (end - at < kShortWord || end - at > kLongWord)
            continue;
        FoundWord own = {0, at};
        std::memcpy(&own.word, text + at, end - at);
        if (!found.push(own))
            return fail(LK_E_NOMEM, "no memory for the words of a text");
    }
    std::sort(found.begin(), found.end(), [](const FoundWord &a, const FoundWord &b) {
        return a.word != b.word ? a.word < b.word : a.at < b.at;
    });
    FoundWord *const end =
        std::unique(found.begin(), found.end(),
                    [](const FoundWord &a, const FoundWord &b) { return a.word == b.word; });
    std::sort(found.begin(), end,
              [](const FoundWord &a, const FoundWord &b) { return a.at < b.at; });
    const auto n = static_cast<size_t>(end - found.begin());
    if (n < kChained)
        return fail(LK_E_ARGUMENT,
                    "the text has %zu different words of %zu to %zu letters, costs need %u", n,
                    kShortWord, kLongWord, kChained);
    if (!words->reserve(n))
        return fail(LK_E_NOMEM, "no memory for the words of a text");
    for (size_t i = 0; i < n; ++i)
        (void)words->push(found[i].word);
    return LK_OK;
}

// A growing text; what does not fit into memory is remembered.
class Text {
  public:
    void put(const char *bytes, size_t n) {
        is_whole_ = is_whole_ && grow(n);
        if (is_whole_)
            std::memcpy(bytes_.extend(n), bytes, n);
    }
    void put(const char *text) { put(text, std::strlen(text)); }
    void put(Word word) {
        char letters[sizeof word];
        std::memcpy(letters, &word, sizeof word);
        put(letters,
            static_cast<size_t>(std::find(letters, letters + sizeof word, '\0') - letters));
    }
    void clear() { bytes_.clear(); }
    size_t size() const { return bytes_.size(); }
    const char *data() const { return bytes_.data(); }
    bool is_whole() const { return is_whole_; }

  private:
    bool grow(size_t n) {
        const size_t size = bytes_.size() + n;
        return size <= bytes_.capacity() || bytes_.reserve(std::max(size, 2 * bytes_.capacity()));
    }

    Array<char> bytes_;
    bool is_whole_ = true;
};

struct Number {
    char digits[kDigits + 1];
};

class Maker {
  public:
    Maker(const char *text, size_t text_bytes, const Array<Word> &words, uint64_t seed)
        : text_(text), text_bytes_(text_bytes), words_(words), random_(seed) {}

    // A document of n bytes of a kind, to `out`. LK_E_NOMEM.
    lk_status make(uint32_t kind, size_t n, char *out);

  private:
    lk_status add(uint32_t kind);
    void add_repeated_words();
    void add_values();
    void add_assignments();
    Number number();
    // n words of the text, each once. Null where memory is exhausted.
    const Word *sample();

    const char *text_;
    size_t text_bytes_;
    const Array<Word> &words_;
    Random random_;
    Array<Word> shuffled_;
    Text document_;
};

Number Maker::number() {
    Number out = {};
    for (uint32_t i = 0; i < kDigits; ++i)
        out.digits[i] = static_cast<char>('0' + random_.below(10));
    return out;
}

const Word *Maker::sample() {
    if (!shuffled_.assign(words_.data(), words_.size()))
        return nullptr;
    random_.shuffle(shuffled_.data(), shuffled_.size());
    return shuffled_.data();
}

void Maker::add_repeated_words() {
    Word list[kListWords];
    for (Word &word : list)
        word = words_[random_.below(words_.size())];
    for (uint32_t copy = 0; copy < kListCopies; ++copy)
        for (uint32_t i = 0; i < kListWords; ++i) {
            document_.put(list[i]);
            document_.put(i + 1 < kListWords ? " " : ". ");
        }
}

void Maker::add_values() {
    const Word *keys = shuffled_.data();
    Number numbers[kValueKeys];
    uint32_t order[kValueKeys];
    for (uint32_t i = 0; i < kValueKeys; ++i) {
        numbers[i] = number();
        order[i] = i;
    }
    for (uint32_t copy = 0; copy < kValueCopies; ++copy) {
        random_.shuffle(order, kValueKeys);
        for (const uint32_t line : order) {
            document_.put(keys[line]);
            document_.put(": ");
            document_.put(numbers[line].digits);
            document_.put(".\n");
        }
    }
}

// Chains of words that refer to the word before, mixed; then the number of each word.
void Maker::add_assignments() {
    const Word *names = shuffled_.data();
    Number numbers[kChains];
    uint32_t order[kChained];   // chains, each as often as it has words
    uint32_t values[kChained];  // words
    for (uint32_t i = 0; i < kChained; ++i) {
        if (i % kChainWords == 0)
            numbers[i / kChainWords] = number();
        order[i] = i / kChainWords;
        values[i] = i;
    }
    random_.shuffle(order, kChained);
    random_.shuffle(values, kChained);
    uint32_t next[kChains] = {};
    for (const uint32_t chain : order) {
        const uint32_t word = chain * kChainWords + next[chain];
        document_.put(names[word]);
        document_.put(" := ");
        if (next[chain]++)
            document_.put(names[word - 1]);
        else
            document_.put(numbers[chain].digits);
        document_.put(".\n");
    }
    for (const uint32_t word : values) {
        document_.put(names[word]);
        document_.put(" = ");
        document_.put(numbers[word / kChainWords].digits);
        document_.put(".\n");
    }
}

lk_status Maker::add(uint32_t kind) {
    if (kind >= 2 && !sample())
        return fail(LK_E_NOMEM, "no memory for the words of a text");
    switch (kind) {
        case 0: document_.put(text_, text_bytes_); break;
        case 1: add_repeated_words(); break;
        case 2: add_values(); break;
        default: add_assignments(); break;
    }
    return LK_OK;
}

lk_status Maker::make(uint32_t kind, size_t n, char *out) {
    document_.clear();
    while (document_.size() < n && document_.is_whole())
        LK_TRY(add(kind));
    if (!document_.is_whole())
        return fail(LK_E_NOMEM, "no memory for a document of %zu bytes", n);
    // Cut anywhere, so that not every document begins with a list.
    std::memcpy(out, document_.data() + random_.below(document_.size() - n + 1), n);
    return LK_OK;
}

}  // namespace

}  // namespace lk

extern "C" lk_status lk_cost_texts(const char *text, size_t text_bytes, uint32_t n_documents,
                                   uint32_t document_bytes, uint64_t seed, char *buffer,
                                   size_t capacity_bytes, size_t *needed_bytes) {
    if (!text || !needed_bytes || (capacity_bytes && !buffer))
        return lk::null_argument(!text ? "text" : !needed_bytes ? "needed_bytes" : "buffer");
    if (!n_documents || n_documents > lk::kMaxDocuments)
        return lk::fail(LK_E_ARGUMENT, "n_documents is %u, must be 1 to %u", n_documents,
                        lk::kMaxDocuments);
    if (!document_bytes || document_bytes > lk::kMaxDocumentBytes)
        return lk::fail(LK_E_ARGUMENT, "document_bytes is %u, must be 1 to %u", document_bytes,
                        lk::kMaxDocumentBytes);
    lk::Array<lk::Word> words;
    LK_TRY(lk::find_words(text, text_bytes, &words));
    *needed_bytes = size_t{LK_COST_TEXTS} * n_documents * document_bytes;
    if (!capacity_bytes)
        return LK_OK;
    if (capacity_bytes < *needed_bytes)
        return lk::fail(LK_E_ARGUMENT, "capacity_bytes is %zu, the texts take %zu", capacity_bytes,
                        *needed_bytes);
    lk::Maker maker(text, text_bytes, words, seed);
    for (uint32_t kind = 0; kind < LK_COST_TEXTS; ++kind)
        for (uint32_t d = 0; d < n_documents; ++d, buffer += document_bytes)
            LK_TRY(maker.make(kind, document_bytes, buffer));
    return LK_OK;
}
