// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/control.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"

namespace capstan {
namespace {

// Of the file at a time; more is read after the next step.
constexpr int64_t kMostAtOnce = 1 << 16;

int64_t LengthOf(const std::string& path) {
  struct stat info = {};
  return stat(path.c_str(), &info) == 0 ? static_cast<int64_t>(info.st_size)
                                        : 0;
}

}  // namespace

absl::StatusOr<Request> ParseRequest(const std::string& line, std::string* id) {
  const auto json = ParseJson<nlohmann::json>(line);
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the line isn't a JSON object");
  }
  const auto text = [&json](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
  };
  Request request;
  request.id = *id = text("id");
  const std::string what = text("do");
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

absl::Status ControlFile::Begin(const std::string& path, bool keep) {
  const absl::StatusOr<OutputFile> file = OutputFile::Open(
      path, keep ? OutputFile::Start::kAtEnd : OutputFile::Start::kEmpty);
  if (file.ok()) path_ = path;
  return file.status();
}

bool ControlFile::Grown() const {
  return !path_.empty() && LengthOf(path_) != seen_;
}

std::string ControlFile::NewLines() {
  if (path_.empty()) return "";
  seen_ = LengthOf(path_);
  if (seen_ < taken_) taken_ = 0;
  const int64_t bytes = std::min(seen_ - taken_, kMostAtOnce);
  std::string text(bytes, '\0');
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(path_);
  if (!file.ok() || !(*file)->ReadAt(taken_, bytes, text.data()).ok()) {
    return "";
  }
  const size_t end = text.rfind('\n');
  // Such a long line is nothing that was asked.
  if (end == std::string::npos && bytes == kMostAtOnce) taken_ += bytes;
  text.resize(end == std::string::npos ? 0 : end + 1);
  taken_ += static_cast<int64_t>(text.size());
  if (bytes == kMostAtOnce) seen_ = taken_;
  return text;
}

}  // namespace capstan
