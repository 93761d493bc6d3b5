// What a record of a suite says: tables, paired tests, a picture.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_SUITE_REPORT_H
#define CLI_SUITE_REPORT_H

#include <string>
#include <vector>

#include "lab/suite.h"

namespace cli {

// Sums over cells of one plan.
struct SuiteSum {
    std::size_t n_questions = 0, n_right = 0, n_bytes = 0, n_documents = 0;
    std::size_t n_items = 0, n_items_right = 0;     // of long answers
    std::vector<std::size_t> n_items_before_error;  // of each long answer
    std::vector<double> documents;                  // exact match, percent
    double bits = 0, divergence = 0, output_error = 0;

    void add(const DocumentResult &document);
    double exact_match() const;          // percent
    double items_right() const;          // percent
    Interval document_interval() const;  // of the mean of documents, 95 %
    double bits_per_byte() const;        // -log2 p
    double divergence_per_byte() const;  // bits
    double mean_output_error() const;
};

// task empty = all that are questions.
SuiteSum sum_cells(const SuiteRecord &record, const std::string &plan, const std::string &task);
// Names of the tasks in the record, in its order.
std::vector<std::string> tasks_of(const SuiteRecord &record);
bool is_question_task(const std::string &task);

// The same documents under two plans: the mean difference (a - b) per document with its 95 %
// interval, its one-sided 95 % bounds, and how often random signs of the documents' differences
// reach it, two-sided.
struct PairedTest {
    std::size_t n_documents = 0;
    double difference = 0, low = 0, high = 0;
    double least = 0, most = 0;  // one-sided
    double p = 1;
};
enum class Measure { kExactMatch, kBits, kDivergence };  // percent, -log2 p, KL a byte
enum class Scope { kQuestions, kCopies };  // all tasks that are, or repetition and direct tracking
PairedTest compare_plans(const SuiteRecord &record, const std::string &a, const std::string &b,
                         Measure measure, Scope scope = Scope::kQuestions);

// The record as Markdown: a row for each plan, then auto against each plan of its row of the table.
std::string suite_markdown(const SuiteRecord &record);
Json suite_json(const SuiteRecord &record);

// Exact match and -log2 p over bits per value, a line for each family.
void draw_suite(const SuiteRecord &record, const std::string &path);

}  // namespace cli

#endif
