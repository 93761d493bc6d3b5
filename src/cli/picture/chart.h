// The picture of an evaluation: exact match over the bytes of the cache.
//
// SPDX-License-Identifier: Apache-2.0
#ifndef CLI_CHART_H
#define CLI_CHART_H

#include <string>
#include <vector>

namespace cli {

struct ChartPoint {
    std::string label;  // the plan
    double bytes;
    double percent;
    double low, high;  // interval of percent
};

struct ChartSeries {
    std::string name;  // the task
    std::vector<ChartPoint> points;
};

// Throws llama::Error when path cannot be written.
void draw_chart(const std::string &title, const std::string &subtitle,
                const std::vector<ChartSeries> &series, const std::string &path);

}  // namespace cli

#endif
