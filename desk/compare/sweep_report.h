// SPDX-License-Identifier: Apache-2.0
//
// A sweep's table: for programs, for terminals and pull requests, and for
// browsers.
#ifndef CAPSTAN_DESK_COMPARE_SWEEP_REPORT_H_
#define CAPSTAN_DESK_COMPARE_SWEEP_REPORT_H_

#include <string>

#include "absl/status/status.h"
#include "desk/compare/sweep.h"

namespace capstan {

// The table as text, the best point first.
std::string SweepText(const Sweep& sweep);

// report.json, with the keys listed in docs/compare.md, and report.md.
std::string SweepJson(const Sweep& sweep);
std::string SweepMarkdown(const Sweep& sweep);
// report.html: the page of watch with the table, and of the best points' runs,
// which are below `folder`, the curves.
std::string SweepHtml(const Sweep& sweep, const std::string& folder);

// Writes the three into `folder`.
absl::Status WriteSweepReports(const Sweep& sweep, const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_SWEEP_REPORT_H_
