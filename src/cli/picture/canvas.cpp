// SPDX-License-Identifier: Apache-2.0
#include "cli/picture/canvas.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "cli/common/output_file.h"
#include "cli/picture/font.h"
#include "llama/error.h"

#define STB_IMAGE_WRITE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#include <stb_image_write.h>

namespace cli {
namespace {

constexpr double kGlyphGap = 2.4;  // grid units between glyphs

double distance_to_segment(Point p, Point a, Point b) {
    const double dx = b.x - a.x, dy = b.y - a.y;
    const double length2 = dx * dx + dy * dy;
    double t = length2 == 0 ? 0 : ((p.x - a.x) * dx + (p.y - a.y) * dy) / length2;
    t = std::clamp(t, 0.0, 1.0);
    return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
}

std::uint8_t mix(std::uint8_t from, std::uint8_t to, double t) {
    return static_cast<std::uint8_t>(std::lround(from + (to - from) * t));
}

}  // namespace

Color series_color(std::size_t index) {
    static const Color colors[] = {{11, 110, 184}, {217, 95, 2},   {27, 142, 90},
                                   {163, 58, 145}, {196, 148, 0},  {90, 90, 90},
                                   {200, 50, 60},  {70, 170, 200}, {110, 80, 190}};
    return colors[index % (sizeof colors / sizeof colors[0])];
}

Color ramp_color(double position) {
    static const Color stops[] = {
        {247, 251, 255}, {198, 219, 239}, {107, 174, 214}, {33, 113, 181}, {8, 48, 107}};
    const double scaled = std::clamp(position, 0.0, 1.0) * 4;
    const int low = std::min(3, static_cast<int>(scaled));
    const Color a = stops[low], b = stops[low + 1];
    const double t = scaled - low;
    return {mix(a.r, b.r, t), mix(a.g, b.g, t), mix(a.b, b.b, t)};
}

Canvas::Canvas(int width, int height)
    : width_(width),
      height_(height),
      pixels_(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * 3, 255) {}

void Canvas::blend(int x, int y, Color color, double alpha) {
    if (x < 0 || y < 0 || x >= width_ || y >= height_ || alpha <= 0)
        return;
    std::uint8_t *pixel =
        pixels_.data() + (static_cast<std::size_t>(y) * static_cast<std::size_t>(width_) +
                          static_cast<std::size_t>(x)) *
                             3;
    const double t = std::min(alpha, 1.0);
    pixel[0] = mix(pixel[0], color.r, t);
    pixel[1] = mix(pixel[1], color.g, t);
    pixel[2] = mix(pixel[2], color.b, t);
}

void Canvas::rect(double x, double y, double w, double h, Color color) {
    const auto covered = [](int pixel, double low, double high) {
        return std::min(high, pixel + 1.0) - std::max(low, static_cast<double>(pixel));
    };
    for (int py = static_cast<int>(std::floor(y)); py < y + h; ++py) {
        for (int px = static_cast<int>(std::floor(x)); px < x + w; ++px) {
            blend(px, py, color, covered(px, x, x + w) * covered(py, y, y + h));
        }
    }
}

void Canvas::polyline(const std::vector<Point> &points, double thickness, Color color) {
    if (points.empty())
        return;
    const double radius = thickness / 2;
    const auto [x0, x1] = std::minmax_element(points.begin(), points.end(),
                                              [](Point a, Point b) { return a.x < b.x; });
    const auto [y0, y1] = std::minmax_element(points.begin(), points.end(),
                                              [](Point a, Point b) { return a.y < b.y; });
    const double margin = radius + 1;
    for (int y = static_cast<int>(std::floor(y0->y - margin)); y <= y1->y + margin; ++y) {
        for (int x = static_cast<int>(std::floor(x0->x - margin)); x <= x1->x + margin; ++x) {
            double nearest = margin;
            for (std::size_t i = 0; i < points.size(); ++i) {
                const Point a = points[i], b = points[std::min(i + 1, points.size() - 1)];
                nearest = std::min(nearest, distance_to_segment({x + 0.5, y + 0.5}, a, b));
            }
            blend(x, y, color, std::clamp(radius + 0.5 - nearest, 0.0, 1.0));
        }
    }
}

void Canvas::line(Point a, Point b, double thickness, Color color) {
    polyline({a, b}, thickness, color);
}

void Canvas::disc(Point center, double radius, Color color) {
    polyline({center}, 2 * radius, color);
}

double Canvas::text_width(const std::string &text, double size) {
    double units = 0;
    for (const char c : text)
        units += glyph(c).width + kGlyphGap;
    return text.empty() ? 0 : (units - kGlyphGap) * size / kCapHeight;
}

void Canvas::draw_text(Point origin, Point along, Point up, const std::string &text, double size,
                       Color color, double thickness) {
    const double scale = size / kCapHeight;
    const double stroke = thickness > 0 ? thickness : std::max(1.15, size * 0.125);
    double pen = 0;
    for (const char c : text) {
        const Glyph &shape = glyph(c);
        for (const std::vector<Point> &points : shape.strokes) {
            std::vector<Point> placed;
            for (const Point &p : points) {
                const double a = (pen + p.x) * scale, u = p.y * scale;
                placed.push_back(
                    {origin.x + a * along.x + u * up.x, origin.y + a * along.y + u * up.y});
            }
            const bool dot = points.front().x == points.back().x &&
                             points.front().y == points.back().y && points.size() <= 2;
            polyline(placed, dot ? stroke * 1.35 : stroke, color);
        }
        pen += shape.width + kGlyphGap;
    }
}

void Canvas::text(double x, double y, const std::string &text, double size, Color color,
                  Align align, double thickness) {
    const double width = text_width(text, size);
    const double shift = align == Align::kLeft ? 0 : align == Align::kCenter ? width / 2 : width;
    draw_text({x - shift, y}, {1, 0}, {0, -1}, text, size, color, thickness);
}

void Canvas::text_up(double x, double y, const std::string &text, double size, Color color,
                     Align align) {
    const double width = text_width(text, size);
    const double shift = align == Align::kLeft ? 0 : align == Align::kCenter ? width / 2 : width;
    draw_text({x, y + shift}, {0, -1}, {-1, 0}, text, size, color, 0);
}

void Canvas::write_png(const std::string &path) const {
    std::string bytes;
    const auto append = [](void *to, void *data, int n_bytes) {
        static_cast<std::string *>(to)->append(static_cast<const char *>(data),
                                               static_cast<std::size_t>(n_bytes));
    };
    if (stbi_write_png_to_func(append, &bytes, width_, height_, 3, pixels_.data(), width_ * 3) == 0)
        throw llama::Error("no memory for the picture " + path);
    write_file(path, bytes);
}

}  // namespace cli
