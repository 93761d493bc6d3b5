// SPDX-License-Identifier: Apache-2.0
#include "cli/picture/font.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <string>

namespace cli {
namespace {

// Strokes are pairs of x and y digits; y 'a' is -1 and 'b' is -2. A stroke after '~' is drawn as
// a smooth curve; one that ends where it began is closed.
struct Drawing {
    char character;
    const char *strokes;
};

const Drawing kDrawings[] = {
    {'A', "003860 1252"},
    {'B', "0008 ~08585404 ~04646000"},
    {'C', "~675808005061"},
    {'D', "0008 ~08686000"},
    {'E', "58080050 0444"},
    {'F', "580800 0444"},
    {'G', "~675808006064 3464"},
    {'H', "0008 6068 0464"},
    {'I', "0008"},
    {'J', "~48400002"},
    {'K', "0008 5803 1450"},
    {'L', "080050"},
    {'M', "0008336860"},
    {'N', "00086068"},
    {'O', "~0008686000"},
    {'P', "0008 ~08686404"},
    {'Q', "~0008686000 427a"},
    {'R', "0008 ~08686404 3460"},
    {'S', "~675808055463600001"},
    {'T', "0868 3830"},
    {'U', "~08006068"},
    {'V', "083068"},
    {'W', "0820466088"},
    {'X', "0068 0860"},
    {'Y', "083468 3430"},
    {'Z', "08680060"},
    {'a', "~5606005052 5650"},
    {'b', "0008 ~0006565000"},
    {'c', "~554606004051"},
    {'d', "5058 ~0006565000"},
    {'e', "0353 ~535606004051"},
    {'f', "~381814 1410 0636"},
    {'g', "~0006565000 ~565b1b0a"},
    {'h', "0008 ~03065650"},
    {'i', "0006 0808"},
    {'j', "~262b0b 2828"},
    {'k', "0008 4602 1340"},
    {'l', "0008"},
    {'m', "0006 ~03064640 ~43468680"},
    {'n', "0006 ~03065650"},
    {'o', "~0006565000"},
    {'p', "0b06 ~0006565000"},
    {'q', "5b56 ~0006565000"},
    {'r', "0006 ~030646"},
    {'s', "~454606035340400001"},
    {'t', "~18104041 0636"},
    {'u', "~06005056 5650"},
    {'v', "062046"},
    {'w', "0620446086"},
    {'x', "0046 0640"},
    {'y', "0620 460b"},
    {'z', "06460040"},
    {'0', "~0008585000"},
    {'1', "062820"},
    {'2', "~060858553300 0050"},
    {'3', "~07085824 ~2454500001"},
    {'4', "40480252"},
    {'5', "580805 ~05555000"},
    {'6', "~480802 ~0005555000"},
    {'7', "085810"},
    {'8', "~0408585404 ~0004545000"},
    {'9', "~0308585303 ~565010"},
    {'.', "0000"},
    {',', "110b"},
    {':', "0000 0505"},
    {'-', "0333"},
    {'+', "0444 2622"},
    {'=', "0343 0545"},
    {'/', "0b48"},
    {'%', "0068 ~0608282606 ~4042626040"},
    {'(', "~28080020"},
    {')', "~08282000"},
    {'[', "28080020"},
    {']', "08282000"},
    {'_', "0a5a"},
    {'<', "470441"},
    {'>', "074401"},
    {'*', "0545 1733 3713"},
    {'\'', "0806"},
    {'"', "0806 2826"},
    {'!', "0803 0000"},
    {'?', "~0608585522 2020"},
    {'#', "1027 4057 0252 0656"},
    {'|', "0b08"},
    {'~', "~0315335344"},
};

std::vector<Point> smooth(const std::vector<Point> &points) {
    const std::size_t n = points.size();
    const bool closed = points.front().x == points.back().x && points.front().y == points.back().y;
    std::vector<Point> out;
    if (!closed)
        out.push_back(points.front());
    for (std::size_t i = 0; i + 1 < n; ++i) {
        const Point a = points[i], b = points[i + 1];
        const bool keep_start = !closed && i == 0;
        const bool keep_end = !closed && i + 2 == n;
        if (!keep_start)
            out.push_back({0.75 * a.x + 0.25 * b.x, 0.75 * a.y + 0.25 * b.y});
        if (!keep_end)
            out.push_back({0.25 * a.x + 0.75 * b.x, 0.25 * a.y + 0.75 * b.y});
    }
    out.push_back(closed ? out.front() : points.back());
    return out;
}

double coordinate(char c) { return c == 'a' ? -1 : c == 'b' ? -2 : c - '0'; }

std::vector<Point> read_stroke(const std::string &code) {
    const bool curved = code[0] == '~';
    std::vector<Point> points;
    for (std::size_t i = curved ? 1 : 0; i + 1 < code.size(); i += 2) {
        points.push_back({coordinate(code[i]), coordinate(code[i + 1])});
    }
    for (int pass = 0; curved && pass < 3; ++pass)
        points = smooth(points);
    return points;
}

Glyph read_glyph(const std::string &drawing) {
    Glyph glyph{0, {}};
    std::istringstream strokes(drawing);
    for (std::string code; strokes >> code;) {
        glyph.strokes.push_back(read_stroke(code));
        for (const Point &point : glyph.strokes.back()) {
            glyph.width = std::max(glyph.width, point.x);
        }
    }
    return glyph;
}

std::map<char, Glyph> read_font() {
    std::map<char, Glyph> font;
    for (const Drawing &drawing : kDrawings)
        font[drawing.character] = read_glyph(drawing.strokes);
    font[' '] = Glyph{2, {}};
    return font;
}

}  // namespace

const Glyph &glyph(char character) {
    static const std::map<char, Glyph> font = read_font();
    static const Glyph box = read_glyph("0006464000");
    const auto found = font.find(character);
    return found == font.end() ? box : found->second;
}

}  // namespace cli
