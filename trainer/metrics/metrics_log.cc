// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/metrics_log.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "trainer/metrics/appended_lines.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

// The shortest text that round-trips.
void AppendNumber(absl::string_view key, double value, std::string* line) {
  if (!std::isfinite(value)) {
    absl::StrAppend(line, key, "null");
    return;
  }
  char digits[32];
  const std::to_chars_result end =
      std::to_chars(digits, digits + sizeof(digits), value);
  absl::StrAppend(line, key, absl::string_view(digits, end.ptr - digits));
}

void AppendTagged(const TaggedNumbers& tagged, std::string* line) {
  for (const auto& [tag, value] : tagged) {
    AppendNumber(absl::StrCat(", \"", MetricName(tag), "\": "), value, line);
  }
}

// `with_evaluation`: whether `last`'s lines include those after its own.
// *of_step: whether the line is a step's own.
bool IsUpTo(absl::string_view line, int64_t last, bool with_evaluation,
            bool* of_step) {
  const Json object = ParseJson<Json>(line);
  if (!object.is_object()) return false;
  const auto found = object.find("step");
  if (found == object.end() || !found->is_number_integer()) return false;
  const auto step = found->get<int64_t>();
  *of_step = object.find("loss") != object.end();
  return step < last || (step == last && (with_evaluation || *of_step));
}

// For a file with one JSON object per line, each with a "step": drops lines of
// steps after `step`, and a last line truncated by a crash. Returns how many of
// the others are a step's own; 0 without the file.
absl::StatusOr<int64_t> KeepLinesUpTo(int64_t step, const std::string& path,
                                      bool with_evaluation) {
  int64_t steps = 0;
  if (!PathExists(path)) return steps;
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  std::string kept;
  absl::string_view rest = text;
  while (!rest.empty()) {
    const size_t end = rest.find('\n');
    if (end == absl::string_view::npos) break;  // truncated
    bool of_step = false;
    if (IsUpTo(rest.substr(0, end), step, with_evaluation, &of_step)) {
      kept.append(rest.data(), end + 1);
      steps += of_step ? 1 : 0;
    }
    rest.remove_prefix(end + 1);
  }
  if (kept.size() != text.size()) {
    CAPSTAN_RETURN_IF_ERROR(ReplaceFile(path, kept));
  }
  return steps;
}

// Length of the first character of `text`, which isn't empty.
size_t CharacterBytes(absl::string_view text) {
  size_t bytes = 1;
  while (bytes < text.size() && (text[bytes] & 0xc0) == 0x80) ++bytes;
  return bytes;
}

int Characters(absl::string_view text) {
  return static_cast<int>(std::count_if(
      text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// Wraps one line of `text` at `width` characters, at spaces if possible.
void Wrap(absl::string_view text, int width, std::vector<std::string>* lines) {
  do {
    size_t end = 0;
    size_t space = 0;  // the last one seen
    int count = 0;
    while (end < text.size() && count < width) {
      if (text[end] == ' ') space = end;
      end += CharacterBytes(text.substr(end));
      ++count;
    }
    const bool whole = end == text.size() || text[end] == ' ';
    const size_t cut = whole || space == 0 ? end : space;
    lines->emplace_back(text.substr(0, cut));
    text.remove_prefix(cut);
    if (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  } while (!text.empty());
}

std::vector<std::string> Wrapped(const std::string& heading,
                                 const std::string& text, int width) {
  std::vector<std::string> lines;
  Wrap(heading, width, &lines);
  lines.push_back(std::string(width, '-'));
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    Wrap(line, width, &lines);
  }
  return lines;
}

}  // namespace

absl::StatusOr<MetricsLog> MetricsLog::Open(const std::string& path,
                                            int64_t first_step,
                                            const std::string& unit,
                                            bool evaluate_again) {
  int64_t missing = 0;
  if (first_step > 0) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t steps,
                             KeepLinesUpTo(first_step, path, !evaluate_again));
    missing = std::max<int64_t>(0, first_step - steps);
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      OutputFile file,
      OutputFile::Open(path, first_step > 0 ? OutputFile::Start::kAtEnd
                                            : OutputFile::Start::kEmpty));
  MetricsLog log(std::move(file), unit);
  log.missing_ = missing;
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return WriteError(path, errno);
  log.device_ = info.st_dev;
  log.inode_ = info.st_ino;
  log.bytes_ = info.st_size;
  return log;
}

MetricsLog::MetricsLog(OutputFile file, const std::string& unit)
    : file_(std::move(file)), unit_(unit) {}

void MetricsLog::Begin(int64_t step) {
  line_.clear();
  absl::StrAppend(&line_, "{\"step\": ", step);
  AppendNumber(", \"time\": ", UnixSeconds(), &line_);
}

absl::Status MetricsLog::Append() {
  bytes_ += static_cast<int64_t>(line_.size());
  return file_.Append(line_);
}

absl::Status MetricsLog::Check(const std::string& path) const {
  struct stat info = {};
  const bool same = stat(path.c_str(), &info) == 0 && info.st_dev == device_ &&
                    info.st_ino == inode_;
  if (same && info.st_size >= bytes_) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path,
      same ? absl::StrCat(" has ", info.st_size, " bytes, but ", bytes_,
                          " were written to it: another program has cut it")
           : " was removed or replaced while the run wrote to it",
      "; no step is saved without its line there: the run ends, and can go on "
      "from its last checkpoint"));
}

absl::Status MetricsLog::Step(const StepMetrics& metrics) {
  Begin(metrics.step);
  AppendNumber(", \"loss\": ", metrics.loss, &line_);
  AppendNumber(", \"grad_norm\": ", metrics.grad_norm, &line_);
  AppendNumber(", \"lr\": ", metrics.lr, &line_);
  absl::StrAppend(&line_, ", \"", unit_, "\": ", metrics.tokens);
  if (unit_ == kTokenUnit) {
    absl::StrAppend(&line_, ", \"trained_tokens\": ", metrics.trained_tokens);
    AppendNumber(", \"padding\": ", metrics.padding, &line_);
  }
  AppendNumber(", \"step_seconds\": ", metrics.step_seconds, &line_);
  AppendNumber(absl::StrCat(", \"", unit_, "_per_second\": "),
               metrics.tokens_per_second, &line_);
  absl::StrAppend(&line_, ", \"bytes_sent\": ", metrics.bytes_sent);
  AppendNumber(", \"communication_seconds\": ",
               metrics.communication_seconds.value_or(NAN), &line_);
  AppendNumber(", \"exposed_seconds\": ", metrics.exposed_seconds.value_or(NAN),
               &line_);
  if (metrics.mfu.has_value())
    AppendNumber(", \"mfu\": ", *metrics.mfu, &line_);
  if (metrics.gpu_memory.has_value()) {
    const GpuMemory& memory = *metrics.gpu_memory;
    absl::StrAppend(&line_, ", \"gpu_allocated_bytes\": ", memory.allocated,
                    ", \"gpu_reserved_bytes\": ", memory.reserved,
                    ", \"gpu_peak_bytes\": ", memory.peak_allocated);
  }
  if (metrics.skipped) absl::StrAppend(&line_, ", \"skipped\": true");
  if (metrics.spike.has_value()) {
    AppendNumber(", \"spike\": ", *metrics.spike, &line_);
  }
  if (metrics.loss_scale.has_value()) {
    AppendNumber(", \"loss_scale\": ", *metrics.loss_scale, &line_);
  }
  AppendTagged(metrics.tagged, &line_);
  absl::StrAppend(&line_, "}\n");
  return Append();
}

absl::Status MetricsLog::Numbers(int64_t step, const TaggedNumbers& tagged) {
  Begin(step);
  AppendTagged(tagged, &line_);
  absl::StrAppend(&line_, "}\n");
  return Append();
}

absl::StatusOr<GenerationsLog> GenerationsLog::Open(const std::string& path,
                                                    int64_t first_step) {
  GenerationsLog log(path);
  if (!PathExists(path)) return log;
  if (first_step == 0) {
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(path));
    return log;
  }
  CAPSTAN_RETURN_IF_ERROR(
      KeepLinesUpTo(first_step, path, /*with_evaluation=*/true).status());
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Json json = ParseJson<Json>(line);
    if (!json.is_object()) continue;  // truncated line
    log.steps_.insert(json.value("step", int64_t{-1}));
    if (json.value("step", int64_t{-1}) != 0) continue;
    log.before_[json.value("prompt", "")] = json.value("text", "");
  }
  return log;
}

absl::Status GenerationsLog::Add(int64_t step, const Generation& generation) {
  if (step == 0) before_[generation.prompt] = generation.text;
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path_, OutputFile::Start::kAtEnd));
  const Json json = {
      {"step", step}, {"prompt", generation.prompt}, {"text", generation.text}};
  return file.Append(absl::StrCat(JsonText(json), "\n"));
}

absl::optional<std::string> GenerationsLog::Before(
    const std::string& prompt) const {
  const auto found = before_.find(prompt);
  if (found == before_.end()) return absl::nullopt;
  return found->second;
}

std::string SideBySide(const std::string& left_heading, const std::string& left,
                       const std::string& right_heading,
                       const std::string& right, int columns) {
  constexpr int kLeastWidth = 16;
  const int width = std::max(kLeastWidth, (columns - 3) / 2);
  const std::vector<std::string> lefts = Wrapped(left_heading, left, width);
  const std::vector<std::string> rights = Wrapped(right_heading, right, width);
  std::string text;
  for (size_t i = 0; i < std::max(lefts.size(), rights.size()); ++i) {
    const std::string line = i < lefts.size() ? lefts[i] : "";
    absl::StrAppend(&text, line, std::string(width - Characters(line), ' '),
                    " |");
    if (i < rights.size() && !rights[i].empty()) {
      absl::StrAppend(&text, " ", rights[i]);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace capstan
