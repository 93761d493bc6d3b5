// SPDX-License-Identifier: Apache-2.0
#include "cli/common/numbers.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>

namespace cli {
namespace {

constexpr char kUnits[] = "kmgt";
constexpr std::size_t kMostDigits = 19;  // that always fit 64 bits

// The power of 1024 that a unit stands for, -1 when it is none.
int power_of(std::string unit, bool has_bytes) {
    std::transform(unit.begin(), unit.end(), unit.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (has_bytes && !unit.empty() && unit.back() == 'b') {
        unit.pop_back();
        if (unit.size() == 2 && unit.back() == 'i')
            unit.pop_back();
    }
    if (unit.empty())
        return 0;
    const std::string units = kUnits;
    const std::size_t at = units.find(unit);
    return unit.size() != 1 || at == std::string::npos ? -1 : static_cast<int>(at) + 1;
}

// Empty and the text a plain number, or what is wrong with it.
std::string expand(std::string &text, bool has_bytes) {
    const std::size_t n_digits = std::min(text.find_first_not_of("0123456789"), text.size());
    const int power = power_of(text.substr(n_digits), has_bytes);
    if (n_digits == 0 || n_digits > kMostDigits || power < 0)
        return text + (has_bytes ? " is no number of bytes, such as 4096, 512M or 2GiB"
                                 : " is no count, such as 4096 or 128K");
    std::uint64_t number = std::stoull(text.substr(0, n_digits));
    for (int i = 0; i < power; ++i) {
        if (number > std::numeric_limits<std::uint64_t>::max() / 1024)
            return text + " is too large";
        number *= 1024;
    }
    text = std::to_string(number);
    return "";
}

}  // namespace

CLI::Validator Count() {
    return CLI::Validator([](std::string &text) { return expand(text, false); }, "COUNT[K|M|G]");
}

CLI::Validator Bytes() {
    return CLI::Validator([](std::string &text) { return expand(text, true); }, "BYTES[K|M|G]");
}

}  // namespace cli
