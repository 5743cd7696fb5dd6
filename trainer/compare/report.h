// SPDX-License-Identifier: Apache-2.0
//
// A comparison as files: for programs, for a terminal or a pull request, and
// for a browser.
#ifndef CAPSTAN_TRAINER_COMPARE_REPORT_H_
#define CAPSTAN_TRAINER_COMPARE_REPORT_H_

#include <string>

#include "absl/status/status.h"
#include "trainer/compare/comparison.h"

namespace capstan {

// report.json, whose keys docs/compare.md lists. What isn't known and what
// isn't finite is null.
std::string ReportJson(const Comparison& comparison);

// report.md: the verdict and tables.
std::string ReportMarkdown(const Comparison& comparison);

// report.html: one page that loads nothing else; report.json, the library that
// draws and the code that tells it what lie inside.
std::string ReportHtml(const Comparison& comparison);

// Writes the three into `folder`.
absl::Status WriteReports(const Comparison& comparison,
                          const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMPARE_REPORT_H_
