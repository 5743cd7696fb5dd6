// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_LOAD_CONFIG_H_
#define CAPSTAN_HOST_CONFIG_LOAD_CONFIG_H_

#include <google/protobuf/descriptor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/config/run_config.pb.h"
#include "host/plugins/plugin_host.h"

namespace capstan {

// Where each field of a config was set.
struct FieldPlaces {
  // "model.hidden_size" -> "run.pbtxt:3:27". Plugin fields are keyed by slot,
  // repeated ones as "strategy[1]".
  std::map<std::string, std::string> locations;

  // Prefixes `status` with the location of the field it is about, or of `slot`:
  // "run.pbtxt:3:27: model.hidden_size: must be ..".
  absl::Status Locate(const absl::Status& status,
                      const std::string& slot) const;

  // Path fields as written, and as resolved to absolute paths.
  struct Path {
    std::string written;
    std::string absolute;
  };
  std::map<std::string, Path> paths;

  // Forgets the locations of fields at or below `path`, which were removed.
  void Forget(const std::string& path);
};

// A run's config.
struct LoadedConfig : FieldPlaces {
  RunConfig config;
  // Settings changed to fit others, one sentence each.
  std::vector<std::string> notes;
};

// The share of a WSD schedule's steps that decay, if the config names none.
constexpr double kDefaultDecayRatio = 0.2;

// Where names and relative paths are resolved.
struct ConfigContext {
  PluginHost* host = nullptr;
  std::string caller_folder;     // for --config and --set
  std::string workspace_folder;  // contains configs/; may be ""
  std::string build_folder;      // "//a/b:c" is build_folder/a/b/c
};

// The caller's folder is BUILD_WORKING_DIRECTORY (set by `bazel run`) or the
// current one; the workspace is BUILD_WORKSPACE_DIRECTORY or the nearest
// ancestor of the caller's folder with a WORKSPACE file.
ConfigContext DefaultConfigContext(PluginHost* host);

// Reads the defaults of the run's plugins (defaults.h) and then `files` in
// order, each over the previous ones (set fields replace; a slot with the same
// plugin is merged field by field), then applies
// `overrides`: "train.max_steps=10", "model.hidden_size=64",
// "strategy=capstan.single"; "collect=" clears; "profile.steps=[3, 4]" sets a
// list, "profile.steps+=5" appends. Loads plugins on demand. Errors name file,
// line, column and field, and the nearest valid name. The notes begin with the
// defaults that were taken; the config is then complete.
absl::StatusOr<LoadedConfig> LoadConfig(
    const std::vector<std::string>& files,
    const std::vector<std::string>& overrides, const ConfigContext& context);

// The path of a config: `name` from the caller's folder, else in the
// workspace's configs/, else in those that came with the trainer in one folder
// (//:dist) or that lie beside a built one. NOT_FOUND says where it was looked
// for.
absl::StatusOr<std::string> FindConfig(const std::string& name,
                                       const ConfigContext& context);

// Looks up and parses one file in the same way into `config`, a message of
// another type that may have plugin slots; returns the file's path.
absl::StatusOr<std::string> LoadMessage(const std::string& file,
                                        const ConfigContext& context,
                                        google::protobuf::Message* config,
                                        FieldPlaces* places);

// Parses PrintConfig's output, or a text that needs no defaults, and applies
// `overrides`. Errors give `name` alone as the place, since nobody sees the
// text's lines.
absl::StatusOr<LoadedConfig> ParseConfig(
    const std::string& text, const std::string& name,
    const ConfigContext& context,
    const std::vector<std::string>& overrides = {});

// The config as text for LoadConfig, with plugin slots expanded.
std::string PrintConfig(const google::protobuf::Message& config);

// The type of a slot's config message: "plugin/capstan.ddp.Config" is
// "capstan.ddp.Config".
std::string TypeOf(const google::protobuf::Any& any);

// Unpacks an Any of a loaded plugin's type.
absl::StatusOr<std::unique_ptr<google::protobuf::Message>> Unpack(
    const google::protobuf::Any& any);

// The field `name` of `message`'s type, if it is one of that type and not a
// list; else null: what plugins' configs that agree on a field's name are
// asked.
const google::protobuf::FieldDescriptor* SingleField(
    const google::protobuf::Message& message, absl::string_view name,
    google::protobuf::FieldDescriptor::Type type);

// What the model starts from, given by the field of its config with the option
// `base_model` (plugins/sdk/options.proto).
struct BaseModel {
  std::string field;   // "": no such field
  std::string folder;  // "": from scratch
};
BaseModel BaseModelOf(const RunConfig& config);

// A slot of `config`, with unset strings filled in from other slots as its
// plugin specifies (default_from in options.proto).
absl::StatusOr<google::protobuf::Any> WithDefaults(
    const google::protobuf::Any& slot, const RunConfig& config);

// Replaces each path in `config` (fields with the option `path`, plugins' too)
// by what `change` makes of it, given the field's place ("model.pretrained")
// and the path. Returns the first error of `change`.
using PathChange = std::function<absl::StatusOr<std::string>(
    const std::string& field, const std::string& path)>;
absl::Status ChangePaths(const PathChange& change,
                         google::protobuf::Message* config);

// A hint for the error about a missing model folder. If `name`, as written,
// could be a Hugging Face Hub model (OWNER/NAME): "; if it is a model on the
// Hub, download it first: hf download ..", with the `setting` ("--model_name")
// to use afterwards. Else "".
std::string HubDownloadHint(absl::string_view name, absl::string_view setting);

// Adds that hint to `status`, an error about a field of the slot `slot`, if the
// field names a missing model folder.
absl::Status WithHubHint(const absl::Status& status, const LoadedConfig& loaded,
                         const std::string& slot);

// runs/NAME/latest refers to a name's newest run: a text file that holds the
// run folder's name, not a symlink, since TensorBoard follows symlinks and
// would show the run twice.

// Makes RUNS/latest refer to RUNS/name, atomically replacing another.
absl::Status SetLatestRun(const std::string& runs, const std::string& name);

// Resolves such a file within `path`: "runs/a/latest/final" becomes
// "runs/a/2026-01-31_12-00-00/final". In a run's own output_dir, where no such
// file is, "latest" is that folder. Other paths, and other files of that name,
// are unchanged. Apply to every path that a user gives.
std::string FollowLatestRun(const std::string& path);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_LOAD_CONFIG_H_
