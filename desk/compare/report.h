// SPDX-License-Identifier: Apache-2.0
//
// A comparison's reports, for programs, for terminals and pull requests, and
// for browsers.
#ifndef CAPSTAN_DESK_COMPARE_REPORT_H_
#define CAPSTAN_DESK_COMPARE_REPORT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "desk/compare/comparison.h"

namespace capstan {

// report.json, with the keys listed in docs/compare.md. Unknown and non-finite
// values are null.
std::string ReportJson(const Comparison& comparison);

// report.md: the conclusion and tables.
std::string ReportMarkdown(const Comparison& comparison);

// report.html: a self-contained page with report.json and the drawing code
// embedded.
std::string ReportHtml(const Comparison& comparison);

// junit.xml, as CI systems read it: a test case for each run, which has failed
// if the run did or is too far from its reference.
std::string ReportJunit(const Comparison& comparison);

// A table in Markdown, and an empty line; what would end a cell is escaped.
std::string MarkdownTable(const std::vector<std::string>& head,
                          const std::vector<std::vector<std::string>>& rows);

// Writes all four into `folder`.
absl::Status WriteReports(const Comparison& comparison,
                          const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_REPORT_H_
