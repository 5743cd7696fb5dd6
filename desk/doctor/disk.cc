// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/disk.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"
#include "trainer/metrics/console.h"

namespace capstan::doctor {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int kSmallFiles = 9;

// Ctrl-C and the like wait while it lives, so that nothing is left. A handler
// would be inherited by ranks.
class SignalsWait {
 public:
  SignalsWait() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      sigaddset(&signals, signal);
    }
    pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  ~SignalsWait() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsWait(const SignalsWait&) = delete;
  SignalsWait& operator=(const SignalsWait&) = delete;

 private:
  sigset_t before_;
};

absl::Status WriteLarge(const std::string& path, DiskFacts* facts) {
  // Not zeros, which some file systems don't store.
  std::string bytes(kMiB, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>((i * 2654435761u) >> 13);
  }
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kNew));
  const double begin = MonotonicSeconds();
  int64_t written = 0;
  while (written < 64 * kMiB && MonotonicSeconds() < begin + 1.0) {
    CAPSTAN_RETURN_IF_ERROR(file.Append(bytes));
    written += kMiB;
  }
  CAPSTAN_RETURN_IF_ERROR(file.Close());
  facts->bytes_per_second =
      static_cast<double>(written) / (MonotonicSeconds() - begin);
  return absl::OkStatus();
}

absl::Status WriteSmall(const std::string& folder, DiskFacts* facts) {
  const std::string bytes(4096, 'x');
  std::vector<double> seconds;
  for (int i = 0; i < kSmallFiles; ++i) {
    const double begin = MonotonicSeconds();
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::unique_ptr<HiddenFile> file,
        HiddenFile::Create(absl::StrCat(folder, "/small", i)));
    CAPSTAN_RETURN_IF_ERROR(file->Write(bytes));
    CAPSTAN_RETURN_IF_ERROR(file->Close());
    CAPSTAN_RETURN_IF_ERROR(SyncPath(folder));
    seconds.push_back(MonotonicSeconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  facts->latency = seconds[seconds.size() / 2];
  return absl::OkStatus();
}

}  // namespace

DiskFacts MeasureDisk(const std::string& folder) {
  DiskFacts facts;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!IsFolder(there.string()) && there != there.parent_path()) {
    there = there.parent_path();
  }
  facts.folder = there.string();
  struct statvfs info = {};
  if (statvfs(facts.folder.c_str(), &info) == 0) {
    facts.free_bytes = static_cast<int64_t>(info.f_bavail * info.f_frsize);
  }
  const SignalsWait wait;
  std::string scratch = facts.folder + "/.capstan-doctor-XXXXXX";
  if (mkdtemp(scratch.data()) == nullptr) {
    facts.status = WriteError(facts.folder, errno);
    return facts;
  }
  facts.status = WriteLarge(scratch + "/large", &facts);
  if (facts.status.ok()) facts.status = WriteSmall(scratch, &facts);
  RemoveTree(scratch).IgnoreError();
  return facts;
}

Finding JudgeDisk(const DiskFacts& facts) {
  if (!facts.status.ok()) {
    return FailureOf(
        "disk", facts.status,
        ErrnoOf(facts.status) == ENOSPC ? "disk/full" : "run/folder",
        "make room, or set output_dir to a folder that this user may write to");
  }
  Finding finding = {
      Level::kOk, "disk",
      absl::StrCat(facts.folder, ": ", ShortBytes(facts.free_bytes), " free, ",
                   ShortBytes(static_cast<int64_t>(facts.bytes_per_second)),
                   "/s, ", ShortDuration(facts.latency),
                   " for a small file to be safe"),
      ""};
  if (facts.latency > 0.1) {
    finding.Warn(
        "each save waits for several such files: save less often "
        "(train.save_every), or set output_dir to another disk");
  }
  if (facts.bytes_per_second < 50e6) {
    finding.Warn(
        "checkpoints will take long: set output_dir to a faster disk, or "
        "train.save_every higher");
  }
  if (facts.free_bytes < (int64_t{5} << 30)) {
    finding.Warn(
        "checkpoints fill that soon: remove old runs, or set output_dir to "
        "another disk");
  }
  return finding;
}

}  // namespace capstan::doctor
