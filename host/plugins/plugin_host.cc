// SPDX-License-Identifier: Apache-2.0
#include "host/plugins/plugin_host.h"

#include <dlfcn.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/stubs/logging.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/own_library.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "plugins/sdk/part.h"
#include "plugins/sdk/strategy.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr double kMostLoadSeconds = 30.0;
constexpr double kMostCreateSeconds = 2.0;

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

// Letters added, left out, replaced, or exchanged with their neighbour.
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<std::vector<int>> rows(a.size() + 1,
                                     std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      int& here = rows[i][j];
      if (i == 0 || j == 0) {
        here = static_cast<int>(i + j);
        continue;
      }
      here = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1,
                       rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        here = std::min(here, rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

// Refuses what anybody on this machine may have put there: its code would run
// as this user.
absl::Status CheckOwner(const std::string& path) {
  struct stat file = {}, folder = {};
  if (stat(path.c_str(), &file) != 0 ||
      stat(fs::path(path).parent_path().c_str(), &folder) != 0) {
    return absl::OkStatus();  // opening it will say why
  }
  const bool own = file.st_uid == geteuid() || file.st_uid == 0;
  if (own || (folder.st_mode & S_IWOTH) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(
      "user ", file.st_uid,
      " owns it, and its folder is one in which any user "
      "may write: copy it to a folder of your own if you trust it"));
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
  const absl::Status status = Probe(
      [&path] {
        // The trainer keeps quiet what protobuf says of a clash.
        google::protobuf::SetLogHandler([](google::protobuf::LogLevel,
                                           const char*, int,
                                           const std::string& message) {
          std::cerr << message << std::endl;
        });
        dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
      },
      kMostLoadSeconds, &printed,
      [&path] {
        std::cerr << "waiting for " << path
                  << ": its static initialisers take long" << std::endl;
      });
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

// Calls `visit` for each lib*.so in `folders`, with ReadFingerprint's status.
void ForEachLibrary(
    const std::vector<std::string>& folders,
    const std::function<void(const fs::path&, const absl::Status&)>& visit) {
  for (const std::string& folder : folders) {
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end;
         it.increment(error)) {
      const fs::path& path = it->path();
      if (!absl::StartsWith(path.filename().string(), "lib") ||
          path.extension() != ".so") {
        continue;
      }
      visit(path, ReadFingerprint(path.string()).status());
    }
  }
}

// The newest host's folders but the trainer's own, for CreatePart.
std::vector<std::string>& NewestFolders() {
  static auto* const folders = new std::vector<std::string>;
  return *folders;
}

constexpr size_t kMostOutput = 64 << 10;
constexpr size_t kMostQuoted = 300;
constexpr std::chrono::seconds kSlow{2};

// exit() runs this before all other handlers, which are the parent's.
void LeaveAtOnce(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

[[noreturn]] void RunChild(const std::function<void()>& call,
                           const Pipe& returned, const Pipe& printed) {
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  dup2(printed.write_end(), STDOUT_FILENO);
  dup2(printed.write_end(), STDERR_FILENO);
  on_exit(&LeaveAtOnce, nullptr);
  call();
  const char done = 1;
  while (write(returned.write_end(), &done, 1) < 0 && errno == EINTR) {
  }
  _exit(0);
}

// Reads both pipes until the child has returned, exited, or timed out. End of
// file on `returned` means it exited, unless a child of its own holds the pipe
// open.
enum class End { kReturned, kGone, kLate };
End Watch(const Pipe& returned, const Pipe& printed, double seconds,
          std::string* output, std::function<void()> slow) {
  using Clock = std::chrono::steady_clock;
  using std::chrono::milliseconds;
  const Clock::time_point start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(seconds));
  pollfd fds[2] = {{returned.read_end(), POLLIN, 0},
                   {printed.read_end(), POLLIN, 0}};
  while (true) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline) return End::kLate;
    if (slow != nullptr && now >= start + kSlow) {
      std::exchange(slow, nullptr)();
    }
    const Clock::time_point next =
        slow == nullptr ? deadline : std::min(deadline, start + kSlow);
    const auto left = std::chrono::duration_cast<milliseconds>(next - now);
    const int ready = poll(fds, 2, static_cast<int>(left.count()) + 1);
    if (ready < 0 && errno != EINTR) return End::kLate;
    if (ready <= 0) continue;
    char buffer[4096];
    // Read output first, so that none is lost.
    if (fds[1].revents != 0) {
      const ssize_t n = read(fds[1].fd, buffer, sizeof(buffer));
      if (n == 0) fds[1].fd = -1;
      if (n > 0 && output->size() < kMostOutput) output->append(buffer, n);
      continue;
    }
    if (fds[0].revents != 0) {
      const ssize_t n = read(fds[0].fd, buffer, 1);
      if (n == 0) return End::kGone;
      if (n == 1) return End::kReturned;
    }
  }
}

// "; it printed: .." with the tail of the output on one line, or "".
std::string LastWords(absl::string_view output) {
  output = absl::StripAsciiWhitespace(output);
  if (output.empty()) return "";
  const bool cut = output.size() > kMostQuoted;
  if (cut) output.remove_prefix(output.size() - kMostQuoted);
  std::string text(output);
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return absl::StrCat("; it printed: ", cut ? ".." : "", text);
}

}  // namespace

const char* CategoryName(PluginCategory category) {
  constexpr const char* kNames[] = {
      "unknown",   "strategy",  "precision", "dataset reader", "model",
      "objective", "optimizer", "collector", "command",        "part"};
  const auto index = static_cast<size_t>(category);
  return kNames[index < std::size(kNames) ? index : 0];
}

std::string PackageOf(absl::string_view config_type) {
  const size_t dot = config_type.rfind('.');
  return std::string(dot == absl::string_view::npos
                         ? config_type
                         : config_type.substr(0, dot));
}

std::string CommandOf(absl::string_view package) {
  package.remove_prefix(package.rfind('.') + 1);
  return absl::ConsumePrefix(&package, "command_")
             ? absl::StrReplaceAll(package, {{"_", "-"}})
             : "";
}

std::string NearestName(absl::string_view name,
                        const std::vector<std::string>& names) {
  std::string nearest;
  // "fp8" isn't "dpo", nor "5" "ls".
  const size_t most =
      std::min(std::max<size_t>(2, name.size() / 3), name.size() / 2);
  int best = static_cast<int>(most) + 1;
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

std::string DidYouMean(absl::string_view name) {
  return name.empty() ? "" : absl::StrCat("; did you mean ", name, "?");
}

PluginHost::PluginHost(std::vector<std::string> folders,
                       absl::optional<Clone> clone)
    : folders_(std::move(folders)), clone_(std::move(clone)) {
  NewestFolders() = folders_;
  // Beside the core; beside lib/ in a folder that //:dist made.
  const fs::path own =
      LibraryFolder(reinterpret_cast<const void*>(&CoreFingerprint));
  folders_.push_back(
      ((own.filename() == "lib" ? own.parent_path() : own) / "plugins")
          .string());
}

absl::StatusOr<const LoadedPlugin*> PluginHost::Load(
    const std::string& config_type) {
  const auto it = loaded_.find(config_type);
  if (it != loaded_.end()) return &it->second;
  const std::string library = LibraryName(config_type);
  for (const std::string& folder : folders_) {
    const bool foreign = &folder != &folders_.back();
    if (!foreign && !IsBuilt(PackageOf(config_type))) {
      CAPSTAN_RETURN_IF_ERROR(
          clone_->Build({"plugins/" + library}, PackageOf(config_type)));
    }
    std::error_code error;
    const fs::path path = fs::absolute(fs::path(folder) / library, error);
    if (error || !PathExists(path.string())) continue;
    absl::StatusOr<LoadedPlugin> plugin =
        Open(config_type, path.string(), foreign || foreign_);
    if (!plugin.ok()) {
      return WithCode(
          Annotate(plugin.status(),
                   absl::StrCat("plugin ", path.string(), " is refused")),
          "plugin/refused");
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
    absl::StrAppend(&message, "; there are ",
                    absl::StrJoin(ForConfigs(), ", "));
  }
  return WithCode(absl::NotFoundError(message), "plugin/not-found");
}

absl::StatusOr<const LoadedPlugin*> PluginHost::LoadBuilt(
    const std::string& config_type) {
  if (IsBuilt(PackageOf(config_type))) return Load(config_type);
  return absl::NotFoundError(absl::StrCat(config_type, " isn't built"));
}

absl::StatusOr<LoadedPlugin> PluginHost::Open(const std::string& config_type,
                                              const std::string& path,
                                              bool probe) {
  CAPSTAN_RETURN_IF_ERROR(CheckOwner(path));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string fingerprint,
                           ReadFingerprint(path));
  CAPSTAN_RETURN_IF_ERROR(CompareFingerprints(CoreFingerprint(), fingerprint));
  if (probe) CAPSTAN_RETURN_IF_ERROR(ProbeLibrary(path));
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) return absl::FailedPreconditionError(dlerror());
  const auto* descriptor =
      static_cast<const PluginDescriptor*>(dlsym(handle, "capstan_plugin_v1"));
  if (descriptor == nullptr) {
    return absl::FailedPreconditionError(
        "it exports no capstan_plugin_v1 (is CAPSTAN_PLUGIN missing?)");
  }
  if (descriptor->magic != kPluginMagic) {
    return absl::FailedPreconditionError(
        "its capstan_plugin_v1 isn't made by CAPSTAN_PLUGIN");
  }
  LoadedPlugin plugin;
  plugin.descriptor = descriptor;
  plugin.path = path;
  plugin.sdk = SdkVersion(fingerprint);
  plugin.config_type = std::string(absl::StripPrefix(
      absl::StrReplaceAll(descriptor->config_type, {{"::", "."}}), "."));
  if (plugin.config_type != config_type) {
    return absl::FailedPreconditionError(absl::StrCat(
        "its config is ", plugin.config_type, ", not ", config_type));
  }
  return plugin;
}

namespace {

// "/a/libcapstan_ddp.so" -> "capstan.ddp"
std::string PackageIn(const fs::path& path) {
  std::string package = path.stem().string().substr(3);
  // Packages have two levels: the first '_' separates vendor and name.
  const size_t separator = package.find('_');
  if (separator != std::string::npos) package[separator] = '.';
  return package;
}

}  // namespace

std::vector<std::string> PluginHost::Available() const {
  std::set<std::string> packages;
  ForEachLibrary(folders_, [&](const fs::path& path, const absl::Status& read) {
    if (read.ok()) packages.insert(PackageIn(path));
  });
  for (const std::string& library : Unbuilt()) {
    packages.insert(PackageIn(library));
  }
  return std::vector<std::string>(packages.begin(), packages.end());
}

std::vector<std::string> PluginHost::Unbuilt() const {
  std::vector<std::string> libraries =
      clone_.has_value() ? clone_->Unbuilt() : std::vector<std::string>();
  libraries.erase(std::remove_if(libraries.begin(), libraries.end(),
                                 [](const std::string& path) {
                                   return !absl::StartsWith(path, "plugins/");
                                 }),
                  libraries.end());
  return libraries;
}

bool PluginHost::IsBuilt(const std::string& package) const {
  return !clone_.has_value() ||
         !clone_->IsUnbuilt("plugins/" + LibraryName(package + ".Config"));
}

void PluginHost::BuildAll() const {
  const std::vector<std::string> unbuilt = Unbuilt();
  if (unbuilt.empty()) return;
  const absl::Status status = clone_->Build(unbuilt, "all plugins");
  if (!status.ok()) std::cerr << "WARNING: " << status.message() << std::endl;
}

std::map<std::string, std::string> PluginHost::ModelTypes() const {
  std::map<std::string, std::string> packages;
  ForEachLibrary(folders_, [&](const fs::path& path, const absl::Status& read) {
    if (!read.ok()) return;
    for (const std::string& type : ReadModelTypes(path.string())) {
      packages.emplace(type, PackageIn(path));
    }
  });
  return packages;
}

std::map<std::string, absl::Status> PluginHost::Unreadable() const {
  std::map<std::string, absl::Status> unreadable;
  ForEachLibrary(folders_, [&](const fs::path& path, const absl::Status& read) {
    if (!read.ok()) unreadable.emplace(path.string(), read);
  });
  return unreadable;
}

std::vector<std::string> PluginHost::ForConfigs() const {
  std::vector<std::string> packages = Available();
  packages.erase(std::remove_if(packages.begin(), packages.end(),
                                [](const std::string& package) {
                                  return !CommandOf(package).empty();
                                }),
                 packages.end());
  return packages;
}

std::string PluginHost::NearestPackage(absl::string_view name) const {
  const std::vector<std::string> packages = ForConfigs();
  // By the last part: that of others' "capstan." would make all alike.
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
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            PackageOf(config_type), " is ",
            WithArticle(CategoryName(plugin->descriptor->category)), ", ",
            WithArticle(CategoryName(category)), " is wanted here")),
        "plugin/category");
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
    if (absl::IsDeadlineExceeded(probe)) {
      std::cerr << "waiting for " << package << " (" << plugin->path
                << "): its Create takes long" << std::endl;
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
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Part>> CreatePart(const std::string& type,
                                                 absl::string_view config) {
  // What is loaded stays so, and is found there again.
  PluginHost host(NewestFolders());
  return host.Create<Part>(type, PluginCategory::kPart, config);
}

absl::StatusOr<std::unique_ptr<Strategy>> CreateStrategy(
    const std::string& type, absl::string_view config) {
  PluginHost host(NewestFolders());
  return host.Create<Strategy>(type, PluginCategory::kStrategy, config);
}

absl::Status Probe(const std::function<void()>& call, double limit_seconds,
                   std::string* output, const std::function<void()>& slow) {
  std::string text;
  if (output == nullptr) output = &text;
  Pipe returned, printed;
  if (!returned.ok() || !printed.ok()) return absl::OkStatus();
  const pid_t child = Fork();
  if (child < 0) return absl::OkStatus();
  if (child == 0) RunChild(call, returned, printed);
  returned.CloseWrite();
  printed.CloseWrite();
  const End end = Watch(returned, printed, limit_seconds, output, slow);
  if (end == End::kLate) kill(child, SIGKILL);
  const ChildEnd how = WaitFor(child);
  if (end == End::kReturned) return absl::OkStatus();
  if (end == End::kLate) {
    return absl::DeadlineExceededError(
        absl::StrCat("did not end within ", limit_seconds, " s"));
  }
  if (how.signal > 0) {
    return absl::InternalError(absl::StrCat("crashed: signal ", how.signal,
                                            " (", strsignal(how.signal), ")",
                                            LastWords(*output)));
  }
  return absl::InternalError(absl::StrCat(
      "ended the process", how.known() ? ", with " + how.Text() : "",
      LastWords(*output)));
}

}  // namespace capstan
