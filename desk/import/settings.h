// SPDX-License-Identifier: Apache-2.0
//
// Other programs' settings as a flat list, whatever they are written in.
#ifndef CAPSTAN_DESK_IMPORT_SETTINGS_H_
#define CAPSTAN_DESK_IMPORT_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::import {

struct Setting {
  // With those around it: "optimizer.lr", "datasets[0].path".
  std::string key;
  // As it is written; of a list "[a, b]".
  std::string value;
  bool is_null = false;
  bool is_list = false;
  std::vector<std::string> items;  // of a list of scalars
};

// What isn't read of a file, and why.
struct Unread {
  std::string key, value, note;
};

struct Settings {
  std::string path;
  // "deepspeed" or "axolotl", if the file is a command that says so; or a
  // script's name, "sft.py".
  std::string program;
  std::vector<Setting> settings;
  std::vector<Unread> unread;
};

// Reads YAML, JSON, or a shell script that starts a training; for a folder its
// adapter_config.json. INVALID_ARGUMENT names the file and the line.
absl::StatusOr<Settings> ReadSettings(const std::string& path);

// The options of the first command in a shell script that starts a training.
// What a launcher is told has the prefix "launcher.". Variables that the script
// sets are replaced; of repeated options the last counts. What else is there
// of commands is `unread`.
absl::StatusOr<Settings> ParseCommand(const std::string& path,
                                      absl::string_view text);

}  // namespace capstan::import

#endif  // CAPSTAN_DESK_IMPORT_SETTINGS_H_
