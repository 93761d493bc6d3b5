// The fields of an object of a config.json. The file is untrusted, and a field that is passed over
// may change every number: so a field that is not known is refused unless it requests nothing.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_CONFIG_FIELDS_H
#define LLAMA_CONFIG_FIELDS_H

#include <cstdint>
#include <set>
#include <string>

#include "error.h"
#include "json.h"

namespace llama {

constexpr std::uint32_t kLargestExtent = 1 << 20;
constexpr std::uint32_t kLargestPosition = 1 << 30;

// Each field is read here, or has no effect, or is refused with an Error that names it.
class Fields {
  public:
    // name: of the object, for sentences; empty for the whole file.
    Fields(const nlohmann::json &object, std::string where, std::string name = "")
        : object_(object), where_(std::move(where)), name_(std::move(name)) {}

    // Null when the field is absent or null.
    const nlohmann::json *find(const std::string &key);
    bool has(const std::string &key) const { return object_.contains(key); }
    const nlohmann::json &at(const std::string &key);
    std::uint32_t extent(const std::string &key, std::uint32_t most = kLargestExtent);
    std::uint32_t extent(const std::string &key, std::uint32_t most, std::uint32_t otherwise);
    double number(const std::string &key, double least);
    double number(const std::string &key, double least, double otherwise);
    bool flag(const std::string &key, bool otherwise);
    std::string text(const std::string &key, const std::string &otherwise);
    // The field's object; one without fields when it is absent.
    Fields object(const std::string &key);

    [[noreturn]] void refuse(const std::string &key, const std::string &why) const;
    // Refuses the fields that nobody has read and that request something.
    void refuse_rest() const;

  private:
    std::string title(const std::string &key) const;

    const nlohmann::json &object_;
    std::string where_, name_;
    std::set<std::string> known_;
};

}  // namespace llama

#endif
