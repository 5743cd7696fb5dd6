// SPDX-License-Identifier: Apache-2.0
//
// The page of `watch` in a file: report.html, which each run ends with.
#ifndef CAPSTAN_DESK_WATCH_REPORT_H_
#define CAPSTAN_DESK_WATCH_REPORT_H_

#include <nlohmann/json.hpp>
#include <string>

#include "desk/watch/live_runs.h"

namespace capstan {

// The page with all that `runs` has read: a file of its own, report.html. With
// `sweep`, of a sweep's runs: what sweepParts (page/runs.js) wants.
std::string ReportPage(const LiveRuns& runs, const std::string& title = "",
                       const nlohmann::json& sweep = nullptr);

// The page with its `title`; if `live`, it asks a server for its runs.
std::string WatchHtml(const LiveRuns& runs, bool live, const std::string& title,
                      const nlohmann::json& sweep);

// The name of one run, "3 runs".
std::string TitleOf(const LiveRuns& runs);

}  // namespace capstan

#endif  // CAPSTAN_DESK_WATCH_REPORT_H_
