// SPDX-License-Identifier: Apache-2.0
#include "desk/track/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json.h"

namespace capstan::track {
namespace {

// Without a summary and without a lock, a run this long silent is dead.
constexpr double kSilentSeconds = 60.0;

// The lock is only looked at: a run that starts meanwhile waits for the moment
// that this takes.
bool IsLocked(const std::string& folder) {
  const int fd = open((folder + "/.lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool locked = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!locked) {
    struct flock whole = {};
    whole.l_type = F_RDLCK;
    whole.l_whence = SEEK_SET;
    locked = fcntl(fd, F_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
  }
  close(fd);
  return locked;
}

// "text" -> text; what isn't quoted stays.
std::string Unquoted(absl::string_view value) {
  if (value.size() < 2 || value.front() != '"' || value.back() != '"') {
    return std::string(value);
  }
  std::string text;
  if (!absl::CUnescape(value.substr(1, value.size() - 2), &text)) {
    return std::string(value);
  }
  return text;
}

}  // namespace

Settings SettingsOf(absl::string_view config_text) {
  Settings settings;
  std::vector<std::string> path;  // "": a plugin's message, named by its slot
  std::map<std::string, int> count;
  const auto named = [&](absl::string_view last) {
    std::vector<std::string> parts;
    for (const std::string& part : path) {
      if (!part.empty()) parts.push_back(part);
    }
    if (!last.empty()) parts.emplace_back(last);
    const std::string name = absl::StrJoin(parts, ".");
    const int before = count[name]++;
    return before == 0 ? name : absl::StrCat(name, "[", before, "]");
  };
  for (absl::string_view line : absl::StrSplit(config_text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line == "}") {
      if (!path.empty()) path.pop_back();
    } else if (absl::ConsumeSuffix(&line, " {")) {
      if (absl::ConsumePrefix(&line, "[plugin/")) {
        absl::string_view package = line.substr(0, line.find(']'));
        absl::ConsumeSuffix(&package, ".Config");
        settings.emplace_back(named(""), package);
        path.emplace_back();
      } else {
        path.emplace_back(line);
      }
    } else {
      const size_t colon = line.find(": ");
      if (colon == absl::string_view::npos) continue;
      settings.emplace_back(named(line.substr(0, colon)),
                            Unquoted(line.substr(colon + 2)));
    }
  }
  return settings;
}

std::string SettingOf(const Settings& settings, absl::string_view name) {
  for (const auto& [key, value] : settings) {
    if (key == name) return value;
  }
  return "";
}

nlohmann::ordered_json SettingJson(const std::string& value) {
  auto json = ParseJson<nlohmann::ordered_json>(value);
  return json.is_number() || json.is_boolean() ? json
                                               : nlohmann::ordered_json(value);
}

RunState LookAtRun(const std::string& folder) {
  RunState state;
  state.end_time = NowSeconds();
  if (IsLocked(folder)) return state;
  const std::string path = folder + "/summary.json";
  const double written = WrittenAt(path);
  const double newest = std::max({WrittenAt(folder + "/metrics.jsonl"),
                                  WrittenAt(folder + "/events.jsonl"),
                                  WrittenAt(folder + "/config.pbtxt")});
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (text.ok()) state.summary = ParseJson<nlohmann::ordered_json>(*text);
  if (state.summary.is_object() && !state.summary.empty()) {
    state.ended = true;
    state.end_time = written;
    state.status = state.summary.value("status", "completed");
    return state;
  }
  state.summary = nlohmann::ordered_json::object();
  if (state.end_time - newest < kSilentSeconds) return state;
  state.ended = true;
  state.end_time = newest;
  state.status = "died";
  return state;
}

double NowSeconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

double WrittenAt(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return 0.0;
  return static_cast<double>(info.st_mtim.tv_sec) +
         1e-9 * static_cast<double>(info.st_mtim.tv_nsec);
}

std::string NumberText(double value) {
  char digits[32];
  const std::to_chars_result end =
      std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

}  // namespace capstan::track
