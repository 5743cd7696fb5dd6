// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/generations_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/metrics/metrics_log.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;

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

absl::StatusOr<GenerationsLog> GenerationsLog::Open(const std::string& path,
                                                    int64_t first_step) {
  GenerationsLog log(path);
  if (!PathExists(path)) return log;
  if (first_step == 0) {
    CAPSTAN_RETURN_IF_ERROR(RemoveTree(path));
    return log;
  }
  CAPSTAN_RETURN_IF_ERROR(KeepLinesUpTo(first_step, path));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Json json = Json::parse(line.begin(), line.end(), nullptr,
                                  /*allow_exceptions=*/false);
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
  return file.Append(absl::StrCat(json.dump(-1, ' ', /*ensure_ascii=*/false,
                                            Json::error_handler_t::replace),
                                  "\n"));
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
