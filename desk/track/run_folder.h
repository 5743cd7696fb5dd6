// SPDX-License-Identifier: Apache-2.0
//
// What a run's folder says of it besides its metrics: settings, how it ended.
#ifndef CAPSTAN_DESK_TRACK_RUN_FOLDER_H_
#define CAPSTAN_DESK_TRACK_RUN_FOLDER_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace capstan::track {

// Names and values of a config's fields, as FieldsOfConfig has them; a list's
// values are one, with commas.
using Settings = std::vector<std::pair<std::string, std::string>>;
Settings SettingsOf(absl::string_view config_text);

// The value of that name, or "".
std::string SettingOf(const Settings& settings, absl::string_view name);

// Numbers, true and false as themselves, all else as text.
nlohmann::ordered_json SettingJson(const std::string& value);

constexpr char kDied[] = "died";

struct RunState {
  bool ended = false;
  // It hasn't ended, and nothing but what it writes tells so.
  bool in_doubt = false;
  // Once it has ended: "completed", "stopped", "failed" as summary.json has
  // it, or kDied without that file.
  std::string status;
  double end_time = 0.0;  // Unix seconds; as long as it runs, now
  nlohmann::ordered_json summary = nlohmann::ordered_json::object();
};

// When the run last told of itself, in Unix seconds.
double LastWritten(const std::string& folder);

// Asks whether the run's lock is held. If nothing tells (LockIsHeld), a run
// that has written anything within PatienceFor(step_seconds) counts as running.
RunState LookAtRun(const std::string& folder, double step_seconds);

// Of another program's JSON, which may be anything: the list of that name, or
// an empty one.
nlohmann::ordered_json ListOf(const nlohmann::ordered_json& json,
                              const char* name);

// A finite number, as few digits as say it exactly.
std::string NumberText(double value);

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_RUN_FOLDER_H_
