// Two panels over bits per value: exact match, and -log2 p on a logarithmic axis.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "cli/common/report.h"
#include "cli/picture/canvas.h"
#include "lab/suite_report.h"

namespace cli {
namespace {

constexpr int kWidth = 1200, kHeight = 690;
constexpr double kLeft = 80, kRight = 1170;
constexpr double kTop = 110, kBottom = 520;
constexpr double kLeastBits = 0.0001;  // -log2 p that the axis ends at

struct Panel {
    double left, right;
    double low_x, high_x, low_y, high_y;
    bool is_logarithmic;

    double x(double bits) const {
        return left + (bits - low_x) / (high_x - low_x) * (right - left);
    }
    double y(double value) const {
        const auto at = [&](double v) { return is_logarithmic ? std::log10(v) : v; };
        const double part = (at(std::max(value, low_y)) - at(low_y)) / (at(high_y) - at(low_y));
        return kBottom - part * (kBottom - kTop);
    }
};

struct PlanPoint {
    double x, y;
};
// Points of each family, ascending in bits.
using Families = std::vector<std::pair<std::string, std::vector<PlanPoint>>>;

Families points_of(const SuiteRecord &record, const std::function<double(const SuiteSum &)> &y) {
    Families families;
    for (const SuitePlanInfo &plan : record.plans) {
        if (plan.limit_bits == 0)
            continue;
        auto found = std::find_if(families.begin(), families.end(),
                                  [&](const auto &one) { return one.first == plan.family; });
        if (found == families.end())
            found = families.insert(families.end(), {plan.family, {}});
        found->second.push_back({plan.bits_per_value, y(sum_cells(record, plan.name, ""))});
    }
    for (auto &family : families)
        std::sort(family.second.begin(), family.second.end(),
                  [](const PlanPoint &a, const PlanPoint &b) { return a.x < b.x; });
    return families;
}

void draw_axes(Canvas &canvas, const Panel &panel, const std::string &title) {
    const auto grid = [&](double value, const std::string &label) {
        canvas.line({panel.left, panel.y(value)}, {panel.right, panel.y(value)}, 1, kGrid);
        canvas.text(panel.left - 10, panel.y(value) + 5, label, 10, kMuted, Align::kRight);
    };
    if (panel.is_logarithmic) {
        for (double value = panel.low_y; value <= panel.high_y * 1.001; value *= 10)
            grid(value, format_fixed(value, value < 0.005 ? (value < 0.0005 ? 4 : 3)
                                            : value < 0.5 ? (value < 0.05 ? 2 : 1)
                                                          : 0));
    } else {
        const double step = panel.high_y - panel.low_y > 40 ? 20 : 5;
        for (double value = panel.low_y; value <= panel.high_y; value += step)
            grid(value, format_fixed(value, 0));
    }
    for (double bits = std::ceil(panel.low_x * 2) / 2; bits <= panel.high_x; bits += 0.5) {
        canvas.line({panel.x(bits), kBottom}, {panel.x(bits), kBottom + 6}, 1.2, kMuted);
        canvas.text(panel.x(bits), kBottom + 24, format_fixed(bits, 1), 10, kMuted, Align::kCenter);
    }
    canvas.line({panel.left, kBottom}, {panel.right, kBottom}, 1.4, kMuted);
    canvas.text((panel.left + panel.right) / 2, kBottom + 50,
                "bits per packed value, ranges and minima included", 10, kInk, Align::kCenter);
    canvas.text(panel.left, kTop - 16, title, 11, kInk);
}

void draw_families(Canvas &canvas, const Panel &panel, const Families &families, double fp16) {
    for (double x = panel.left; x < panel.right; x += 12)
        canvas.line({x, panel.y(fp16)}, {std::min(x + 6, panel.right), panel.y(fp16)}, 1.6, kInk);
    for (std::size_t f = 0; f < families.size(); ++f) {
        const auto &points = families[f].second;
        const bool is_auto = families[f].first == "auto";
        for (std::size_t i = 0; i + 1 < points.size(); ++i)
            canvas.line({panel.x(points[i].x), panel.y(points[i].y)},
                        {panel.x(points[i + 1].x), panel.y(points[i + 1].y)}, is_auto ? 3.4 : 2,
                        series_color(f));
        for (const PlanPoint &point : points) {
            canvas.disc({panel.x(point.x), panel.y(point.y)}, 6.5, kPaper);
            canvas.disc({panel.x(point.x), panel.y(point.y)}, 5, series_color(f));
        }
    }
}

// Rows of the legend, as many as it takes.
void draw_legend(Canvas &canvas, const Families &families) {
    double x = kLeft, y = kBottom + 96;
    const auto entry = [&](const std::string &name, const std::function<void()> &draw_sample) {
        const double width = 34 + Canvas::text_width(name, 11);
        if (x + width > kRight) {
            x = kLeft;
            y += 28;
        }
        draw_sample();
        canvas.text(x + 34, y, name, 11, kInk);
        x += width + 28;
    };
    for (std::size_t f = 0; f < families.size(); ++f)
        entry(families[f].first, [&] {
            canvas.line({x, y - 5}, {x + 26, y - 5}, 2.2, series_color(f));
            canvas.disc({x + 13, y - 5}, 5, series_color(f));
        });
    entry("FP16", [&] {
        for (double dash = x; dash < x + 26; dash += 10)
            canvas.line({dash, y - 5}, {dash + 6, y - 5}, 1.6, kInk);
    });
}

// The FP16 plan of the record, else what is perfect.
double fp16_value(const SuiteRecord &record, const std::function<double(const SuiteSum &)> &y,
                  double perfect) {
    for (const SuitePlanInfo &plan : record.plans) {
        if (plan.bits_per_value == 16)
            return y(sum_cells(record, plan.name, ""));
    }
    return perfect;
}

}  // namespace

void draw_suite(const SuiteRecord &record, const std::string &path) {
    const auto exact = [](const SuiteSum &sum) { return sum.exact_match(); };
    const auto bits = [](const SuiteSum &sum) { return sum.bits_per_byte(); };
    const Families matches = points_of(record, exact), surprises = points_of(record, bits);
    double low_x = 16, high_x = 0, low_match = 100, high_bits = kLeastBits * 10;
    for (const auto &family : matches) {
        for (const PlanPoint &point : family.second) {
            low_x = std::min(low_x, point.x);
            high_x = std::max(high_x, point.x);
            low_match = std::min(low_match, point.y);
        }
    }
    for (const auto &family : surprises) {
        for (const PlanPoint &point : family.second)
            high_bits = std::max(high_bits, point.y);
    }
    if (high_x == 0)
        throw llama::Error("no plan of the suite has a limit of bits to draw; give --limits");
    const double floor = low_match > 80 ? 80 : low_match > 60 ? 60 : low_match > 40 ? 40 : 0;
    const Panel left = {kLeft, 580, low_x - 0.15, high_x + 0.15, floor, 100, false};
    const Panel right = {670,           kRight,     low_x - 0.15,
                         high_x + 0.15, kLeastBits, std::pow(10, std::ceil(std::log10(high_bits))),
                         true};
    Canvas canvas(kWidth, kHeight);
    canvas.text(kLeft, 40, "Which plan for my bytes?", 17, kInk);
    std::string tasks;
    for (const std::string &task : tasks_of(record))
        tasks += is_question_task(task) ? (tasks.empty() ? "" : ", ") + task : "";
    canvas.text(kLeft, 64, tasks + ", device " + record.device, 10, kMuted);
    draw_axes(canvas, left, "exact match, %");
    draw_families(canvas, left, matches, fp16_value(record, exact, 100));
    draw_axes(canvas, right, "-log2 p of an answer byte (lower is better)");
    draw_families(canvas, right, surprises, fp16_value(record, bits, kLeastBits));
    draw_legend(canvas, matches);
    canvas.write_png(path);
}

}  // namespace cli
