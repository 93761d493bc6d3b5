// lowkey bench: attention over each plan's pages, packing, and what they are compared with.
//
// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench.h"

#include <lowkey/vulkan.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/bench/bench_layers.h"
#include "cli/bench/gpu.h"
#include "cli/common/numbers.h"
#include "cli/common/report.h"

namespace cli {

Timing summarise(std::vector<double> samples) {
    std::sort(samples.begin(), samples.end());
    const std::size_t n = samples.size();
    return {samples[n / 2], samples[n / 4], samples[n - 1 - n / 4]};
}

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

double time_host(const std::function<void()> &work) {
    const auto start = Clock::now();
    work();
    return seconds_since(start);
}

Json to_json(const BenchRow &row, const BenchOptions &options, const std::string &copy_name) {
    Json json = {{"plan", row.plan},
                 {"tokens", row.n_tokens},
                 {"batch", row.batch},
                 {"new_tokens", row.n_new},
                 {"median_s", row.time.median_s},
                 {"quartile_low_s", row.time.low_s},
                 {"quartile_high_s", row.time.high_s},
                 {"bits_per_value", row.bits_per_value},
                 {options.pack ? "fp16_bytes" : "cache_bytes", row.cache_bytes},
                 {"bytes_per_s", row.bytes_per_s()},
                 {copy_name + "_bytes_per_s", row.copy_bytes_per_s},
                 {"share_of_" + copy_name, row.share_of_copy()},
                 {"speed_over_fp16", row.speedup}};
    if (!options.pack)
        json["flop_per_s"] = row.flops / row.time.median_s;
    return json;
}

Json to_json(const BenchOptions &options) {
    return {{"device", options.device.device},
            {"build", lk_build_info()},
            {"caches", options.warm ? "warm" : "cold"},
            {"query_heads", options.shape.n_query_heads},
            {"kv_heads", options.shape.n_kv_heads},
            {"head_dim", options.shape.head_dim},
            {"value_dim", options.shape.output_dim()},
            {"latent", options.shape.is_latent},
            {"repeats", options.n_repeats},
            {"measured", options.pack ? "append" : "attend"},
            {"mask", options.mask},
            {"rows", Json::array()}};
}

std::uint32_t longest_step(const BenchOptions &options) {
    const std::uint32_t batch = *std::max_element(options.batches.begin(), options.batches.end());
    std::uint64_t n_new = *std::max_element(options.new_tokens.begin(), options.new_tokens.end());
    if (options.pack)
        n_new = *std::max_element(options.tokens.begin(), options.tokens.end());
    return static_cast<std::uint32_t>(std::max<std::uint64_t>(kFillTokens, n_new * batch));
}

// Both products, causal.
double attend_flops(const Shape &shape, const BenchRow &row) {
    const double n_keys = static_cast<double>(row.n_tokens) + (double{1} + row.n_new) / 2;
    return 2.0 * shape.n_query_heads * (shape.head_dim + shape.output_dim()) * row.batch *
           row.n_new * n_keys;
}

std::uint64_t appended_bytes(const Shape &shape, const BenchRow &row) {
    return kHalfBytes * row.batch * row.n_new * shape.n_kv_heads *
           (shape.head_dim + shape.stored_value_dim());
}

double bits_per_value(const lk_plan *plan) {
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan, kFillTokens, 1, kFillTokens, &size));
    return size.bits_per_value;
}

std::string format_shape(const Shape &shape) {
    std::string text = std::to_string(shape.n_query_heads) + " query heads, " +
                       std::to_string(shape.n_kv_heads) + " KV heads, head_dim " +
                       std::to_string(shape.head_dim);
    if (shape.output_dim() != shape.head_dim || shape.is_latent)
        text += ", value_dim " + std::to_string(shape.output_dim());
    return text + (shape.is_latent ? ", latent" : "");
}

std::string format_percent(double share) { return format_fixed(100 * share, 0) + " %"; }

std::string format_speedup(double speedup) { return speedup == 0 ? "-" : format_fixed(speedup, 2); }

std::string format_quartiles(const Timing &time, double per_second, int digits) {
    return format_fixed(time.low_s * per_second, digits) + ".." +
           format_fixed(time.high_s * per_second, digits);
}

struct MaskName {
    const char *name;
    std::uint32_t bit;
};
constexpr MaskName kMaskNames[] = {{"no-float16", LK_VULKAN_NO_FLOAT16},
                                   {"no-subgroup", LK_VULKAN_NO_SUBGROUP},
                                   {"no-cooperative-matrix", LK_VULKAN_NO_COOPERATIVE_MATRIX}};

std::uint32_t mask_of(const BenchOptions &options) {
    std::uint32_t mask = 0;
    for (const MaskName &entry : kMaskNames)
        for (const std::string &name : options.mask)
            mask |= name == entry.name ? entry.bit : 0;
    return mask;
}

void show_measured(const BenchOptions &options, const Measured &measured) {
    if (options.json)
        print_json(measured.json());
    else
        measured.print();
}

void with_measured(const BenchOptions &options, const std::function<void(const Measured &)> &show) {
    (void)options.device.open();
    if (options.device.backend() == LK_BACKEND_CPU) {
        show(measure_cpu(options));
        return;
    }
    const std::unique_ptr<Gpu> gpu = options.device.backend() == LK_BACKEND_CUDA
                                         ? open_cuda(options.device)
                                         : open_vulkan(options.device, mask_of(options));
    show(measure_gpu(options, *gpu));
}

void add_shape(CLI::App &command, BenchOptions &options) {
    command.add_option("--tokens", options.tokens, "tokens in the cache, one or more")
        ->capture_default_str()
        ->delimiter(',')
        ->transform(Count())
        ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1} << 24));
    command.add_option("--batch", options.batches, "sequences, one or more")
        ->capture_default_str()
        ->delimiter(',')
        ->check(CLI::Range(1u, 4096u));
    command
        .add_option(
            "--plans", options.plans,
            "presets or plan files, of one layer or of many; default all presets, with --mix fp16")
        ->delimiter(',');
    CLI::Option *mix = command
                           .add_option("--mix", options.mix,
                                       "next to plans, a context whose chunks have classes, in "
                                       "percent: LOW,MIDDLE,HIGH")
                           ->delimiter(',')
                           ->expected(3)
                           ->check(CLI::Range(0.0, 100.0));
    command.add_option("--chunk", options.chunk_tokens, "tokens of a chunk: 32, 64 or 128")
        ->capture_default_str()
        ->needs(mix)
        ->check(CLI::IsMember({32u, 64u, 128u}));
    command.add_option("--query-heads", options.shape.n_query_heads, "query heads")
        ->capture_default_str();
    command.add_option("--kv-heads", options.shape.n_kv_heads, "key/value heads")
        ->capture_default_str();
    command.add_option("--head-dim", options.shape.head_dim, "channels of a head")
        ->capture_default_str();
    command.add_option("--value-dim", options.shape.value_dim,
                       "channels of a head's values, where they are others than those of its keys");
    command.add_flag("--latent", options.shape.is_latent,
                     "values are the first --value-dim channels of the keys (MLA)");
}

void check_mix(const BenchOptions &options) {
    if (options.mix.empty())
        return;
    if (std::abs(std::accumulate(options.mix.begin(), options.mix.end(), -100.0)) > 1e-6)
        throw UsageError("--mix is of percents that add up to 100");
    if (options.pack || options.shrink || options.search || !options.snapshot.empty() ||
        !options.bindings.empty())
        throw UsageError("--mix is timed by itself, without another measurement");
}

namespace {

// Steps that follow a ladder take their bytes of its pages, and few pages have too few.
void check_shrink(const BenchOptions &options) {
    constexpr std::uint64_t kLeastTokens = 2048;
    const std::uint64_t longest = *std::max_element(options.tokens.begin(), options.tokens.end());
    if (options.shrink && longest < kLeastTokens)
        throw UsageError("--shrink needs --tokens of " + std::to_string(kLeastTokens) +
                         " at least, not " + std::to_string(longest));
}

constexpr char kFooter[] =
    "Examples:\n"
    "  lowkey bench\n"
    "  lowkey bench --threads 1 --tokens 8192,32768 --plans fp16,kitty-pro --json\n"
    "  lowkey bench --prefill --plans fp16,kitty-pro\n"
    "  lowkey bench --pack --tokens 8192\n"
    "  lowkey bench --device cuda --tokens 131072 --new-tokens 1,4,16,64 --graph\n"
    "  lowkey bench --plans plan.json --tokens 128K\n"
    "  lowkey bench --device cuda --pack --tokens 131072\n"
    "  lowkey bench --device cuda --shrink --tokens 131072 --repeats 5\n"
    "  lowkey bench --device cuda --shrink --generation 32768\n"
    "  lowkey bench --search --chunks 4096 --channels 768\n"
    "  lowkey bench --device vulkan --batch 8 --tokens 32768\n"
    "  lowkey bench --device cuda --mix 60,30,10 --tokens 131072\n"
    "  lowkey bench --device cuda --query-heads 128 --kv-heads 1 --head-dim 576 --value-dim 512 "
    "--latent\n"
    "  lowkey bench --snapshot /var/tmp --tokens 262144 --repeats 5\n"
    "  lowkey bench --bindings=rust,python\n"
    "Of a plan of many layers, as lowkey plan auto writes it, each distinct layer is timed once;\n"
    "the sum of all layers stands next to the sum of as many of fp16.\n"
    "A sample is one lk_attend of the new tokens of one layer. Caches are flushed before each\n"
    "by reading a large buffer, unless --warm. Times are medians; GB/s counts the codes,\n"
    "ranges, minima and recent tokens that a pass reads, and is compared with a copy in the\n"
    "same run (its read and written bytes together). 1 GB = 10^9 bytes.\n"
    "--pack times lk_append of a prompt instead; its GB/s counts keys and values at FP16.\n"
    "On a GPU times are between two points of its queue, after a second of work that brings its\n"
    "clock up. Each pass is also compared with a kernel that only loads as many bytes.\n"
    "--shrink times lk_cache_shrink from rung to rung, and\n"
    "lk_step_begin after 32768 tokens where every block needs bytes of older pages.\n"
    "--generation adds one token after the other, from FP16 pages on, under the budget that they\n"
    "all need at 4 bits, and tells which part of the time lk_step_begin takes for that. --search\n"
    "times the scores of a context's chunks, by one thread on a CPU; its GB/s counts what is "
    "read.\n"
    "--mix times contexts whose chunks have classes (Cocktail) next to fp16 and to chunks that\n"
    "are all low, with pages of one class together and, reorder=off, in the order of the context.\n"
    "--snapshot saves and loads a cache of fp16, or of --plans, in memory and in a file of the\n"
    "folder, next to memcpy and to plain files of as many bytes; copies go to memory that was\n"
    "used before, as a load's do, and what is read of a file is not in the system's cache.\n"
    "--bindings builds and runs a program of each binding's sources, with cargo, go and python3,\n"
    "and fails when a call takes too long or a binding cannot be measured.";

int run_bench(const BenchOptions &options) {
    // A device that cannot be opened fails before anything is measured.
    (void)options.device.open();
    switch (options.device.backend()) {
        case LK_BACKEND_CUDA: return run_gpu_bench(options, *open_cuda(options.device));
        case LK_BACKEND_VULKAN:
            return run_gpu_bench(options, *open_vulkan(options.device, mask_of(options)));
        default:
            return options.snapshot.empty() ? run_cpu_bench(options) : run_snapshot_bench(options);
    }
}

}  // namespace

void add_bench(CLI::App &app, int &exit_code) {
    CLI::App *command =
        app.add_subcommand("bench", "time attention over the pages of each plan, and packing");
    command->footer(kFooter);
    const auto options = std::make_shared<BenchOptions>();
    options->device.add_to(*command);
    add_shape(*command, *options);
    command
        ->add_option("--new-tokens", options->new_tokens,
                     "new tokens of each sequence, one or more")
        ->capture_default_str()
        ->delimiter(',')
        ->check(CLI::Range(1u, 65536u));
    command->add_flag("--prefill", options->prefill, "2048 new tokens");
    command->add_flag("--pack", options->pack, "time packing instead");
    const CLI::Option *repeats =
        command
            ->add_option("--repeats", options->n_repeats,
                         "samples per row; with --bindings 2000, with --prefill on the CPU 3")
            ->capture_default_str()
            ->check(CLI::Range(3u, 100000u));
    command
        ->add_flag("--bindings{all}", options->bindings,
                   "time calls through the bindings instead: all or some of rust,go,python")
        ->delimiter(',')
        ->check(CLI::IsMember({"all", "rust", "go", "python"}));
    CLI::Option *shrink =
        command->add_flag("--shrink", options->shrink,
                          "time pages that become narrower instead, down the ladder of pm-kvq");
    command
        ->add_option("--generation", options->generation,
                     "time a generation of as many tokens whose pages shrink")
        ->needs(shrink)
        ->check(CLI::Range(std::uint64_t{1024}, std::uint64_t{1} << 20));
    CLI::Option *search =
        command->add_flag("--search", options->search, "time scores of chunks instead");
    command->add_option("--chunks", options->n_chunks, "chunks of the context")
        ->capture_default_str()
        ->needs(search)
        ->check(CLI::Range(1u, 1u << 20));
    command->add_option("--channels", options->n_channels, "channels of an embedding")
        ->capture_default_str()
        ->needs(search)
        ->check(CLI::Range(1u, 1u << 16));
    command
        ->add_option("--snapshot", options->snapshot,
                     "time saves and loads instead, with files in this folder (CPU)")
        ->check(CLI::ExistingDirectory);
    command->add_flag("--warm", options->warm, "do not flush the caches between samples");
    command->add_flag("--json", options->json, "print JSON");
    command->add_flag("--graph", options->graph, "time captured graphs too (CUDA)");
    command
        ->add_option("--mask", options->mask,
                     "do not use these: no-float16, no-subgroup, no-cooperative-matrix (Vulkan)")
        ->delimiter(',')
        ->check(CLI::IsMember({"no-float16", "no-subgroup", "no-cooperative-matrix"}));
    command->callback([options, repeats, &exit_code] {
        const lk_backend backend = options->device.backend();
        if (options->graph && backend != LK_BACKEND_CUDA)
            throw UsageError("--graph needs --device cuda");
        if (!options->mask.empty() && backend != LK_BACKEND_VULKAN)
            throw UsageError("--mask needs --device vulkan");
        check_mix(*options);
        check_shrink(*options);
        take_shape(*options);
        if (!options->snapshot.empty() && backend != LK_BACKEND_CPU)
            throw UsageError("--snapshot needs --device cpu");
        if (options->prefill) {
            options->new_tokens = {2048};
            if (backend == LK_BACKEND_CPU && repeats->count() == 0)
                options->n_repeats = kPrefillRepeats;
        }
        if (!options->bindings.empty()) {
            if (repeats->count() == 0)
                options->n_repeats = kBindingSteps;
            exit_code = run_bindings_bench(*options);
            return;
        }
        exit_code = run_bench(*options);
    });
}

}  // namespace cli
