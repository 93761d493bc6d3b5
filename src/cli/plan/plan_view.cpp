// SPDX-License-Identifier: Apache-2.0
#include "cli/plan/plan_view.h"

#include <algorithm>
#include <cstdio>

#include "cli/common/command.h"
#include "cli/common/report.h"
#include "cli/common/widths.h"
#include "cli/picture/canvas.h"

namespace cli {
namespace {

struct Width {
    std::uint32_t bits = 0;
    std::uint32_t boost_bits = 0;
};

bool find_width(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head, bool is_value,
                std::uint32_t channel, Width &width) {
    return lk_plan_width(plan, layer, kv_head, is_value ? 1 : 0, channel, 0, LK_CHUNK_NONE,
                         &width.bits, &width.boost_bits) == LK_OK;
}

lk_key_rule key_rule(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head) {
    lk_key_rule rule = llama::initialised(lk_key_rule_init);
    llama::check(lk_plan_get_key(plan, layer, kv_head, &rule));
    return rule;
}

std::string group_words(std::uint32_t group, const char *whole, const char *unit, float clip) {
    std::string words =
        ", groups of " + (group == 0 ? std::string(whole) : std::to_string(group) + unit);
    if (clip < 1) {
        char share[32];
        std::snprintf(share, sizeof share, "%g", static_cast<double>(clip));
        words += std::string(" that keep ") + share + " of their range at 2 bits";
    }
    return words;
}

std::string axis_words(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
                       bool is_value) {
    if (is_value) {
        lk_value_rule rule = llama::initialised(lk_value_rule_init);
        llama::check(lk_plan_get_value(plan, layer, kv_head, &rule));
        return rule.bits == 16
                   ? ""
                   : ", per token" + group_words(rule.group, "the head", " channels", rule.clip);
    }
    const lk_key_rule rule = key_rule(plan, layer, kv_head);
    if (rule.bits == 16)
        return "";
    if (rule.axis == LK_AXIS_TOKEN)
        return ", per token" + group_words(rule.group, "the head", " channels", rule.clip);
    return ", per channel" + group_words(rule.group, "the page", " tokens", rule.clip);
}

std::string channel_words(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
                          bool is_value, std::uint32_t head_dim) {
    std::string words;
    for (std::uint32_t first = 0; first < head_dim;) {
        Width width, next;
        (void)find_width(plan, layer, kv_head, is_value, first, width);
        std::uint32_t last = first + 1;
        while (last < head_dim && find_width(plan, layer, kv_head, is_value, last, next) &&
               next.bits == width.bits && next.boost_bits == width.boost_bits) {
            ++last;
        }
        if (!words.empty())
            words += ", ";
        words += std::to_string(width.bits) + (width.bits == 1 ? " bit" : " bits");
        if (first != 0 || last != head_dim) {
            words += " in channels " + std::to_string(first) + ".." + std::to_string(last - 1);
        }
        if (width.boost_bits != width.bits) {
            const std::uint32_t n_boosted =
                (key_rule(plan, layer, kv_head).boost_channels + 15) / 16 * 16;
            words += ", " + std::to_string(n_boosted) + " of " + std::to_string(head_dim) +
                     " channels boosted to " + std::to_string(width.boost_bits) + " in every page";
        }
        first = last;
    }
    return words;
}

std::string rotation_words(const lk_plan *plan, std::uint32_t layer) {
    lk_rotation rotation = LK_ROTATION_NONE;
    llama::check(lk_plan_get_key_rotation(plan, layer, &rotation));
    return rotation == LK_ROTATION_NONE ? "" : ", rotated";
}

// Heads of one layer as "heads 0..7 WORDS" lines, at its rung.
std::vector<std::string> rung_lines(const lk_plan *plan, const PlanShape &shape,
                                    std::uint32_t layer) {
    std::vector<std::string> lines;
    for (const bool is_value : {false, true}) {
        const std::uint32_t n_heads = shape.n_kv_heads[layer];
        const std::uint32_t n_channels = shape.channels(layer, is_value);
        if (is_value && shape.is_latent[layer]) {
            lines.push_back("KV heads " + range_words(0, n_heads - 1) + "  values  channels 0.." +
                            std::to_string(n_channels - 1) + " of the keys");
            continue;
        }
        const std::string rotation = is_value ? "" : rotation_words(plan, layer);
        for (std::uint32_t first = 0; first < n_heads;) {
            const std::string words = describe_head(plan, layer, first, is_value, n_channels);
            std::uint32_t last = first;
            while (last + 1 < n_heads &&
                   describe_head(plan, layer, last + 1, is_value, n_channels) == words) {
                ++last;
            }
            lines.push_back(std::string("KV heads ") + range_words(first, last) +
                            (is_value ? "  values  " : "  keys    ") + words + rotation);
            first = last + 1;
        }
    }
    return lines;
}

// At its rung, and at those below it.
std::vector<std::string> layer_lines(const lk_plan *plan, const PlanShape &shape,
                                     std::uint32_t layer) {
    const std::uint32_t kv_layer = kv_layer_of(plan, layer);
    if (kv_layer != layer)
        return {"attend to the pages of layer " + std::to_string(kv_layer)};
    const auto [rungs, n_rungs, rung, order] = ladder_of(plan, layer);
    std::vector<std::string> lines = rung_lines(plan, shape, layer);
    for (std::uint32_t r = 0; r < n_rungs; ++r) {
        if (rungs[r] >= rung)
            continue;
        const llama::PlanHandle lower = llama::copy_plan(plan);
        llama::check(lk_plan_set_ladder(lower.get(), layer, rungs, n_rungs, rungs[r]));
        lines.push_back("shrinks to rung " + std::to_string(rungs[r]) + ", order " +
                        std::to_string(order));
        for (const std::string &line : rung_lines(lower.get(), shape, layer))
            lines.push_back("  " + line);
    }
    return lines;
}

constexpr double kMargin = 70;
constexpr double kPanelTop = 96;
constexpr double kPanelHeight = 300;
constexpr double kPanelWidth = 500;
constexpr double kPanelGap = 60;

// Widths of one head from left to right. The channels that a page boosts change from page to
// page; their number is drawn at the left end.
void draw_head(Canvas &canvas, const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
               bool is_value, std::uint32_t head_dim, double x, double y, double w, double h) {
    std::uint32_t n_boosted = 0;
    if (!is_value)
        n_boosted = (key_rule(plan, layer, kv_head).boost_channels + 15) / 16 * 16;
    const double step = w / head_dim;
    for (std::uint32_t first = 0; first < head_dim;) {
        const auto bits_of = [&](std::uint32_t channel) {
            Width width;
            (void)find_width(plan, layer, kv_head, is_value, channel, width);
            return channel < n_boosted ? width.boost_bits : width.bits;
        };
        std::uint32_t last = first + 1;
        while (last < head_dim && bits_of(last) == bits_of(first))
            ++last;
        canvas.rect(x + first * step, y, (last - first) * step, h, width_color(bits_of(first)));
        first = last;
    }
}

void draw_panel(Canvas &canvas, const lk_plan *plan, const PlanShape &shape, bool is_value) {
    const double left = kMargin + (is_value ? kPanelWidth + kPanelGap : 0);
    canvas.text(left, kPanelTop - 14, is_value ? "Values" : "Keys", 11, kInk);
    const double row_height = kPanelHeight / shape.n_layers;
    const double row_gap = row_height > 5 ? 1 : 0;
    for (std::uint32_t layer = 0; layer < shape.n_layers; ++layer) {
        const double cell = kPanelWidth / shape.n_kv_heads[layer];
        const double head_gap = cell > 8 ? 2 : 0;
        for (std::uint32_t head = 0; head < shape.n_kv_heads[layer]; ++head) {
            draw_head(canvas, plan, layer, head, is_value, shape.channels(layer, is_value),
                      left + head * cell, kPanelTop + layer * row_height, cell - head_gap,
                      row_height - row_gap);
        }
    }
    const std::uint32_t tick = std::max(1u, (shape.n_layers + 7) / 8);
    for (std::uint32_t layer = 0; layer < shape.n_layers && !is_value; layer += tick) {
        canvas.text(left - 10, kPanelTop + (layer + 0.5) * row_height + 4, std::to_string(layer), 8,
                    kMuted, Align::kRight);
    }
    const bool boosts = !is_value && key_rule(plan, 0, 0).boost_channels != 0;
    const std::uint32_t n_heads = shape.n_kv_heads[0];
    const std::uint32_t head_tick = std::max(1u, (n_heads + 7) / 8);
    for (std::uint32_t head = 0; head < n_heads; head += head_tick) {
        canvas.text(left + (head + 0.5) * kPanelWidth / n_heads, kPanelTop + kPanelHeight + 18,
                    std::to_string(head), 8, kMuted, Align::kCenter);
    }
    canvas.text(left + kPanelWidth / 2, kPanelTop + kPanelHeight + 38,
                boosts ? "KV head: the channels that each page boosts are drawn first"
                       : "KV head, its channels from left to right",
                8, kMuted, Align::kCenter);
}

struct Bar {
    std::string name;
    lk_plan_size size;
    bool own;
};

std::vector<Bar> bars_of(const lk_plan *plan, const PlanShape &shape, std::uint64_t n_tokens,
                         std::uint32_t n_sequences, std::uint32_t step_tokens) {
    std::vector<Bar> bars;
    const auto add = [&](const std::string &name, const lk_plan *one, bool own) {
        lk_plan_size size = llama::initialised(lk_plan_size_init);
        llama::check(lk_plan_bytes(one, n_tokens, n_sequences, step_tokens, &size));
        bars.push_back({name, size, own});
    };
    const std::string own_name = lk_plan_name(plan);
    bool listed = false;
    const bool uniform =
        std::equal(shape.n_kv_heads.begin() + 1, shape.n_kv_heads.end(),
                   shape.n_kv_heads.begin()) &&
        std::equal(shape.head_dim.begin() + 1, shape.head_dim.end(), shape.head_dim.begin()) &&
        shape.value_dim == shape.head_dim && !shape.is_latent[0];
    if (uniform) {
        const llama::Geometry geometry(shape.n_layers, shape.n_kv_heads[0], shape.n_kv_heads[0],
                                       shape.head_dim[0]);
        for (const std::string &name : preset_names()) {
            const bool own = name == own_name;
            const llama::PlanHandle preset = llama::make_preset(name, geometry);
            add(name, own ? plan : preset.get(), own);
            listed = listed || own;
        }
    }
    if (!listed)
        add(own_name, plan, true);
    return bars;
}

void draw_bars(Canvas &canvas, const std::vector<Bar> &bars, double top) {
    const Color colors[] = {{45, 130, 180}, {224, 150, 60}, {150, 150, 158}};
    const char *const names[] = {"codes", "ranges and minima", "recent tokens at 16 bits"};
    const double left = kMargin + 70, width = 820, row = 26;
    double largest = 1;
    for (const Bar &bar : bars)
        largest = std::max(largest, static_cast<double>(bar.size.fp16_bytes));
    double x = left;
    for (int i = 0; i < 3; ++i) {
        canvas.rect(x, top - 24, 12, 12, colors[i]);
        canvas.text(x + 18, top - 14, names[i], 8.5, kInk);
        x += 44 + Canvas::text_width(names[i], 8.5);
    }
    for (std::size_t i = 0; i < bars.size(); ++i) {
        const double y = top + static_cast<double>(i) * row;
        canvas.text(left - 12, y + 14, bars[i].name, 9, bars[i].own ? kInk : kMuted, Align::kRight,
                    bars[i].own ? 1.9 : 0);
        const std::uint64_t parts[] = {bars[i].size.payload_bytes, bars[i].size.metadata_bytes,
                                       bars[i].size.recent_bytes};
        double at = left, sum = 0;
        for (int p = 0; p < 3; ++p) {
            const double w = static_cast<double>(parts[p]) / largest * width;
            canvas.rect(at, y, w, row - 8, colors[p]);
            at += w;
            sum += static_cast<double>(parts[p]);
        }
        canvas.text(at + 10, y + 14, format_bytes(sum), 9, bars[i].own ? kInk : kMuted);
    }
}

}  // namespace

Color width_color(std::uint32_t bits) {
    switch (bits) {
        case 1: return {252, 226, 110};
        case 2: return {140, 205, 130};
        case 3: return {235, 140, 60};
        case 4: return {60, 150, 215};
        case 8: return {60, 60, 150};
        default: return {150, 50, 110};
    }
}

void draw_width_legend(Canvas &canvas, double right, double y) {
    double x = right;
    for (const std::uint32_t bits : kCodeWidths) {
        const std::string label = std::to_string(bits);
        x -= Canvas::text_width(label, 9);
        canvas.text(x, y, label, 9, kInk);
        x -= 18;
        canvas.rect(x, y - 10, 12, 12, width_color(bits));
        x -= 16;
    }
    canvas.text(x, y, "bits", 9, kMuted, Align::kRight);
}

std::string range_words(std::uint32_t first, std::uint32_t last) {
    return first == last ? std::to_string(first)
                         : std::to_string(first) + ".." + std::to_string(last);
}

std::string describe_head(const lk_plan *plan, std::uint32_t layer, std::uint32_t kv_head,
                          bool is_value, std::uint32_t head_dim) {
    return channel_words(plan, layer, kv_head, is_value, head_dim) +
           axis_words(plan, layer, kv_head, is_value);
}

void print_widths(const lk_plan *plan) {
    const PlanShape shape = plan_shape(plan);
    std::uint32_t page = 0, sinks = 0, window = 0;
    llama::check(lk_plan_get_pages(plan, &page, &sinks, &window));
    std::printf("\nPages of %u tokens; the first %u and at least the last %u tokens at 16 bits.\n",
                page, sinks, window);
    for (std::uint32_t first = 0; first < shape.n_layers;) {
        const std::vector<std::string> lines = layer_lines(plan, shape, first);
        std::uint32_t last = first;
        while (last + 1 < shape.n_layers && layer_lines(plan, shape, last + 1) == lines)
            ++last;
        std::printf("layers %s\n", range_words(first, last).c_str());
        for (const std::string &line : lines)
            std::printf("  %s\n", line.c_str());
        first = last + 1;
    }
}

void draw_plan(const lk_plan *plan, std::uint64_t n_tokens, std::uint32_t n_sequences,
               std::uint32_t step_tokens, const std::string &path) {
    const PlanShape shape = plan_shape(plan);
    const std::vector<Bar> bars = bars_of(plan, shape, n_tokens, n_sequences, step_tokens);
    const double bars_top = kPanelTop + kPanelHeight + 110;
    Canvas canvas(1200, static_cast<int>(bars_top) + static_cast<int>(bars.size()) * 26 + 24);
    canvas.text(kMargin, 40, std::string("Plan ") + lk_plan_name(plan), 16, kInk);
    draw_width_legend(canvas, kMargin + 2 * kPanelWidth + kPanelGap, 42);
    canvas.text_up(22, kPanelTop + kPanelHeight / 2, "layer", 9, kMuted, Align::kCenter);
    draw_panel(canvas, plan, shape, false);
    draw_panel(canvas, plan, shape, true);
    const std::string title = format_count(n_tokens) + " tokens x " + std::to_string(n_sequences) +
                              (n_sequences == 1 ? " sequence" : " sequences");
    canvas.text(kMargin, bars_top - 40, title, 11, kInk);
    draw_bars(canvas, bars, bars_top);
    canvas.write_png(path);
}

}  // namespace cli
