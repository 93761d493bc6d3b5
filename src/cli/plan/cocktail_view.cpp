// The picture of a context's chunks.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "cli/common/report.h"
#include "cli/picture/canvas.h"
#include "cli/plan/cocktail.h"
#include "cli/plan/plan_view.h"

namespace cli {
namespace {

class ChunksView {
    static constexpr double kLeft = 90, kRight = 1040, kTop = 110, kBottom = 470;
    static constexpr double kStripTop = 540, kStripHeight = 26, kStripGap = 44;

  public:
    ChunksView(const lk_plan *plan, const ScoredChunks &chunks)
        : plan_(plan), chunks_(chunks), rule_(chunk_rule_of(plan)), canvas_(1200, 680) {
        const auto [least, most] = std::minmax_element(chunks.scores.begin(), chunks.scores.end());
        low_ = std::min(0.0f, *least);
        high_ = *most > low_ ? *most : low_ + 1;
    }
    void draw(const std::string &path) {
        draw_title();
        draw_axis();
        draw_scores();
        draw_thresholds();
        draw_strips();
        canvas_.write_png(path);
    }

  private:
    void draw_title();
    void draw_axis();
    void draw_scores();
    void draw_thresholds();
    void draw_threshold(const std::string &name, double score, double text_y);
    void draw_strips();
    void draw_strip(double y, const char *name, const std::vector<std::uint32_t> &order);

    double n() const { return static_cast<double>(chunks_.scores.size()); }
    double x(double place) const { return kLeft + place / n() * (kRight - kLeft); }
    double y(double score) const {
        return kBottom - (score - low_) / (high_ - low_) * (kBottom - kTop);
    }
    std::uint32_t bits(lk_chunk_class c) const {
        return c == LK_CHUNK_LOW      ? rule_.low_bits
               : c == LK_CHUNK_MIDDLE ? rule_.middle_bits
                                      : rule_.high_bits;
    }

    const lk_plan *plan_;
    const ScoredChunks &chunks_;
    lk_chunk_rule rule_;
    Canvas canvas_;
    double low_ = 0, high_ = 1;
};

void ChunksView::draw_title() {
    canvas_.text(kLeft, 44, std::string("Plan ") + lk_plan_name(plan_) + ", scores of chunks", 16,
                 kInk);
    std::string counts = format_count(chunks_.scores.size()) + " chunks of " +
                         std::to_string(rule_.chunk_tokens) + " tokens:";
    for (const lk_chunk_class c : {LK_CHUNK_LOW, LK_CHUNK_MIDDLE, LK_CHUNK_HIGH})
        counts += (c == LK_CHUNK_LOW ? " " : ", ") + std::to_string(chunks_.count(c)) + " at " +
                  std::to_string(bits(c)) + " bits (" +
                  format_fixed(100 * static_cast<double>(chunks_.count(c)) / n(), 1) + " %)";
    canvas_.text(kLeft, 72, counts, 10, kMuted);
    draw_width_legend(canvas_, kRight, 44);
}

void ChunksView::draw_axis() {
    const double step = std::pow(10.0, std::floor(std::log10(high_ - low_)));
    const double tick = (high_ - low_) / step < 3 ? step / 5 : step;
    const int digits = std::max(0, static_cast<int>(std::ceil(-std::log10(tick) - 1e-9)));
    for (double score = std::ceil(low_ / tick) * tick; score <= high_ + tick / 1e6; score += tick) {
        canvas_.line({kLeft, y(score)}, {kRight, y(score)}, 1, kGrid);
        canvas_.text(kLeft - 12, y(score) + 5, format_fixed(score, digits), 9, kMuted,
                     Align::kRight);
    }
    const auto ticks = static_cast<std::size_t>(n());
    const std::size_t every = std::max<std::size_t>(1, (ticks + 7) / 8);
    for (std::size_t i = 0; i < ticks; i += every)
        canvas_.text(x(static_cast<double>(i) + 0.5), kBottom + 20, std::to_string(i), 9, kMuted,
                     Align::kCenter);
    canvas_.text((kLeft + kRight) / 2, kBottom + 42, "chunk", 10, kMuted, Align::kCenter);
    canvas_.text_up(30, (kTop + kBottom) / 2, "score", 10, kInk, Align::kCenter);
}

void ChunksView::draw_scores() {
    const double width = (kRight - kLeft) / n();
    const double gap = width > 4 ? 1 : 0;
    for (std::size_t i = 0; i < chunks_.scores.size(); ++i) {
        const double score = static_cast<double>(chunks_.scores[i]);
        const double top = y(std::max(score, 0.0)), bottom = y(std::min(score, 0.0));
        canvas_.rect(x(static_cast<double>(i)), top, width - gap, std::max(1.5, bottom - top),
                     width_color(bits(chunks_.classes[i])));
    }
    canvas_.line({kLeft, y(0)}, {kRight, y(0)}, 1.4, kMuted);
}

void ChunksView::draw_threshold(const std::string &name, double score, double text_y) {
    for (double at = kLeft; at < kRight; at += 12)
        canvas_.line({at, y(score)}, {std::min(at + 7, kRight), y(score)}, 1.8, kInk);
    canvas_.text(kRight + 10, text_y, name + " " + format_fixed(score, 3), 10, kInk);
}

// Lines that are close have labels apart.
void ChunksView::draw_thresholds() {
    const double low = y(chunks_.low_threshold) + 5, high = y(chunks_.high_threshold) + 5;
    const double apart = std::max(0.0, 18 - (low - high)) / 2;
    draw_threshold("T low", chunks_.low_threshold, low + apart);
    draw_threshold("T high", chunks_.high_threshold, high - apart);
}

void ChunksView::draw_strip(double y, const char *name, const std::vector<std::uint32_t> &order) {
    canvas_.text(kLeft, y - 8, name, 10, kInk);
    for (std::size_t i = 0; i < order.size(); ++i)
        canvas_.rect(x(static_cast<double>(i)), y, (kRight - kLeft) / n(), kStripHeight,
                     width_color(bits(chunks_.classes[order[i]])));
}

void ChunksView::draw_strips() {
    std::vector<std::uint32_t> order(chunks_.scores.size());
    std::iota(order.begin(), order.end(), 0u);
    draw_strip(kStripTop, "classes in the order of the context", order);
    if (rule_.reorder == 0)
        return;
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return chunks_.classes[a] < chunks_.classes[b];
    });
    draw_strip(kStripTop + kStripHeight + kStripGap, "and reordered, chunks of one class together",
               order);
}

}  // namespace

void draw_chunks(const lk_plan *plan, const ScoredChunks &chunks, const std::string &path) {
    ChunksView(plan, chunks).draw(path);
}

}  // namespace cli
