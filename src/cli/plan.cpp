// lowkey plan: what a plan keeps at how many bits, and what that costs.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <limits>
#include <memory>

#include "command.h"
#include "plan_view.h"
#include "report.h"

namespace cli {
namespace {

struct PlanOptions {
    std::string plan = "kitty-pro";
    GeometryOptions geometry;
    std::uint64_t n_tokens = 8192;
    std::uint32_t n_sequences = 1;
    std::uint32_t step_tokens = 512;
    std::uint64_t budget_bytes = 0;
    bool json = false;
    bool explain = false;
    std::string png;
    std::string save;
};

constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;

// The most tokens of each sequence whose cache fits the budget; 0 when none do.
std::uint64_t tokens_in_budget(const lk_plan *plan, const PlanOptions &options) {
    const auto fits = [&](std::uint64_t n_tokens) {
        lk_plan_size size = llama::initialised(lk_plan_size_init);
        const lk_status status =
            lk_plan_bytes(plan, n_tokens, options.n_sequences, options.step_tokens, &size);
        return status == LK_OK && size.cache_bytes <= options.budget_bytes;
    };
    std::uint64_t low = 0, high = kMostTokens;
    while (low + 1 < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        (fits(middle) ? low : high) = middle;
    }
    return low;
}

double compression(const lk_plan_size &size) {
    const double held = static_cast<double>(size.payload_bytes) +
                        static_cast<double>(size.metadata_bytes) +
                        static_cast<double>(size.recent_bytes);
    return held == 0 ? 1.0 : static_cast<double>(size.fp16_bytes) / held;
}

Json to_json(const lk_plan *plan, const lk_plan_size &size, const PlanOptions &options) {
    Json json = {{"name", lk_plan_name(plan)},
                 {"tokens", options.n_tokens},
                 {"sequences", options.n_sequences},
                 {"step_tokens", options.step_tokens},
                 {"bits_per_value", size.bits_per_value},
                 {"bytes_per_token", size.bytes_per_token},
                 {"bytes_total", size.cache_bytes},
                 {"payload_bytes", size.payload_bytes},
                 {"metadata_bytes", size.metadata_bytes},
                 {"recent_bytes", size.recent_bytes},
                 {"table_bytes", size.table_bytes},
                 {"fp16_bytes", size.fp16_bytes},
                 {"packed_pages_per_sequence", size.n_pages},
                 {"compression", compression(size)}};
    if (options.budget_bytes != 0) {
        json["budget_bytes"] = options.budget_bytes;
        json["tokens_in_budget"] = tokens_in_budget(plan, options);
    }
    json["plan"] = Json::parse(plan_json(plan));
    return json;
}

void print_text(const lk_plan *plan, const lk_plan_size &size, const PlanOptions &options) {
    const auto line = [](const char *label, const std::string &value) {
        std::printf("  %-18s %s\n", label, value.c_str());
    };
    const auto bytes = [](std::uint64_t count) {
        return format_bytes(static_cast<double>(count)) + "  (" + format_count(count) + " bytes)";
    };
    std::printf("plan %s, %s tokens x %u sequence%s\n", lk_plan_name(plan),
                format_count(options.n_tokens).c_str(), options.n_sequences,
                options.n_sequences == 1 ? "" : "s");
    line("bits per value", format_fixed(size.bits_per_value, 4));
    line("bytes per token", format_fixed(size.bytes_per_token, 2));
    line("codes", bytes(size.payload_bytes));
    line("ranges and minima", bytes(size.metadata_bytes));
    line("recent, 16 bits", bytes(size.recent_bytes));
    line("tables, workspace", bytes(size.table_bytes));
    line("cache in total", bytes(size.cache_bytes));
    line("all at 16 bits", bytes(size.fp16_bytes));
    line("compression", format_fixed(compression(size), 2) + " x (without tables)");
    if (options.budget_bytes != 0) {
        line("budget", bytes(options.budget_bytes));
        line("holds", format_count(tokens_in_budget(plan, options)) + " tokens per sequence");
    }
}

int run_plan(const PlanOptions &options) {
    const llama::PlanHandle plan = load_plan(options.plan, options.geometry.geometry());
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan.get(), options.n_tokens, options.n_sequences,
                               options.step_tokens, &size));
    if (options.json) {
        print_json(to_json(plan.get(), size, options));
    } else {
        print_text(plan.get(), size, options);
    }
    if (options.explain && !options.json)
        print_widths(plan.get());
    if (!options.save.empty())
        write_text(options.save, plan_json(plan.get()) + "\n");
    if (!options.png.empty()) {
        draw_plan(plan.get(), options.n_tokens, options.n_sequences, options.step_tokens,
                  options.png);
        note("picture: " + options.png);
    }
    return 0;
}

}  // namespace

void add_plan(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "plan", "what a plan keeps at how many bits, and the bytes it takes for a model");
    command->footer(
        "Examples:\n"
        "  lowkey plan kitty-pro --layers 32 --kv-heads 8 --head-dim 128 --tokens 131072\n"
        "  lowkey plan kivi2 --budget 4G           how many tokens fit in 4 GiB\n"
        "  lowkey plan kitty --explain --png plan.png\n"
        "Bits per value and bytes per token are of packed pages, ranges and minima included;\n"
        "bytes_total is the least budget with which the cache gets there.");
    const auto options = std::make_shared<PlanOptions>();
    command->add_option("plan", options->plan, "a preset's name or a plan's JSON file")
        ->capture_default_str();
    options->geometry.add_to(*command);
    command->add_option("--tokens", options->n_tokens, "tokens of each sequence")
        ->capture_default_str()
        ->check(CLI::Range(std::uint64_t{1}, kMostTokens));
    command->add_option("--sequences", options->n_sequences, "sequences side by side")
        ->capture_default_str()
        ->check(CLI::Range(1u, 65536u));
    command->add_option("--step-tokens", options->step_tokens, "tokens of one step of a sequence")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1048576u));
    command->add_option("--budget", options->budget_bytes, "bytes; K, M, G are powers of 1024")
        ->transform(CLI::AsSizeValue(false));
    command->add_flag("--json", options->json, "print JSON, the plan itself included");
    command->add_flag("--explain", options->explain, "print the width of every channel, in ranges");
    command->add_option("--png", options->png, "draw widths and bytes to this file");
    command->add_option("--save", options->save, "write the plan's JSON to this file");
    command->callback([options, &exit_code] { exit_code = run_plan(*options); });
}

}  // namespace cli
