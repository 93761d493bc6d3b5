// What the subcommands share: how they join the command line, and its common options.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama/handles.h"
#include "llama/tensor_space.h"

// CLI11 and the JSON library are large: headers only name what they need of them.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace cli {

// Keeps the order in which keys are added.
using Json = nlohmann::ordered_json;

// Each adds its subcommand; when chosen it runs and sets exit_code (0 done, 1 failed).
void add_info(CLI::App &app, int &exit_code);
void add_plan(CLI::App &app, int &exit_code);
void add_calibrate(CLI::App &app, int &exit_code);
void add_inspect(CLI::App &app, int &exit_code);
void add_verify(CLI::App &app, int &exit_code);
void add_bench(CLI::App &app, int &exit_code);
void add_demo(CLI::App &app, int &exit_code);

// A wrong command line that only the command itself can see: exit 2.
class UsageError : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct GeometryOptions {
    std::uint32_t n_layers = 32;
    std::uint32_t n_kv_heads = 8;
    std::uint32_t n_query_heads = 32;
    std::uint32_t head_dim = 128;

    std::vector<CLI::Option *> add_to(CLI::App &command);
    llama::Geometry geometry() const;
};

// Of plans that are made from statistics.
struct StatisticsOptions {
    std::string stats;  // path; empty = none given
    std::uint32_t sink_tokens = 0;
    bool has_sinks = false;
    bool paper = false;

    // --stats alone; then what chanmix and pm-kvq take besides. paper_words: what --paper means.
    CLI::Option *add_file(CLI::App &command);
    std::vector<CLI::Option *> add_rules(CLI::App &command, const std::string &paper_words);
    // The first tokens at 16 bits, where a plan has them otherwise so many.
    std::uint32_t sinks(std::uint32_t otherwise) const {
        return has_sinks ? sink_tokens : otherwise;
    }
};

struct DeviceOptions {
    std::string device = "cpu";  // a backend, ":N" after it for device N
    std::uint32_t n_threads = 0;

    void add_to(CLI::App &command);
    lk_backend backend() const;
    std::uint32_t index() const;
    // These throw llama::Error, which names a missing driver. The space is of the device and may
    // outlive the context.
    llama::ContextHandle open(std::uint32_t cpu_mask = 0) const;
    std::unique_ptr<llama::TensorSpace> space() const;
};

// Empty, or what CUDA devices need and this machine does not have.
std::string missing_cuda_driver();

// The presets' names, in the library's order.
std::vector<std::string> preset_names();

// lk_plan_preset() makes it, lk_plan_preset_name() does not list it.
constexpr const char *kDefaultPlan = "default";

// A preset by name, else a plan from a JSON file, which carries its own geometry.
llama::PlanHandle load_plan(const std::string &name_or_file, const llama::Geometry &geometry);
// The plan that a file's JSON text describes; the sentence of a refusal names the file.
llama::PlanHandle plan_of_text(const std::string &file, const std::string &text);
std::string plan_json(const lk_plan *plan);

void print_json(const Json &json);

}  // namespace cli

#endif
