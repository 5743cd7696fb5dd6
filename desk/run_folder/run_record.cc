// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/run_record.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "host/storage/cache.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/event_log.h"
#include "trainer/session/session.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// What the run's metrics say: each name's newest value, and the best of
// evaluations. Of the lines of steps only the first and the last are parsed.
void ReadMetrics(const std::string& folder, ListedRun* record) {
  const std::string path = folder + "/metrics.jsonl";
  std::string last_step;
  const auto take = [&](const Json& json) {
    if (!json.is_object()) return;
    for (const auto& [name, value] : json.items()) {
      if (!value.is_number() || name == "step" || name == "time") continue;
      const double number = value.get<double>();
      record->metrics[name] = number;
      if (!absl::StartsWith(name, "eval_")) continue;
      const auto [best, added] =
          record->metrics.emplace("best_" + name, number);
      const bool lower = LowerIsBetter(name);
      if (lower ? number < best->second : number > best->second) {
        best->second = number;
      }
    }
    record->steps =
        std::max(record->steps,
                 static_cast<int64_t>(NumberOf(json, "step").value_or(0.0)));
  };
  ForEachLine(path, [&](absl::string_view line) {
    if (absl::StrContains(line, "\"eval_")) {
      take(ParseJson<Json>(line));
    } else {
      last_step.assign(line.data(), line.size());
    }
  });
  take(ParseJson<Json>(last_step));
}

// When the run began and how long it has taken, by the lines of its files:
// those's own times a copy of the folder doesn't keep. Older runs' lines have
// no times.
void ReadTimes(const std::string& folder, ListedRun* record) {
  absl::optional<double> first, last;
  for (const char* name : {"/events.jsonl", "/metrics.jsonl"}) {
    std::string lines[2];  // the first and the last that have one
    ForEachLine(folder + name, [&](absl::string_view line) {
      if (!absl::StrContains(line, "\"time\"")) return;
      if (lines[0].empty()) lines[0] = std::string(line);
      lines[1].assign(line.data(), line.size());
    });
    for (const std::string& line : lines) {
      const absl::optional<double> time =
          NumberOf(ParseJson<Json>(line), "time");
      if (!time.has_value()) continue;
      first = std::min(first.value_or(*time), *time);
      last = std::max(last.value_or(*time), *time);
    }
  }
  if (!first.has_value()) return;
  record->begun = absl::UnixEpoch() + absl::Seconds(*first);
  record->seconds = *last - *first;
}

// Of the last whole line of metrics.jsonl.
int64_t LastStep(const std::string& folder) {
  std::string last;
  ForEachLine(folder + "/metrics.jsonl", [&](absl::string_view line) {
    last.assign(line.data(), line.size());
  });
  return static_cast<int64_t>(
      NumberOf(ParseJson<Json>(last), "step").value_or(0.0));
}

// Whether a process of the run that began after the summary's hasn't ended. Not
// told by the files' times, which a copy of the folder doesn't keep.
bool WentOn(const std::string& folder, const Json& summary) {
  bool begun = false, ended = false, went_on = false;
  ForEachLine(folder + "/events.jsonl", [&](absl::string_view line) {
    const std::string kind = TextOf(ParseJson<Json>(line), "kind");
    if (IsFirstEvent(kind)) {
      begun = true;
      went_on = ended;
    } else if (kind == kEndEvent || kind == kStopEvent) {
      ended = true;
      went_on = false;
    }
  });
  // Older runs have no events.
  if (begun) return went_on;
  return static_cast<double>(LastStep(folder)) >
         NumberOf(summary, "steps").value_or(0.0);
}

RunStatus ReadStatus(const std::string& folder, double step_seconds) {
  if (IsInUse(folder)) return RunStatus::kRunning;
  const Json json = SummaryOf(folder);
  for (const RunStatus status : {RunStatus::kCompleted, RunStatus::kStopped}) {
    if (json.value("status", Json()) == StatusName(status)) return status;
  }
  // A copy of a store's has no lock, but the store's times.
  if (!PathExists(absl::StrCat(folder, "/", kOwnerFile))) {
    return RunStatus::kFailed;
  }
  double written = 0.0;
  for (const char* file : {"metrics", "events"}) {
    written =
        std::max(written, WrittenAt(absl::StrCat(folder, "/", file, ".jsonl")));
  }
  // A first step, an evaluation or a save may be long.
  constexpr double kSilentSeconds = 600;
  const double patience = std::max(kSilentSeconds, PatienceFor(step_seconds));
  return NowSeconds() - written < patience ? RunStatus::kRunning
                                           : RunStatus::kFailed;
}

void FindRuns(const std::string& folder, int depth,
              std::vector<std::string>* found) {
  if (IsRun(folder)) {
    found->push_back(folder);
    return;
  }
  if (depth == 0) return;
  std::vector<std::string> inside;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code unknown;
    if (it->is_directory(unknown) && !it->is_symlink(unknown)) {
      inside.push_back(it->path().string());
    }
  }
  std::sort(inside.begin(), inside.end());
  for (const std::string& one : inside) FindRuns(one, depth - 1, found);
}

}  // namespace

void ForEachLine(const std::string& path,
                 const std::function<void(absl::string_view)>& use) {
  MapOptions options;
  options.in_order = options.may_be_empty = true;
  const auto file = MappedFile::Open(path, options);
  if (!file.ok()) return;
  absl::string_view rest = (*file)->bytes();
  for (size_t end; (end = rest.find('\n')) != rest.npos;
       rest.remove_prefix(end + 1)) {
    use(rest.substr(0, end));
  }
}

absl::StatusOr<std::string> FindRun(const std::string& given) {
  if (given.empty()) {
    return absl::InvalidArgumentError("name a run's folder, runs/NAME/latest");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string local,
                           LocalCopy(given, RecordsOfRun));
  for (const std::string& path : {local, local + "/latest"}) {
    std::string folder = FromCaller(path);
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (IsRun(folder)) return folder;
  }
  return absl::NotFoundError(absl::StrCat(
      given,
      " is no run's folder: it has no config.pbtxt (`trainer runs` lists "
      "the runs below a folder)",
      DidYouMeanPath(given)));
}

absl::StatusOr<std::vector<std::string>> FoldersOfRuns(
    const std::vector<std::string>& given) {
  std::vector<std::string> folders;
  for (const std::string& one : given) {
    const absl::StatusOr<std::string> local =
        LocalCopy(one, RecordsOfRuns, /*of_one_moment=*/false);
    if (absl::IsNotFound(local.status()) &&
        absl::StrContains(local.status().message(), "no such object")) {
      return absl::NotFoundError(absl::StrCat("there is no run below ", one));
    }
    CAPSTAN_RETURN_IF_ERROR(local.status());
    folders.push_back(FromCaller(*local));
  }
  return folders;
}

std::string DidYouMeanPath(const std::string& path) {
  const fs::path whole = fs::path(FromCaller(path)).lexically_normal();
  fs::path there;
  for (auto part = whole.begin(); part != whole.end(); ++part) {
    if (PathExists((there / *part).string())) {
      there /= *part;
      continue;
    }
    std::vector<std::string> names;
    std::error_code error;
    for (fs::directory_iterator it(there, error), end; !error && it != end;
         it.increment(error)) {
      names.push_back(it->path().filename().string());
    }
    std::sort(names.begin(), names.end());
    const std::string nearest = NearestName(part->string(), names);
    if (nearest.empty()) return "";
    there /= nearest;
    fs::path like = there;
    while (++part != whole.end()) like /= *part;
    return DidYouMean((PathExists(like.string()) ? like : there).string());
  }
  return "";
}

const char* StatusName(RunStatus status) {
  switch (status) {
    case RunStatus::kRunning:
      return "running";
    case RunStatus::kCompleted:
      return "completed";
    case RunStatus::kStopped:
      return "stopped";
    case RunStatus::kFailed:
      break;
  }
  return "failed";
}

absl::optional<double> ListedRun::Metric(const std::string& metric) const {
  const auto found = metrics.find(metric);
  if (found == metrics.end()) return absl::nullopt;
  return found->second;
}

absl::optional<bool> LockIsHeld(const std::string& folder) {
  const int fd = open((folder + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::nullopt;
  // A run that begins in this moment waits for kLockPatience.
  absl::optional<bool> held;
  if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
    flock(fd, LOCK_UN);
    held = false;
  } else if (errno == EWOULDBLOCK) {
    held = true;
  } else {
    // Where there is no flock, held_folder.cc locks by fcntl.
    struct flock whole = {};
    whole.l_type = F_RDLCK;
    whole.l_whence = SEEK_SET;
    if (fcntl(fd, F_GETLK, &whole) == 0) held = whole.l_type != F_UNLCK;
  }
  close(fd);
  return held;
}

bool IsInUse(const std::string& folder) {
  return LockIsHeld(folder).value_or(false);
}

bool IsFirstEvent(absl::string_view kind) {
  return kind == kStartEvent || kind == kResumeEvent || kind == kRestartEvent;
}

nlohmann::ordered_json SummaryOf(const std::string& folder) {
  constexpr int64_t kMostBytes = int64_t{16} << 20;
  const absl::StatusOr<std::string> text =
      ReadWholeFile(folder + "/summary.json", kMostBytes);
  Json json = text.ok() ? ParseJson<Json>(*text) : Json();
  return json.is_object() && !WentOn(folder, json) ? json : Json::object();
}

int64_t BytesBelow(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end;
       !error && it != end; it.increment(error)) {
    std::error_code unknown;
    if (!it->is_regular_file(unknown)) continue;
    const auto size = it->file_size(unknown);
    if (!unknown) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool IsRun(const std::string& folder) {
  return IsRegularFile(folder + "/config.pbtxt");
}

ListedRun ReadListedRun(const std::string& folder) {
  ListedRun record;
  record.folder = folder;
  const std::string config = folder + "/config.pbtxt";
  record.begun = absl::UnixEpoch() + absl::Seconds(WrittenAt(config));
  const absl::StatusOr<std::string> text = ReadWholeFile(config);
  if (text.ok()) record.fields = FieldsOfConfig(*text);
  const auto first = [&](const char* field) {
    const auto found = record.fields.find(field);
    return found == record.fields.end() ? "" : found->second[0];
  };
  record.name = first("name");
  if (record.name.empty()) record.name = fs::path(folder).filename().string();
  if (!absl::SimpleAtoi(first("train.max_steps"), &record.max_steps)) {
    record.max_steps = 0;
  }
  ReadMetrics(folder, &record);
  ReadTimes(folder, &record);
  record.status =
      ReadStatus(folder, record.Metric("step_seconds").value_or(-1.0));
  record.bytes = BytesBelow(folder);
  record.tags = ReadTags(folder);
  return record;
}

std::vector<std::string> RunsBelow(const std::string& folder) {
  constexpr int kDepth = 6;
  std::vector<std::string> found;
  FindRuns(folder, kDepth, &found);
  return found;
}

absl::Status SetTags(const std::string& folder,
                     const std::vector<std::string>& tags) {
  for (const std::string& tag : tags) {
    if (!tag.empty() && !absl::StrContains(tag, '\n')) continue;
    return absl::InvalidArgumentError("a tag is a line of text, and not empty");
  }
  const std::string path = folder + "/tags.txt";
  if (tags.empty()) {
    std::error_code error;
    fs::remove(path, error);
    return error ? WriteError(path, error.value()) : absl::OkStatus();
  }
  return ReplaceFile(path, absl::StrCat(absl::StrJoin(tags, "\n"), "\n"));
}

std::vector<std::string> ReadTags(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadWholeFile(folder + "/tags.txt");
  if (!text.ok()) return {};
  return absl::StrSplit(*text, '\n', absl::SkipEmpty());
}

}  // namespace capstan
