// SPDX-License-Identifier: Apache-2.0
#include "trainer/plugin_host/plugin_host.h"

#include <dlfcn.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/machine.h"
#include "trainer/plugin_host/older_plugins.h"
#include "trainer/plugin_host/probe.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr double kMostLoadSeconds = 30.0;
constexpr double kMostCreateSeconds = 2.0;

// Size of PluginDescriptor in minor version 0.
constexpr uint32_t kFirstDescriptorSize =
    offsetof(PluginDescriptor, create) + sizeof(PluginDescriptor::create);

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

// The library with a proto file's generated code; "" if unknown.
std::string LibraryOfProto(const std::string& file) {
  const google::protobuf::FileDescriptor* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindFileByName(file);
  if (descriptor == nullptr || descriptor->message_type_count() == 0) return "";
  const void* const message =
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(
          descriptor->message_type(0));
  Dl_info info;
  // An object begins with its vtable pointer, which points into its library.
  if (message == nullptr ||
      dladdr(*static_cast<void* const*>(message), &info) == 0) {
    return "";
  }
  return info.dli_fname;
}

// Loads the library in a child.
absl::Status ProbeLibrary(const std::string& path) {
  std::string printed;
  const absl::Status status =
      Probe([&path] { dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL); },
            kMostLoadSeconds, &printed);
  if (status.ok()) return status;
  constexpr absl::string_view kClash = "File already exists in database: ";
  const size_t clash = printed.find(std::string(kClash));
  if (clash == std::string::npos) {
    return absl::FailedPreconditionError(absl::StrCat(
        "loading it (its static initialisers run then) ", status.message()));
  }
  const size_t begin = clash + kClash.size();
  const std::string file =
      printed.substr(begin, printed.find_first_of("\r\n", begin) - begin);
  const std::string other = LibraryOfProto(file);
  return absl::FailedPreconditionError(absl::StrCat(
      "it holds the proto file ", file, ", which ",
      other.empty() ? "another library" : other,
      " holds, too: protobuf knows a file by the path that protoc is given, so "
      "move one of them to a folder of its own"));
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
    case PluginCategory::kCommand:
      return "command";
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
    // A truncated name counts as close.
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
  // Beside the trainer; beside bin/ in a folder that //:dist made.
  const fs::path own = ExecutableFolder();
  folders_.push_back(
      ((own.filename() == "bin" ? own.parent_path() : own) / "plugins")
          .string());
}

absl::StatusOr<const LoadedPlugin*> PluginHost::Load(
    const std::string& config_type) {
  const auto it = loaded_.find(config_type);
  if (it != loaded_.end()) return &it->second;
  const std::string library = LibraryName(config_type);
  for (const std::string& folder : folders_) {
    const fs::path path = fs::absolute(fs::path(folder) / library);
    if (!fs::exists(path)) continue;
    const bool foreign = &folder != &folders_.back();
    absl::StatusOr<LoadedPlugin> plugin =
        Open(config_type, path.string(), foreign || foreign_);
    if (!plugin.ok()) {
      return Annotate(plugin.status(),
                      absl::StrCat("plugin ", path.string(), " is refused"));
    }
    plugin->foreign = foreign;
    foreign_ |= foreign;
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

absl::StatusOr<PluginDescriptor> CopyDescriptor(
    const PluginDescriptor& theirs) {
  if (theirs.magic != kPluginMagic) {
    return absl::FailedPreconditionError(
        "its capstan_plugin_v1 isn't made by CAPSTAN_PLUGIN");
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckApi(absl::StrCat(theirs.api_major, ".", theirs.api_minor),
               absl::StrCat(kPluginApiMajor, ".", kPluginApiMinor)));
  PluginDescriptor copy = {};
  if (theirs.struct_size >= kFirstDescriptorSize) {
    std::memcpy(&copy, &theirs,
                std::min<size_t>(theirs.struct_size, sizeof(copy)));
  }
  if (copy.config_type == nullptr || copy.doc == nullptr ||
      copy.create == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("its descriptor isn't whole (", theirs.struct_size,
                     " bytes): build it again"));
  }
  return copy;
}

absl::StatusOr<LoadedPlugin> PluginHost::Open(const std::string& config_type,
                                              const std::string& path,
                                              bool probe) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string fingerprint,
                           ReadFingerprint(path));
  CAPSTAN_RETURN_IF_ERROR(CompareFingerprints(CoreFingerprint(), fingerprint));
  if (probe) CAPSTAN_RETURN_IF_ERROR(ProbeLibrary(path));
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto* exported =
      static_cast<const PluginDescriptor*>(dlsym(handle, "capstan_plugin_v1"));
  if (exported == nullptr) {
    return absl::FailedPreconditionError(
        "it exports no capstan_plugin_v1 (is CAPSTAN_PLUGIN missing?)");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const PluginDescriptor descriptor,
                           CopyDescriptor(*exported));
  LoadedPlugin plugin;
  plugin.descriptor = std::make_shared<PluginDescriptor>(descriptor);
  plugin.path = path;
  plugin.config_type = std::string(absl::StripPrefix(
      absl::StrReplaceAll(descriptor.config_type, {{"::", "."}}), "."));
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
      // Packages have two levels: the first '_' separates vendor and name.
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
  const PluginDescriptor& descriptor = *plugin->descriptor;
  const std::string package = PackageOf(config_type);
  if (plugin->foreign) {
    const absl::Status probe = Probe(
        [&] {
          void* unused = nullptr;
          descriptor.create(config, &unused).IgnoreError();
        },
        kMostCreateSeconds);
    if (!probe.ok() && !absl::IsDeadlineExceeded(probe)) {
      return absl::InternalError(absl::StrCat(
          package, " (", plugin->path, "): its Create ", probe.message()));
    }
  }
  *instance = nullptr;
  const absl::Status status = descriptor.create(config, instance);
  if (!status.ok()) {
    return FieldOf(status).has_value() ? status : Annotate(status, package);
  }
  if (*instance == nullptr) {
    return absl::InternalError(
        absl::StrCat(package, " (", plugin->path,
                     "): its Create returned a null pointer without an error"));
  }
  if (descriptor.api_minor < kPluginApiMinor) {
    *instance = AdaptOlderPlugin(category, descriptor.api_minor, *instance);
  }
  return absl::OkStatus();
}

}  // namespace capstan
