// SPDX-License-Identifier: Apache-2.0
#include "lowkey-options.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "llama-lowkey.h"

namespace lowkey {
namespace {

struct Process {
    std::mutex mutex;
    std::optional<std::string> plan;
    std::optional<uint64_t> budget_bytes;
};

Process &process() {
    static Process settings;
    return settings;
}

std::string last_sentence() {
    char sentence[1024] = "";
    if (lk_last_error(sentence, sizeof sentence, nullptr) != LK_OK)
        sentence[0] = '\0';
    return sentence;
}

// lk_plan_preset() makes it, lk_plan_preset_name() does not list it.
constexpr const char *kDefaultPlan = "default";

bool is_preset(const std::string &name) {
    for (uint32_t i = 0; const char *preset = lk_plan_preset_name(i); ++i) {
        if (name == preset)
            return true;
    }
    return name == kDefaultPlan;
}

std::string presets() {
    std::string names;
    for (uint32_t i = 0; const char *preset = lk_plan_preset_name(i); ++i)
        names += std::string(preset) + ", ";
    return names + kDefaultPlan;
}

lk_plan *read_plan(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    if (!file)
        throw std::runtime_error("\"" + path + "\" is no preset (" + presets() +
                                 ") and no file that can be read");
    const std::string text((std::istreambuf_iterator<char>(file)),
                           std::istreambuf_iterator<char>());
    lk_plan *plan = nullptr;
    const lk_status status = lk_plan_from_json(text.data(), text.size(), &plan);
    if (status != LK_OK)
        throw std::runtime_error("the plan file \"" + path + "\": " + last_sentence());
    return plan;
}

std::string environment(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

}  // namespace

const char *sentence_of(const std::function<void()> &function) {
    thread_local std::string sentence;
    try {
        function();
        return nullptr;
    } catch (const std::exception &error) {
        sentence = error.what();
        return sentence.c_str();
    }
}

void check(lk_status status) {
    if (status == LK_OK)
        return;
    const std::string sentence = last_sentence() + " (" + lk_status_name(status) + ")";
    if (status == LK_E_BUDGET)
        throw Shortfall(sentence);
    throw std::runtime_error(sentence);
}

uint64_t bytes_of(const std::string &text) {
    const size_t n_digits = std::min(text.find_first_not_of("0123456789"), text.size());
    std::string unit = text.substr(n_digits);
    std::transform(unit.begin(), unit.end(), unit.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    static const char *const units[][4] = {{"", "b", "", ""},
                                           {"k", "kb", "kib", ""},
                                           {"m", "mb", "mib", ""},
                                           {"g", "gb", "gib", ""},
                                           {"t", "tb", "tib", ""}};
    size_t power = 0;
    while (power < std::size(units) && std::find(std::begin(units[power]), std::end(units[power]),
                                                 unit) == std::end(units[power]))
        ++power;
    // 19 digits always fit 64 bits.
    if (n_digits == 0 || n_digits > 19 || power == std::size(units))
        throw std::runtime_error("\"" + text +
                                 "\" is no number of bytes, such as 4096, 512M or 2GiB");
    uint64_t bytes = std::stoull(text.substr(0, n_digits));
    for (; power > 0; --power) {
        if (bytes > std::numeric_limits<uint64_t>::max() / 1024)
            throw std::runtime_error("\"" + text + "\" is more than 64 bits can count");
        bytes *= 1024;
    }
    return bytes;
}

std::string text_of_bytes(uint64_t bytes) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double number = static_cast<double>(bytes);
    size_t power = 0;
    while (number >= 1024 && power + 1 < std::size(units)) {
        number /= 1024;
        ++power;
    }
    if (power == 0)
        return std::to_string(bytes) + " bytes";
    char text[64];
    std::snprintf(text, sizeof text, "%.2f %s (%llu bytes)", number, units[power],
                  static_cast<unsigned long long>(bytes));
    return text;
}

Settings current_settings() {
    Settings settings;
    std::optional<uint64_t> budget;
    {
        Process &shared = process();
        const std::lock_guard<std::mutex> lock(shared.mutex);
        settings.plan = shared.plan ? *shared.plan : environment("LLAMA_KV_PLAN");
        budget = shared.budget_bytes;
    }
    if (budget) {
        settings.budget_bytes = *budget;
    } else if (const std::string bytes = environment("LLAMA_KV_BUDGET"); !bytes.empty()) {
        settings.budget_bytes = bytes_of(bytes);
    }
    return settings;
}

lk_plan *make_plan(const std::string &name_or_file, const lk_geometry &geometry) {
    lk_plan *plan = nullptr;
    if (is_preset(name_or_file)) {
        check(lk_plan_preset(name_or_file.c_str(), &geometry, &plan));
        return plan;
    }
    plan = read_plan(name_or_file);
    if (lk_plan_validate(plan, &geometry) != LK_OK) {
        const std::string sentence = last_sentence();
        lk_plan_destroy(&plan);
        throw std::runtime_error("the plan file \"" + name_or_file + "\": " + sentence);
    }
    return plan;
}

}  // namespace lowkey

extern "C" const char *llama_lowkey_set_plan(const char *name_or_file) {
    return lowkey::sentence_of([&] {
        const std::string text = name_or_file ? name_or_file : "";
        if (!text.empty() && !lowkey::is_preset(text)) {
            lk_plan *plan = lowkey::read_plan(text);
            lk_plan_destroy(&plan);
        }
        lowkey::Process &shared = lowkey::process();
        const std::lock_guard<std::mutex> lock(shared.mutex);
        shared.plan = text;
    });
}

extern "C" const char *llama_lowkey_set_budget(const char *bytes) {
    return lowkey::sentence_of([&] {
        const std::string text = bytes ? bytes : "";
        const uint64_t number = text.empty() ? 0 : lowkey::bytes_of(text);
        if (!text.empty() && number == 0)
            throw std::runtime_error("a budget of 0 bytes holds no cache");
        lowkey::Process &shared = lowkey::process();
        const std::lock_guard<std::mutex> lock(shared.mutex);
        shared.budget_bytes = number;
    });
}
