// A picture of 8-bit colours with antialiased lines and a stroke font.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_CANVAS_H
#define CLI_CANVAS_H

#include <cstdint>
#include <string>
#include <vector>

namespace cli {

struct Color {
    std::uint8_t r, g, b;
};

constexpr Color kInk = {31, 35, 40};
constexpr Color kMuted = {101, 109, 118};
constexpr Color kGrid = {225, 229, 234};
constexpr Color kPaper = {255, 255, 255};

// Distinct colours for series, in a fixed order.
Color series_color(std::size_t index);

// From low (0, pale) to high (1, dark).
Color ramp_color(double position);

struct Point {
    double x, y;
};

enum class Align { kLeft, kCenter, kRight };

class Canvas {
  public:
    Canvas(int width, int height);

    int width() const { return width_; }
    int height() const { return height_; }

    void rect(double x, double y, double w, double h, Color color);
    void polyline(const std::vector<Point> &points, double thickness, Color color);
    void line(Point a, Point b, double thickness, Color color);
    void disc(Point center, double radius, Color color);

    // Text with its baseline at y; size is the height of a capital in pixels.
    void text(double x, double y, const std::string &text, double size, Color color,
              Align align = Align::kLeft, double thickness = 0);
    // The same, read upwards.
    void text_up(double x, double y, const std::string &text, double size, Color color,
                 Align align = Align::kLeft);
    static double text_width(const std::string &text, double size);

    // Throws llama::Error when the file cannot be written.
    void write_png(const std::string &path) const;

  private:
    void blend(int x, int y, Color color, double alpha);
    void draw_text(Point origin, Point along, Point up, const std::string &text, double size,
                   Color color, double thickness);

    int width_;
    int height_;
    std::vector<std::uint8_t> pixels_;  // [height][width][3]
};

}  // namespace cli

#endif
