// The picture of a ChanMix plan.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "cli/calibrate/sampling.h"
#include "cli/common/report.h"
#include "cli/plan/chanmix.h"
#include "cli/plan/plan_view.h"

namespace cli {
namespace {

class ChannelsView {
    static constexpr double kPanelTop = 130;
    static constexpr double kPanelHeight = 660;
    static constexpr int kWidth = 1600;
    static constexpr int kHeight = 880;

    struct Panel {
        double left, width;
    };
    static constexpr Panel kWidths = {70, 830};
    static constexpr Panel kRanges = {950, 440};
    static constexpr Panel kScores = {1440, 130};

    static constexpr Color kClassColors[] = {{222, 165, 0}, {96, 150, 140}, {196, 60, 50}};
    static constexpr const char *kClassNames[] = {"subnormal", "normal", "outlier"};

  public:
    ChannelsView(const lk_plan *plan, const lk_calibrator *calibrator, lk_scope scope)
        : plan_(plan),
          calibrator_(calibrator),
          scope_(scope),
          layers_(geometry_of(calibrator)),
          canvas_(kWidth, kHeight) {}

    void draw(const std::string &path);

  private:
    double row_height() const { return kPanelHeight / static_cast<double>(layers_.size()); }
    double row_top(std::size_t layer) const {
        return kPanelTop + static_cast<double>(layer) * row_height();
    }
    std::uint32_t bits(std::uint32_t layer, std::uint32_t head, bool is_value,
                       std::uint32_t channel) const {
        std::uint32_t ordinary = 0, boosted = 0;
        llama::check(lk_plan_width(plan_, layer, head, is_value ? 1 : 0, channel, 0, LK_CHUNK_NONE,
                                   &ordinary, &boosted));
        return ordinary;
    }
    bool retrieves(std::uint32_t layer, std::uint32_t head) const {
        return bits(layer, head, false, 0) == 4;
    }
    std::vector<float> ranges(std::uint32_t layer, std::uint32_t head) const {
        std::vector<float> out(layers_[layer].head_dim);
        llama::check(lk_calibrator_get_channels(calibrator_, layer, head, LK_STATISTIC_KEY_RANGE,
                                                out.data()));
        return out;
    }

    void draw_title();
    void draw_layer_numbers();
    void draw_head_numbers(const Panel &panel);
    void draw_widths();
    void draw_head(std::uint32_t layer, std::uint32_t head, double x, double w);
    void draw_ranges();
    void draw_range_axis(double low, double high);
    void draw_scores();

    const lk_plan *plan_;
    const lk_calibrator *calibrator_;
    lk_scope scope_;
    std::vector<lk_layer> layers_;
    Canvas canvas_;
};

void ChannelsView::draw_title() {
    std::size_t n_heads = 0, n_retrieval = 0;
    for (std::uint32_t l = 0; l < layers_.size(); ++l)
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h, ++n_heads)
            n_retrieval += retrieves(l, h);
    lk_plan_size size = llama::initialised(lk_plan_size_init);
    llama::check(lk_plan_bytes(plan_, 1u << 16, 1, 512, &size));
    canvas_.text(kWidths.left, 44, std::string("Plan ") + lk_plan_name(plan_), 16, kInk);
    canvas_.text(kWidths.left, 74,
                 std::to_string(layers_.size()) + " layers, " + std::to_string(n_heads) +
                     " KV heads, of which " + std::to_string(n_retrieval) + " retrieve, " +
                     format_fixed(size.bits_per_value, 3) + " bits per value, ranges included",
                 10, kMuted);
    draw_width_legend(canvas_, kWidths.left + kWidths.width, kPanelTop - 16);
    canvas_.text(kWidths.left, kPanelTop - 16, "Key channels", 11, kInk);
    canvas_.text(kRanges.left, kPanelTop - 16, "Ranges and clusters", 11, kInk);
    canvas_.text(kScores.left, kPanelTop - 16, "Retrieval", 11, kInk);
}

void ChannelsView::draw_layer_numbers() {
    const std::size_t step = std::max<std::size_t>(1, (layers_.size() + 15) / 16);
    for (std::size_t l = 0; l < layers_.size(); l += step)
        canvas_.text(kWidths.left - 10, row_top(l) + row_height() / 2 + 4, std::to_string(l), 9,
                     kMuted, Align::kRight);
    canvas_.text_up(22, kPanelTop + kPanelHeight / 2, "layer", 10, kMuted, Align::kCenter);
}

void ChannelsView::draw_head_numbers(const Panel &panel) {
    const std::uint32_t n_heads = layers_[0].n_kv_heads;
    const auto most = static_cast<std::uint32_t>(panel.width / 30);
    const std::uint32_t step = std::max(1u, (n_heads + most - 1) / most);
    for (std::uint32_t h = 0; h < n_heads; h += step)
        canvas_.text(panel.left + (h + 0.5) * panel.width / n_heads, kPanelTop + kPanelHeight + 20,
                     std::to_string(h), 9, kMuted, Align::kCenter);
}

void ChannelsView::draw_head(std::uint32_t layer, std::uint32_t head, double x, double w) {
    const std::uint32_t head_dim = layers_[layer].head_dim;
    const double gap = row_height() > 8 ? 2 : row_height() > 4 ? 1 : 0;
    const double step = w / head_dim;
    for (std::uint32_t first = 0; first < head_dim;) {
        const std::uint32_t own = bits(layer, head, false, first);
        std::uint32_t last = first + 1;
        while (last < head_dim && bits(layer, head, false, last) == own)
            ++last;
        canvas_.rect(x + first * step, row_top(layer), (last - first) * step, row_height() - gap,
                     width_color(own));
        first = last;
    }
}

void ChannelsView::draw_widths() {
    for (std::uint32_t l = 0; l < layers_.size(); ++l) {
        const double cell = kWidths.width / layers_[l].n_kv_heads;
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h)
            draw_head(l, h, kWidths.left + h * cell, cell - (cell > 20 ? 3 : cell > 8 ? 1 : 0));
    }
    draw_head_numbers(kWidths);
    canvas_.text(kWidths.left + kWidths.width / 2, kPanelTop + kPanelHeight + 46,
                 "KV head, its channels from left to right", 9, kMuted, Align::kCenter);
}

// Ranges span orders of magnitude: a logarithmic axis. Constant channels lie at its left end.
void ChannelsView::draw_range_axis(double low, double high) {
    for (std::size_t l = 0; l <= layers_.size() && row_height() > 8; ++l)
        canvas_.line({kRanges.left, row_top(l)}, {kRanges.left + kRanges.width, row_top(l)}, 1,
                     kGrid);
    // At 1, 2 and 5 of each power, but for the last two where they would touch.
    const bool is_wide = std::log10(high / low) > 3;
    for (int power = static_cast<int>(std::floor(std::log10(low))); power <= std::log10(high);
         ++power)
        for (const int digit : {1, 2, 5}) {
            const double value = digit * std::pow(10, power);
            if (value < low || value > high || (is_wide && digit != 1))
                continue;
            const double x =
                kRanges.left + std::log(value / low) / std::log(high / low) * kRanges.width;
            canvas_.line({x, kPanelTop}, {x, kPanelTop + kPanelHeight}, 1, kGrid);
            canvas_.text(x, kPanelTop + kPanelHeight + 20, format_fixed(value, std::max(0, -power)),
                         9, kMuted, Align::kCenter);
        }
    canvas_.text(kRanges.left + kRanges.width / 2, kPanelTop + kPanelHeight + 46,
                 "range of a channel, max - min", 9, kMuted, Align::kCenter);
    double x = kRanges.left;
    for (int c = 0; c < 3; ++c) {
        canvas_.disc({x + 5, kPanelTop + kPanelHeight + 68}, 4, kClassColors[c]);
        canvas_.text(x + 16, kPanelTop + kPanelHeight + 72, kClassNames[c], 9, kInk);
        x += 40 + Canvas::text_width(kClassNames[c], 9);
    }
}

void ChannelsView::draw_ranges() {
    double low = INFINITY, high = 0;
    for (std::uint32_t l = 0; l < layers_.size(); ++l)
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h)
            for (const float range : ranges(l, h)) {
                high = std::max(high, static_cast<double>(range));
                if (range > 0)
                    low = std::min(low, static_cast<double>(range));
            }
    if (!(high > 0))
        low = high = 1;
    low *= 0.8;
    high *= 1.25;
    draw_range_axis(low, high);
    const double radius = std::clamp(row_height() / 20, 1.0, 3.0);
    for (std::uint32_t l = 0; l < layers_.size(); ++l) {
        const double part = row_height() / layers_[l].n_kv_heads;
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h) {
            const std::vector<float> values = ranges(l, h);
            std::vector<std::uint8_t> classes(values.size());
            llama::check(
                lk_calibrator_get_classes(calibrator_, l, h, scope_, classes.data(), nullptr));
            for (std::uint32_t c = 0; c < values.size(); ++c) {
                const double range = std::max(static_cast<double>(values[c]), low);
                const double at = std::log(range / low) / std::log(high / low);
                // Channels of a head lie one below the other, so that they do not hide each other.
                const double down = (c + 0.5) / static_cast<double>(values.size());
                canvas_.disc({kRanges.left + at * kRanges.width, row_top(l) + (h + down) * part},
                             radius, kClassColors[classes[c] - 1]);
            }
        }
    }
}

void ChannelsView::draw_scores() {
    std::vector<std::vector<float>> scores(layers_.size());
    float most = 0;
    for (std::uint32_t l = 0; l < layers_.size(); ++l)
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h) {
            float score = 0;  // without a probe nothing is known
            if (lk_calibrator_get_retrieval(calibrator_, l, h, &score) != LK_OK)
                score = 0;
            scores[l].push_back(score);
            most = std::max(most, score);
        }
    for (std::uint32_t l = 0; l < layers_.size(); ++l) {
        const double cell = kScores.width / layers_[l].n_kv_heads;
        const double gap = row_height() > 8 ? 2 : row_height() > 4 ? 1 : 0;
        for (std::uint32_t h = 0; h < layers_[l].n_kv_heads; ++h) {
            const double x = kScores.left + h * cell, y = row_top(l);
            const double w = cell - (cell > 8 ? 2 : 0), height = row_height() - gap;
            const double share = most > 0 ? static_cast<double>(scores[l][h] / most) : 0;
            canvas_.rect(x, y, w, height, ramp_color(share));
            if (retrieves(l, h)) {
                const double size = std::clamp(std::min(w, height) / 4, 1.0, 4.0);
                canvas_.disc({x + w / 2, y + height / 2}, size, {230, 120, 30});
            }
            if (cell > 40 && height > 30)
                canvas_.text(x + w / 2, y + height / 2 + 18,
                             format_fixed(static_cast<double>(scores[l][h]), 2), 8,
                             share > 0.5 ? kPaper : kInk, Align::kCenter);
        }
    }
    draw_head_numbers(kScores);
    canvas_.text(kScores.left + kScores.width / 2, kPanelTop + kPanelHeight + 46, "KV head", 9,
                 kMuted, Align::kCenter);
    canvas_.disc({kScores.left + 5, kPanelTop + kPanelHeight + 68}, 4, {230, 120, 30});
    canvas_.text(kScores.left + 16, kPanelTop + kPanelHeight + 72, "4 bits", 9, kInk);
}

void ChannelsView::draw(const std::string &path) {
    draw_title();
    draw_layer_numbers();
    draw_widths();
    draw_ranges();
    draw_scores();
    canvas_.write_png(path);
}

}  // namespace

void draw_chanmix(const lk_plan *plan, const lk_calibrator *calibrator, lk_scope scope,
                  const std::string &path) {
    ChannelsView(plan, calibrator, scope).draw(path);
}

}  // namespace cli
