// SPDX-License-Identifier: Apache-2.0
//
// plugins and env: show what is installed.
#include <dlfcn.h>
#include <torch/csrc/api/include/torch/version.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "host/plugins/plugin_host.h"
#include "trainer/commands/command.h"
#include "trainer/commands/nccl_version.h"

namespace capstan {

// 22809 -> "2.28.9".
std::string NcclVersion() {
  void* library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return "not found";
  auto get = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int version = 0;
  if (get == nullptr || get(&version) != 0) return "unknown";
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".",
                      version % 100);
}

namespace {

using Json = nlohmann::ordered_json;

// The value of the first line "NAME : value" of a file, or "unknown".
std::string FileField(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!absl::StartsWith(line, name)) continue;
    const size_t start = line.find_first_not_of(" \t:=\"", name.size());
    const std::string value =
        start == std::string::npos ? "" : line.substr(start);
    return std::string(absl::StripSuffix(value, "\""));
  }
  return "unknown";
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  return std::getline(file, line) ? line : "none";
}

struct InfoOptions {
  std::vector<std::string> plugin_path;
  bool json = false;
};

void AddJson(Flags& flags, InfoOptions* options) {
  flags.Add("--json", &options->json, "Print JSON, for programs");
}

// For each plugin: category, doc, path and sdk; or why it can't be used.
Json PluginsAsJson(PluginHost& host) {
  Json plugins = Json::array();
  for (const std::string& package : host.Available()) {
    const absl::StatusOr<const LoadedPlugin*> plugin =
        host.LoadBuilt(absl::StrCat(package, ".Config"));
    if (!plugin.ok()) {
      plugins.push_back({{"package", package},
                         {"refused", std::string(plugin.status().message())}});
      continue;
    }
    const PluginDescriptor& descriptor = *(*plugin)->descriptor;
    plugins.push_back({{"package", package},
                       {"category", CategoryName(descriptor.category)},
                       {"doc", descriptor.doc},
                       {"path", (*plugin)->path},
                       {"sdk", (*plugin)->sdk}});
  }
  return plugins;
}

absl::StatusOr<int> ListPlugins(const InfoOptions& options) {
  PluginHost host(AllFromCaller(options.plugin_path));
  host.BuildAll();
  if (options.json) {
    const Json plugins = PluginsAsJson(host);
    std::cout << JsonText(plugins, 2) << "\n";
    return std::any_of(plugins.begin(), plugins.end(), [](const Json& plugin) {
      return plugin.contains("refused");
    });
  }
  const auto row = [](absl::string_view category, absl::string_view name,
                      absl::string_view text) {
    return absl::StrFormat("%-16s %-28s %s\n", category, name, text);
  };
  const std::string sdk = SdkVersion(CoreFingerprint());
  std::string commands;
  std::cout << row("category", "config", "what it does");
  bool refused = false;
  for (const Json& plugin : PluginsAsJson(host)) {
    const auto text = [&plugin](const char* key) {
      return plugin[key].get<std::string>();
    };
    const std::string package = text("package");
    if (plugin.contains("refused")) {
      std::cout << row("refused", package, text("refused"));
      refused = true;
      continue;
    }
    const std::string doc = absl::StrCat(
        text("doc"),
        text("sdk") == sdk ? "" : absl::StrCat(" (SDK ", text("sdk"), ")"));
    if (text("category") == CategoryName(PluginCategory::kCommand)) {
      absl::StrAppend(&commands, absl::StrFormat("  trainer %-20s %s\n",
                                                 CommandOf(package), doc));
      continue;
    }
    std::cout << row(text("category"), package + ".Config", doc);
  }
  for (const auto& [path, why] : host.Unreadable()) {
    std::cout << row("ignored", path, why.message());
  }
  if (!commands.empty()) {
    std::cout << "\ncommands, which a config doesn't name:\n" << commands;
  }
  std::cout << "\nfingerprint of the trainer:\n";
  for (absl::string_view line :
       absl::StrSplit(CoreFingerprint(), '\n', absl::SkipEmpty())) {
    std::cout << "  " << line << "\n";
  }
  return refused ? 1 : 0;
}

const RegisterFunction<InfoOptions> plugins(
    "plugins",
    [](Flags& flags, InfoOptions* options) {
      AddPluginPath(flags, &options->plugin_path);
      AddJson(flags, options);
    },
    ListPlugins);

using Rows = std::vector<std::pair<std::string, std::string>>;

void AddGpus(Rows* rows) {
  const auto row = [rows](const std::string& name, const std::string& value) {
    rows->emplace_back(name, value);
  };
  const GpuReport& report = Gpus();
  row("gpus", absl::StrCat(CountGpus()));
  for (size_t i = 0; i < report.gpus.size(); ++i) {
    const Gpu& gpu = report.gpus[i];
    row(absl::StrCat("gpu ", i),
        absl::StrCat(gpu.name, ", ", gpu.memory >> 20, " MiB (",
                     gpu.free_memory >> 20, " free), compute capability ",
                     gpu.compute_capability / 10, ".",
                     gpu.compute_capability % 10, ", ", gpu.uuid));
  }
  row("gpu driver", report.driver_version);
  if (report.cuda_version > 0) {
    row("driver's CUDA", absl::StrCat(report.cuda_version / 1000, ".",
                                      report.cuda_version % 1000 / 10));
  }
  if (!report.status.ok())
    row("gpu problem", std::string(report.status.message()));
  if (!report.note.empty()) row("gpu note", report.note);
}

absl::StatusOr<int> ShowEnvironment(const InfoOptions& options) {
  Rows rows;
  const auto row = [&rows](const std::string& name, const std::string& value) {
    rows.emplace_back(name, value);
  };
  row("system", FileField("/etc/os-release", "PRETTY_NAME"));
  row("kernel", FirstLine("/proc/sys/kernel/osrelease"));
  row("cpu", FileField("/proc/cpuinfo", "model name"));
  row("cores", absl::StrCat(AvailableCores()));
  row("memory", FileField("/proc/meminfo", "MemTotal"));
  AddGpus(&rows);
  row("libtorch", TORCH_VERSION);
  row("nccl", NcclVersion());
  row("trainer", ExecutableFolder());
  for (absl::string_view line :
       absl::StrSplit(CoreFingerprint(), '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> field =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    if (field.first != "libtorch") row(field.first, field.second);
  }
  for (const char* name :
       {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "OMP_WAIT_POLICY",
        "GOMP_SPINCOUNT", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "NCCL_DEBUG", "GLOO_SOCKET_IFNAME"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) row(name, value);
  }
  Json facts = Json::object();
  for (const auto& [name, value] : rows) {
    facts[name] = value;
    if (!options.json) {
      std::cout << absl::StrFormat("%-14s %s\n", name, value);
    }
  }
  if (options.json) std::cout << JsonText(facts, 2) << "\n";
  return 0;
}

const RegisterFunction<InfoOptions> env("env", AddJson, ShowEnvironment);

}  // namespace
}  // namespace capstan
