// SPDX-License-Identifier: Apache-2.0
#include "desk/track/follower.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "desk/runs/run_record.h"
#include "desk/track/run_folder.h"

namespace capstan::track {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostReadBytes = size_t{4} << 20;

std::string IdOf(absl::string_view line) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int bytes = 0;
  EVP_Digest(line.data(), line.size(), digest, &bytes, EVP_sha256(), nullptr);
  return absl::BytesToHexString(
      {reinterpret_cast<const char*>(digest), size_t{8}});
}

class Descriptor {
 public:
  explicit Descriptor(const std::string& path)
      : fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }

 private:
  const int fd_;
};

double ValueOf(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1.0 : 0.0;
  return value.is_number() ? value.get<double>() : NAN;
}

}  // namespace

absl::optional<double> Row::Get(absl::string_view name) const {
  for (const auto& [key, value] : metrics) {
    if (key == name) return value;
  }
  return absl::nullopt;
}

Follower::Follower(const std::string& folder) : folder_(folder) {
  metrics_.path = folder + "/metrics.jsonl";
  event_lines_.path = folder + "/events.jsonl";
}

absl::StatusOr<absl::optional<std::string>> Follower::Tail::Read() {
  more = false;
  const Descriptor file(path);
  struct stat info = {};
  if (file.get() < 0 || fstat(file.get(), &info) != 0) {
    if (errno == ENOENT) return absl::optional<std::string>("");
    return absl::UnavailableError(
        absl::StrCat(path, ": can't be read (error ", errno, ")"));
  }
  if (offset > 0 && (info.st_ino != inode || info.st_size < offset)) {
    return absl::optional<std::string>();
  }
  inode = info.st_ino;
  std::string text(kMostReadBytes, '\0');
  const ssize_t bytes = pread(file.get(), &text[0], text.size(), offset);
  if (bytes < 0) {
    return absl::UnavailableError(
        absl::StrCat(path, ": can't be read (error ", errno, ")"));
  }
  text.resize(static_cast<size_t>(bytes));
  const size_t end = text.rfind('\n');
  text.resize(end == std::string::npos ? 0 : end + 1);
  offset += static_cast<int64_t>(text.size());
  more = !text.empty() && offset < info.st_size;
  return absl::optional<std::string>(std::move(text));
}

bool Follower::IsSameRun() const {
  const Descriptor file(metrics_.path);
  std::string begin(first_line_.size(), '\0');
  return file.get() >= 0 &&
         pread(file.get(), &begin[0], begin.size(), 0) ==
             static_cast<ssize_t>(begin.size()) &&
         begin == first_line_;
}

void Follower::StartOver() {
  metrics_.offset = 0;
  newest_.reset();
  clock_ = 0.0;
  if (first_line_.empty() || IsSameRun()) return;
  first_line_.clear();
  id_.clear();
  handed_out_ = std::numeric_limits<int64_t>::min();
  event_lines_.offset = 0;
  events_.clear();
  next_event_ = 0;
}

absl::StatusOr<std::vector<Row>> Follower::Poll() {
  std::vector<Row> rows;
  if (!first_line_.empty() && !IsSameRun()) StartOver();
  // Before the metrics: an event is written before the next step's line.
  CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> text, metrics_.Read());
  if (!text.has_value()) {
    StartOver();
    CAPSTAN_ASSIGN_OR_RETURN(text, metrics_.Read());
  }
  CAPSTAN_RETURN_IF_ERROR(ReadEvents());
  more_ = metrics_.more;
  if (!text.has_value()) return rows;
  for (absl::string_view line :
       absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    Add(line, &rows);
  }
  return rows;
}

absl::Status Follower::ReadEvents() {
  do {
    CAPSTAN_ASSIGN_OR_RETURN(absl::optional<std::string> text,
                             event_lines_.Read());
    if (!text.has_value()) {  // begun anew
      event_lines_.offset = 0;
      events_.clear();
      next_event_ = 0;
      CAPSTAN_ASSIGN_OR_RETURN(text, event_lines_.Read());
      if (!text.has_value()) break;
    }
    for (absl::string_view line :
         absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      const Json json = ParseJson<Json>(line);
      if (!json.is_object()) continue;
      Event event;
      event.time = NumberOf(json, "time").value_or(0.0);
      event.step = static_cast<int64_t>(NumberOf(json, "step").value_or(0.0));
      event.kind = TextOf(json, "kind");
      event.text = TextOf(json, "text");
      events_.push_back(std::move(event));
    }
  } while (event_lines_.more);
  return absl::OkStatus();
}

void Follower::Add(absl::string_view line, std::vector<Row>* rows) {
  const Json json = ParseJson<Json>(line);
  if (!json.is_object() || !json.contains("step")) return;
  const absl::optional<int64_t> step = JsonInteger(json["step"]);
  if (!step.has_value()) return;
  if (first_line_.empty()) {
    first_line_ = std::string(line);
    id_ = IdOf(line);
  }
  if (clock_ == 0.0) clock_ = WrittenAt(folder_ + "/config.pbtxt");
  clock_ += NumberOf(json, "step_seconds").value_or(0.0);
  clock_ = NumberOf(json, "time").value_or(clock_);
  if (newest_.has_value() && newest_->step != *step) Complete(rows);
  if (*step <= handed_out_) return;
  if (!newest_.has_value()) {
    newest_.emplace();
    newest_->step = *step;
    newest_->time = clock_;
  }
  for (const auto& item : json.items()) {
    if (item.key() == "step" || item.key() == "time") continue;
    if (item.value().is_primitive() && !item.value().is_string()) {
      newest_->metrics.emplace_back(item.key(), ValueOf(item.value()));
    }
  }
}

void Follower::Complete(std::vector<Row>* rows) {
  absl::optional<Row> row = TakeNewest();
  if (row.has_value()) rows->push_back(*std::move(row));
}

absl::optional<Row> Follower::TakeNewest() {
  absl::optional<Row> row;
  row.swap(newest_);
  if (!row.has_value()) return row;
  handed_out_ = row->step;
  while (next_event_ < events_.size() &&
         events_[next_event_].step <= row->step) {
    row->events.push_back(events_[next_event_++]);
  }
  return row;
}

}  // namespace capstan::track
