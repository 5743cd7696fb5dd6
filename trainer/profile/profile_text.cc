// SPDX-License-Identifier: Apache-2.0
//
// Profiles as text: a table, profile.json, trace.json.
#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "trainer/metrics/number_text.h"
#include "trainer/profile/step_profile.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

double Share(double seconds, const StepProfile& profile) {
  return profile.step_seconds > 0.0 ? seconds / profile.step_seconds : 0.0;
}

std::string Dump(const Json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   Json::error_handler_t::replace) +
         "\n";
}

class Table {
 public:
  explicit Table(const StepProfile& profile) : profile_(profile) {}

  void Line(const std::string& title, double seconds, const std::string& calls,
            bool in_step) {
    lines_.push_back(
        {title, absl::StrFormat("%.3f", 1e3 * seconds),
         absl::StrFormat("%.1f %%", 100.0 * Share(seconds, profile_)), calls,
         in_step ? "" : "  beside the step"});
  }

  std::string Text() const {
    size_t width = 0;
    for (const auto& line : lines_) width = std::max(width, line[0].size());
    std::string text = absl::StrFormat("  %-*s  %10s  %8s  %6s\n", width, "",
                                       "ms", "share", "calls");
    for (const auto& line : lines_) {
      const std::string row =
          absl::StrFormat("  %-*s  %10s  %8s  %6s%s", width, line[0], line[1],
                          line[2], line[3], line[4]);
      absl::StrAppend(&text, absl::StripTrailingAsciiWhitespace(row), "\n");
    }
    return text;
  }

 private:
  const StepProfile& profile_;
  std::vector<std::vector<std::string>> lines_;
};

const char* RoleName(ThreadRole role) {
  switch (role) {
    case ThreadRole::kTraining:
      return "training";
    case ThreadRole::kAutograd:
      return "autograd";
    case ThreadRole::kOther:
      return "other";
  }
  return "other";
}

Json Event(absl::string_view name, absl::string_view category, int64_t begin_ns,
           int64_t end_ns, int rank, int thread) {
  return {{"name", std::string(name)},
          {"cat", std::string(category)},
          {"ph", "X"},
          {"ts", 1e-3 * static_cast<double>(begin_ns)},
          {"dur", 1e-3 * static_cast<double>(end_ns - begin_ns)},
          {"pid", rank},
          {"tid", thread}};
}

Json NameEvent(const char* what, const std::string& name, int rank,
               int thread) {
  return {{"name", what},
          {"ph", "M"},
          {"pid", rank},
          {"tid", thread},
          {"args", {{"name", name}}}};
}

// The thread that runs the steps.
int TrainingThread(const ProfiledStep& step) {
  for (const ThreadRecord& r : step.records) {
    if (r.role == ThreadRole::kTraining) return r.thread;
  }
  return 0;
}

}  // namespace

std::string ProfileTable(const StepProfile& profile) {
  Table table(profile);
  const std::vector<ProfileRow>& rows = profile.rows;
  for (size_t begin = 0, end; begin < rows.size(); begin = end) {
    double seconds = 0.0;
    for (end = begin; end < rows.size() && rows[end].phase == rows[begin].phase;
         ++end) {
      seconds += rows[end].seconds;
    }
    const bool parts = end - begin > 1;
    table.Line(rows[begin].phase, seconds,
               parts ? "" : absl::StrFormat("%g", rows[begin].calls),
               rows[begin].in_step);
    for (size_t i = begin; parts && i < end; ++i) {
      table.Line(absl::StrCat("  ", rows[i].name), rows[i].seconds,
                 absl::StrFormat("%g", rows[i].calls), /*in_step=*/true);
    }
  }
  return absl::StrCat("profile of ",
                      profile.steps.size() == 1 ? "step " : "steps ",
                      absl::StrJoin(profile.steps, ", "),
                      ", rank 0: ", ShortDuration(profile.step_seconds),
                      " a step\n", table.Text());
}

std::string ProfileJson(const StepProfile& profile) {
  Json rows = Json::array();
  for (const ProfileRow& row : profile.rows) {
    rows.push_back({{"phase", row.phase},
                    {"name", row.name},
                    {"seconds", row.seconds},
                    {"calls", row.calls},
                    {"share", Share(row.seconds, profile)},
                    {"in_step", row.in_step}});
  }
  Json json;
  json["steps"] = profile.steps;
  json["step_seconds"] = profile.step_seconds;
  json["rows"] = std::move(rows);
  return Dump(json, 2);
}

std::string TraceJson(const std::vector<ProfiledStep>& steps, int rank) {
  Json events = Json::array();
  std::map<int, ThreadRole> threads;
  for (const ProfiledStep& step : steps) {
    const int training = TrainingThread(step);
    threads[training] = ThreadRole::kTraining;
    events.push_back(Event(absl::StrCat("step ", step.step), "step",
                           step.begin_ns, step.end_ns, rank, training));
    for (const ThreadRecord& r : step.records) {
      threads[r.thread] = r.role;
      events.push_back(Event(r.record.name, r.record.outermost,
                             r.record.begin_ns, r.record.end_ns, rank,
                             r.thread));
    }
  }
  events.push_back(
      NameEvent("process_name", absl::StrCat("rank ", rank), rank, 0));
  for (const auto& [thread, role] : threads) {
    events.push_back(NameEvent("thread_name", RoleName(role), rank, thread));
  }
  return Dump({{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}},
              -1);
}

}  // namespace capstan
