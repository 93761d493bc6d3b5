// SPDX-License-Identifier: Apache-2.0
#include "cli/picture/chart.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/common/report.h"
#include "cli/picture/canvas.h"

namespace cli {
namespace {

constexpr double kLeft = 90, kRight = 1150, kTop = 150, kBottom = 590;
constexpr double kLabelGap = 12;
constexpr double kLabelRow = 20;
constexpr int kLabelRows = 3;
constexpr double kMiB = 1024.0 * 1024.0;

// Bytes on a logarithmic axis, percent on a linear one.
class Axes {
  public:
    explicit Axes(const std::vector<ChartSeries> &series) {
        double low = 0, high = 0, lowest = 100;
        for (const ChartSeries &one : series) {
            for (const ChartPoint &point : one.points) {
                low = low == 0 ? point.bytes : std::min(low, point.bytes);
                high = std::max(high, point.bytes);
                lowest = std::min(lowest, point.low);
            }
        }
        low_ = std::log2(std::max(low, 1.0) / 1.12);
        high_ = std::log2(std::max(high, 2.0) * 1.12);
        floor_ = lowest > 55 ? 50 : 0;
    }
    double x(double bytes) const {
        return kLeft + (std::log2(std::max(bytes, 1.0)) - low_) / (high_ - low_) * (kRight - kLeft);
    }
    double y(double percent) const {
        return kBottom - (percent - floor_) / (100 - floor_) * (kBottom - kTop);
    }
    double floor() const { return floor_; }
    double low_bytes() const { return std::exp2(low_); }
    double high_bytes() const { return std::exp2(high_); }

  private:
    double low_ = 0, high_ = 1, floor_ = 0;
};

std::string mib_label(double mib) { return mib >= 1 ? format_fixed(mib, 0) : format_fixed(mib, 2); }

void draw_grid(Canvas &canvas, const Axes &axes) {
    for (double percent = axes.floor(); percent <= 100; percent += axes.floor() > 0 ? 10 : 20) {
        const double y = axes.y(percent);
        canvas.line({kLeft, y}, {kRight, y}, 1, kGrid);
        canvas.text(kLeft - 12, y + 5, format_fixed(percent, 0), 10, kMuted, Align::kRight);
    }
    const double mantissas[] = {1, 1.5, 2, 3, 4, 6, 8};
    double last_x = 0;
    for (double decade = 1.0 / 1024; decade < 1e7; decade *= 10) {
        for (const double mantissa : mantissas) {
            const double bytes = mantissa * decade * 1.024 * kMiB;
            const double mib = std::round(mantissa * decade * 1024) / 1000;
            const double at = mib * kMiB > 0 ? axes.x(mib * kMiB) : 0;
            if (bytes <= 0 || mib * kMiB < axes.low_bytes() || mib * kMiB > axes.high_bytes())
                continue;
            if (at - last_x < 50)
                continue;
            last_x = at;
            canvas.line({at, kBottom}, {at, kBottom + 6}, 1.2, kMuted);
            canvas.text(at, kBottom + 24, mib_label(mib), 10, kMuted, Align::kCenter);
        }
    }
    canvas.line({kLeft, kBottom}, {kRight, kBottom}, 1.4, kMuted);
    canvas.text((kLeft + kRight) / 2, kBottom + 52, "KV cache, MiB (logarithmic)", 11, kInk,
                Align::kCenter);
    canvas.text_up(34, (kTop + kBottom) / 2, "exact match, %", 11, kInk, Align::kCenter);
}

// Plan names above the plot, in as many rows as keep them apart.
void draw_labels(Canvas &canvas, const Axes &axes, const std::vector<ChartPoint> &points) {
    std::map<double, std::string> labels;
    for (const ChartPoint &point : points)
        labels[axes.x(point.bytes)] = point.label;
    double row_end[kLabelRows] = {};
    for (const auto &[x, label] : labels) {
        const double width = Canvas::text_width(label, 10);
        int row = 0;
        while (row + 1 < kLabelRows && row_end[row] + kLabelGap > x - width / 2)
            ++row;
        row_end[row] = x + width / 2;
        const double y = kTop - 14 - row * kLabelRow;
        for (double dash = y + 5; dash < kBottom; dash += 8) {
            canvas.line({x, dash}, {x, std::min(dash + 3, kBottom)}, 1, kGrid);
        }
        canvas.rect(x - width / 2 - 4, y - 14, width + 8, 19, kPaper);
        canvas.text(x, y, label, 10, kInk, Align::kCenter);
    }
}

void draw_series(Canvas &canvas, const Axes &axes, const ChartSeries &series, Color color,
                 double shift) {
    std::vector<ChartPoint> sorted = series.points;
    std::sort(sorted.begin(), sorted.end(),
              [](const ChartPoint &a, const ChartPoint &b) { return a.bytes < b.bytes; });
    std::vector<Point> path;
    for (const ChartPoint &point : sorted) {
        path.push_back({axes.x(point.bytes) + shift, axes.y(point.percent)});
    }
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        const double x = path[i].x;
        const double low = axes.y(std::max(sorted[i].low, axes.floor()));
        const double high = axes.y(sorted[i].high);
        const Color pale = {static_cast<std::uint8_t>((color.r + 2 * 255) / 3),
                            static_cast<std::uint8_t>((color.g + 2 * 255) / 3),
                            static_cast<std::uint8_t>((color.b + 2 * 255) / 3)};
        canvas.line({x, low}, {x, high}, 2, pale);
        canvas.line({x - 4, low}, {x + 4, low}, 2, pale);
        canvas.line({x - 4, high}, {x + 4, high}, 2, pale);
    }
    for (std::size_t i = 0; i + 1 < path.size(); ++i)
        canvas.line(path[i], path[i + 1], 2.2, color);
    for (const Point &point : path) {
        canvas.disc(point, 6.5, kPaper);
        canvas.disc(point, 5, color);
    }
}

void draw_legend(Canvas &canvas, const std::vector<ChartSeries> &series) {
    double x = kLeft;
    const double y = kBottom + 88;
    for (std::size_t i = 0; i < series.size(); ++i) {
        canvas.line({x, y - 5}, {x + 26, y - 5}, 2.2, series_color(i));
        canvas.disc({x + 13, y - 5}, 5, series_color(i));
        canvas.text(x + 36, y, series[i].name, 11, kInk);
        x += 36 + Canvas::text_width(series[i].name, 11) + 40;
    }
    canvas.text(kRight, y, "bars: 95 % Wilson interval", 9, kMuted, Align::kRight);
}

}  // namespace

void draw_chart(const std::string &title, const std::string &subtitle,
                const std::vector<ChartSeries> &series, const std::string &path) {
    Canvas canvas(1200, 710);
    const Axes axes(series);
    canvas.text(kLeft, 44, title, 17, kInk);
    canvas.text(kLeft, 70, subtitle, 10, kMuted);
    draw_grid(canvas, axes);
    if (!series.empty())
        draw_labels(canvas, axes, series.front().points);
    const double middle = (static_cast<double>(series.size()) - 1) / 2;
    for (std::size_t i = 0; i < series.size(); ++i) {
        draw_series(canvas, axes, series[i], series_color(i),
                    (static_cast<double>(i) - middle) * 5);
    }
    draw_legend(canvas, series);
    canvas.write_png(path);
}

}  // namespace cli
