// The parser throws, and this file is built with exceptions.
//
// SPDX-License-Identifier: Apache-2.0
#include "base/json_text.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>

#include "base/c_locale.h"
#include "base/refused.h"

namespace lk {

using nlohmann::json;

class JsonTextBuilder : public nlohmann::json_sax<json> {
  public:
    JsonTextBuilder(JsonText *out, const JsonLimits &limits) : out_(*out), limits_(limits) {}

    bool null() override { return push(JsonKind::kNull, 0); }
    bool boolean(bool value) override { return push(JsonKind::kBoolean, value); }
    bool number_integer(number_integer_t number) override {
        return push_real(static_cast<double>(number));
    }
    bool number_unsigned(number_unsigned_t number) override {
        return push(JsonKind::kUnsigned, number);
    }
    bool number_float(number_float_t number, const string_t &) override {
        return push_real(number);
    }
    bool string(string_t &text) override { return push_string(text); }
    bool binary(binary_t &) override { return false; }
    bool start_object(std::size_t) override { return start(JsonKind::kObject); }
    bool start_array(std::size_t) override { return start(JsonKind::kArray); }
    bool end_object() override {
        expect_single_keys();
        return end();
    }
    bool end_array() override { return end(); }
    bool key(string_t &name) override {
        Frame &frame = frames_.back();
        if (frame.n_values >= limits_.keys)
            expect(fail(LK_E_CORRUPT, "%s has more than %zu keys", path().c_str(), limits_.keys));
        frame.key = static_cast<uint32_t>(out_.tokens_.size());
        push_string(name);
        --frame.n_values;  // its value counts
        return true;
    }
    bool parse_error(std::size_t position, const std::string &,
                     const nlohmann::detail::exception &) override {
        expect(fail(LK_E_CORRUPT, "the text is not JSON at byte %zu", position));
        return false;
    }

  private:
    struct Frame {
        uint32_t token;
        uint32_t key;     // token of the last key
        size_t n_values;  // elements or keys
    };

    bool push(JsonKind kind, uint64_t payload) {
        if (!frames_.empty())
            ++frames_.back().n_values;
        const auto index = static_cast<uint32_t>(out_.tokens_.size());
        out_.tokens_.push_back({payload, index + 1, kind});
        return true;
    }
    bool push_real(double number) {
        uint64_t bits;
        std::memcpy(&bits, &number, sizeof bits);
        return push(JsonKind::kNumber, bits);
    }
    bool push_string(const std::string &text) {
        const uint64_t begin = out_.strings_.size();
        out_.strings_ += text;
        return push(JsonKind::kString, begin << 32 | text.size());
    }
    bool start(JsonKind kind) {
        if (frames_.size() >= limits_.depth)
            expect(
                fail(LK_E_CORRUPT, "%s is nested deeper than %zu", path().c_str(), limits_.depth));
        push(kind, 0);
        frames_.push_back({static_cast<uint32_t>(out_.tokens_.size()) - 1, 0, 0});
        return true;
    }
    bool end() {
        JsonText::Token &token = out_.tokens_[frames_.back().token];
        token.payload = frames_.back().n_values;
        token.end = static_cast<uint32_t>(out_.tokens_.size());
        frames_.pop_back();
        return true;
    }
    std::string_view text_at(uint32_t token) const { return JsonValue(&out_, token).text(); }
    // Of the object that ends.
    void expect_single_keys() {
        keys_.clear();
        const auto end = static_cast<uint32_t>(out_.tokens_.size());
        for (uint32_t at = frames_.back().token + 1; at < end; at = out_.tokens_[at + 1].end)
            keys_.push_back(at);
        std::sort(keys_.begin(), keys_.end(),
                  [&](uint32_t a, uint32_t b) { return text_at(a) < text_at(b); });
        for (size_t i = 1; i < keys_.size(); ++i)
            if (text_at(keys_[i]) == text_at(keys_[i - 1]))
                expect(fail(LK_E_CORRUPT, "%s/%s is there twice", path().c_str(),
                            shown(std::string(text_at(keys_[i]))).c_str()));
    }
    // Of the container that is open; "" for the whole text. Cut to what a sentence can hold.
    std::string path() const {
        std::string out;
        for (size_t i = 0; i + 1 < frames_.size() && out.size() < 200; ++i) {
            const Frame &frame = frames_[i];
            const bool is_array = out_.tokens_[frame.token].kind == JsonKind::kArray;
            out += "/" + (is_array ? std::to_string(frame.n_values - 1)
                                   : shown(std::string(text_at(frame.key))));
        }
        return out;
    }

    JsonText &out_;
    const JsonLimits limits_;
    std::vector<Frame> frames_;
    std::vector<uint32_t> keys_;
};

JsonText::JsonText(const char *text, size_t n_bytes, const JsonLimits &limits) {
    const CLocale c_locale;
    if (!c_locale.holds())
        throw std::bad_alloc();
    JsonTextBuilder builder(this, limits);
    if (!json::sax_parse(text, text + n_bytes, &builder))
        expect(fail(LK_E_CORRUPT, "the text is not JSON"));
}

JsonKind JsonValue::kind() const { return text_->tokens_[index_].kind; }

const char *JsonValue::kind_name() const {
    constexpr const char *kNames[] = {"null",   "boolean", "number", "number",
                                      "string", "array",   "object"};
    return kNames[static_cast<size_t>(kind())];
}

uint64_t JsonValue::number() const { return text_->tokens_[index_].payload; }

double JsonValue::real() const {
    if (is(JsonKind::kUnsigned))
        return static_cast<double>(number());
    double out;
    std::memcpy(&out, &text_->tokens_[index_].payload, sizeof out);
    return out;
}

bool JsonValue::truth() const { return number() != 0; }

std::string_view JsonValue::text() const {
    return {text_->strings_.data() + (number() >> 32), static_cast<uint32_t>(number())};
}

size_t JsonValue::size() const { return static_cast<size_t>(number()); }

uint32_t JsonValue::end() const { return text_->tokens_[index_].end; }

bool JsonValue::find(std::string_view key, JsonValue *out) const {
    for (uint32_t at = index_ + 1; at < end(); at = JsonValue(text_, at + 1).end())
        if (JsonValue(text_, at).text() == key) {
            *out = {text_, at + 1};
            return true;
        }
    return false;
}

}  // namespace lk
