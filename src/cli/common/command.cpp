// SPDX-License-Identifier: Apache-2.0
#include <build_text.h>

#include "cli/common/command.h"

#include <dlfcn.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/common/device_space.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"
#include "llama/safetensors.h"

namespace cli {
namespace {

const std::map<std::string, lk_backend> kBackends = {
    {"cpu", LK_BACKEND_CPU}, {"cuda", LK_BACKEND_CUDA}, {"vulkan", LK_BACKEND_VULKAN}};
constexpr std::size_t kIndexDigits = 4;

// Empty when text names a device, else what is wrong with it.
std::string check_device(const std::string &text) {
    const std::size_t colon = text.find(':');
    const std::string index = colon == std::string::npos ? "0" : text.substr(colon + 1);
    const bool is_number = !index.empty() && index.size() <= kIndexDigits &&
                           index.find_first_not_of("0123456789") == std::string::npos;
    if (kBackends.count(text.substr(0, colon)) != 0 && is_number)
        return "";
    return text + " is not cpu, cuda or vulkan, or one with :N after it";
}

}  // namespace

std::vector<CLI::Option *> GeometryOptions::add_to(CLI::App &command) {
    return {command.add_option("--layers", n_layers, "attention layers of the model")
                ->capture_default_str()
                ->check(CLI::Range(1u, 1024u)),
            command.add_option("--kv-heads", n_kv_heads, "key/value heads of a layer")
                ->capture_default_str()
                ->check(CLI::Range(1u, 1024u)),
            command.add_option("--query-heads", n_query_heads, "query heads of a layer")
                ->capture_default_str()
                ->check(CLI::Range(1u, 16384u)),
            command.add_option("--head-dim", head_dim, "channels of a head, a multiple of 16")
                ->capture_default_str()
                ->check(CLI::Range(32u, 512u))};
}

llama::Geometry GeometryOptions::geometry() const {
    return llama::Geometry(n_layers, n_query_heads, n_kv_heads, head_dim);
}

CLI::Option *StatisticsOptions::add_file(CLI::App &command) {
    return command.add_option("--stats", stats, "statistics that lowkey calibrate wrote");
}

std::vector<CLI::Option *> StatisticsOptions::add_rules(CLI::App &command,
                                                        const std::string &paper_words) {
    return {command.add_option("--sinks", sink_tokens, "first tokens at 16 bits; default 32")
                ->check(CLI::Range(0u, 1024u))
                ->each([this](const std::string &) { has_sinks = true; }),
            command.add_flag("--paper", paper, "as published: " + paper_words)};
}

void DeviceOptions::add_to(CLI::App &command) {
    command.add_option("--device", device, "cpu, cuda or vulkan; cuda:N and vulkan:N for device N")
        ->capture_default_str()
        ->check(check_device);
    command
        .add_option("--threads", n_threads, "CPU threads, 0 = all CPUs that the process may use")
        ->capture_default_str()
        ->check(CLI::Range(0u, 1024u));
}

lk_backend DeviceOptions::backend() const {
    return kBackends.at(device.substr(0, device.find(':')));
}

std::uint32_t DeviceOptions::index() const {
    const std::size_t colon = device.find(':');
    return colon == std::string::npos
               ? 0
               : static_cast<std::uint32_t>(std::stoul(device.substr(colon + 1)));
}

llama::ContextHandle DeviceOptions::open(std::uint32_t cpu_mask) const {
    try {
        return llama::open_context(backend(), index(), n_threads, cpu_mask);
    } catch (const llama::Error &error) {
        const std::string missing = backend() == LK_BACKEND_CUDA ? missing_cuda_driver() : "";
        if (missing.empty())
            throw;
        throw llama::Error(error.what() + ("; " + missing));
    }
}

std::string missing_cuda_driver() {
#if LK_HAVE_CUDA
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (driver == nullptr)
        return "there is no CUDA driver on this machine (libcuda.so.1): install NVIDIA's";
    (void)dlclose(driver);
#endif
    return "";
}

std::unique_ptr<llama::TensorSpace> DeviceOptions::space() const {
    if (backend() == LK_BACKEND_CUDA)
        return open_cuda_space(index());
    return std::make_unique<llama::HostSpace>();
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (std::uint32_t i = 0; lk_plan_preset_name(i) != nullptr; ++i) {
        names.emplace_back(lk_plan_preset_name(i));
    }
    return names;
}

llama::PlanHandle load_plan(const std::string &name_or_file, const llama::Geometry &geometry) {
    const std::vector<std::string> names = preset_names();
    if (name_or_file == kDefaultPlan ||
        std::find(names.begin(), names.end(), name_or_file) != names.end()) {
        return llama::make_preset(name_or_file, geometry);
    }
    llama::check_file(name_or_file);
    if (!std::ifstream(name_or_file)) {
        std::string list;
        for (const std::string &name : names)
            list += name + ", ";
        list += kDefaultPlan;
        throw UsageError(name_or_file + " is neither a file nor a preset (" + list + ")");
    }
    return plan_of_text(name_or_file, read_file(name_or_file));
}

llama::PlanHandle plan_of_text(const std::string &file, const std::string &text) {
    lk_plan *plan = nullptr;
    llama::check_bytes_of(file, lk_plan_from_json(text.data(), text.size(), &plan));
    return llama::PlanHandle(plan);
}

std::string plan_json(const lk_plan *plan) {
    std::size_t needed = 0;
    llama::check(lk_plan_to_json(plan, nullptr, 0, &needed));
    std::string text(needed, '\0');
    llama::check(lk_plan_to_json(plan, text.data(), text.size(), &needed));
    text.resize(needed - 1);
    return text;
}

void print_json(const Json &json) {
    const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace);
    std::printf("%s\n", printable_json(text).c_str());
}

}  // namespace cli
