// SPDX-License-Identifier: Apache-2.0
#include "desk/track/tracker.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "desk/track/backoff.h"
#include "trainer/metrics/console.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostRowsAtOnce = 500;
// With more to send, no more is read.
constexpr size_t kMostUnsent = 2000;

absl::StatusOr<int> Lock(const std::string& folder, const std::string& target) {
  const std::string path = absl::StrCat(folder, "/track/.", target, ".lock");
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(path, errno);
  if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return fd;
  close(fd);
  return absl::FailedPreconditionError(absl::StrCat(
      folder, ": another process is tracking it with --to=", target,
      " already"));
}

// What stands for the run's id before its first line.
std::string NewRun(const std::string& folder) {
  return "begun " + NumberText(WrittenAt(folder + "/config.pbtxt"));
}

}  // namespace

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<std::unique_ptr<Tracker>> Tracker::Start(
    const std::string& folder, const TrackerOptions& options,
    std::unique_ptr<Sink> sink) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder + "/track"));
  CAPSTAN_ASSIGN_OR_RETURN(const int lock, Lock(folder, options.target));
  return std::unique_ptr<Tracker>(
      new Tracker(folder, options, std::move(sink), lock));
}

Tracker::Tracker(const std::string& folder, const TrackerOptions& options,
                 std::unique_ptr<Sink> sink, int lock)
    : options_(options),
      sink_(std::move(sink)),
      lock_(lock),
      state_path_(absl::StrCat(folder, "/track/", options.target, ".json")),
      follower_(folder) {
  run_.folder = folder;
  run_.project = options.project;
  const std::string base = std::filesystem::path(folder).filename().string();
  const absl::StatusOr<std::string> config =
      ReadWholeFile(folder + "/config.pbtxt");
  if (config.ok()) run_.settings = SettingsOf(*config);
  const std::string name = SettingOf(run_.settings, "name");
  run_.name = name.empty() || name == base ? base : name + " " + base;
}

Tracker::~Tracker() { close(lock_); }

void Tracker::Begin(const std::string& id) {
  const absl::StatusOr<std::string> config =
      ReadWholeFile(run_.folder + "/config.pbtxt");
  if (config.ok()) run_.settings = SettingsOf(*config);
  meter_ = Meter();
  unsent_.clear();
  opened_ = finished_ = false;
  to_send_.emplace(run_.folder);
  const std::string before = run_.id;
  run_.id = id;
  run_.acknowledged = kNoStep;
  acknowledged_names_.clear();
  run_.start_time = 0.0;
  Json told = Json::object();
  const absl::StatusOr<std::string> text = ReadWholeFile(state_path_);
  const Json state = text.ok() ? ParseJson<Json>(*text) : Json();
  if (state.is_object() && (TextOf(state, "run") == id ||
                            TextOf(state, "run") == NewRun(run_.folder))) {
    run_.start_time = NumberOf(state, "start_time").value_or(0.0);
    if (state.contains("alerts") && state["alerts"].is_object()) {
      told = state["alerts"];
    }
    const absl::optional<double> step = NumberOf(state, "step");
    if (step.has_value() && TextOf(state, "place") == options_.place) {
      run_.acknowledged = static_cast<int64_t>(*step);
      for (const Json& name : ListOf(state, "metrics")) {
        if (name.is_string()) {
          acknowledged_names_.insert(name.get<std::string>());
        }
      }
    }
  }
  // What was found before the first line is still to be told.
  if (alerts_ != nullptr && before == NewRun(run_.folder)) return;
  alerts_ = std::make_unique<Alerts>(options_.alerts, run_.name, run_.folder,
                                     std::move(told));
}

void Tracker::Say(const std::string& what) {
  if (!said_.insert(what).second) return;
  std::cout << PrintableText(absl::StrCat(run_.name, ": ", what)) << std::endl;
}

void Tracker::SayWhatItWaitsFor() {
  if (state_.ended) return;
  if (follower_.id().empty()) Say("has no metrics yet: waits for them");
  if (!state_.in_doubt) {
    Say("still runs: waits for its end");
  } else {
    Say("nothing tells whether it still runs, as its folder has no lock: waits "
        "until it has written nothing for two minutes, or twenty steps' time");
  }
}

absl::Status Tracker::WriteState() const {
  Json state = {{"run", run_.id},
                {"place", options_.place},
                {"start_time", run_.start_time}};
  state["step"] =
      run_.acknowledged == kNoStep ? Json() : Json(run_.acknowledged);
  state["metrics"] = acknowledged_names_;
  state["alerts"] = alerts_->Told();
  return ReplaceFile(state_path_, JsonText(state, 2) + "\n");
}

void Tracker::Look(const Row& row) {
  if (run_.start_time == 0.0) {
    run_.start_time = row.time - row.Get("step_seconds").value_or(0.0);
  }
  meter_.Add(row, follower_.begins());
  alerts_->Look(row);
}

void Tracker::ReadToSend() {
  all_read_ = false;
  if (sink_ == nullptr || unsent_.size() >= kMostUnsent) return;
  std::vector<Row> rows = to_send_->Poll();
  // Another run has begun since the turn did: the next turn sees it.
  if (to_send_->id() != run_.id) return;
  all_read_ = state_.ended && !to_send_->more();
  if (all_read_) {
    absl::optional<Row> last = to_send_->TakeNewest();
    if (last.has_value()) rows.push_back(*std::move(last));
  }
  for (Row& row : rows) {
    if (!opened_ || Unsent(&row)) unsent_.push_back(std::move(row));
  }
}

bool Tracker::Unsent(Row* row) const {
  if (row->step != run_.acknowledged) return row->step > run_.acknowledged;
  if (acknowledged_names_.empty()) return false;
  auto& metrics = row->metrics;
  metrics.erase(
      std::remove_if(metrics.begin(), metrics.end(),
                     [this](const auto& metric) {
                       return acknowledged_names_.count(metric.first) > 0;
                     }),
      metrics.end());
  // Of a whole row they were sent, too.
  if (!row->late) row->events.clear();
  row->late = true;
  return !metrics.empty();
}

absl::Status Tracker::Turn() {
  // Before the rows, so that those of a run that has ended are all there.
  state_ = LookAtRun(run_.folder, meter_.step_seconds());
  const std::vector<Row> rows = follower_.Poll();
  const bool has_lines = !follower_.id().empty();
  const std::string id = has_lines ? follower_.id() : NewRun(run_.folder);
  if (id != run_.id) Begin(id);
  SayWhatItWaitsFor();
  for (const Row& row : rows) Look(row);
  busy_ = follower_.more();
  const bool seen = state_.ended && !busy_;
  if (seen) {
    const absl::optional<Row> last = follower_.TakeNewest();
    if (last.has_value()) Look(*last);
  }
  if (follower_.newest().has_value()) alerts_->Look(*follower_.newest());
  if (!busy_) alerts_->SayUnknown(state_.ended);
  alerts_->LookAt(state_, LastWritten(run_.folder));
  if (alerts_->Deliver(run_.id)) CAPSTAN_RETURN_IF_ERROR(WriteState());
  if (state_.ended && alerts_->OutageSeconds() > options_.patience_seconds) {
    return Annotate(alerts_->outage(), "--webhook");
  }
  const bool sends = has_lines && sink_ != nullptr;
  if (sends) {
    ReadToSend();
    CAPSTAN_RETURN_IF_ERROR(Push());
  }
  done_ = seen && !alerts_->pending() && (!sends || finished_);
  return absl::OkStatus();
}

absl::Status Tracker::Push() {
  const double now = MonotonicSeconds();
  if (now < next_push_ && (failures_ > 0 || !state_.ended)) {
    return absl::OkStatus();
  }
  const absl::Status exchanged = Exchange();
  if (absl::IsUnavailable(exchanged)) return Wait(exchanged);
  CAPSTAN_RETURN_IF_ERROR(exchanged);
  if (outage_began_ > 0.0) {
    std::cerr << "NOTE: " << options_.target << " answers again" << std::endl;
  }
  outage_began_ = 0.0;
  failures_ = 0;
  const bool more = to_send_->more() || !unsent_.empty();
  busy_ = busy_ || more;
  next_push_ = more ? now : now + options_.every_seconds;
  return absl::OkStatus();
}

absl::Status Tracker::Exchange() {
  if (!opened_) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t has, sink_->Open(run_));
    opened_ = true;
    Say(sink_->file().empty() ? "goes to " + options_.target
                              : "goes into " + sink_->file());
    if (has < run_.acknowledged) {
      // It has lost steps that were read long ago.
      to_send_.emplace(run_.folder);
      unsent_.clear();
      all_read_ = false;
      busy_ = true;
    }
    if (has != run_.acknowledged) acknowledged_names_.clear();
    run_.acknowledged = has;
    std::deque<Row> read;
    read.swap(unsent_);
    for (Row& row : read) {
      if (Unsent(&row)) unsent_.push_back(std::move(row));
    }
    CAPSTAN_RETURN_IF_ERROR(WriteState());
  }
  // One batch: between two of them a stop signal ends the command.
  if (!unsent_.empty()) {
    const auto end = unsent_.begin() + static_cast<std::ptrdiff_t>(std::min(
                                           unsent_.size(), kMostRowsAtOnce));
    const std::vector<Row> rows(unsent_.begin(), end);
    CAPSTAN_RETURN_IF_ERROR(sink_->Send(rows));
    unsent_.erase(unsent_.begin(), end);
    for (const Row& row : rows) {
      if (!row.late) {
        ++sent_;
        acknowledged_names_.clear();
      }
      run_.acknowledged = row.step;
      for (const auto& [name, value] : row.metrics) {
        acknowledged_names_.insert(name);
      }
    }
    CAPSTAN_RETURN_IF_ERROR(WriteState());
  }
  const bool last = all_read_ && unsent_.empty();
  if (last || MonotonicSeconds() >= next_update_) {
    CAPSTAN_RETURN_IF_ERROR(sink_->Update(Take()));
    next_update_ = MonotonicSeconds() + options_.every_seconds;
  }
  if (last && !finished_) {
    CAPSTAN_RETURN_IF_ERROR(sink_->Finish(state_, follower_.events()));
    finished_ = true;
  }
  return absl::OkStatus();
}

absl::Status Tracker::Wait(const absl::Status& outage) {
  const double now = MonotonicSeconds();
  // What the target has of the last request is unknown: it is asked.
  opened_ = false;
  if (outage_began_ == 0.0) {
    outage_began_ = now;
    std::cerr << "NOTE: " << PrintableText(outage.message()) << "; trying again"
              << std::endl;
  }
  next_push_ = now + BackoffSeconds(failures_++, options_.every_seconds);
  if (!state_.ended || now - outage_began_ < options_.patience_seconds) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      outage.message(), ", for ", ShortDuration(now - outage_began_),
      "; the same command goes on",
      run_.acknowledged == kNoStep
          ? ""
          : absl::StrCat(" after step ", run_.acknowledged)));
}

std::string Tracker::Outcome() const {
  const std::string how = state_.status == kDied
                              ? "; it was killed, or crashed: it ended without "
                                "a summary.json"
                              : "";
  if (follower_.id().empty()) return "has no metrics" + how;
  if (sink_ == nullptr) {
    return absl::StrCat("has ended: ", state_.status, how);
  }
  return absl::StrCat(WithCommas(sent_),
                      sent_ == 1 ? " new step" : " new steps", " in ",
                      sink_->file().empty() ? options_.target : sink_->file(),
                      ", up to step ", run_.acknowledged, how);
}

Measures Tracker::Take() const {
  Measures measures = meter_.Take(follower_, run_.settings, state_);
  // What queries ask for; `folder` tells runs of one name apart.
  const std::string name = SettingOf(run_.settings, "name");
  measures.run = name.empty() ? run_.name : name;
  return measures;
}

}  // namespace capstan::track
