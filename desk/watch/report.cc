// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/report.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/embedded_files.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/page/page.h"
#include "desk/run_folder/run_record.h"
#include "trainer/metrics/run_end.h"

namespace capstan {

extern const EmbeddedFile kWatchPage[];  // page/

namespace {

using nlohmann::json;

// report.html of a run that has ended.
absl::Status WriteReport(const std::string& output_dir) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto found, FindRuns({output_dir}));
  LiveRuns runs(found);
  runs.ReadAll();
  return ReplaceFile(output_dir + "/report.html", ReportPage(runs));
}

const bool at_run_end = (AtRunEnd().push_back(WriteReport), true);

}  // namespace

std::string TitleOf(const LiveRuns& runs) {
  std::string name;
  runs.ForEach([&name](const RunReader& run) {
    if (name.empty()) name = run.name();
  });
  return runs.size() == 1 ? name : absl::StrCat(runs.size(), " runs");
}

std::string WatchHtml(const LiveRuns& runs, bool live, const std::string& title,
                      const json& sweep) {
  Page page;
  page.title = title;
  page.live = live;
  page.json = JsonText(json{{"title", page.title},
                            {"live", live},
                            {"sweep", sweep},
                            {"runs", live ? json::array() : runs.AllJson()}});
  page.style = EmbeddedText(kWatchPage, "watch.css");
  for (const char* script : {"model.js", "units.js", "curves.js", "runs.js",
                             "ranks.js", "details.js", "rows.js", "main.js"}) {
    page.script += EmbeddedText(kWatchPage, script);
  }
  page.noscript =
      "This page needs JavaScript; trainer watch --terminal shows the same.";
  return PageHtml(page);
}

std::string ReportPage(const LiveRuns& runs, const std::string& title,
                       const json& sweep) {
  return WatchHtml(runs, /*live=*/false, title.empty() ? TitleOf(runs) : title,
                   sweep);
}

}  // namespace capstan
