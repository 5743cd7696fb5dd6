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
  const PluginDescriptor* descriptor = nullptr;
  std::string config_type;  // "capstan.ddp.Config"
  std::string path;         // of the shared library
};

// Finds, checks and loads plugins, each at most once and only when asked for;
// they stay loaded for the life of the process. One thread.
class PluginHost {
 public:
  // Folders are searched in order; the one beside the trainer comes last.
  explicit PluginHost(std::vector<std::string> folders);

  // The plugin whose config is `config_type`. Its proto package names its
  // library: acme.muon.Config is in libacme_muon.so. Errors: no such file (the
  // files tried and the nearest name that exists), not a plugin, built for
  // another core (both sides of each difference), dlopen's own.
  absl::StatusOr<const LoadedPlugin*> Load(const std::string& config_type);

  // Packages ("capstan.ddp") of all libraries in the search path, sorted.
  std::vector<std::string> Available() const;

  // The one of them that `name`, a package or its last part ("ddp"), is meant
  // to be; "" if none is near.
  std::string NearestPackage(absl::string_view name) const;

  // Makes a `Base` (Strategy, Model, ..) from serialized config bytes. The
  // plugin must be loaded and of `category`. Errors are the plugin's own, with
  // its name before them and the field they are about (FieldOf).
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
                                    const std::string& path);

  std::vector<std::string> folders_;
  std::map<std::string, LoadedPlugin> loaded_;  // by config type
};

// "strategy", "precision", "dataset reader", ..
const char* CategoryName(PluginCategory category);

// "capstan.ddp.Config" -> "capstan.ddp"
std::string PackageOf(absl::string_view config_type);

// OK, or FAILED_PRECONDITION that lists what differs, line by line.
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
