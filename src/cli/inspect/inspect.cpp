// lowkey inspect: a plan, a dump of tensors, a snapshot, or one page of a plan.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/command.h"
#include "cli/common/output_file.h"
#include "cli/common/report.h"
#include "cli/common/resources.h"
#include "cli/inspect/inspect_snapshot.h"
#include "cli/picture/canvas.h"
#include "cli/plan/plan_view.h"
#include "cli/plan/width_table.h"
#include "llama/safetensors.h"

namespace cli {
namespace {

constexpr std::size_t kWidestShown = 8;

struct InspectOptions {
    std::string target;
    std::string file;  // after the word snapshot
    std::string plan = "kitty-pro";
    GeometryOptions geometry;
    std::string layout = "lowkey";
    std::uint32_t layer = 0;
    std::uint32_t kv_head = 0;
    std::string png;
    bool json = false;
};

struct Range {
    float low = 0, high = 0;
};

struct Summary {
    const llama::Tensor *tensor = nullptr;
    bool is_float = false;
    double low = 0, high = 0, mean = 0;
    std::uint64_t n_not_finite = 0;
    std::size_t n_channels = 0;   // of a key tensor: of one head; else 0
    std::vector<Range> channels;  // [heads][channels]
};

bool is_float_type(const std::string &dtype) {
    return dtype == "F16" || dtype == "BF16" || dtype == "F32" || dtype == "F64";
}

// Keys are tensors [tokens][heads][head_dim] with a part of their name that says so.
bool is_key_tensor(const llama::Tensor &tensor) {
    if (tensor.shape.size() < 2 || tensor.n_elements == 0)
        return false;
    std::string name = "." + tensor.name + ".";
    std::replace(name.begin(), name.end(), '/', '.');
    for (const char *part : {".k.", ".key.", ".keys.", ".k_cache.", ".key_cache."}) {
        if (name.find(part) != std::string::npos)
            return true;
    }
    return false;
}

void add_channel_ranges(Summary &summary, const std::vector<float> &values) {
    const std::vector<std::uint64_t> &shape = summary.tensor->shape;
    summary.n_channels = static_cast<std::size_t>(shape.back());
    const std::size_t n_heads =
        shape.size() >= 3 ? static_cast<std::size_t>(shape[shape.size() - 2]) : 1;
    const std::size_t width = n_heads * summary.n_channels;
    summary.channels.assign(width, {INFINITY, -INFINITY});
    for (std::size_t i = 0; i < values.size(); ++i) {
        Range &range = summary.channels[i % width];
        range.low = std::min(range.low, values[i]);
        range.high = std::max(range.high, values[i]);
    }
}

Summary summarise(const llama::Tensor &tensor) {
    Summary summary;
    summary.tensor = &tensor;
    summary.is_float = is_float_type(tensor.dtype) && tensor.n_elements > 0;
    if (!summary.is_float)
        return summary;
    const std::vector<float> values = llama::to_floats(tensor);
    summary.low = INFINITY;
    summary.high = -INFINITY;
    double sum = 0;
    for (const float value : values) {
        if (!std::isfinite(value)) {
            ++summary.n_not_finite;
            continue;
        }
        summary.low = std::min(summary.low, double{value});
        summary.high = std::max(summary.high, double{value});
        sum += double{value};
    }
    const double n_finite = static_cast<double>(values.size() - summary.n_not_finite);
    if (n_finite == 0) {
        summary.is_float = false;
        return summary;
    }
    summary.mean = sum / n_finite;
    if (is_key_tensor(tensor))
        add_channel_ranges(summary, values);
    return summary;
}

Json summary_json(const Summary &summary) {
    const llama::Tensor &tensor = *summary.tensor;
    Json json = {{"name", tensor.name},
                 {"dtype", tensor.dtype},
                 {"shape", tensor.shape},
                 {"bytes", tensor.n_bytes}};
    if (!summary.is_float)
        return json;
    json["min"] = summary.low;
    json["max"] = summary.high;
    json["mean"] = summary.mean;
    json["not_finite"] = summary.n_not_finite;
    if (!summary.channels.empty()) {
        Json low = Json::array(), high = Json::array();
        for (const Range &range : summary.channels) {
            low.push_back(range.low);
            high.push_back(range.high);
        }
        json["channels_per_head"] = summary.n_channels;
        json["channel_min"] = low;
        json["channel_max"] = high;
    }
    return json;
}

std::string shape_text(const std::vector<std::uint64_t> &shape) {
    std::string text;
    for (const std::uint64_t extent : shape) {
        text += (text.empty() ? "" : " x ") + std::to_string(extent);
    }
    return text.empty() ? "scalar" : text;
}

std::string value_text(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.4g", value);
    return text;
}

void print_summaries(const std::vector<Summary> &summaries) {
    Table table({"tensor", "dtype", "shape", "bytes", "min", "max", "mean"});
    for (const Summary &s : summaries) {
        table.add({printable(s.tensor->name), s.tensor->dtype, shape_text(s.tensor->shape),
                   std::to_string(s.tensor->n_bytes), s.is_float ? value_text(s.low) : "-",
                   s.is_float ? value_text(s.high) : "-", s.is_float ? value_text(s.mean) : "-"});
    }
    table.print();
}

// The channels whose range is widest: what a plan would boost.
void print_widest(const Summary &summary) {
    std::vector<std::size_t> order(summary.channels.size());
    for (std::size_t i = 0; i < order.size(); ++i)
        order[i] = i;
    const auto width = [&](std::size_t i) {
        return summary.channels[i].high - summary.channels[i].low;
    };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return width(a) != width(b) ? width(a) > width(b) : a < b;
    });
    order.resize(std::min(order.size(), kWidestShown));
    std::printf("\n%s: widest channels\n", printable(summary.tensor->name).c_str());
    for (const std::size_t i : order) {
        std::printf("  head %zu channel %zu: %s .. %s\n", i / summary.n_channels,
                    i % summary.n_channels, value_text(double{summary.channels[i].low}).c_str(),
                    value_text(double{summary.channels[i].high}).c_str());
    }
}

// One row per tensor and head, one column per channel, coloured by the channel's range.
void draw_ranges(const std::vector<Summary> &summaries, const std::string &path) {
    double largest = 0;
    std::size_t n_blocks = 0;
    for (const Summary &summary : summaries) {
        for (const Range &range : summary.channels) {
            if (std::isfinite(range.high - range.low)) {
                largest = std::max(largest, double{range.high - range.low});
            }
        }
        if (summary.n_channels != 0)
            n_blocks += summary.channels.size() / summary.n_channels;
    }
    if (n_blocks == 0) {
        throw llama::Error("the file has no key tensor to draw, such as \"layers.0.k\"");
    }
    const double left = 220, top = 90, width = 900;
    const double row = std::clamp(640.0 / static_cast<double>(n_blocks), 2.0, 28.0);
    Canvas canvas(1180, static_cast<int>(top + row * static_cast<double>(n_blocks)) + 70);
    canvas.text(40, 44, "Range of every key channel", 15, kInk);
    double y = top, last_label = -100;
    for (const Summary &summary : summaries) {
        if (summary.n_channels == 0)
            continue;
        const double cell = width / static_cast<double>(summary.n_channels);
        for (std::size_t i = 0; i < summary.channels.size(); ++i) {
            const std::size_t head = i / summary.n_channels, channel = i % summary.n_channels;
            const double width_of = double{summary.channels[i].high - summary.channels[i].low};
            const double range = std::isfinite(width_of) ? width_of : largest;
            canvas.rect(left + static_cast<double>(channel) * cell,
                        y + static_cast<double>(head) * row, cell, row > 4 ? row - 1 : row,
                        ramp_color(largest == 0 ? 0 : range / largest));
        }
        if (y - last_label >= 14) {
            canvas.text(left - 12, y + std::min(row, 14.0) - 2, printable(summary.tensor->name), 8,
                        kMuted, Align::kRight);
            last_label = y;
        }
        y += row * static_cast<double>(summary.channels.size() / summary.n_channels);
    }
    canvas.text(left, y + 30, "channel, from 0", 9, kMuted);
    for (int i = 0; i < 100; ++i) {
        canvas.rect(left + width - 300 + 2 * i, y + 20, 2, 12, ramp_color(i / 99.0));
    }
    canvas.text(left + width - 312, y + 30, "0", 9, kMuted, Align::kRight);
    canvas.text(left + width - 90, y + 30, value_text(largest), 9, kMuted);
    canvas.write_png(path);
}

int inspect_tensors(const InspectOptions &options) {
    const llama::SafetensorsFile file(options.target);
    std::vector<Summary> summaries;
    for (const llama::Tensor &tensor : file.tensors())
        summaries.push_back(summarise(tensor));
    if (options.json) {
        Json list = Json::array();
        for (const Summary &summary : summaries)
            list.push_back(summary_json(summary));
        print_json({{"file", options.target}, {"metadata", file.metadata()}, {"tensors", list}});
    } else {
        for (const auto &[key, value] : file.metadata()) {
            std::printf("%s: %s\n", printable(key).c_str(), printable(value).c_str());
        }
        print_summaries(summaries);
        for (const Summary &summary : summaries) {
            if (!summary.channels.empty())
                print_widest(summary);
        }
    }
    if (!options.png.empty()) {
        draw_ranges(summaries, options.png);
        note("picture: " + options.png);
    }
    return 0;
}

// Tokens up to and including the one step after which exactly one page is packed.
lk_plan_size one_page(const lk_plan *plan) {
    std::uint32_t page = 0, sinks = 0, window = 0;
    llama::check(lk_plan_get_pages(plan, &page, &sinks, &window));
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    for (std::uint64_t n_tokens = std::uint64_t{sinks} + page;
         n_tokens <= sinks + window + 3u * page; n_tokens += 1) {
        llama::check(lk_plan_bytes(plan, n_tokens, 1, 1, &size));
        if (size.n_blocks > 0)
            break;
    }
    return size;
}

Json strips_json(const lk_plan *plan, bool is_value, std::uint32_t head_dim,
                 std::uint32_t page_tokens) {
    std::map<std::uint32_t, std::uint32_t, std::greater<>> n_channels;
    lk_key_rule rule = llama::initialised(lk_key_rule_init);
    llama::check(lk_plan_get_key(plan, 0, 0, &rule));
    const std::uint32_t n_boosted = is_value ? 0 : (rule.boost_channels + 15) / 16 * 16;
    for (std::uint32_t channel = 0; channel < head_dim; ++channel) {
        std::uint32_t bits = 0, boost_bits = 0;
        llama::check(lk_plan_width(plan, 0, 0, is_value ? 1 : 0, channel, 0, LK_CHUNK_NONE, &bits,
                                   &boost_bits));
        ++n_channels[channel < n_boosted ? boost_bits : bits];
    }
    Json strips = Json::array();
    for (const auto &[bits, count] : n_channels) {
        strips.push_back({{"bits", bits},
                          {"channels", count},
                          {"code_bytes", std::uint64_t{count} * bits * page_tokens / 8}});
    }
    return strips;
}

Json page_json(const lk_plan *plan) {
    const PlanShape shape = plan_shape(plan);
    std::uint32_t page = 0, sinks = 0, window = 0;
    llama::check(lk_plan_get_pages(plan, &page, &sinks, &window));
    const lk_plan_size size = one_page(plan);
    std::uint64_t n_heads = 0;
    for (const std::uint32_t count : shape.n_kv_heads)
        n_heads += count;
    return {{"plan", lk_plan_name(plan)},
            {"page_tokens", page},
            {"sink_tokens", sinks},
            {"window_tokens", window},
            {"head_dim", shape.head_dim[0]},
            {"value_dim", shape.value_dim[0]},
            {"keys", strips_json(plan, false, shape.head_dim[0], page)},
            {"values", shape.is_latent[0] ? Json::array()
                                          : strips_json(plan, true, shape.value_dim[0], page)},
            {"pages_of_all_heads",
             {{"kv_heads_times_layers", n_heads},
              {"packed", size.n_blocks > 0},
              {"code_bytes", size.payload_bytes},
              {"metadata_bytes", size.metadata_bytes}}}};
}

void print_half(const char *name, const Json &strips) {
    for (const Json &strip : strips) {
        std::printf("  %-7s %3u channels at %2u bits  %6llu bytes of codes\n", name,
                    strip["channels"].get<unsigned>(), strip["bits"].get<unsigned>(),
                    strip["code_bytes"].get<unsigned long long>());
    }
}

// Where the keys of one head lie in ChanMix's own bytes.
int inspect_chanmix(const InspectOptions &options, const lk_plan *plan) {
    lk_chanmix_layout layout = llama::initialised(lk_chanmix_layout_init);
    llama::check(lk_plan_chanmix_layout(plan, options.layer, options.kv_head, &layout));
    if (options.json) {
        Json places = Json::array();
        for (std::uint32_t i = 0; i < layout.head_dim; ++i)
            places.push_back({{"channel", layout.channel[i]},
                              {"bits", layout.bits[i]},
                              {"byte", layout.byte[i]},
                              {"shift", layout.shift[i]}});
        print_json({{"plan", lk_plan_name(plan)},
                    {"layout", "chanmix"},
                    {"layer", options.layer},
                    {"kv_head", options.kv_head},
                    {"token_bytes", layout.token_bytes},
                    {"places", places}});
        return 0;
    }
    std::printf("keys of layer %u, KV head %u of plan %s in ChanMix's order: %u bytes a token\n",
                options.layer, options.kv_head, lk_plan_name(plan), layout.token_bytes);
    Table table({"byte", "channels: bits << shift"});
    for (std::uint32_t i = 0; i < layout.head_dim;) {
        const std::uint32_t byte = layout.byte[i];
        std::string channels;
        for (; i < layout.head_dim && layout.byte[i] == byte; ++i)
            channels += (channels.empty() ? "" : ", ") + std::to_string(layout.channel[i]) + ": " +
                        std::to_string(layout.bits[i]) + " << " + std::to_string(layout.shift[i]);
        table.add({std::to_string(byte), channels});
    }
    table.print();
    return 0;
}

int inspect_page(const InspectOptions &options) {
    const llama::PlanHandle plan = load_plan(options.plan, options.geometry.geometry());
    if (options.layout == "chanmix")
        return inspect_chanmix(options, plan.get());
    const Json page = page_json(plan.get());
    if (options.json) {
        print_json(page);
        return 0;
    }
    std::printf("page of plan %s: %u tokens, head_dim %u (layer 0, KV head 0)\n",
                lk_plan_name(plan.get()), page["page_tokens"].get<unsigned>(),
                page["head_dim"].get<unsigned>());
    print_half("keys", page["keys"]);
    print_half("values", page["values"]);
    const Json &all = page["pages_of_all_heads"];
    if (all["packed"].get<bool>()) {
        std::printf("  one page of all %u KV heads: %s bytes of codes, %s of ranges and minima\n",
                    all["kv_heads_times_layers"].get<unsigned>(),
                    format_count(all["code_bytes"].get<std::uint64_t>()).c_str(),
                    format_count(all["metadata_bytes"].get<std::uint64_t>()).c_str());
    } else {
        std::printf("  pages of this plan stay at 16 bits\n");
    }
    std::printf("  kept at 16 bits: the first %u tokens and at least the last %u\n",
                page["sink_tokens"].get<unsigned>(), page["window_tokens"].get<unsigned>());
    return 0;
}

int inspect_plan(const InspectOptions &options, const std::string &text) {
    const llama::PlanHandle plan = plan_of_text(options.target, text);
    const PlanShape shape = plan_shape(plan.get());
    if (options.json) {
        print_json({{"name", lk_plan_name(plan.get())},
                    {"layers", shape.n_layers},
                    {"kv_heads", shape.n_kv_heads},
                    {"head_dim", shape.head_dim},
                    {"plan", Json::parse(plan_json(plan.get()))}});
    } else {
        std::printf("plan %s, %u layers\n\n", lk_plan_name(plan.get()), shape.n_layers);
        print_width_counts(plan.get());
        std::printf("\nlowkey plan FILE --explain prints the width of every channel\n");
    }
    if (!options.png.empty()) {
        draw_plan(plan.get(), 8192, 1, 512, options.png);
        note("picture: " + options.png);
    }
    return 0;
}

// A safetensors file begins with a length of 8 bytes, whose upper ones are zero, and a brace.
bool is_tensor_file(const std::string &path) {
    const std::string suffix = ".safetensors";
    if (path.size() > suffix.size() &&
        path.compare(path.size() - suffix.size(), suffix.size(), suffix) == 0) {
        return true;
    }
    llama::check_file(path);
    std::ifstream in(path, std::ios::binary);
    char head[9] = {};
    return in.read(head, sizeof head) && head[7] == '\0' && head[8] == '{';
}

int run_inspect(const InspectOptions &options) {
    check_output(options.png);
    if (options.target == "snapshot" && options.file.empty()) {
        throw UsageError("inspect snapshot needs a file");
    }
    if (!options.file.empty() && options.target != "snapshot") {
        throw UsageError("inspect takes one file, or the word snapshot and a file");
    }
    if (options.target == "page") {
        if (!options.png.empty()) {
            throw UsageError("inspect page draws no picture: --png is for files");
        }
        return inspect_page(options);
    }
    if (options.target == "snapshot" || is_snapshot_file(options.target)) {
        const bool is_named = options.target == "snapshot";
        inspect_snapshot(is_named ? options.file : options.target, options.json, options.png);
        return 0;
    }
    if (is_tensor_file(options.target)) {
        return inspect_tensors(options);
    }
    return inspect_plan(options, read_file(options.target));
}

}  // namespace

void add_inspect(CLI::App &app, int &exit_code) {
    CLI::App *command =
        app.add_subcommand("inspect", "look into a plan, a dump of tensors, a snapshot, or a page");
    command->footer(
        "Examples:\n"
        "  lowkey inspect plan.json\n"
        "  lowkey inspect dump.safetensors --png ranges.png\n"
        "  lowkey inspect snapshot cache.lksnap --png bytes.png\n"
        "  lowkey inspect page --plan kitty-pro --head-dim 128\n"
        "  lowkey inspect page --plan plan.json --layout chanmix --layer 3 --kv-head 1\n"
        "Tensors are [tokens][heads][head_dim]; those with a name part k, key or keys are shown "
        "by\n"
        "channel. Sizes are in bytes.");
    const auto options = std::make_shared<InspectOptions>();
    command
        ->add_option("target", options->target,
                     "a plan's JSON, a safetensors file, a snapshot, or: page")
        ->required();
    command->add_option("file", options->file, "after the word snapshot: its file");
    command
        ->add_option("--plan", options->plan,
                     "plan of the page: a preset's name or a plan's JSON file")
        ->capture_default_str();
    options->geometry.add_to(*command);
    command
        ->add_option(
            "--layout", options->layout,
            "layout of the page: lowkey, or chanmix for the byte order of ChanMix's own kernels")
        ->check(CLI::IsMember({"lowkey", "chanmix"}))
        ->capture_default_str();
    command->add_option("--layer", options->layer, "layer of the page of --layout chanmix")
        ->capture_default_str();
    command->add_option("--kv-head", options->kv_head, "KV head of the page of --layout chanmix")
        ->capture_default_str();
    command->add_option("--png", options->png,
                        "draw widths, channel ranges or bytes of the inspected file to this file");
    command->add_flag("--json", options->json, "print JSON");
    command->callback([options, &exit_code] { exit_code = run_inspect(*options); });
}

}  // namespace cli
