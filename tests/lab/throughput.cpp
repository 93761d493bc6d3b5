// SPDX-License-Identifier: Apache-2.0
#include "lab/throughput.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/common/numbers.h"
#include "cli/common/report.h"
#include "cli/picture/canvas.h"
#include "cli/plan/cocktail.h"
#include "lab/commands.h"

namespace cli {
namespace {

constexpr double kLeft = 110, kRight = 1150, kTop = 110, kBottom = 520;

// Plans in the order of the rows.
std::vector<std::string> plans_of(const std::vector<BenchRow> &rows) {
    std::vector<std::string> plans;
    for (const BenchRow &row : rows)
        if (std::find(plans.begin(), plans.end(), row.plan) == plans.end())
            plans.push_back(row.plan);
    return plans;
}

Served serve_one(const ThroughputOptions &options, const Subject &model, const BenchRow &row) {
    const double batch = row.batch, n_layers = options.n_layers, n_new = options.n_generated;
    const double seconds =
        batch * (row.search_s + n_layers * row.assign_s) + n_new * n_layers * row.time.median_s;
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(
        model.mix.empty()
            ? lk_plan_bytes(model.plan.get(), row.n_tokens, row.batch, 1, &size)
            : size_of_plan(model.plan.get(), model.mix, row.n_tokens, row.batch, 1, &size));
    Served served;
    served.tokens_per_s = batch * n_new / seconds;
    served.cache_bytes = size.cache_bytes;
    served.prompt_bytes = model.mix.empty() ? 0 : size.fp16_bytes / row.batch;
    served.fits = served.bytes() <= options.memory_bytes;
    return served;
}

// The picture's scales: batches by their logarithm, tokens per second from zero.
struct Axes {
    double low_batch = 1, high_batch = 2, high = 0, tick = 1;

    Axes(const std::vector<BenchRow> &rows, const std::vector<Served> &served) {
        low_batch = rows.front().batch;
        for (std::size_t i = 0; i < rows.size(); ++i) {
            low_batch = std::min(low_batch, double{1} * rows[i].batch);
            high_batch = std::max(high_batch, double{1} * rows[i].batch);
            if (served[i].fits)
                high = std::max(high, served[i].tokens_per_s);
        }
        high = std::max(high, 1e-9);
        tick = std::pow(10.0, std::floor(std::log10(high)));
        if (high / tick < 5)
            tick /= 2;
    }
    double x(double batch) const {
        return kLeft +
               std::log2(batch / low_batch) / std::log2(high_batch / low_batch) * (kRight - kLeft);
    }
    double y(double tokens_per_s) const {
        return kBottom - tokens_per_s / (high * 1.05) * (kBottom - kTop);
    }
};

void draw_axes(Canvas &canvas, const Axes &axes, const std::vector<std::uint32_t> &batches) {
    const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(axes.tick) - 1e-9)));
    for (double value = 0; value <= axes.high * 1.05; value += axes.tick) {
        canvas.line({kLeft, axes.y(value)}, {kRight, axes.y(value)}, 1, kGrid);
        canvas.text(kLeft - 12, axes.y(value) + 5, format_fixed(value, digits), 10, kMuted,
                    Align::kRight);
    }
    for (const std::uint32_t batch : batches) {
        canvas.line({axes.x(batch), kBottom}, {axes.x(batch), kBottom + 6}, 1.2, kMuted);
        canvas.text(axes.x(batch), kBottom + 24, std::to_string(batch), 10, kMuted, Align::kCenter);
    }
    canvas.line({kLeft, kBottom}, {kRight, kBottom}, 1.4, kMuted);
    canvas.text((kLeft + kRight) / 2, kBottom + 50, "sequences (logarithmic)", 10, kInk,
                Align::kCenter);
    canvas.text_up(34, (kTop + kBottom) / 2, "tokens per second", 10, kInk, Align::kCenter);
}

void draw_line(Canvas &canvas, const std::vector<Point> &points, Color color) {
    for (std::size_t i = 0; i + 1 < points.size(); ++i)
        canvas.line(points[i], points[i + 1], 2.2, color);
    for (const Point &point : points) {
        canvas.disc(point, 6.5, kPaper);
        canvas.disc(point, 5, color);
    }
}

void draw_legend(Canvas &canvas, const std::vector<std::string> &plans) {
    double x = kLeft;
    const double y = kBottom + 92;
    for (std::size_t i = 0; i < plans.size(); ++i) {
        draw_line(canvas, {{x, y - 5}, {x + 26, y - 5}}, series_color(i));
        canvas.text(x + 36, y, plans[i], 10, kInk);
        x += 36 + Canvas::text_width(plans[i], 10) + 24;
    }
}

std::string title_of(const ThroughputOptions &options, const std::vector<BenchRow> &rows) {
    return format_count(rows.front().n_tokens) + " tokens, " + std::to_string(options.n_layers) +
           " layers, " + std::to_string(options.n_generated) + " tokens generated, memory of " +
           format_bytes(static_cast<double>(options.memory_bytes));
}

void print_throughput(const ThroughputOptions &options, const std::vector<BenchRow> &rows,
                      const std::vector<Served> &served) {
    std::printf("\nthroughput of attention, search and classes: %s\n\n",
                title_of(options, rows).c_str());
    Table table({"plan", "batch", "attend, us", "search, us", "classes, us", "cache of the model",
                 "tokens/s"});
    for (std::size_t i = 0; i < rows.size(); ++i)
        table.add({rows[i].plan, std::to_string(rows[i].batch),
                   format_fixed(rows[i].time.median_s * 1e6, 1),
                   format_fixed(rows[i].search_s * 1e6, 1), format_fixed(rows[i].assign_s * 1e6, 1),
                   format_bytes(static_cast<double>(served[i].bytes())),
                   served[i].fits ? format_fixed(served[i].tokens_per_s, 1) : "does not fit"});
    table.print();
}

Json throughput_json(const ThroughputOptions &options, const std::vector<BenchRow> &rows,
                     const std::vector<Served> &served) {
    Json json = {{"layers", options.n_layers},
                 {"generated_tokens", options.n_generated},
                 {"memory_bytes", options.memory_bytes},
                 {"rows", Json::array()}};
    for (std::size_t i = 0; i < rows.size(); ++i)
        json["rows"].push_back({{"plan", rows[i].plan},
                                {"tokens", rows[i].n_tokens},
                                {"batch", rows[i].batch},
                                {"attend_s", rows[i].time.median_s},
                                {"search_s", rows[i].search_s},
                                {"assign_s", rows[i].assign_s},
                                {"cache_bytes", served[i].cache_bytes},
                                {"prompt_bytes", served[i].prompt_bytes},
                                {"fits", served[i].fits},
                                {"tokens_per_s", served[i].tokens_per_s}});
    return json;
}

void draw_throughput(const ThroughputOptions &options, const std::vector<BenchRow> &rows,
                     const std::vector<Served> &served) {
    Canvas canvas(1200, 650);
    const Axes axes(rows, served);
    canvas.text(kLeft, 44, "Throughput over the batch", 17, kInk);
    canvas.text(kLeft, 72, title_of(options, rows), 10, kMuted);
    draw_axes(canvas, axes, options.bench.batches);
    const std::vector<std::string> plans = plans_of(rows);
    for (std::size_t plan = 0; plan < plans.size(); ++plan) {
        std::vector<Point> points;
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (rows[i].plan == plans[plan] && served[i].fits)
                points.push_back({axes.x(rows[i].batch), axes.y(served[i].tokens_per_s)});
        draw_line(canvas, points, series_color(plan));
    }
    draw_legend(canvas, plans);
    canvas.write_png(options.plot);
}

}  // namespace

std::vector<Served> serve(const ThroughputOptions &options, const std::vector<BenchRow> &rows) {
    const std::vector<Subject> models = subjects_of(options.bench, options.n_layers);
    std::vector<Served> served;
    for (const BenchRow &row : rows) {
        const auto model = std::find_if(models.begin(), models.end(),
                                        [&](const Subject &one) { return one.name == row.plan; });
        served.push_back(serve_one(options, *model, row));
    }
    return served;
}

int run_throughput(const ThroughputOptions &options) {
    with_measured(options.bench, [&](const Measured &measured) {
        const std::vector<Served> served = serve(options, measured.rows);
        if (options.bench.json) {
            Json json = measured.json();
            json["throughput"] = throughput_json(options, measured.rows, served);
            print_json(json);
        } else {
            measured.print();
            print_throughput(options, measured.rows, served);
        }
        if (!options.plot.empty())
            draw_throughput(options, measured.rows, served);
    });
    return 0;
}

namespace {

void check_throughput(const ThroughputOptions &options) {
    check_mix(options.bench);
    if (options.bench.tokens.size() != 1)
        throw UsageError("throughput is of one --tokens, token by token");
    const std::vector<std::uint32_t> &batches = options.bench.batches;
    if (batches.size() < 2 ||
        std::adjacent_find(batches.begin(), batches.end(), std::greater_equal<>()) != batches.end())
        throw UsageError("throughput takes several --batch, ascending");
}

}  // namespace

void add_throughput(CLI::App &app, int &exit_code) {
    CLI::App *command = app.add_subcommand(
        "throughput",
        "tokens per second over the batch, of requests that are searched and get "
        "classes");
    command->footer(
        "Example:\n"
        "  lowkey-lab throughput --mix 60,30,10 --plans fp16,kivi2 --batch 1,4,16 --plot out.png\n"
        "Tokens per second of a model of --layers equal layers, from the times of attention "
        "(lowkey\n"
        "bench), of a search by embeddings and of the classes of each request, and exact bytes.");
    const auto options = std::make_shared<ThroughputOptions>();
    options->bench.times_requests = true;
    options->bench.device.add_to(*command);
    add_shape(*command, options->bench);
    command->add_option("--repeats", options->bench.n_repeats, "samples per row")
        ->capture_default_str()
        ->check(CLI::Range(3u, 100000u));
    command->add_flag("--warm", options->bench.warm, "do not flush the caches between samples");
    command->add_flag("--json", options->bench.json, "print JSON");
    command->add_option("--plot", options->plot, "draw it: a PNG file");
    command->add_option("--layers", options->n_layers, "of the model")
        ->capture_default_str()
        ->check(CLI::Range(1u, 1024u));
    command->add_option("--generated", options->n_generated, "tokens of each request")
        ->capture_default_str()
        ->transform(Count())
        ->check(CLI::Range(1u, 1u << 20));
    command->add_option("--memory", options->memory_bytes, "for the caches, e.g. 48G")
        ->capture_default_str()
        ->transform(Bytes());
    command->callback([options, &exit_code] {
        check_throughput(*options);
        exit_code = run_throughput(*options);
    });
}

}  // namespace cli
