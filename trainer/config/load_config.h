// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_CONFIG_LOAD_CONFIG_H_
#define CAPSTAN_TRAINER_CONFIG_LOAD_CONFIG_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/plugin_host/plugin_host.h"
#include "trainer/run_config.pb.h"

namespace capstan {

// Where each field of a config was set.
struct FieldPlaces {
  // "model.hidden_size" -> "run.pbtxt:3:27"; plugin fields go by their slot,
  // those of a repeated one by "strategy[1]".
  std::map<std::string, std::string> locations;

  // `status` with the place of the field it is about, or of `slot`, before its
  // message: "run.pbtxt:3:27: model.hidden_size: must be ..".
  absl::Status Locate(const absl::Status& status,
                      const std::string& slot) const;

  // Fields that are paths, as they were written and as they are now, absolute.
  struct Path {
    std::string written;
    std::string absolute;
  };
  std::map<std::string, Path> paths;

  // Forgets the fields below `path` and its elements: they are gone.
  void Forget(const std::string& path);
};

// A run's config.
struct LoadedConfig : FieldPlaces {
  RunConfig config;
  // What was changed to fit something else that was set, a sentence each.
  std::vector<std::string> notes;
};

// Where names and relative paths are looked up.
struct ConfigContext {
  PluginHost* host = nullptr;
  std::string caller_folder;     // of --config and --set
  std::string workspace_folder;  // has configs/; may be ""
  std::string build_folder;      // "//a/b:c" is build_folder/a/b/c
};

// BUILD_WORKING_DIRECTORY (set by `bazel run`) or the current folder; the
// workspace from BUILD_WORKSPACE_DIRECTORY, or the nearest folder above the
// caller's that has a WORKSPACE file.
ConfigContext DefaultConfigContext(PluginHost* host);

// Reads `files` in order, each over the ones before (fields that it sets
// replace theirs; a slot of the same plugin is merged field by field), then
// applies `overrides`: "train.max_steps=10", "model.hidden_size=64",
// "strategy=capstan.single"; "collect=" clears; a list is set whole,
// "profile.steps=[3, 4]", or added to, "profile.steps+=5". Plugins are loaded
// as their types are met. Errors name file, line, column and field, and the
// nearest valid name.
absl::StatusOr<LoadedConfig> LoadConfig(
    const std::vector<std::string>& files,
    const std::vector<std::string>& overrides, const ConfigContext& context);

// Reads one file, looked up and parsed in the same way, into `config`, a
// message of another type that may hold plugin slots; returns the file's path.
absl::StatusOr<std::string> LoadMessage(const std::string& file,
                                        const ConfigContext& context,
                                        google::protobuf::Message* config,
                                        FieldPlaces* places);

// Parses a config that PrintConfig has printed, and applies `overrides`.
absl::StatusOr<LoadedConfig> ParseConfig(
    const std::string& text, const std::string& name,
    const ConfigContext& context,
    const std::vector<std::string>& overrides = {});

// The config as text that LoadConfig takes, plugin slots expanded.
std::string PrintConfig(const google::protobuf::Message& config);

// The config message that a slot holds: "plugin/capstan.ddp.Config" is
// "capstan.ddp.Config".
std::string TypeOf(const google::protobuf::Any& any);

// The message that an Any of a loaded plugin's type holds.
absl::StatusOr<std::unique_ptr<google::protobuf::Message>> Unpack(
    const google::protobuf::Any& any);

// What a slot of `config` holds, with the strings that it doesn't set and that
// its plugin takes from another slot (default_from in options.proto).
absl::StatusOr<google::protobuf::Any> WithDefaults(
    const google::protobuf::Any& slot, const RunConfig& config);

// Whether `slot` is a plugin slot of RunConfig that is set.
bool HasSlot(const RunConfig& config, const std::string& slot);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CONFIG_LOAD_CONFIG_H_
