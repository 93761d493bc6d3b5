// A JSON text from untrusted bytes, as its values in the order of the text: 16 bytes a value in one
// array, so that reading takes at most 32 bytes of memory for each byte of text. Files that include
// this are built with exceptions.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LK_BASE_JSON_TEXT_H
#define LK_BASE_JSON_TEXT_H

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lk {

struct JsonLimits {
    size_t depth;  // of arrays and objects
    size_t keys;   // of one object
};

enum class JsonKind : uint8_t { kNull, kBoolean, kUnsigned, kNumber, kString, kArray, kObject };

class JsonText;

// A value of a JsonText, valid as long as that.
class JsonValue {
  public:
    JsonValue(const JsonText *text, uint32_t index) : text_(text), index_(index) {}

    JsonKind kind() const;
    bool is(JsonKind kind) const { return this->kind() == kind; }
    bool is_number() const { return is(JsonKind::kUnsigned) || is(JsonKind::kNumber); }
    const char *kind_name() const;

    // Of the kind that each needs.
    uint64_t number() const;        // kUnsigned
    double real() const;            // kUnsigned, kNumber
    bool truth() const;             // kBoolean
    std::string_view text() const;  // kString
    size_t size() const;            // elements of kArray, keys of kObject

    // Calls visit(value) for each element, in order.
    template <class Visit>
    void for_each_element(const Visit &visit) const {
        for (uint32_t at = index_ + 1; at < end(); at = JsonValue(text_, at).end())
            visit(JsonValue(text_, at));
    }
    // Calls visit(key, value) for each key, in order.
    template <class Visit>
    void for_each_key(const Visit &visit) const {
        for (uint32_t at = index_ + 1; at < end(); at = JsonValue(text_, at + 1).end())
            visit(JsonValue(text_, at).text(), JsonValue(text_, at + 1));
    }
    // The value of a key of kObject; false without it.
    bool find(std::string_view key, JsonValue *out) const;

  private:
    uint32_t end() const;

    const JsonText *text_;
    uint32_t index_;
};

class JsonText {
  public:
    // Throws Refused with LK_E_CORRUPT (no JSON, a key that an object has twice, a limit), and
    // std::bad_alloc. The text has less than 4 GiB.
    JsonText(const char *text, size_t n_bytes, const JsonLimits &limits);
    JsonText(const JsonText &) = delete;
    JsonText &operator=(const JsonText &) = delete;

    JsonValue root() const { return {this, 0}; }

  private:
    friend class JsonValue;
    friend class JsonTextBuilder;
    // A key is a string before its value.
    struct Token {
        uint64_t payload;  // the number, or where a string begins and its length, or a size
        uint32_t end;      // index of the token after the value
        JsonKind kind;
    };
    std::vector<Token> tokens_;
    std::string strings_;
};

}  // namespace lk

#endif
