// The picture of a PM-KVQ plan.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cli/common/report.h"
#include "cli/plan/plan_view.h"
#include "cli/plan/pmkvq.h"

namespace cli {
namespace {

class LaddersView {
    static constexpr int kWidth = 1400;
    static constexpr int kHeight = 900;
    static constexpr double kTop = 130;
    static constexpr double kMapHeight = 430;
    static constexpr double kStairsTop = 640;
    static constexpr double kStairsHeight = 180;

    struct Panel {
        double left, width;
    };
    static constexpr Panel kKeys = {70, 150};
    static constexpr Panel kValues = {240, 150};
    static constexpr Panel kTime = {460, 880};

  public:
    LaddersView(const lk_plan *plan, const PmkvqOptions::Budget &budget)
        : plan_(plan),
          end_(at_last_rungs(plan)),
          budget_(budget),
          shape_(plan_shape(plan)),
          canvas_(kWidth, kHeight) {}

    void draw(const std::string &path);

  private:
    double row_height() const { return kMapHeight / shape_.n_layers; }
    double row_top(std::uint32_t layer) const { return kTop + layer * row_height(); }
    double gap() const { return row_height() > 5 ? 1 : 0; }
    // Whole pixels, so that stretches meet.
    double time(std::uint64_t n_tokens) const {
        const double part = static_cast<double>(n_tokens) / static_cast<double>(budget_.n_tokens);
        return std::round(kTime.left + kTime.width * part);
    }
    static double level(double bits) {
        return kStairsTop + kStairsHeight * (4 - std::log2(bits)) / 3;
    }

    void draw_title();
    void draw_ends(const Panel &panel, bool is_value);
    void draw_stretch(std::uint64_t first, std::uint64_t last, const lk_plan *now);
    void draw_axis();
    // The mean width of a layer's keys and values.
    double mean_bits(const lk_plan *now, std::uint32_t layer) const;

    const lk_plan *plan_;
    const llama::PlanHandle end_;
    const PmkvqOptions::Budget budget_;
    const PlanShape shape_;
    Canvas canvas_;
    std::vector<Point> stairs_;
};

std::uint32_t bits_of(const lk_plan *plan, std::uint32_t layer, std::uint32_t head, bool is_value) {
    std::uint32_t bits = 0, boosted = 0;
    llama::check(
        lk_plan_width(plan, layer, head, is_value ? 1 : 0, 0, 0, LK_CHUNK_NONE, &bits, &boosted));
    return bits;
}

double LaddersView::mean_bits(const lk_plan *now, std::uint32_t layer) const {
    double sum = 0;
    for (std::uint32_t h = 0; h < shape_.n_kv_heads[layer]; ++h)
        sum += bits_of(now, layer, h, false) + bits_of(now, layer, h, true);
    return sum / (2 * shape_.n_kv_heads[layer]);
}

void LaddersView::draw_title() {
    canvas_.text(kKeys.left, 44, std::string("Plan ") + lk_plan_name(plan_), 16, kInk);
    canvas_.text(kKeys.left, 74,
                 format_bytes(static_cast<double>(budget_.bytes)) + " for " +
                     std::to_string(budget_.n_sequences) +
                     (budget_.n_sequences == 1 ? " sequence of " : " sequences of ") +
                     format_count(budget_.n_tokens) + " tokens",
                 10, kMuted);
    draw_width_legend(canvas_, kTime.left + kTime.width, 46);
    canvas_.text(kKeys.left, kTop - 16, "Keys end at", 11, kInk);
    canvas_.text(kValues.left, kTop - 16, "Values end at", 11, kInk);
    canvas_.text(kTime.left, kTop - 16, "Widest part of each layer, over the length", 11, kInk);
    canvas_.text(kTime.left, kStairsTop - 16, "Mean width of all layers", 11, kInk);
    canvas_.text_up(22, kTop + kMapHeight / 2, "layer", 9, kMuted, Align::kCenter);
    const std::uint32_t step = std::max(1u, (shape_.n_layers + 15) / 16);
    for (std::uint32_t l = 0; l < shape_.n_layers; l += step)
        for (const Panel &panel : {kKeys, kTime})
            canvas_.text(panel.left - 10, row_top(l) + row_height() / 2 + 4, std::to_string(l), 8,
                         kMuted, Align::kRight);
}

void LaddersView::draw_ends(const Panel &panel, bool is_value) {
    for (std::uint32_t l = 0; l < shape_.n_layers; ++l) {
        const std::uint32_t n_heads = shape_.n_kv_heads[l];
        const double cell = panel.width / n_heads;
        for (std::uint32_t h = 0; h < n_heads; ++h)
            canvas_.rect(panel.left + h * cell, row_top(l), cell - (cell > 8 ? 2 : 0),
                         row_height() - gap(), width_color(bits_of(end_.get(), l, h, is_value)));
    }
    canvas_.text(panel.left + panel.width / 2, kTop + kMapHeight + 20, "KV head", 8, kMuted,
                 Align::kCenter);
}

// All layers between two lengths.
void LaddersView::draw_stretch(std::uint64_t first, std::uint64_t last, const lk_plan *now) {
    double sum = 0;
    for (std::uint32_t l = 0; l < shape_.n_layers; ++l) {
        std::uint32_t most = 0;
        for (std::uint32_t h = 0; h < shape_.n_kv_heads[l]; ++h)
            most = std::max({most, bits_of(now, l, h, false), bits_of(now, l, h, true)});
        canvas_.rect(time(first), row_top(l), time(last) - time(first), row_height() - gap(),
                     width_color(most));
        sum += mean_bits(now, l);
    }
    const double y = level(sum / shape_.n_layers);
    stairs_.push_back({time(first), y});
    stairs_.push_back({time(last), y});
}

void LaddersView::draw_axis() {
    for (const double bits : {16.0, 8.0, 4.0, 2.0}) {
        canvas_.line({kTime.left, level(bits)}, {kTime.left + kTime.width, level(bits)}, 1, kGrid);
        canvas_.text(kTime.left - 10, level(bits) + 4, format_fixed(bits, 0), 9, kMuted,
                     Align::kRight);
    }
    canvas_.text_up(kTime.left - 40, kStairsTop + kStairsHeight / 2, "bits", 9, kMuted,
                    Align::kCenter);
    for (int i = 0; i <= 8; ++i) {
        const std::uint64_t n_tokens = budget_.n_tokens * static_cast<std::uint64_t>(i) / 8;
        canvas_.line({time(n_tokens), kStairsTop}, {time(n_tokens), kStairsTop + kStairsHeight}, 1,
                     kGrid);
        for (const double y : {kTop + kMapHeight + 20, kStairsTop + kStairsHeight + 22})
            canvas_.text(time(n_tokens), y, format_count(n_tokens), 8, kMuted, Align::kCenter);
    }
    canvas_.text(kTime.left + kTime.width / 2, kStairsTop + kStairsHeight + 46,
                 "tokens of each sequence", 9, kMuted, Align::kCenter);
}

void LaddersView::draw(const std::string &path) {
    draw_title();
    draw_ends(kKeys, false);
    draw_ends(kValues, true);
    draw_axis();
    const llama::PlanHandle now = llama::copy_plan(plan_);
    std::uint64_t first = 0;
    for (const Descent &step : descents(plan_, budget_)) {
        if (step.n_tokens != first)
            draw_stretch(first, step.n_tokens, now.get());
        first = step.n_tokens;
        std::uint8_t rungs[4] = {};
        std::uint32_t n_rungs = 0;
        llama::check(lk_plan_get_ladder(now.get(), step.layer, rungs, &n_rungs, nullptr, nullptr));
        llama::check(lk_plan_set_ladder(now.get(), step.layer, rungs, n_rungs, step.rung));
    }
    draw_stretch(first, budget_.n_tokens, now.get());
    canvas_.polyline(stairs_, 2.5, kInk);
    canvas_.write_png(path);
}

}  // namespace

void draw_pmkvq(const lk_plan *plan, const PmkvqOptions::Budget &budget, const std::string &path) {
    LaddersView(plan, budget).draw(path);
}

}  // namespace cli
