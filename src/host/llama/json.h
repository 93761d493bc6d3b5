// JSON from untrusted files.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef LLAMA_JSON_H
#define LLAMA_JSON_H

#include <nlohmann/json.hpp>
#include <string>

namespace llama {

constexpr std::uint64_t kMaxJsonBytes = 4u << 20;

// An object without a key twice, at most 8 levels deep. where: the file's path, for sentences.
// Throws Error.
nlohmann::json parse_object(const std::string &text, const std::string &where);

// The text of a file of at most kMaxJsonBytes bytes. Throws Error.
std::string read_json_text(const std::string &path);

}  // namespace llama

#endif
