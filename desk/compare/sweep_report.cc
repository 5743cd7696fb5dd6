// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/sweep_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/compare/report.h"
#include "desk/watch/live_runs.h"
#include "desk/watch/report.h"

namespace capstan {

namespace {

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

// A page has a megabyte for a few runs.
constexpr size_t kMostDrawn = 40;

Json OrNull(const absl::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

std::string NumberText(const absl::optional<double>& value, int digits = 5) {
  return value.has_value() ? absl::StrFormat("%.*g", digits, *value) : "-";
}

const char* StatusText(SweepRun::Status status) {
  switch (status) {
    case SweepRun::Status::kPending:
      return "pending";
    case SweepRun::Status::kStopped:
      return "stopped";
    case SweepRun::Status::kFailed:
      return "failed";
    case SweepRun::Status::kCompleted:
      break;
  }
  return "completed";
}

// "completed", "ended after 100 steps", "failed: WHY".
std::string StateOf(const SweepPoint& point) {
  for (const SweepRun& run : point.runs) {
    if (run.status != SweepRun::Status::kFailed) continue;
    return absl::StrCat("failed (seed ", run.seed, "): ", run.reason);
  }
  if (point.ended_at > 0) {
    return absl::StrCat("ended after ", point.ended_at, " steps");
  }
  return StatusText(point.runs.empty() ? SweepRun::Status::kPending
                                       : point.runs.back().status);
}

// The table's cells, the head first, then the best point.
std::vector<Row> Cells(const Sweep& sweep) {
  Row head;
  for (const auto& [field, value] : sweep.points[0].settings) {
    head.push_back(field);
  }
  for (const std::string& name :
       {absl::StrCat(sweep.metric, ", mean"), std::string("deviation"),
        std::string("best"), std::string("seeds"), std::string("state")}) {
    head.push_back(name);
  }
  std::vector<Row> rows = {head};
  for (const size_t i : Ranking(sweep)) {
    const SweepPoint& point = sweep.points[i];
    Row row;
    for (const auto& [field, value] : point.settings) row.push_back(value);
    row.push_back(NumberText(point.mean));
    row.push_back(NumberText(point.deviation, /*digits=*/2));
    row.push_back(NumberText(point.best));
    row.push_back(absl::StrCat(point.runs.size()));
    row.push_back(StateOf(point));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string Introduction(const Sweep& sweep) {
  return absl::StrCat(
      sweep.time, ", ", sweep.device, ", ", sweep.points.size(), " points, ",
      sweep.max_steps > 0 ? absl::StrCat(sweep.max_steps, " steps, ") : "",
      sweep.at_once, sweep.at_once == 1 ? " run" : " runs",
      " at once; the best ", sweep.metric, " first (",
      sweep.lower_is_better ? "lower" : "higher", " is better).");
}

}  // namespace

std::string SweepText(const Sweep& sweep) {
  const std::vector<Row> rows = Cells(sweep);
  std::vector<size_t> widths(rows[0].size());
  for (const Row& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppendFormat(&line, " %-*s", widths[i], row[i]);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string SweepJson(const Sweep& sweep) {
  Json json = {{"name", sweep.name},
               {"time", sweep.time},
               {"device", sweep.device},
               {"metric", sweep.metric},
               {"lower_is_better", sweep.lower_is_better},
               {"max_steps", sweep.max_steps},
               {"at_once", sweep.at_once},
               {"ranking", Ranking(sweep)},
               {"points", Json::array()}};
  for (const SweepPoint& point : sweep.points) {
    Json settings = Json::object();
    for (const auto& [field, value] : point.settings) settings[field] = value;
    Json runs = Json::array();
    for (const SweepRun& run : point.runs) {
      runs.push_back(
          {{"id", run.id},
           {"folder", "runs/" + run.id},
           {"seed", run.seed},
           {"status", StatusText(run.status)},
           {"reason", run.reason.empty() ? Json(nullptr) : Json(run.reason)},
           {"value", OrNull(run.value)},
           {"steps", run.steps}});
    }
    json["points"].push_back(
        {{"settings", std::move(settings)},
         {"mean", OrNull(point.mean)},
         {"standard_deviation", OrNull(point.deviation)},
         {"best", OrNull(point.best)},
         {"ended_at",
          point.ended_at > 0 ? Json(point.ended_at) : Json(nullptr)},
         {"runs", std::move(runs)}});
  }
  json["config"] = sweep.config_text;
  json["shared_config"] = sweep.shared_config_text;
  return JsonText(json, 1) + "\n";
}

std::string SweepMarkdown(const Sweep& sweep) {
  const std::vector<Row> rows = Cells(sweep);
  return absl::StrCat("# ", sweep.name, "\n\n", Introduction(sweep), "\n\n",
                      MarkdownTable(rows[0], {rows.begin() + 1, rows.end()}),
                      "All numbers are in report.json, each run's folder is "
                      "below runs/.\n");
}

std::string SweepHtml(const Sweep& sweep, const std::string& folder) {
  const std::vector<Row> rows = Cells(sweep);
  std::vector<std::pair<std::string, std::string>> drawn;
  nlohmann::json points = nlohmann::json::array();
  size_t runs = 0;
  for (const size_t i : Ranking(sweep)) {
    nlohmann::json links = nlohmann::json::array();
    for (const SweepRun& run : sweep.points[i].runs) {
      const std::string below = "runs/" + run.id;
      links.push_back({{"seed", run.seed}, {"folder", below}});
      ++runs;
      if (drawn.size() >= kMostDrawn) continue;
      drawn.emplace_back(absl::StrCat(folder, "/", below), run.id);
    }
    points.push_back({{"cells", rows[points.size() + 1]}, {"runs", links}});
  }
  std::string text = Introduction(sweep);
  if (drawn.size() < runs) {
    absl::StrAppend(&text, " The curves are those of the first ", drawn.size(),
                    " runs of ", runs, ".");
  }
  LiveRuns read(drawn);
  read.ReadAll();
  return ReportPage(read, sweep.name,
                    {{"text", text},
                     {"columns", rows[0]},
                     {"points", points},
                     {"config", sweep.config_text}});
}

absl::Status WriteSweepReports(const Sweep& sweep, const std::string& folder) {
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.json", SweepJson(sweep)));
  CAPSTAN_RETURN_IF_ERROR(
      ReplaceFile(folder + "/report.md", SweepMarkdown(sweep)));
  return ReplaceFile(folder + "/report.html", SweepHtml(sweep, folder));
}

}  // namespace capstan
