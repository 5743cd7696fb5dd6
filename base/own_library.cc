// SPDX-License-Identifier: Apache-2.0
#include "base/own_library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/elf_section.h"
#include "base/error_code.h"
#include "base/machine.h"
#include "base/status.h"
#include "base/subprocess.h"

// The core's mark (trainer/own_libraries.bzl); none where parts of the core are
// linked into one program.
extern "C" __attribute__((weak)) const char capstan_core_interface[];

namespace capstan {
namespace {

// Bazel leaves it in an output base; it holds the workspace's path.
constexpr char kWorkspaceFile[] = "/DO_NOT_BUILD_HERE";
constexpr char kOwnLibraries[] = "own_libraries.txt";
constexpr char kCore[] = "/libcapstan_core.so";

std::string CoreFolder() {
  return LibraryFolder(reinterpret_cast<const void*>(&FindOwnLibrary));
}

std::string ParentOf(const std::string& folder) {
  return folder.substr(0, folder.rfind('/'));
}

std::string ReadAll(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// Whether anybody may put a library there.
bool IsPublic(const std::string& folder) {
  struct stat info = {};
  return stat(folder.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) != 0;
}

std::string FindFrom(std::string folder, absl::string_view name,
                     absl::string_view package) {
  // bin/trainer, or site-packages/capstan/lib: few levels.
  for (int level = 0; level < 5 && !folder.empty(); ++level) {
    if (IsPublic(folder)) return "";
    for (const std::string& below :
         {std::string("/"), absl::StrCat("/", package, "/"),
          std::string("/lib/")}) {
      const std::string path = absl::StrCat(folder, below, name);
      if (access(path.c_str(), R_OK) == 0) return path;
    }
    folder = ParentOf(folder);
  }
  return "";
}

// The output base that `folder` is in: OUTPUT_BASE/execroot/NAME/bazel-out/..;
// "" if it is in none, or another workspace built Capstan as its @capstan.
std::string OutputBaseOf(std::string folder) {
  if (!absl::StrContains(folder, "/bazel-out/") ||
      absl::StrContains(folder, "/bin/external/")) {
    return "";
  }
  while (!folder.empty()) {
    folder = ParentOf(folder);
    if (absl::EndsWith(folder, "/execroot")) return ParentOf(folder);
  }
  return "";
}

// Held until the build has ended. Its file is open for writing: NFS locks no
// other.
class BuildLock {
 public:
  explicit BuildLock(const std::string& path)
      : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (fd_ < 0 || flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    std::cerr << "waiting for another process, which builds in this clone"
              << std::endl;
    while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~BuildLock() {
    if (fd_ >= 0) close(fd_);
  }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  const int fd_;
};

absl::Status CannotBuild(absl::string_view what, absl::string_view why) {
  return WithCode(absl::FailedPreconditionError(
                      absl::StrCat("can't build ", what, ": ", why)),
                  "build/first-use");
}

// Whether the file at `path` is a whole library of that name.
absl::Status CheckLibrary(const std::string& path, absl::string_view name) {
  if (access(path.c_str(), R_OK) != 0) {
    return RefusedLibrary(
        path, absl::StrCat("it can't be read: ", std::strerror(errno)));
  }
  const absl::StatusOr<std::string> own = ReadElfSoname(path);
  if (!own.ok()) return RefusedLibrary(path, own.status().message());
  if (own->empty() || *own == name) return absl::OkStatus();
  return RefusedLibrary(
      path,
      absl::StrCat("it is ", absl::Utf8SafeCHexEscape(*own), ", not ", name));
}

absl::StatusOr<void*> OpenChecked(const std::string& path, const char* symbol,
                                  int mode) {
  void* const library = dlopen(path.c_str(), mode);
  if (library == nullptr) {
    const char* const why = dlerror();
    return RefusedLibrary(path, why == nullptr ? "it does not load" : why);
  }
  if (symbol == nullptr) return library;
  void* const found = dlsym(library, symbol);
  if (found != nullptr) return found;
  return RefusedLibrary(path, absl::StrCat("it has no ", symbol));
}

}  // namespace

absl::optional<Clone> Clone::Of(const std::string& folder) {
  Clone clone;
  clone.folder_ = folder;
  clone.output_base_ = OutputBaseOf(folder);
  if (clone.output_base_.empty()) return absl::nullopt;
  clone.root_ = ReadAll(clone.output_base_ + kWorkspaceFile);
  if (clone.root_.empty() ||
      access((clone.root_ + "/trainer/own_libraries.bzl").c_str(), R_OK) != 0) {
    return absl::nullopt;
  }
  std::ifstream list(absl::StrCat(folder, "/", kOwnLibraries));
  for (std::string path, digest; list >> path >> digest;) {
    clone.digests_.emplace(path, digest);
  }
  return clone;
}

absl::optional<Clone> Clone::OfCore() {
  // Bazel, which runs the test, would wait for its end.
  if (std::getenv("TEST_TARGET") != nullptr) return absl::nullopt;
  return Of(CoreFolder());
}

bool Clone::IsBuilt(const std::string& path, const std::string& digest) const {
  const std::string file = absl::StrCat(folder_, "/", path);
  return access(file.c_str(), R_OK) == 0 &&
         ReadAll(file + ".sources") == digest;
}

std::vector<std::string> Clone::Unbuilt() const {
  std::vector<std::string> unbuilt;
  for (const auto& [path, digest] : digests_) {
    if (!IsBuilt(path, digest)) unbuilt.push_back(path);
  }
  return unbuilt;
}

bool Clone::IsUnbuilt(const std::string& path) const {
  const auto listed = digests_.find(path);
  return listed != digests_.end() && !IsBuilt(path, listed->second);
}

absl::Status Clone::RunBazel(const std::vector<std::string>& targets,
                             absl::string_view what) const {
  const std::string command =
      absl::StrCat("bazel build ", absl::StrJoin(targets, " "));
  std::cerr << "building " << what
            << ", for the first time from these sources, which can take "
               "minutes: "
            << (targets.size() == 1
                    ? command
                    : absl::StrCat(targets.size(), " of //trainer's libraries"))
            << std::endl;
  Program bazel;
  bazel.words = {"bazel", "--output_base=" + output_base_, "build",
                 "--keep_going"};
  bazel.words.insert(bazel.words.end(), targets.begin(), targets.end());
  bazel.words.push_back(absl::StrCat("//trainer:", kOwnLibraries));
  bazel.words.insert(bazel.words.begin(), {"env", "-C", root_});
  bazel.input = Program::kNull;
  bazel.output = STDERR_FILENO;
  bazel.dies_with_parent = true;
  const absl::StatusOr<ChildEnd> end = RunProgram(bazel);
  if (end.ok() && end->ok()) return absl::OkStatus();
  constexpr int kNoProgram = 127;
  if (!end.ok() || end->code == kNoProgram) {
    return CannotBuild(what,
                       "there is no `bazel` in PATH; ./bazelw in the "
                       "clone installs it");
  }
  return CannotBuild(
      what,
      absl::StrCat("`",
                   targets.size() == 1 ? command : "bazel build //trainer:all",
                   "` in ", root_, " ended with ", end->Text(),
                   "; mend what it says above, and run it by hand"));
}

absl::Status Clone::Build(const std::vector<std::string>& paths,
                          absl::string_view what) const {
  const BuildLock lock(output_base_ + "/capstan_first_use.lock");
  std::vector<std::string> targets;
  for (const std::string& path : paths) {
    if (IsUnbuilt(path)) targets.push_back("//trainer:" + path);
  }
  if (targets.empty()) return absl::OkStatus();
  // An error's text may ask once more.
  static auto* const failed = new std::map<std::string, absl::Status>;
  const std::string key = absl::StrCat(output_base_, " ", targets[0]);
  const auto before = failed->find(key);
  if (before != failed->end()) return before->second;
  struct stat core = {}, now = {};
  stat((folder_ + kCore).c_str(), &core);
  absl::Status status = RunBazel(targets, what);
  if (!status.ok()) return failed->emplace(key, status).first->second;
  if (stat((folder_ + kCore).c_str(), &now) != 0 || now.st_ino != core.st_ino ||
      now.st_mtime != core.st_mtime) {
    return CannotBuild(what,
                       "the clone's sources have changed since the trainer was "
                       "built, so that it was built anew: start it again");
  }
  const absl::optional<Clone> built = Of(folder_);
  for (const std::string& path : paths) {
    if (built.has_value() && !built->IsUnbuilt(path)) continue;
    return CannotBuild(
        what,
        absl::StrCat(folder_, "/", path, " isn't there after `bazel build ",
                     targets[0], "` in ", root_,
                     ": the trainer was built with other options; build "
                     "//trainer:all with those"));
  }
  return absl::OkStatus();
}

std::string FindOwnLibrary(absl::string_view name, absl::string_view package) {
  std::string path = FindFrom(CoreFolder(), name, package);
  return path.empty() ? FindFrom(ExecutableFolder(), name, package) : path;
}

absl::StatusOr<std::string> OwnLibrary(absl::string_view name,
                                       absl::string_view package,
                                       absl::string_view what) {
  const std::string path = absl::StrCat("lib/", name);
  const absl::optional<Clone> clone = Clone::OfCore();
  if (clone.has_value() && clone->IsUnbuilt(path)) {
    const absl::Status built = clone->Build({path}, what);
    if (!built.ok()) return built;
  }
  return FindOwnLibrary(name, package);
}

absl::Status RefusedLibrary(const std::string& path, absl::string_view why) {
  return WithCode(absl::FailedPreconditionError(absl::StrCat(
                      path, " is refused: ", why,
                      ": build it again (bazel build //trainer:all), or unpack "
                      "the trainer's archive again")),
                  "build/library");
}

absl::StatusOr<void*> LibrarySymbol(const std::string& path,
                                    absl::string_view name, const char* symbol,
                                    int mode) {
  // What has no folder is the loader's to find.
  if (absl::StrContains(path, "/")) {
    CAPSTAN_RETURN_IF_ERROR(CheckLibrary(path, name));
  }
  return OpenChecked(path, symbol, mode);
}

absl::Status CheckInterface(const std::string& path) {
  if (capstan_core_interface == nullptr) return absl::OkStatus();
  const absl::StatusOr<absl::optional<std::string>> mark =
      ReadElfSection(path, "capstan_interface");
  if (!mark.ok()) return RefusedLibrary(path, mark.status().message());
  if (mark->has_value() &&
      absl::string_view((*mark)->c_str()) == capstan_core_interface) {
    return absl::OkStatus();
  }
  return RefusedLibrary(path, "it is of another build than the trainer's core");
}

absl::StatusOr<void*> OpenOwnLibrary(absl::string_view name,
                                     absl::string_view package,
                                     absl::string_view what, const char* symbol,
                                     int mode) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string path,
                           OwnLibrary(name, package, what));
  if (path.empty()) return OpenChecked(std::string(name), symbol, mode);
  CAPSTAN_RETURN_IF_ERROR(CheckLibrary(path, name));
  CAPSTAN_RETURN_IF_ERROR(CheckInterface(path));
  return OpenChecked(path, symbol, mode);
}

}  // namespace capstan
