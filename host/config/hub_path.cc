// SPDX-License-Identifier: Apache-2.0
#include "host/config/hub_path.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "hf:";
// refs/REVISION holds a commit's 40 digits.
constexpr int64_t kMostRefBytes = 1000;

struct HubPath {
  HubKind kind;
  std::string repo;  // "OWNER/NAME", of old ones "NAME"
  std::string revision = "main";
  std::string file;  // may be ""
};

// A part of a path that stays where it is.
bool IsName(absl::string_view name) {
  return !name.empty() && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
         });
}

bool IsInside(absl::string_view file) {
  for (const absl::string_view part : absl::StrSplit(file, '/')) {
    if (part.empty() || part == "." || part == ".." || part[0] == '-') {
      return false;
    }
  }
  return true;
}

absl::StatusOr<HubPath> Parse(absl::string_view text, HubKind kind) {
  const auto wrong = [text] {
    return WithCode(absl::InvalidArgumentError(absl::StrCat(
                        "\"", text,
                        "\": write hf:OWNER/NAME, hf:OWNER/NAME@REVISION or "
                        "hf:OWNER/NAME/FILE")),
                    "hub/name");
  };
  absl::string_view rest = absl::StripPrefix(text, kPrefix);
  HubPath path{kind};
  if (absl::ConsumePrefix(&rest, "datasets/")) path.kind = HubKind::kDataset;
  std::vector<absl::string_view> parts =
      absl::StrSplit(rest, absl::MaxSplits('/', 2));
  // Only the last part of a name has a revision.
  const size_t names = std::min<size_t>(parts.size(), 2);
  const std::vector<absl::string_view> last =
      absl::StrSplit(parts[names - 1], absl::MaxSplits('@', 1));
  parts[names - 1] = last[0];
  if (last.size() > 1) path.revision = std::string(last[1]);
  path.repo = absl::StrJoin(parts.begin(), parts.begin() + names, "/");
  if (parts.size() > 2)
    path.file = std::string(absl::StripSuffix(parts[2], "/"));
  const bool right =
      std::all_of(parts.begin(), parts.begin() + names, IsName) &&
      IsName(path.revision) && (path.file.empty() || IsInside(path.file));
  if (!right) return wrong();
  return path;
}

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string CacheFolder() {
  const std::string cache = Variable("HF_HUB_CACHE");
  if (!cache.empty()) return cache;
  const std::string home = Variable("HF_HOME");
  if (!home.empty()) return home + "/hub";
  const std::string xdg = Variable("XDG_CACHE_HOME");
  return (xdg.empty() ? Variable("HOME") + "/.cache" : xdg) +
         "/huggingface/hub";
}

bool IsPattern(absl::string_view file) {
  return file.find_first_of("*?[") != absl::string_view::npos;
}

int64_t CountFiles(const std::string& path) {
  if (!IsFolder(path)) return PathExists(path) ? 1 : 0;
  int64_t count = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator at(path, error), end;
       !error && at != end; at.increment(error)) {
    if (!IsFolder(at->path().string())) ++count;
  }
  return count;
}

// What the cache has of a path.
struct Cached {
  std::string path;  // "": nothing
  int64_t files = 0;
};

Cached FindPattern(const std::string& pattern) {
  glob_t found = {};
  Cached cached;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    cached.path = pattern;
    for (size_t i = 0; i < found.gl_pathc; ++i) {
      cached.files += CountFiles(found.gl_pathv[i]);
    }
  }
  globfree(&found);
  return cached;
}

std::string RepoFolder(const HubPath& path, const std::string& cache) {
  return absl::StrCat(cache, "/",
                      path.kind == HubKind::kModel ? "models" : "datasets",
                      "--", absl::StrReplaceAll(path.repo, {{"/", "--"}}));
}

Cached Find(const HubPath& path, const std::string& cache) {
  const std::string folder = RepoFolder(path, cache);
  std::string commit = path.revision;
  const auto ref =
      ReadWholeFile(folder + "/refs/" + path.revision, kMostRefBytes);
  if (ref.ok()) commit = std::string(absl::StripAsciiWhitespace(*ref));
  std::string found = folder + "/snapshots/" + commit;
  if (!IsName(commit) || !IsFolder(found)) return {};
  if (!path.file.empty()) absl::StrAppend(&found, "/", path.file);
  if (PathExists(found)) return {found, CountFiles(found)};
  return IsPattern(path.file) ? FindPattern(found) : Cached{};
}

// A file that a download left behind, "" if none.
std::string Unfinished(const HubPath& path, const std::string& cache) {
  std::error_code error;
  const fs::path blobs = RepoFolder(path, cache) + "/blobs";
  for (fs::directory_iterator at(blobs, error), end; !error && at != end;
       at.increment(error)) {
    if (at->path().extension() == ".incomplete") return at->path().string();
  }
  return "";
}

std::vector<std::string> DownloadCommand(const HubPath& path) {
  std::vector<std::string> command = {"hf", "download", path.repo};
  if (path.kind == HubKind::kDataset) {
    command.insert(command.end(), {"--repo-type", "dataset"});
  }
  if (path.revision != "main") {
    command.insert(command.end(), {"--revision", path.revision});
  }
  if (!path.file.empty()) {
    // A file or all of a folder (and what else begins so), or what matches. One
    // pattern, since of several older versions of hf take only the last.
    command.insert(
        command.end(),
        {"--include", path.file + (IsPattern(path.file) ? "" : "*")});
  }
  return command;
}

// Its output goes to standard error: ours may be read by a program.
// FAILED_PRECONDITION: it can't be run.
absl::Status Run(const std::vector<std::string>& command,
                 absl::string_view why) {
  Program program;
  program.words = command;
  program.output = STDERR_FILENO;
  const absl::StatusOr<ChildEnd> end = RunProgram(program);
  const std::string shown = absl::StrJoin(command, " ");
  if (!end.ok()) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            why, ", and the program `hf`, which would fetch it, can't be run (",
            end.status().message(),
            "): install it (pip install huggingface_hub), or run elsewhere: ",
            shown, ", and set HF_HOME to a copy of what it fetched")),
        "hub/fetch");
  }
  if (end->ok()) return absl::OkStatus();
  return WithCode(absl::UnavailableError(absl::StrCat(
                      why, ", and `", shown, "` failed (", end->Text(),
                      "): see above for its own words; with HF_HUB_OFFLINE=1 "
                      "what the cache "
                      "has is used")),
                  "hub/fetch");
}

bool IsOffline() {
  const std::string offline = absl::AsciiStrToUpper(Variable("HF_HUB_OFFLINE"));
  return offline == "1" || offline == "TRUE" || offline == "YES" ||
         offline == "ON";
}

// What the cache has, unchecked, as `why` says: which files the repository has
// isn't known here, so that the user is told what is used.
absl::StatusOr<std::string> UseAsItIs(absl::string_view text,
                                      const HubPath& path,
                                      const std::string& cache,
                                      const Cached& found,
                                      absl::string_view why) {
  const std::string unfinished = Unfinished(path, cache);
  if (!unfinished.empty()) {
    return WithCode(
        absl::FailedPreconditionError(absl::StrCat(
            text,
            " is in Hugging Face's cache, but a download of it hasn't ended (",
            unfinished, "), and ", why, ": finish it with `",
            absl::StrJoin(DownloadCommand(path), " "),
            "`, or remove that file if all is there")),
        "hub/fetch");
  }
  std::cerr << absl::StrCat(
      text, ": ", found.files, found.files == 1 ? " file" : " files",
      " of Hugging Face's cache, which may not be all that there are: ", why,
      "\n");
  return found.path;
}

}  // namespace

bool IsHubPath(absl::string_view text) {
  return absl::StartsWith(text, kPrefix);
}

absl::StatusOr<std::string> ResolveHubPath(absl::string_view text,
                                           HubKind kind) {
  CAPSTAN_ASSIGN_OR_RETURN(const HubPath path, Parse(text, kind));
  const std::string cache = CacheFolder();
  Cached found = Find(path, cache);
  // A file is whole once it has its name; of several some may be missing.
  if (!path.file.empty() && IsRegularFile(found.path)) return found.path;
  const std::string why =
      absl::StrCat(text, " isn't in Hugging Face's cache (", cache, ")");
  if (IsOffline()) {
    if (!found.path.empty()) {
      return UseAsItIs(text, path, cache, found, "HF_HUB_OFFLINE is set");
    }
    return WithCode(
        absl::NotFoundError(absl::StrCat(
            why,
            ", and HF_HUB_OFFLINE is set: unset it, or set HF_HOME to where "
            "it is")),
        "hub/missing");
  }
  const absl::Status run =
      Run(DownloadCommand(path),
          found.path.empty() ? why : absl::StrCat(text, " may lack files"));
  if (absl::IsFailedPrecondition(run) && !found.path.empty()) {
    return UseAsItIs(text, path, cache, found,
                     "the program `hf`, which would fetch them, can't be run");
  }
  CAPSTAN_RETURN_IF_ERROR(run);
  found = Find(path, cache);
  if (!found.path.empty()) return found.path;
  return WithCode(
      absl::NotFoundError(absl::StrCat(
          why, ", nor is it after a download: there is no such file in it")),
      "hub/missing");
}

}  // namespace capstan
