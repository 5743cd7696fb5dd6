// SPDX-License-Identifier: Apache-2.0
#include "desk/track/run_folder.h"

#include <algorithm>
#include <charconv>

#include "absl/strings/str_join.h"
#include "base/files.h"
#include "base/json.h"
#include "desk/run_folder/config_fields.h"
#include "desk/run_folder/file_times.h"
#include "desk/run_folder/json_fields.h"
#include "desk/run_folder/run_record.h"

namespace capstan::track {

Settings SettingsOf(absl::string_view config_text) {
  Settings settings;
  for (const auto& [name, values] : FieldsOfConfig(config_text)) {
    settings.emplace_back(name, absl::StrJoin(values, ", "));
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

double LastWritten(const std::string& folder) {
  return std::max({WrittenAt(folder + "/metrics.jsonl"),
                   WrittenAt(folder + "/events.jsonl"),
                   WrittenAt(folder + "/config.pbtxt")});
}

RunState LookAtRun(const std::string& folder, double step_seconds) {
  RunState state;
  state.end_time = NowSeconds();
  const absl::optional<bool> held = LockIsHeld(folder);
  if (held == true) return state;
  const double newest = LastWritten(folder);
  state.summary = SummaryOf(folder);
  if (!state.summary.empty()) {
    state.ended = true;
    state.end_time = WrittenAt(folder + "/summary.json");
    state.status = TextOf(state.summary, "status");
    return state;
  }
  state.in_doubt =
      !held.has_value() && state.end_time - newest < PatienceFor(step_seconds);
  if (state.in_doubt) return state;
  state.ended = true;
  state.end_time = newest;
  state.status = kDied;
  return state;
}

nlohmann::ordered_json ListOf(const nlohmann::ordered_json& json,
                              const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_array()
             ? *found
             : nlohmann::ordered_json::array();
}

std::string NumberText(double value) {
  char digits[32];
  const std::to_chars_result end =
      std::to_chars(digits, digits + sizeof(digits), value);
  return std::string(digits, end.ptr);
}

}  // namespace capstan::track
