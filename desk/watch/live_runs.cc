// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/live_runs.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/launch/rank_info.h"
#include "desk/run_folder/run_record.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::chrono::seconds kRound{1};

std::vector<std::string> RunsIn(const std::string& path) {
  return RunsBelow(
      fs::path(path + "/").lexically_normal().parent_path().string());
}

// "NAME/TIME", as runs/ has it.
std::string NameOf(const fs::path& folder) {
  return (folder.parent_path().filename() / folder.filename()).string();
}

// As RunsIn, once there is one. Nothing can come to be in a folder that
// isn't there: it is misspelled.
std::vector<std::string> AwaitRunsIn(const std::string& path,
                                     std::chrono::milliseconds patience) {
  std::vector<std::string> found = RunsIn(path);
  std::error_code error;
  if (!found.empty() || patience <= std::chrono::milliseconds(0) ||
      !fs::is_directory(path, error)) {
    return found;
  }
  std::cerr
      << PrintableText(path) << " has no config.pbtxt yet: waiting up to "
      << std::chrono::duration_cast<std::chrono::seconds>(patience).count()
      << " s for a run to begin there" << std::endl;
  constexpr std::chrono::milliseconds kLook{100};
  const auto end = std::chrono::steady_clock::now() + patience;
  while (found.empty() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(kLook);
    found = RunsIn(path);
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> FindRuns(
    const std::vector<std::string>& paths, std::chrono::milliseconds patience) {
  std::vector<std::pair<std::string, std::string>> runs;
  for (const std::string& path : paths) {
    const std::vector<std::string> here = AwaitRunsIn(path, patience);
    if (here.empty() && !PathExists(path)) {
      const std::string nearest = DidYouMeanPath(path);
      return absl::NotFoundError(absl::StrCat(
          path, " isn't there",
          nearest.empty() ? ": start the run first, or name a run that is "
                            "(`trainer runs` lists those below runs/)"
                          : nearest));
    }
    if (here.empty()) {
      return absl::NotFoundError(absl::StrCat(
          path,
          " isn't a run's folder, and has none below it: a run's has a "
          "config.pbtxt; name runs as runs/NAME/latest or runs/NAME"));
    }
    for (const std::string& folder : here) {
      runs.emplace_back(folder, NameOf(folder));
    }
  }
  return runs;
}

LiveRuns::LiveRuns(const std::vector<std::pair<std::string, std::string>>& runs,
                   std::vector<std::string> folders)
    : folders_(std::move(folders)) {
  for (const auto& [folder, name] : runs) {
    runs_.push_back(std::make_unique<RunReader>(folder, name));
  }
}

LiveRuns::~LiveRuns() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void LiveRuns::AddNewRuns() {
  for (const std::string& path : folders_) {
    for (const std::string& folder : RunsIn(path)) {
      const bool known =
          std::any_of(runs_.begin(), runs_.end(),
                      [&](const auto& run) { return run->folder() == folder; });
      if (known) continue;
      std::lock_guard<std::mutex> lock(mutex_);
      runs_.push_back(std::make_unique<RunReader>(folder, NameOf(folder)));
    }
  }
}

void LiveRuns::ReadAll() {
  AddNewRuns();
  // Run by run, so that the first one is soon shown.
  for (const std::unique_ptr<RunReader>& run : runs_) {
    bool behind = true;
    while (behind) {
      std::lock_guard<std::mutex> lock(mutex_);
      if (stopping_) return;
      behind = run->Poll();
      ++rounds_;
      changed_.notify_all();
    }
  }
}

void LiveRuns::Follow() {
  thread_ = std::thread([this] {
    while (true) {
      ReadAll();
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, kRound, [this] { return stopping_; })) {
        return;
      }
    }
  });
}

size_t LiveRuns::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return runs_.size();
}

absl::optional<std::string> LiveRuns::Folder(size_t run) const {
  std::lock_guard<std::mutex> lock(mutex_);
  if (run >= runs_.size()) return absl::nullopt;
  return runs_[run]->folder();
}

json LiveRuns::AllJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  json all = json::array();
  for (const std::unique_ptr<RunReader>& run : runs_) {
    absl::optional<RunTold> told;
    all.push_back(RunJson(*run, &told));
  }
  return all;
}

json LiveRuns::Detail(size_t run, int64_t from, int64_t to,
                      int64_t points) const {
  std::string folder;
  RunReader::Place place;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (run >= runs_.size()) return nullptr;
    folder = runs_[run]->folder();
    place = runs_[run]->PlaceOf(from);
  }
  return RunReader::Detail(folder, place, from, to, points)
      .AsJson(to + 1, from);
}

json LiveRuns::Next(std::vector<absl::optional<RunTold>>* told) const {
  std::unique_lock<std::mutex> lock(mutex_);
  const int64_t round = rounds_;
  for (int attempt = 0; attempt < 2; ++attempt) {
    told->resize(runs_.size());
    for (size_t i = 0; i < runs_.size(); ++i) {
      json changed = RunJson(*runs_[i], &(*told)[i]);
      if (changed.is_null()) continue;
      changed["index"] = i;
      return changed;
    }
    if (!changed_.wait_for(lock, kRound, [&, this] {
          return stopping_ || rounds_ != round;
        })) {
      break;
    }
  }
  return nullptr;
}

absl::StatusOr<std::string> LiveRuns::Control(size_t run,
                                              const std::string& action,
                                              absl::optional<int64_t> value) {
  if (run >= size()) {
    return absl::NotFoundError(absl::StrCat("there is no run ", run));
  }
  const bool sets = action == "max_steps";
  if (!sets && action != "save" && action != "stop") {
    return absl::InvalidArgumentError(absl::StrCat(
        "a run can be told to \"save\", to \"stop\", or its \"max_steps\", not "
        "\"",
        action, "\""));
  }
  if (sets && value.value_or(0) <= 0) {
    return absl::InvalidArgumentError(
        "\"max_steps\" needs a \"value\" above 0: the step to end after");
  }
  std::string path;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (runs_[run]->state() == RunReader::State::kEnded) {
      return absl::FailedPreconditionError(absl::StrCat(
          runs_[run]->name(), " has ended: nobody is there to be told"));
    }
    if (!runs_[run]->control()) {
      return absl::FailedPreconditionError(
          absl::StrCat(runs_[run]->name(),
                       " doesn't listen: start it with --set "
                       "train.control=true"));
    }
    if (!IsInUse(runs_[run]->folder())) {
      return absl::FailedPreconditionError(absl::StrCat(
          runs_[run]->name(),
          " doesn't run: no process holds its folder, and nobody is there to "
          "be told"));
    }
    path = runs_[run]->folder() + "/control.jsonl";
  }
  const std::string id = RandomToken();
  json line = {{"id", id}, {"do", action}};
  if (sets) line["value"] = *value;
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kAtEnd));
  CAPSTAN_RETURN_IF_ERROR(file.Append(JsonText(line) + "\n"));
  return id;
}

void LiveRuns::ForEach(const std::function<void(const RunReader&)>& use) const {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const std::unique_ptr<RunReader>& run : runs_) use(*run);
}

}  // namespace capstan
