// SPDX-License-Identifier: Apache-2.0
#include "trainer/plugin_host/plugin_host.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/machine.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

std::string LibraryName(const std::string& config_type) {
  return absl::StrCat(
      "lib", absl::StrReplaceAll(PackageOf(config_type), {{".", "_"}}), ".so");
}

// "a strategy", "an optimizer"
std::string WithArticle(absl::string_view noun) {
  const bool vowel =
      absl::string_view("aeiou").find(noun[0]) != absl::string_view::npos;
  return absl::StrCat(vowel ? "an " : "a ", noun);
}

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int above = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1,
                         diagonal + (a[i - 1] == b[j - 1] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

}  // namespace

const char* CategoryName(PluginCategory category) {
  switch (category) {
    case PluginCategory::kStrategy:
      return "strategy";
    case PluginCategory::kPrecision:
      return "precision";
    case PluginCategory::kDatasetReader:
      return "dataset reader";
    case PluginCategory::kModel:
      return "model";
    case PluginCategory::kObjective:
      return "objective";
    case PluginCategory::kOptimizer:
      return "optimizer";
    case PluginCategory::kCollector:
      return "collector";
  }
  return "unknown";
}

std::string PackageOf(absl::string_view config_type) {
  const size_t dot = config_type.rfind('.');
  return std::string(dot == absl::string_view::npos
                         ? config_type
                         : config_type.substr(0, dot));
}

std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names) {
  std::string nearest;
  int best = static_cast<int>(std::max<size_t>(2, name.size() / 3)) + 1;
  for (const std::string& candidate : names) {
    int distance = EditDistance(name, candidate);
    // A name cut short is as near as a typo.
    constexpr size_t kMinPrefix = 4;
    if (name.size() >= kMinPrefix && absl::StartsWith(candidate, name)) {
      distance = 1;
    }
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

PluginHost::PluginHost(std::vector<std::string> folders)
    : folders_(std::move(folders)) {
  folders_.push_back(absl::StrCat(ExecutableFolder(), "/plugins"));
}

absl::StatusOr<const LoadedPlugin*> PluginHost::Load(
    const std::string& config_type) {
  const auto it = loaded_.find(config_type);
  if (it != loaded_.end()) return &it->second;
  const std::string library = LibraryName(config_type);
  for (const std::string& folder : folders_) {
    const fs::path path = fs::absolute(fs::path(folder) / library);
    if (!fs::exists(path)) continue;
    absl::StatusOr<LoadedPlugin> plugin = Open(config_type, path.string());
    if (!plugin.ok()) {
      return Annotate(plugin.status(),
                      absl::StrCat("plugin ", path.string(), " is refused"));
    }
    return &loaded_.emplace(config_type, *std::move(plugin)).first->second;
  }
  const std::string package = PackageOf(config_type);
  std::string message =
      absl::StrCat("there is no plugin \"", package, "\": no ", library, " in ",
                   absl::StrJoin(folders_, ", "));
  const std::string nearest = NearestPackage(package);
  if (!nearest.empty()) {
    absl::StrAppend(&message, "; did you mean \"", nearest, "\"?");
  } else {
    absl::StrAppend(&message, "; there are ", absl::StrJoin(Available(), ", "));
  }
  return absl::NotFoundError(message);
}

absl::StatusOr<LoadedPlugin> PluginHost::Open(const std::string& config_type,
                                              const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string fingerprint,
                           ReadFingerprint(path));
  CAPSTAN_RETURN_IF_ERROR(CompareFingerprints(CoreFingerprint(), fingerprint));
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto* descriptor =
      static_cast<const PluginDescriptor*>(dlsym(handle, "capstan_plugin_v1"));
  if (descriptor == nullptr || descriptor->magic != kPluginMagic) {
    return absl::FailedPreconditionError(
        "it exports no capstan_plugin_v1 (is CAPSTAN_PLUGIN missing?)");
  }
  if (descriptor->api_major != kPluginApiMajor ||
      descriptor->api_minor > kPluginApiMinor ||
      descriptor->struct_size < sizeof(PluginDescriptor)) {
    return absl::FailedPreconditionError(
        absl::StrCat("it speaks plugin API ", descriptor->api_major, ".",
                     descriptor->api_minor, ", this trainer ", kPluginApiMajor,
                     ".", kPluginApiMinor));
  }
  LoadedPlugin plugin;
  plugin.descriptor = descriptor;
  plugin.path = path;
  plugin.config_type = std::string(absl::StripPrefix(
      absl::StrReplaceAll(descriptor->config_type, {{"::", "."}}), "."));
  if (plugin.config_type != config_type) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its config is ", plugin.config_type, ", not ", config_type));
  }
  return plugin;
}

std::vector<std::string> PluginHost::Available() const {
  std::set<std::string> packages;
  for (const std::string& folder : folders_) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      const std::string file = entry.path().filename().string();
      absl::string_view name = file;
      if (!absl::ConsumePrefix(&name, "lib") ||
          !absl::ConsumeSuffix(&name, ".so") ||
          !ReadFingerprint(entry.path().string()).ok()) {
        continue;
      }
      // Packages are two deep: the first '_' separates vendor and name.
      std::string package(name);
      const size_t separator = package.find('_');
      if (separator != std::string::npos) package[separator] = '.';
      packages.insert(package);
    }
  }
  return std::vector<std::string>(packages.begin(), packages.end());
}

std::string PluginHost::NearestPackage(absl::string_view name) const {
  const std::vector<std::string> packages = Available();
  const std::string nearest = NearestName(name, packages);
  if (!nearest.empty()) return nearest;
  // "ddp" for "capstan.ddp".
  const auto last = [](absl::string_view package) {
    return std::string(package.substr(package.rfind('.') + 1));
  };
  std::vector<std::string> names;
  for (const std::string& package : packages) names.push_back(last(package));
  const std::string found = NearestName(last(name), names);
  const auto at = std::find(names.begin(), names.end(), found);
  return at == names.end() ? "" : packages[at - names.begin()];
}

absl::Status PluginHost::CreateInstance(const std::string& config_type,
                                        PluginCategory category,
                                        absl::string_view config,
                                        void** instance) {
  CAPSTAN_ASSIGN_OR_RETURN(const LoadedPlugin* plugin, Load(config_type));
  if (plugin->descriptor->category != category) {
    return absl::InvalidArgumentError(absl::StrCat(
        PackageOf(config_type), " is ",
        WithArticle(CategoryName(plugin->descriptor->category)), ", ",
        WithArticle(CategoryName(category)), " is wanted here"));
  }
  const absl::Status status = plugin->descriptor->create(config, instance);
  if (status.ok() || FieldOf(status).has_value()) return status;
  return Annotate(status, PackageOf(config_type));
}

}  // namespace capstan
