// lowkey plan: what a plan keeps at how many bits, and what that costs.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cstdio>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/calibrate/sampling.h"
#include "cli/common/command.h"
#include "cli/common/numbers.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/plan/auto_plan.h"
#include "cli/plan/chanmix.h"
#include "cli/plan/cocktail.h"
#include "cli/plan/plan_view.h"
#include "cli/plan/pmkvq.h"
#include "cli/plan/width_table.h"

namespace cli {
namespace {

struct PlanOptions {
    std::string plan;  // a method, or a file
    GeometryOptions geometry;
    std::uint64_t n_tokens = 8192;
    std::uint32_t n_sequences = 1;
    std::uint32_t step_tokens = 512;
    std::uint64_t budget_bytes = 0;
    StatisticsOptions statistics;
    double bits_per_value = 0;
    ChanmixOptions chanmix;
    PmkvqOptions pmkvq;
    CocktailOptions cocktail;
    std::vector<double> shares;  // of chunks, percent
    bool json = false;
    bool explain = false;
    bool rotates_keys = false;
    std::string png;
    std::string plot;
    std::string save;

    PmkvqOptions::Budget budget() const {
        return {budget_bytes, n_tokens, n_sequences, step_tokens};
    }
};

constexpr const char *kChanmix = "chanmix";
constexpr const char *kPmkvq = "pm-kvq";  // without statistics the preset
constexpr const char *kAuto = "auto";
constexpr double kDefaultAutoBits = 2.25;  // of plan default with statistics
constexpr std::uint64_t kMostTokens = std::uint64_t{1} << 40;

constexpr std::uint32_t kMostSequences = 65536;
// One byte budget for all plans: an FP16 cache of this batch.
constexpr std::uint32_t kBatch = 32;
constexpr std::uint64_t kBatchTokens = 8192;
// ChanMix, table of efficiency: what the memory of a whole GPU holds, weights and work included.
constexpr double kPaperBatch = 2.3;
constexpr double kPaperContext = 1.5;

std::uint64_t cache_bytes(const lk_plan *plan, const PlanOptions &options, std::uint64_t n_tokens,
                          std::uint32_t n_sequences) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    const lk_status status =
        size_of_plan(plan, options.shares, n_tokens, n_sequences, options.step_tokens, &size);
    return status == LK_OK ? size.cache_bytes : std::numeric_limits<std::uint64_t>::max();
}

// The largest n below `most` for which fits(n), 0 when there is none.
template <typename Fits>
std::uint64_t largest(std::uint64_t most, const Fits &fits) {
    std::uint64_t low = 0, high = most;
    while (low + 1 < high) {
        const std::uint64_t middle = low + (high - low) / 2;
        (fits(middle) ? low : high) = middle;
    }
    return low;
}

// The most tokens of each sequence whose cache fits the budget; 0 when none do.
std::uint64_t tokens_in(std::uint64_t budget_bytes, const lk_plan *plan, const PlanOptions &options,
                        std::uint32_t n_sequences) {
    return largest(kMostTokens, [&](std::uint64_t n_tokens) {
        return cache_bytes(plan, options, n_tokens, n_sequences) <= budget_bytes;
    });
}

std::uint64_t tokens_in_budget(const lk_plan *plan, const PlanOptions &options) {
    return tokens_in(options.budget_bytes, plan, options, options.n_sequences);
}

// What fits where an FP16 cache of kBatch x kBatchTokens does, by exact bytes.
struct Capacity {
    std::uint64_t budget_bytes, n_sequences, n_tokens;
    double batch_gain() const { return static_cast<double>(n_sequences) / kBatch; }
    double context_gain() const {
        return static_cast<double>(n_tokens) / static_cast<double>(kBatchTokens);
    }
};

Capacity capacity_of(const lk_plan *plan, const PlanOptions &options) {
    const llama::PlanHandle fp16 = llama::copy_plan(plan);
    llama::keep_all(fp16.get());
    const std::uint64_t budget = cache_bytes(fp16.get(), options, kBatchTokens, kBatch);
    const std::uint64_t n_sequences = largest(kMostSequences, [&](std::uint64_t n) {
        return cache_bytes(plan, options, kBatchTokens, static_cast<std::uint32_t>(n)) <= budget;
    });
    return {budget, n_sequences, tokens_in(budget, plan, options, kBatch)};
}

bool has_chunks(const lk_plan *plan) { return chunk_rule_of(plan).chunk_tokens != 0; }

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
                 {"packed_pages_per_sequence", size.n_blocks},
                 {"compression", compression(size)}};
    if (options.budget_bytes != 0) {
        json["budget_bytes"] = options.budget_bytes;
        json["tokens_in_budget"] = tokens_in_budget(plan, options);
    }
    if (has_chunks(plan)) {
        json["mix_percent"] = options.shares;
        json["prefill_bytes"] = prefill_bytes(plan, options.shares, options.n_tokens,
                                              options.n_sequences, options.step_tokens);
        json["paper_models"] = paper_models_json(paper_models(plan, options.shares));
    }
    const Capacity capacity = capacity_of(plan, options);
    json["at_fp16_bytes"] = {{"fp16_sequences", kBatch},
                             {"fp16_tokens", kBatchTokens},
                             {"budget_bytes", capacity.budget_bytes},
                             {"sequences", capacity.n_sequences},
                             {"tokens", capacity.n_tokens},
                             {"batch_gain", capacity.batch_gain()},
                             {"context_gain", capacity.context_gain()}};
    return json;
}

void print_capacity(const lk_plan *plan, const PlanOptions &options) {
    const Capacity capacity = capacity_of(plan, options);
    const bool is_chanmix = options.plan == kChanmix;
    const auto paper = [&](double gain) {
        return is_chanmix ? "; the paper's " + format_fixed(gain, 1) + " x" : std::string();
    };
    std::printf("in %s, an FP16 cache of %u sequences x %s tokens\n",
                format_bytes(static_cast<double>(capacity.budget_bytes)).c_str(), kBatch,
                format_count(kBatchTokens).c_str());
    std::printf("  %-18s %s sequences of %s tokens, %s x%s\n", "batch",
                format_count(capacity.n_sequences).c_str(), format_count(kBatchTokens).c_str(),
                format_fixed(capacity.batch_gain(), 2).c_str(), paper(kPaperBatch).c_str());
    std::printf("  %-18s %u sequences of %s tokens, %s x%s\n", "context", kBatch,
                format_count(capacity.n_tokens).c_str(),
                format_fixed(capacity.context_gain(), 2).c_str(), paper(kPaperContext).c_str());
    if (is_chanmix)
        std::printf(
            "  the paper's are of a whole GPU, with weights, activations and an FP16 copy "
            "to attend\n  on; these are of the cache alone\n");
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
    if (has_chunks(plan))
        line("in its prefill", bytes(prefill_bytes(plan, options.shares, options.n_tokens,
                                                   options.n_sequences, options.step_tokens)) +
                                   " if classes come first");
    line("all at 16 bits", bytes(size.fp16_bytes));
    line("compression", format_fixed(compression(size), 2) + " x (without tables)");
    if (options.budget_bytes != 0) {
        line("budget", bytes(options.budget_bytes));
        line("holds", format_count(tokens_in_budget(plan, options)) + " tokens per sequence");
    }
    print_capacity(plan, options);
    if (has_chunks(plan))
        print_paper_models(paper_models(plan, options.shares), options.shares);
}

bool is_pmkvq(const PlanOptions &options) {
    return options.plan == kPmkvq && !options.statistics.stats.empty();
}

lk_chanmix chanmix_options(const PlanOptions &options) {
    return options.chanmix.options(options.statistics, options.budget_bytes, options.n_tokens,
                                   options.n_sequences, options.step_tokens);
}

// The plan without statistics.
llama::PlanHandle make_default(const PlanOptions &options) {
    const llama::Geometry geometry = options.geometry.geometry();
    const lk_geometry view = geometry.view();
    lk_plan *plan = nullptr;
    llama::check(lk_plan_default(&view, options.bits_per_value, &plan));
    return llama::PlanHandle(plan);
}

// A preset, a file, or a plan from statistics, which are then kept.
llama::PlanHandle make_plan(const PlanOptions &options, llama::CalibratorHandle &statistics) {
    if (options.plan == kDefaultPlan && options.statistics.stats.empty())
        return make_default(options);
    const bool is_auto = options.plan == kAuto || options.plan == kDefaultPlan;
    if (options.plan != kChanmix && !is_auto && !is_pmkvq(options))
        return load_plan(options.plan, options.geometry.geometry());
    statistics = load_statistics(options.statistics.stats);
    if (is_auto) {
        return make_auto(statistics.get(),
                         {options.bits_per_value, options.budget_bytes, options.n_tokens,
                          options.n_sequences, options.step_tokens});
    }
    if (is_pmkvq(options))
        return make_pmkvq(statistics.get(), options.pmkvq, options.statistics, options.budget());
    return make_chanmix(statistics.get(), chanmix_options(options));
}

// Before anything is printed: --plot of a plan read from a file draws the scores of its chunks.
void check_plot(const PlanOptions &options, const lk_plan *plan, const lk_calibrator *statistics) {
    if (options.plot.empty() || statistics != nullptr)
        return;
    if (!has_chunks(plan) || !options.cocktail.has_scores())
        throw UsageError(
            "--plot draws chunks by --scores or --text; --png draws the widths of any plan");
}

void draw_plot(const PlanOptions &options, const lk_plan *plan, const lk_calibrator *statistics) {
    if (statistics == nullptr)
        draw_chunks(plan, options.cocktail.score(plan), options.plot);
    else if (is_pmkvq(options))
        draw_pmkvq(plan, options.budget(), options.plot);
    else
        draw_chanmix(plan, statistics, chanmix_options(options).scope, options.plot);
    note("picture: " + options.plot);
}

// Under a name of its own, which tells its rows in benches and errors from the preset's.
void rotate_keys(lk_plan *plan) {
    llama::check(lk_plan_set_key_rotation(plan, LK_ALL, LK_ROTATION_HADAMARD));
    const std::string name = std::string(lk_plan_name(plan)) + "-rotated";
    llama::check(lk_plan_set_name(plan, name.c_str()));
}

int run_plan(PlanOptions options) {
    for (const std::string &path : {options.save, options.png, options.plot, options.pmkvq.fold})
        check_output(path);
    llama::CalibratorHandle statistics;
    const llama::PlanHandle plan = make_plan(options, statistics);
    options.cocktail.apply(plan.get());
    if (options.rotates_keys)
        rotate_keys(plan.get());
    check_plot(options, plan.get(), statistics.get());
    options.shares = options.cocktail.shares(plan.get());
    // What a PM-KVQ plan takes when its budget is full; until then as much as there is.
    const llama::PlanHandle full =
        is_pmkvq(options) ? at_last_rungs(plan.get()) : llama::copy_plan(plan.get());
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(size_of_plan(full.get(), options.shares, options.n_tokens, options.n_sequences,
                              options.step_tokens, &size));
    if (options.json) {
        Json json = to_json(full.get(), size, options);
        json["plan"] = Json::parse(plan_json(plan.get()));
        if (is_pmkvq(options))
            json["pm_kvq"] = pmkvq_json(plan.get(), options.budget());
        print_json(json);
    } else {
        print_text(full.get(), size, options);
    }
    if (is_pmkvq(options) && !options.json)
        print_pmkvq(plan.get(), statistics.get(),
                    options.pmkvq.options(options.statistics, options.budget()), options.budget());
    if (options.explain && !options.json) {
        print_widths(plan.get());
        print_width_table(plan.get());
    }
    if (!options.save.empty())
        write_file(options.save, plan_json(plan.get()) + "\n");
    if (!options.png.empty()) {
        draw_plan(plan.get(), options.n_tokens, options.n_sequences, options.step_tokens,
                  options.png);
        note("picture: " + options.png);
    }
    if (!options.plot.empty())
        draw_plot(options, plan.get(), statistics.get());
    return 0;
}

void add_common(CLI::App &command, PlanOptions &options) {
    command
        .add_option("--tokens,--max-tokens", options.n_tokens, "tokens of each sequence, e.g. 128K")
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(std::uint64_t{1}, kMostTokens));
    command.add_option("--sequences", options.n_sequences, "sequences side by side")
        ->capture_default_str()
        ->check(CLI::Range(1u, 65536u));
    command.add_option("--step-tokens", options.step_tokens, "tokens of one step of a sequence")
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(1u, 1048576u));
    command.add_option("--budget", options.budget_bytes, "bytes, e.g. 512M or 2GiB")
        ->transform(Bytes());
    command.add_flag("--json", options.json, "print JSON, the plan itself included");
    command.add_flag("--explain", options.explain,
                     "print the width of every channel, in ranges, and a table of widths by layer, "
                     "head, rung and class of the chunk");
    command.add_option("--png", options.png, "draw widths and bytes to this file");
    command.add_option("-o,--save", options.save, "write the plan's JSON to this file");
}

using Options = std::vector<CLI::Option *>;

// For plans whose widths follow no statistics: these are of channels that are not rotated.
CLI::Option *add_rotation(CLI::App &command, PlanOptions &options) {
    return command.add_flag("--rotate-keys", options.rotates_keys,
                            "rotate the keys of all layers before packing (Hadamard)");
}

void add_file(CLI::App &command, PlanOptions &options) {
    command.add_option("file", options.plan, "a plan's JSON file; it carries its own geometry");
    add_rotation(command, options);
    add_common(command, options);
    options.cocktail.add_to(command);
    command.add_option("--plot", options.plot,
                       "draw the scores and classes of chunks to this file");
}

void add_preset(CLI::App &command, PlanOptions &options) {
    options.geometry.add_to(command);
    add_rotation(command, options);
    add_common(command, options);
}

void add_cocktail(CLI::App &command, PlanOptions &options) {
    add_preset(command, options);
    options.cocktail.add_to(command);
    command.add_option("--plot", options.plot,
                       "draw the scores and classes of chunks to this file");
}

void add_chanmix(CLI::App &command, PlanOptions &options) {
    options.statistics.add_file(command)->required();
    options.statistics.add_rules(command, "1 bit by minimum and maximum, no centers, no sinks");
    options.chanmix.add_to(command);
    add_common(command, options);
    command.add_option("--plot", options.plot,
                       "draw widths by channel to this file, with the ranges that decide them");
}

// From statistics, or the preset, in which all layers have one ladder.
void add_pmkvq(CLI::App &command, PlanOptions &options) {
    CLI::Option *stats = options.statistics.add_file(command);
    Options own = options.pmkvq.add_to(command);
    const Options rules = options.statistics.add_rules(
        command, "keys per token, 16 sinks, only what fills no page yet at 16 bits");
    own.insert(own.end(), rules.begin(), rules.end());
    own.push_back(command.add_option("--plot", options.plot,
                                     "draw widths by layer and over the length to this file"));
    for (CLI::Option *option : own)
        option->needs(stats);
    for (CLI::Option *option : options.geometry.add_to(command))
        option->excludes(stats);
    add_rotation(command, options)->excludes(stats);
    add_common(command, options);
}

CLI::Option *add_bits(CLI::App &command, PlanOptions &options) {
    return command
        .add_option("--bits", options.bits_per_value,
                    "the most bits per value, ranges and minima included")
        ->check(CLI::Range(0.5, 16.0));
}

void add_auto(CLI::App &command, PlanOptions &options) {
    options.statistics.add_file(command)->required();
    add_bits(command, options);
    add_common(command, options);
}

void add_default(CLI::App &command, PlanOptions &options) {
    CLI::Option *stats = options.statistics.add_file(command);
    add_bits(command, options);
    for (CLI::Option *option : options.geometry.add_to(command))
        option->excludes(stats);
    add_rotation(command, options)->excludes(stats);
    add_common(command, options);
}

struct Method {
    const char *name;
    const char *about;
    void (*add)(CLI::App &command, PlanOptions &options);
    const char *example;  // what follows the name
};
constexpr Method kMethods[] = {
    {"fp16", "every page at 16 bits", add_preset, "--tokens 128K"},
    {"int8", "8 bits for keys and values", add_preset, "--tokens 128K"},
    {"kivi4", "KIVI: 4 bits, keys per channel, values per token", add_preset, "--tokens 128K"},
    {"kivi2", "KIVI: 2 bits, keys per channel, values per token", add_preset, "--budget 4GiB"},
    {"kitty", "Kitty: 2 bits, an eighth of each page's key channels at 4", add_preset,
     "--explain --png plan.png"},
    {"kitty-pro", "Kitty: 2 bits, a quarter of each page's key channels at 4", add_preset,
     "--layers 32 --kv-heads 8 --head-dim 128 --tokens 128K"},
    {"wide-keys",
     "values at 1 bit, keys at 2, 3/8 of each page's key channels at 4, FP8 ranges and minima",
     add_preset, "--layers 32 --kv-heads 8 --head-dim 128 --tokens 128K"},
    {"wide-keys-pro", "2 bits, 3/8 of each page's key channels at 4, FP8 ranges and minima",
     add_preset, "--layers 32 --kv-heads 8 --head-dim 128 --tokens 128K"},
    {"cocktail", "Cocktail: chunks at 2, 4 or 16 bits, by their scores", add_cocktail,
     "--text book.txt --query \"white whale\" --plot chunks.png"},
    {"pm-kvq", "PM-KVQ: pages shrink rung by rung; from statistics to widths of each layer's own",
     add_pmkvq, "--stats stats.safetensors --budget 512MiB --max-tokens 32K"},
    {"pm-kvq-paper", "PM-KVQ as published, without statistics", add_preset, "--tokens 32K"},
    {kChanmix, "ChanMix: 1, 2 or 3 bits by channel, 4 in heads that retrieve; from statistics",
     add_chanmix, "--stats stats.safetensors --plot plan.png -o plan.json"},
    {kDefaultPlan,
     "the best answers within --bits: without statistics those on four models, with them auto's",
     add_default, "--layers 32 --kv-heads 8 --head-dim 128 --bits 2.54"},
    {kAuto, "the widths of least error within --bits or --budget; from statistics", add_auto,
     "--stats stats.safetensors --bits 2.25 -o plan.json"},
};

// Options of `plan` itself are those of a file; in front of a method they would do nothing.
void check_order(const CLI::App &command, const std::string &method) {
    for (const CLI::Option *option : command.get_options())
        if (option->count() != 0)
            throw UsageError(option->get_name() + " belongs after the method: lowkey plan " +
                             method + " " + option->get_name() + " ...");
}

void add_method(CLI::App &command, const Method &method, int &exit_code) {
    CLI::App *own = command.add_subcommand(method.name, method.about);
    own->footer("Example:\n  lowkey plan " + std::string(method.name) + " " + method.example +
                "\nBits per value and bytes per token are of packed pages, ranges and minima "
                "included;\nbytes_total is the least budget with which the cache gets there.");
    const auto options = std::make_shared<PlanOptions>();
    options->plan = method.name;
    method.add(*own, *options);
    own->callback([&command, options, &exit_code] {
        check_order(command, options->plan);
        const bool has_limit = options->bits_per_value != 0 || options->budget_bytes != 0;
        if (options->plan == kAuto && !has_limit)
            throw UsageError("auto needs --bits or --budget");
        if (options->plan == kDefaultPlan && !options->statistics.stats.empty() && !has_limit)
            options->bits_per_value = kDefaultAutoBits;
        exit_code = run_plan(*options);
    });
}

}  // namespace

void add_plan(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "plan", "what a plan keeps at how many bits, and the bytes it takes for a model");
    command->footer(
        "lowkey plan METHOD --help explains a method and lists its options. Examples:\n"
        "  lowkey plan kitty-pro --layers 32 --kv-heads 8 --head-dim 128 --tokens 128K\n"
        "  lowkey plan kivi2 --budget 4GiB         how many tokens fit in 4 GiB\n"
        "  lowkey plan auto --stats stats.safetensors --bits 2.25 -o plan.json\n"
        "  lowkey plan plan.json --tokens 128K     the bytes of a plan that was written\n"
        "K, M, G and T are powers of 1024.");
    const auto options = std::make_shared<PlanOptions>();
    add_file(*command, *options);
    command->require_subcommand(0, 1);
    for (const Method &method : kMethods)
        add_method(*command, method, exit_code);
    command->callback([command, options, &exit_code] {
        if (!command->get_subcommands().empty())
            return;
        if (options->plan.empty())
            throw UsageError("name a method or a plan's file; see lowkey plan --help");
        exit_code = run_plan(*options);
    });
}

}  // namespace cli
