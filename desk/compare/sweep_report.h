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

// report.json, with the keys listed in docs/compare.md.
std::string SweepJson(const Sweep& sweep);
// report.md, and report.html, which loads nothing.
std::string SweepMarkdown(const Sweep& sweep);
std::string SweepHtml(const Sweep& sweep);

// Writes the three into `folder`.
absl::Status WriteSweepReports(const Sweep& sweep, const std::string& folder);

}  // namespace capstan

#endif  // CAPSTAN_DESK_COMPARE_SWEEP_REPORT_H_
