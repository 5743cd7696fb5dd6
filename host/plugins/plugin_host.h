// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_PLUGINS_PLUGIN_HOST_H_
#define CAPSTAN_HOST_PLUGINS_PLUGIN_HOST_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/own_library.h"
#include "plugins/sdk/plugin.h"

namespace capstan {

struct LoadedPlugin {
  const PluginDescriptor* descriptor = nullptr;
  std::string config_type;  // "capstan.ddp.Config"
  std::string path;         // of the shared library
  bool foreign = false;     // not in the trainer's own folder
  std::string sdk;          // what it was built with: "1.3"
};

// Finds, checks and loads plugins, each at most once and on demand; they stay
// loaded for the life of the process. One thread.
//
// The fingerprint is checked before any of a plugin's code runs. A plugin is
// rejected if built with another LibTorch, abseil or protobuf, another standard
// library layout or sanitizer, with a newer SDK, or against other headers of
// the same one. Compiler, C++ standard, optimisation and comments in the SDK's
// headers may differ, and the SDK may be older.
//
// Foreign plugins are first loaded and instantiated in a forked child (4 ms of
// CPU time each), so that one that crashes or exits becomes an error with its
// name. Once one is loaded, the trainer's own are probed, too: they may contain
// a proto file of the same name. A Create that takes longer than 2 s isn't
// waited for in the child; the real call follows.
class PluginHost {
 public:
  // Folders are searched in order, the trainer's own last. `clone` builds those
  // of the trainer's own that are missing.
  explicit PluginHost(std::vector<std::string> folders,
                      absl::optional<Clone> clone = Clone::OfCore());

  // The plugin whose config type is `config_type`. Its proto package determines
  // the library: acme.muon.Config is in libacme_muon.so. One of the trainer's
  // own that its clone hasn't built yet is built first (base/own_library.h).
  // Errors: no such file (with the files tried and the nearest existing name),
  // not a plugin, built for another trainer (with all differences), what
  // loading it does to a process, the build's, dlopen's own.
  absl::StatusOr<const LoadedPlugin*> Load(const std::string& config_type);

  // The same for an error's text, which isn't worth a build: NOT_FOUND, too,
  // for one that would have to be built.
  absl::StatusOr<const LoadedPlugin*> LoadBuilt(const std::string& config_type);

  // Packages ("capstan.ddp") of all plugins in the search path, sorted; also of
  // those that the trainer's clone has yet to build.
  std::vector<std::string> Available() const;
  // Whether Load doesn't have to build it.
  bool IsBuilt(const std::string& package) const;
  // Has the clone build all of the trainer's own; what fails is a warning.
  void BuildAll() const;

  // Packages by the model_types of the folders that they read
  // (plugins/sdk/model_types.h); the first in the search path, if several do.
  // Doesn't know those that aren't built.
  std::map<std::string, std::string> ModelTypes() const;

  // Shared libraries in the search path that aren't plugins, by path, and why.
  std::map<std::string, absl::Status> Unreadable() const;

  // The available package closest to `name`, a package or its last part
  // ("ddp"), commands' aside; "" if none is close.
  std::string NearestPackage(absl::string_view name) const;

  // Makes a `Base` (Strategy, Model, ..) from serialized config bytes. Errors
  // are Load's, a wrong category, what Create does to a process, and the
  // plugin's own, prefixed with its name or the field they are about (FieldOf).
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
  // Available(), without commands.
  std::vector<std::string> ForConfigs() const;
  // The trainer's own that its clone has yet to build: "plugins/lib..so".
  std::vector<std::string> Unbuilt() const;

  std::vector<std::string> folders_;  // the trainer's own last
  absl::optional<Clone> clone_;
  std::map<std::string, LoadedPlugin> loaded_;  // by config type
  bool foreign_ = false;                        // one is loaded
};

// "strategy", "precision", "dataset reader", ..
const char* CategoryName(PluginCategory category);

// "capstan.ddp.Config" -> "capstan.ddp"
std::string PackageOf(absl::string_view config_type);

// The command of a package: "capstan.command_llada_data" -> "llada-data". "" if
// it has none, but is named by configs.
std::string CommandOf(absl::string_view package);

// FAILED_PRECONDITION with all differences that matter, else OK.
absl::Status CompareFingerprints(absl::string_view core,
                                 absl::string_view plugin);

// Reads the fingerprint from an ELF file's section, without loading the file.
absl::StatusOr<std::string> ReadFingerprint(const std::string& path);

// The model_types that a plugin reads, in the same way; none if it says
// nothing.
std::vector<std::string> ReadModelTypes(const std::string& path);

// The entry of `names` closest to `name` by edit distance; "" if none is close.
std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names);
// "; did you mean NAME?", or "" for none.
std::string DidYouMean(absl::string_view name);

// The SDK that a fingerprint tells of: "1.3"; "" if it doesn't say.
std::string SdkVersion(absl::string_view fingerprint);

// The core's own fingerprint.
const char* CoreFingerprint();

// Runs a foreign call in a forked child with its standard output and error
// captured. OK if it returned. Otherwise the message completes a sentence about
// it ("crashed: signal 11 (..)", "ended the process, with exit code 3") and
// ends with the tail of the child's output; `output`, if not null, gets all of
// that (up to 64 KiB). DEADLINE_EXCEEDED if it ran longer than `limit_seconds`
// and was killed. OK if the fork fails, as nothing is known then. `slow` is
// called once if it runs longer than 2 s.
absl::Status Probe(const std::function<void()>& call, double limit_seconds,
                   std::string* output = nullptr,
                   const std::function<void()>& slow = nullptr);

}  // namespace capstan

#endif  // CAPSTAN_HOST_PLUGINS_PLUGIN_HOST_H_
