// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PLUGIN_HOST_PLUGIN_HOST_H_
#define CAPSTAN_TRAINER_PLUGIN_HOST_PLUGIN_HOST_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/plugin.h"

namespace capstan {

struct LoadedPlugin {
  // A copy; what an older plugin's lacks is zero.
  std::shared_ptr<const PluginDescriptor> descriptor;
  std::string config_type;  // "capstan.ddp.Config"
  std::string path;         // of the shared library
  bool foreign = false;     // not in the folder beside the trainer
};

// Finds, checks and loads plugins, each at most once and only when asked for;
// they stay loaded for the life of the process. One thread.
//
// A plugin is refused, by its fingerprint and before any of its code runs, if
// it was built with another LibTorch, abseil or protobuf, with another layout
// of the standard library or another sanitizer, for another major version of
// the plugin API or a newer minor one. Compiler, C++ standard and optimisation
// may differ, and so may comments in the SDK's headers. A plugin of an older
// minor version works (older_plugins.h).
//
// Foreign plugins are loaded, and make their instances, in a forked child first
// (4 ms of CPU time each), so that one that crashes or exits is an error with
// its name. Once one is loaded, the trainer's own are loaded in a child, too:
// they may hold a proto file of the same name. A Create that takes longer than
// 2 s isn't waited for in the child; the real one follows.
class PluginHost {
 public:
  // Folders are searched in order; the one beside the trainer comes last.
  explicit PluginHost(std::vector<std::string> folders);

  // The plugin whose config is `config_type`. Its proto package names its
  // library: acme.muon.Config is in libacme_muon.so. Errors: no such file (the
  // files tried and the nearest name that exists), not a plugin, built for
  // another trainer (both sides of each difference), what loading it does to a
  // process, dlopen's own.
  absl::StatusOr<const LoadedPlugin*> Load(const std::string& config_type);

  // Packages ("capstan.ddp") of all libraries in the search path, sorted.
  std::vector<std::string> Available() const;

  // The one of them that `name`, a package or its last part ("ddp"), is meant
  // to be; "" if none is near.
  std::string NearestPackage(absl::string_view name) const;

  // Makes a `Base` (Strategy, Model, ..) from serialized config bytes. Errors
  // are Load's, another category, what Create does to a process, and the
  // plugin's own, with its name before them or the field they are about
  // (FieldOf).
  template <typename Base>
  absl::StatusOr<std::unique_ptr<Base>> Create(const std::string& config_type,
                                               PluginCategory category,
                                               absl::string_view config) {
    void* instance = nullptr;
    absl::Status status =
        CreateInstance(config_type, category, config, &instance);
    if (!status.ok()) return status;
    return std::unique_ptr<Base>(static_cast<Base*>(instance));
  }

 private:
  absl::Status CreateInstance(const std::string& config_type,
                              PluginCategory category, absl::string_view config,
                              void** instance);
  absl::StatusOr<LoadedPlugin> Open(const std::string& config_type,
                                    const std::string& path, bool probe);

  std::vector<std::string> folders_;            // the trainer's own last
  std::map<std::string, LoadedPlugin> loaded_;  // by config type
  bool foreign_ = false;                        // one is loaded
};

// "strategy", "precision", "dataset reader", ..
const char* CategoryName(PluginCategory category);

// "capstan.ddp.Config" -> "capstan.ddp"
std::string PackageOf(absl::string_view config_type);

// Whether a plugin of API version `plugin` ("1.0") can work in a trainer of
// `trainer`.
absl::Status CheckApi(absl::string_view plugin, absl::string_view trainer);

// A copy of a descriptor that may be shorter or longer than this trainer's.
// FAILED_PRECONDITION if it is of another API, or isn't whole.
absl::StatusOr<PluginDescriptor> CopyDescriptor(const PluginDescriptor& theirs);

// OK, or FAILED_PRECONDITION that lists what differs and matters.
absl::Status CompareFingerprints(absl::string_view core,
                                 absl::string_view plugin);

// The fingerprint in an ELF file's section, read without loading the file.
absl::StatusOr<std::string> ReadFingerprint(const std::string& path);

// The nearest of `names` to `name` by edit distance, "" if none is near.
std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names);

// The core's own fingerprint.
const char* CoreFingerprint();

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PLUGIN_HOST_PLUGIN_HOST_H_
