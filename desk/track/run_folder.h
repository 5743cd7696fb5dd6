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

// Names as --set has them, "train.max_steps", "strategy.bucket_cap_mib", and
// values as text; a plugin's package is the value of its slot ("strategy":
// "capstan.ddp"). The second and later values of a list are "NAME[1]", ..
using Settings = std::vector<std::pair<std::string, std::string>>;

// Of a config as a run writes it (config.pbtxt), without the messages' types,
// which its plugins would have to be loaded for.
Settings SettingsOf(absl::string_view config_text);

// The value of that name, or "".
std::string SettingOf(const Settings& settings, absl::string_view name);

// Numbers, true and false as themselves, all else as text.
nlohmann::ordered_json SettingJson(const std::string& value);

struct RunState {
  bool ended = false;
  // Once it has ended: "completed", "stopped", "failed" as summary.json has
  // it, or "died" without that file.
  std::string status;
  double end_time = 0.0;  // Unix seconds; as long as it runs, now
  nlohmann::ordered_json summary = nlohmann::ordered_json::object();
};

// Asks whether the run's lock is held. Where its file system has no locks, a
// run that has written anything in the last minute counts as running, too.
RunState LookAtRun(const std::string& folder);

// Unix seconds.
double NowSeconds();
// When the file was last written, or 0 if there is none.
double WrittenAt(const std::string& path);

// A finite number, as few digits as say it exactly.
std::string NumberText(double value);

}  // namespace capstan::track

#endif  // CAPSTAN_DESK_TRACK_RUN_FOLDER_H_
