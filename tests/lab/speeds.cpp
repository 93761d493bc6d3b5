// lowkey-lab speeds: the picture of KV caches in llama.cpp, from a record of ./dev bench --llama.
//
// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common/report.h"
#include "cli/common/resources.h"
#include "cli/picture/canvas.h"
#include "lab/commands.h"

namespace cli {
namespace {

constexpr int kWidth = 1200;
constexpr double kLeft = 70, kRight = 1170, kBetween = 80;  // between the two panels of a row
constexpr double kFirstRow = 130, kRowHeight = 300, kPlotHeight = 200;
constexpr double kLegendHeight = 70;
constexpr double kLabelWidth = 24;            // of a bar with its number above it
constexpr double kAbove = 1.08, kHalf = 0.5;  // space above the highest bar; a step of the axis
constexpr char kReference[] = "f16";

// Tokens per second of a point; 0 = not measured.
double prefill_speed(const Json &point) {
    if (point.at("prefill_s").is_null())
        return 0;
    return point.at("tokens").get<double>() / point.at("prefill_s").get<double>();
}
double decode_speed(const Json &point) {
    return point.at("decoded").get<double>() / point.at("decode_s").get<double>();
}
using Speed = double (*)(const Json &);

// The point of a cache at a number of tokens, or nullptr.
const Json *point_at(const Json &cache, double tokens) {
    for (const Json &point : cache.at("points")) {
        if (point.at("tokens").get<double>() == tokens)
            return &point;
    }
    return nullptr;
}

const Json &cache_named(const Json &model, const std::string &name) {
    for (const Json &cache : model.at("caches")) {
        if (cache.at("cache") == name)
            return cache;
    }
    throw llama::Error("the record has no cache " + name + " to compare with");
}

std::vector<std::string> caches_of(const Json &record) {
    std::vector<std::string> names;
    for (const Json &model : record.at("models")) {
        for (const Json &cache : model.at("caches")) {
            const auto name = cache.at("cache").get<std::string>();
            if (std::find(names.begin(), names.end(), name) == names.end())
                names.push_back(name);
        }
    }
    return names;
}

// Bars of a model's caches, in units of the speed of llama.cpp's f16 cache at the same tokens.
class Panel {
  public:
    Panel(const Json &model, const std::vector<std::string> &names, Speed speed, double left,
          double right, double top)
        : names_(names), left_(left), right_(right), bottom_(top + kPlotHeight) {
        const Json &reference = cache_named(model, kReference);
        for (const Json &point : reference.at("points")) {
            Group group{point.at("tokens").get<double>(), {}};
            for (const std::string &name : names_)
                group.times.push_back(times(model, name, group.tokens, speed, speed(point)));
            groups_.push_back(std::move(group));
        }
        for (const Group &group : groups_) {
            for (const double value : group.times)
                most_ = std::max(most_, std::ceil(value * kAbove / kHalf) * kHalf);
        }
    }

    void draw(Canvas &canvas, const std::string &title) const {
        canvas.text(left_, bottom_ - kPlotHeight - 14, title, 11, kInk);
        const double step = most_ > 6 ? 2 : most_ > 2 ? 1 : kHalf;
        for (double value = 0; value <= most_; value += step) {
            canvas.line({left_, y(value)}, {right_, y(value)}, 1, value == 1 ? kMuted : kGrid);
            canvas.text(left_ - 10, y(value) + 5, format_fixed(value, step < 1), 10, kMuted,
                        Align::kRight);
        }
        const double width = (right_ - left_) / static_cast<double>(groups_.size());
        for (std::size_t i = 0; i < groups_.size(); ++i)
            draw_group(canvas, groups_[i], left_ + width * static_cast<double>(i), width);
        canvas.line({left_, bottom_}, {right_, bottom_}, 1.4, kMuted);
    }

  private:
    struct Group {
        double tokens;
        std::vector<double> times;  // [names]; 0 = not measured
    };

    static double times(const Json &model, const std::string &name, double tokens, Speed speed,
                        double reference) {
        for (const Json &cache : model.at("caches")) {
            const Json *point = cache.at("cache") == name ? point_at(cache, tokens) : nullptr;
            if (point != nullptr && reference > 0)
                return speed(*point) / reference;
        }
        return 0;
    }

    double y(double value) const { return bottom_ - value / most_ * kPlotHeight; }

    void draw_group(Canvas &canvas, const Group &group, double left, double width) const {
        const double bar = width * 0.86 / static_cast<double>(names_.size());
        const double begin = left + width * 0.07;
        for (std::size_t k = 0; k < names_.size(); ++k) {
            if (group.times[k] == 0)
                continue;
            const double x = begin + bar * static_cast<double>(k), top = y(group.times[k]);
            canvas.rect(x + 1, top, bar - 2, bottom_ - top, series_color(k));
            if (bar >= kLabelWidth)
                canvas.text(x + bar / 2, top - 4, format_fixed(group.times[k], 2), 7, kMuted,
                            Align::kCenter);
        }
        canvas.text(left + width / 2, bottom_ + 22, format_fixed(group.tokens, 0) + " tokens", 10,
                    kMuted, Align::kCenter);
    }

    const std::vector<std::string> &names_;
    const double left_, right_, bottom_;
    std::vector<Group> groups_;
    double most_ = 1;
};

std::string name_of(const Json &model) {
    const auto layers = model.at("layers").get<int>();
    return model.at("geometry").get<std::string>() + ", " + std::to_string(layers) +
           (layers == 1 ? " layer" : " layers");
}

// Threads are named where a clock on the wall was read.
std::string threads_of(const Json &model) {
    const int threads = model.value("threads", 1);
    return threads > 1 ? ", " + std::to_string(threads) + " threads" : "";
}

void draw_legend(Canvas &canvas, const std::vector<std::string> &names, double y) {
    double x = kLeft;
    for (std::size_t k = 0; k < names.size(); ++k) {
        canvas.rect(x, y - 11, 18, 12, series_color(k));
        canvas.text(x + 26, y, names[k], 11, kInk);
        x += 26 + Canvas::text_width(names[k], 11) + 28;
    }
}

void draw_speeds(const Json &record, const std::string &path) {
    const Json &models = record.at("models");
    const std::vector<std::string> names = caches_of(record);
    const double bottom = kFirstRow + kRowHeight * static_cast<double>(models.size());
    Canvas canvas(kWidth, static_cast<int>(bottom + kLegendHeight - 40));
    canvas.text(kLeft, 40, "KV caches in llama.cpp", 17, kInk);
    canvas.text(kLeft, 64,
                "tokens/s as multiples of llama.cpp's f16 cache, " +
                    record.at("device").get<std::string>() + ", weights at " +
                    record.at("weights").get<std::string>(),
                10, kMuted);
    const double middle = (kLeft + kRight) / 2;
    double top = kFirstRow;
    for (const Json &model : models) {
        const std::string name = name_of(model) + threads_of(model);
        Panel(model, names, decode_speed, kLeft, middle - kBetween / 2, top)
            .draw(canvas, "decode: " + name);
        Panel(model, names, prefill_speed, middle + kBetween / 2, kRight, top)
            .draw(canvas, "prefill: " + name);
        top += kRowHeight;
    }
    draw_legend(canvas, names, bottom);
    canvas.write_png(path);
}

Json read_record(const std::string &path) {
    const Json record = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("models") || record["models"].empty())
        throw llama::Error(path + " is no record of ./dev bench --llama");
    return record;
}

}  // namespace

void add_speeds(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand("speeds", "picture of a record of ./dev bench --llama");
    command->footer("Example:\n  lowkey-lab speeds --record llama.json --png llama.png");
    const auto record = std::make_shared<std::string>(), png = std::make_shared<std::string>();
    command->add_option("--record", *record, "a JSON file")->required();
    command->add_option("--png", *png, "write the picture here")->required();
    command->callback([record, png, &exit_code] {
        try {
            draw_speeds(read_record(*record), *png);
        } catch (const Json::exception &error) {
            throw llama::Error(*record + " has no such field: " + error.what());
        }
        exit_code = 0;
    });
}

}  // namespace cli
