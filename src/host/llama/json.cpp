// SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <set>
#include <vector>

#include "error.h"
#include "mapped_file.h"

namespace llama {
namespace {

constexpr int kMaxDepth = 8;

}  // namespace

nlohmann::json parse_object(const std::string &text, const std::string &where) {
    using Event = nlohmann::json::parse_event_t;
    std::vector<std::set<std::string>> keys;
    const auto check = [&](int depth, Event event, nlohmann::json &value) {
        if (depth > kMaxDepth)
            throw Error(where + " is nested more than " + std::to_string(kMaxDepth) + " deep");
        if (event == Event::object_start)
            keys.emplace_back();
        else if (event == Event::object_end)
            keys.pop_back();
        else if (event == Event::key && !keys.back().insert(value.get<std::string>()).second)
            throw Error(where + " has \"" + value.get<std::string>() + "\" twice");
        return true;
    };
    nlohmann::json found;
    try {
        found = nlohmann::json::parse(text, check);
    } catch (const nlohmann::json::exception &error) {
        throw Error(where + " is no JSON: " + error.what());
    }
    if (!found.is_object())
        throw Error(where + " is not an object");
    return found;
}

std::string read_json_text(const std::string &path) {
    const MappedFile file(path);
    if (file.size() > kMaxJsonBytes)
        throw Error(path + " has " + std::to_string(file.size()) + " bytes, at most " +
                    std::to_string(kMaxJsonBytes) + " are read");
    return std::string(reinterpret_cast<const char *>(file.data()), file.size());
}

}  // namespace llama
