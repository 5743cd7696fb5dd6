// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/run_json.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "desk/run_folder/run_record.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using nlohmann::json;

json KnownOrNull(double value) {
  return value < 0.0 || !std::isfinite(value) ? json(nullptr) : json(value);
}

const char* StateName(RunReader::State state) {
  switch (state) {
    case RunReader::State::kReading:
      return "reading";
    case RunReader::State::kWaiting:
      return "waiting";
    case RunReader::State::kRunning:
      return "running";
    case RunReader::State::kSilent:
      return "silent";
    case RunReader::State::kFailed:
    case RunReader::State::kEnded:
      break;
  }
  return "ended";
}

json StatusJson(const RunReader& run) {
  const RunReader::State state = run.state();
  const bool running = state == RunReader::State::kRunning;
  return {{"state", StateName(state)},
          {"text", StateText(run)},
          {"step", run.step()},
          {"unreadable_lines", run.unreadable_lines()},
          {"max_steps", run.max_steps()},
          {"seconds_left", running ? KnownOrNull(std::round(run.SecondsLeft()))
                                   : json(nullptr)},
          {"control", run.control() && state != RunReader::State::kFailed &&
                          state != RunReader::State::kEnded},
          {"latest", run.Latest()}};
}

json EventsJson(const RunReader& run) {
  json list = json::array();
  for (const WatchedEvent& event : run.events()) {
    json row = {{"time", event.time},
                {"step", event.step},
                {"kind", event.kind},
                {"text", event.text}};
    if (event.seconds > 0.0) row["seconds"] = event.seconds;
    if (!event.id.empty()) row["id"] = event.id;
    list.push_back(std::move(row));
  }
  return list;
}

json SamplesJson(const RunReader& run) {
  json list = json::array();
  for (const WatchedSample& sample : run.samples()) {
    list.push_back({{"step", sample.step},
                    {"prompt", sample.prompt},
                    {"text", sample.text}});
  }
  return list;
}

}  // namespace

std::string StateText(const RunReader& run) {
  switch (run.state()) {
    case RunReader::State::kReading:
      return "reading its files";
    case RunReader::State::kWaiting:
      return run.step() > 0 ? "its files are gone" : "has no metrics yet";
    case RunReader::State::kRunning:
      return "running";
    case RunReader::State::kSilent:
      // By the minute: each change is sent to every page.
      return absl::StrCat(
          "no news for ",
          ClockTime(60.0 * std::floor(run.SecondsSilent() / 60.0)));
    case RunReader::State::kFailed:
      return StatusName(RunStatus::kFailed);
    case RunReader::State::kEnded:
      break;
  }
  const auto status = run.summary().find("status");
  return status != run.summary().end() && status->is_string()
             ? status->get<std::string>()
             : "ended";
}

json RunJson(const RunReader& run, absl::optional<RunTold>* told) {
  const RunVersions& now = run.versions();
  const bool all = !told->has_value();
  if (all) told->emplace();
  RunTold& before = **told;
  json made = json::object();
  json status = StatusJson(run);
  std::string text = JsonText(status);
  if (all || text != before.status) {
    made["status"] = std::move(status);
    before.status = std::move(text);
  }
  if (all || now.config != before.versions.config) {
    made["config"] = {{"text", run.config()}, {"fields", run.fields()}};
  }
  if (all || now.summary != before.versions.summary) {
    made["summary"] = run.summary();
  }
  if (all || now.events != before.versions.events) {
    made["events"] = EventsJson(run);
  }
  if (all || now.samples != before.versions.samples) {
    made["samples"] = SamplesJson(run);
  }
  if (all || now.ranks != before.versions.ranks) {
    made["ranks"] = RanksJson(run.ranks());
  }
  // All of a long file's curves change while it is read.
  const bool settled = run.state() != RunReader::State::kReading;
  if (all || (settled && now.curves != before.versions.curves)) {
    const int64_t width = run.curves().WidthFor(kPoints);
    const bool goes_on =
        width == before.width && now.restarts == before.versions.restarts;
    made["curves"] = run.curves().AsJson(kPoints, goes_on ? before.step : 0);
    before.width = width;
    before.step = run.step();
  }
  const int64_t told_curves =
      made.contains("curves") ? now.curves : before.versions.curves;
  before.versions = now;
  before.versions.curves = told_curves;
  if (made.empty()) return nullptr;
  if (all) {
    made["name"] = run.name();
    made["folder"] = run.folder();
  }
  return made;
}

}  // namespace capstan
