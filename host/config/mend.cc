// SPDX-License-Identifier: Apache-2.0
#include "host/config/mend.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr char kMendPayload[] = "capstan/mend";
constexpr int64_t kMostBytes = 64 << 20;

// Replaces the file's text `before` by `after`: at once, or, where that would
// cost it its other links or its owner, in place. If the disk is full then, the
// old text comes back, at worst as a hidden copy beside the file.
absl::Status Rewrite(const std::string& file, const std::string& before,
                     const std::string& after) {
  struct stat info = {};
  if (stat(file.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(file, ": can't be read"));
  }
  const bool alone = info.st_nlink == 1 && info.st_uid == geteuid();
  // Nobody else reads the copy before it has the file's rights.
  const mode_t mask = umask(077);
  const absl::StatusOr<std::unique_ptr<HiddenFile>> made =
      HiddenFile::Create(file);
  umask(mask);
  CAPSTAN_RETURN_IF_ERROR(made.status());
  HiddenFile* const copy = made->get();
  CAPSTAN_RETURN_IF_ERROR(copy->Write(alone ? after : before));
  if (alone) {
    CAPSTAN_RETURN_IF_ERROR(copy->Close());
    if (chmod(file.c_str(), info.st_mode & 07777) == 0) return absl::OkStatus();
    return absl::ErrnoToStatus(
        errno, absl::StrCat(file, ": its rights can't be kept"));
  }
  const absl::Status written = WriteWholeFile(file, after);
  if (!written.ok() && !WriteWholeFile(file, before).ok()) {
    copy->Close().IgnoreError();
  }
  return written;
}

}  // namespace

absl::Status WithMend(absl::Status status, const Mend& mend) {
  status.SetPayload(kMendPayload,
                    absl::Cord(absl::StrCat(mend.line, "\n", mend.file, "\n",
                                            mend.before, "\n", mend.after)));
  return status;
}

absl::optional<Mend> MendOf(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kMendPayload);
  if (!payload.has_value()) return absl::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(std::string(*payload), absl::MaxSplits('\n', 3));
  Mend mend;
  if (parts.size() != 4 || !absl::SimpleAtoi(parts[0], &mend.line)) {
    return absl::nullopt;
  }
  mend.file = parts[1];
  mend.before = parts[2];
  mend.after = parts[3];
  return mend;
}

absl::StatusOr<std::string> ApplyMend(const Mend& mend) {
  // The copy is to lie beside the file that is meant, not beside a link to it.
  std::error_code error;
  const std::filesystem::path file =
      std::filesystem::canonical(mend.file, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(mend.file, ": it can't be mended: ", error.message()));
  }
  // The copy could take its place with rights on its folder alone.
  if (access(file.c_str(), W_OK) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(mend.file, ": it can't be mended: it isn't writable"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text,
                           ReadWholeFile(file.string(), kMostBytes));
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const size_t index = static_cast<size_t>(mend.line) - 1;
  if (index >= lines.size() || lines[index] != mend.before) {
    return absl::AbortedError(absl::StrCat(
        mend.file, ":", mend.line,
        ": the file has changed meanwhile; nothing was written: try again"));
  }
  lines[index] = mend.after;
  CAPSTAN_RETURN_IF_ERROR(
      Rewrite(file.string(), text, absl::StrJoin(lines, "\n")));
  return absl::StrCat("--- ", mend.file, "\n+++ ", mend.file, "\n@@ -",
                      mend.line, " +", mend.line, " @@\n-", mend.before, "\n+",
                      absl::StrReplaceAll(mend.after, {{"\n", "\n+"}}), "\n");
}

}  // namespace capstan
