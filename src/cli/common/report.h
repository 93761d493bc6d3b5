// Tables and numbers for people, progress on a terminal.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cli {

// Columns as wide as they need; the first is left-aligned, the others right.
class Table {
  public:
    explicit Table(std::vector<std::string> header);
    void add(std::vector<std::string> row);
    void print() const;  // to stdout

  private:
    std::vector<std::vector<std::string>> rows_;
};

// The same, printed row by row: columns are as wide as the header and `widest` need.
class RowPrinter {
  public:
    RowPrinter(const std::vector<std::string> &header, const std::vector<std::string> &widest);
    void print(const std::vector<std::string> &row) const;  // to stdout

  private:
    std::vector<std::size_t> widths_;
};

// Text of a file for people: control characters, which a terminal obeys, as \xNN.
std::string printable(const std::string &text);
// JSON with those that it leaves as they are, DEL and U+0080 to U+009F, as \u00NN.
std::string printable_json(const std::string &json);

std::string format_fixed(double value, int digits);
std::string format_bytes(double bytes);         // "12.3 MiB"
std::string format_count(std::uint64_t count);  // "131 072"

// A bar on stderr while work goes on; silent unless stderr is a terminal.
class Progress {
  public:
    explicit Progress(std::size_t n_steps);
    ~Progress();
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;
    void step(const std::string &what);  // one more step is done, `what` comes next
    void clear();                        // before something is printed

  private:
    std::size_t n_steps_;
    std::size_t n_done_ = 0;
    bool visible_;
};

// A sentence on stderr when that is a terminal.
void note(const std::string &sentence);

}  // namespace cli

#endif
