// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/control.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "trainer/metrics/event_log.h"

namespace capstan {
namespace {

// Of the file at a time; more is read after the next step. A longer line is
// no request.
constexpr int64_t kMostAtOnce = 1 << 16;
// What NewLines returns in the place of a longer line.
constexpr char kTooLong[] = "(a line that is too long)";

int64_t LengthOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size)
                                        : 0;
}

// The string of that key, or "".
std::string TextAt(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
}

// The requests that the file answers: by id, whether they were accepted.
std::map<std::string, bool> AnsweredIn(const std::string& events_path) {
  std::map<std::string, bool> answered;
  const absl::StatusOr<std::string> text = ReadWholeFile(events_path);
  if (!text.ok()) return answered;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    if (!absl::StrContains(line, kControlEvent)) continue;
    const auto event = ParseJson<nlohmann::json>(line);
    if (!event.is_object() || TextAt(event, "kind") != kControlEvent) continue;
    const std::string id = TextAt(event, "id");
    if (id.empty()) continue;
    answered[id] = !absl::StartsWith(TextAt(event, "text"), kRefused);
  }
  return answered;
}

}  // namespace

absl::StatusOr<Request> ParseRequest(const std::string& line, std::string* id) {
  if (line == kTooLong) {
    return absl::InvalidArgumentError(
        absl::StrCat("the line has ", kMostAtOnce, " bytes or more"));
  }
  const auto json = ParseJson<nlohmann::json>(line);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the line isn't a JSON object");
  }
  Request request;
  request.id = *id = TextAt(json, "id");
  const std::string what = TextAt(json, "do");
  if (what == "save") return request;
  request.what = Request::What::kStop;
  if (what == "stop") return request;
  if (what != "max_steps") {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"do\" must be save, stop or max_steps, is \"", what, "\""));
  }
  request.what = Request::What::kMaxSteps;
  const auto value = json.find("value");
  const auto steps = value == json.end() ? absl::nullopt : JsonInteger(*value);
  if (!steps.has_value() || *steps <= 0) {
    return absl::InvalidArgumentError(
        "max_steps needs a \"value\", a whole number above 0");
  }
  request.value = *steps;
  return request;
}

absl::Status ControlFile::Begin(const std::string& folder, bool restarted) {
  const std::string path = folder + "/control.jsonl";
  CAPSTAN_RETURN_IF_ERROR(
      OutputFile::Open(path, restarted ? OutputFile::Start::kAtEnd
                                       : OutputFile::Start::kEmpty)
          .status());
  path_ = path;
  if (!restarted) return absl::OkStatus();
  known_ = LengthOf(path);
  answered_ = AnsweredIn(folder + "/events.jsonl");
  return absl::OkStatus();
}

std::string ControlFile::StillToDo(const std::string& text) const {
  std::string left;
  int64_t at = taken_;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::string id;
    const absl::StatusOr<Request> request =
        ParseRequest(std::string(line), &id);
    const auto answer = answered_.find(id);
    const bool is_end =
        request.ok() && request->what == Request::What::kMaxSteps;
    const bool done =
        at < known_ && answer != answered_.end() && !(is_end && answer->second);
    if (!done && !line.empty()) absl::StrAppend(&left, line, "\n");
    at += static_cast<int64_t>(line.size()) + 1;
  }
  return left;
}

bool ControlFile::Grown() const {
  return !path_.empty() && LengthOf(path_) != seen_;
}

bool ControlFile::AsksToStop() const {
  if (!Grown()) return false;
  ControlFile ahead = *this;
  for (const absl::string_view line : absl::StrSplit(ahead.NewLines(), '\n')) {
    std::string id;
    const auto request = ParseRequest(std::string(line), &id);
    if (request.ok() && request->what == Request::What::kStop) return true;
  }
  return false;
}

std::string ControlFile::NewLines() {
  if (path_.empty()) return "";
  seen_ = LengthOf(path_);
  if (seen_ < taken_) {
    taken_ = 0;
    skipping_ = false;
  }
  const int64_t bytes = std::min(seen_ - taken_, kMostAtOnce);
  std::string text(bytes, '\0');
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(path_);
  if (!file.ok() || !(*file)->ReadAt(taken_, bytes, text.data()).ok()) {
    return "";
  }
  if (skipping_) {
    const size_t newline = text.find('\n');
    skipping_ = newline == std::string::npos;
    const size_t gone = skipping_ ? text.size() : newline + 1;
    text.erase(0, gone);
    taken_ += static_cast<int64_t>(gone);
  }
  std::string left;
  const size_t end = text.rfind('\n');
  if (end == std::string::npos &&
      static_cast<int64_t>(text.size()) == kMostAtOnce) {
    skipping_ = true;
    left = absl::StrCat(kTooLong, "\n");
  } else {
    text.resize(end == std::string::npos ? 0 : end + 1);
    left = taken_ < known_ ? StillToDo(text) : text;
  }
  taken_ += static_cast<int64_t>(text.size());
  if (bytes == kMostAtOnce) seen_ = taken_;
  return left;
}

}  // namespace capstan
