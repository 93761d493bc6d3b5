// SPDX-License-Identifier: Apache-2.0
#include "cli/common/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#if defined(_WIN32)
#include <io.h>
#else
#include <unistd.h>
#endif

namespace cli {
namespace {

constexpr std::size_t kBarCells = 30;

bool stderr_is_terminal() {
#if defined(_WIN32)
    return _isatty(2) != 0;
#else
    return isatty(2) != 0;
#endif
}

void widen(std::vector<std::size_t> &widths, const std::vector<std::string> &row) {
    for (std::size_t c = 0; c < row.size(); ++c)
        widths[c] = std::max(widths[c], row[c].size());
}

void print_line(std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    std::printf("%s\n", line.c_str());
}

void print_row(const std::vector<std::size_t> &widths, const std::vector<std::string> &row) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
        const std::string pad(widths[c] - std::min(widths[c], row[c].size()), ' ');
        line += (c == 0 ? row[c] + pad : pad + row[c]) + "  ";
    }
    print_line(line);
}

void print_header(const std::vector<std::size_t> &widths, const std::vector<std::string> &header) {
    print_row(widths, header);
    std::string rule;
    for (const std::size_t width : widths)
        rule += std::string(width, '-') + "  ";
    print_line(rule);
}

// Text with each control character as the prefix and digits of its code; with keeps_lines, line
// feeds stay.
std::string escaped(const std::string &text, const char *prefix, int n_digits, bool keeps_lines) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
        const bool is_second_set = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // in UTF-8
        const bool is_line = keeps_lines && byte == '\n';
        if (!is_second_set && (is_line || (byte >= 0x20 && byte != 0x7f))) {
            out += text[i];
            continue;
        }
        char code[8];
        std::snprintf(code, sizeof code, "%0*x", n_digits,
                      static_cast<unsigned>(is_second_set ? next : byte));
        out += std::string(prefix) + code;
        i += is_second_set ? 1 : 0;
    }
    return out;
}

}  // namespace

std::string printable(const std::string &text) { return escaped(text, "\\x", 2, false); }

std::string printable_json(const std::string &json) { return escaped(json, "\\u", 4, true); }

Table::Table(std::vector<std::string> header) { add(std::move(header)); }

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

void Table::print() const {
    std::vector<std::size_t> widths(rows_.front().size(), 0);
    for (const auto &row : rows_)
        widen(widths, row);
    print_header(widths, rows_.front());
    for (std::size_t r = 1; r < rows_.size(); ++r)
        print_row(widths, rows_[r]);
    std::fflush(stdout);
}

RowPrinter::RowPrinter(const std::vector<std::string> &header,
                       const std::vector<std::string> &widest)
    : widths_(header.size(), 0) {
    widen(widths_, header);
    widen(widths_, widest);
    print_header(widths_, header);
    std::fflush(stdout);
}

void RowPrinter::print(const std::vector<std::string> &row) const {
    print_row(widths_, row);
    std::fflush(stdout);
}

std::string format_fixed(double value, int digits) {
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}

std::string format_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    std::size_t unit = 0;
    for (; bytes >= 1024 && unit < 5; ++unit)
        bytes /= 1024;
    return format_fixed(bytes, unit == 0     ? 0
                               : bytes < 10  ? 2
                               : bytes < 100 ? 1
                                             : 0) +
           " " + units[unit];
}

std::string format_count(std::uint64_t count) {
    std::string text = std::to_string(count);
    for (std::size_t at = text.size(); at > 3;)
        text.insert(at -= 3, " ");
    return text;
}

Progress::Progress(std::size_t n_steps) : n_steps_(n_steps), visible_(stderr_is_terminal()) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
    if (visible_)
        std::fputs("\r\033[K", stderr);
}

void Progress::step(const std::string &what) {
    if (visible_) {
        const std::size_t full =
            std::min(kBarCells, n_done_ * kBarCells / std::max<std::size_t>(1, n_steps_));
        std::fprintf(stderr, "\r\033[K[%s%s] %zu/%zu %s", std::string(full, '#').c_str(),
                     std::string(kBarCells - full, '.').c_str(), n_done_, n_steps_, what.c_str());
        std::fflush(stderr);
    }
    ++n_done_;
}

void note(const std::string &sentence) {
    if (stderr_is_terminal())
        std::fprintf(stderr, "%s\n", sentence.c_str());
}

}  // namespace cli
