// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/held_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_code.h"
#include "base/same_file.h"
#include "base/status.h"
#include "cluster/launch/launcher.h"

namespace capstan {
namespace {

std::string LockPath(const std::string& folder) { return folder + "/.lock"; }

// Who has the lock, for a run that finds the folder in use.
std::string Holder(const std::string& placed_by) {
  char host[256] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return absl::StrCat("host ", host, ", process ", getpid(), ", since ",
                      absl::FormatTime("%Y-%m-%d %H:%M:%S %Ez", absl::Now(),
                                       absl::LocalTimeZone()),
                      placed_by.empty() ? "" : absl::StrCat(", ", placed_by));
}

// What Holder said in the file; " (..)", or "" if it isn't known.
std::string ReadHolder(int fd) {
  char text[512];
  const ssize_t n = pread(fd, text, sizeof(text), 0);
  if (n <= 0) return "";
  const absl::string_view all(text, static_cast<size_t>(n));
  return absl::StrCat(
      " (", absl::Utf8SafeCEscape(all.substr(0, all.find('\n'))), ")");
}

// Only what others are told: that it can't be written is no reason to stop.
void WriteHolder(int fd, const std::string& placed_by) {
  const std::string text = absl::StrCat(Holder(placed_by), "\n");
  if (ftruncate(fd, 0) != 0) return;
  if (pwrite(fd, text.data(), text.size(), 0) < 0) return;
}

enum class LockOutcome { kTaken, kHeld, kImpossible };

// Locks an open file until this process and its forks have closed it, by flock
// or, where a file system has none, by a lock of fcntl that lasts as long.
// `how`: a line for the user if it isn't flock, else untouched.
LockOutcome LockFile(int fd, std::string* how) {
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return LockOutcome::kTaken;
  if (errno == EWOULDBLOCK || errno == EINTR) return LockOutcome::kHeld;
  const std::string reason = std::strerror(errno);
  struct flock whole = {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
    *how = absl::StrCat("can't be locked by flock (", reason,
                        "), and is by fcntl");
    return LockOutcome::kTaken;
  }
  if (errno == EAGAIN || errno == EACCES || errno == EINTR) {
    return LockOutcome::kHeld;
  }
  *how = absl::StrCat("can't be locked: ", reason,
                      "; make sure that no other run writes there");
  return LockOutcome::kImpossible;
}

int OpenLock(const std::string& folder) {
  return open(LockPath(folder).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
}

// Where an open folder is now; "" if it is deleted, or out of sight.
std::string PathOf(int fd) {
  std::error_code error;
  const std::string path =
      std::filesystem::read_symlink(absl::StrCat("/proc/self/fd/", fd), error)
          .string();
  return !error && LeadsTo(path, fd) ? path : "";
}

}  // namespace

absl::StatusOr<HeldFolder> HoldFolder(const std::string& folder,
                                      const std::string& placed_by,
                                      std::chrono::milliseconds patience) {
  HeldFolder held;
  held.path = folder;
  held.fd = open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  const int fd = held.fd < 0 ? -1 : OpenLock(folder);
  if (fd < 0) {
    const int error = errno;
    if (held.fd >= 0) close(held.fd);
    return absl::PermissionDeniedError(
        absl::StrCat("output_dir: ", LockPath(folder),
                     " can't be written: ", std::strerror(error)));
  }
  const auto begin = std::chrono::steady_clock::now();
  // Ranks that were started again only to save have to wait.
  const bool stops_anyway = StopRequested() != 0;
  bool told = false;
  while (true) {
    std::string how;
    const LockOutcome outcome = LockFile(fd, &how);
    if (!how.empty()) {
      std::cerr << absl::StrCat("WARNING: output_dir: ", folder, " ", how,
                                "\n");
    }
    if (outcome == LockOutcome::kTaken) {
      WriteHolder(fd, placed_by);
      held.lock = fd;
    }
    if (outcome == LockOutcome::kImpossible) close(fd);
    if (outcome != LockOutcome::kHeld) return held;
    const auto waited = std::chrono::steady_clock::now() - begin;
    if (waited >= patience) break;
    if (!stops_anyway && StopRequested() != 0) {
      close(fd);
      close(held.fd);
      return absl::CancelledError("stopped while its folder was locked");
    }
    if (waited >= kLockPatience && !std::exchange(told, true)) {
      std::cerr << absl::StrCat(
          "output_dir: ", folder, " is still locked", ReadHolder(fd),
          ": waits up to ", patience.count() / 1000,
          " s, as a file server keeps the lock of a lost host for some time\n");
    }
    absl::SleepFor(absl::Milliseconds(100));
  }
  const std::string holder = ReadHolder(fd);
  close(fd);
  close(held.fd);
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          "output_dir: ", folder, " is in use by a run that is still going",
          holder, ": wait for it, stop it, or name another folder")),
      "run/folder-busy");
}

absl::Status WasDeleted(const std::string& path) {
  return WithCode(
      absl::FailedPreconditionError(absl::StrCat(
          "output_dir: ", path, " was deleted while the run wrote to it")),
      "run/folder-gone");
}

FolderNow LookAtFolder(HeldFolder* held) {
  FolderNow now;
  if (held->fd < 0) return now;
  const std::string& path = held->path;
  const bool in_place = LeadsTo(path, held->fd);
  now.where = in_place ? path : PathOf(held->fd);
  const auto is = [&](const std::string& what) {
    now.status = absl::FailedPreconditionError(
        absl::StrCat("output_dir: ", path, " ", what));
  };
  if (now.where.empty()) {
    now.status = WasDeleted(path);
    return now;
  }
  if (!in_place) {
    is(absl::StrCat("was moved to ", now.where, " while the run wrote to it"));
  }
  if (held->lock < 0 || LeadsTo(LockPath(now.where), held->lock)) {
    if (in_place) now.where.clear();
    return now;
  }
  const int fd = OpenLock(now.where);
  std::string how;
  if (fd >= 0 && LockFile(fd, &how) == LockOutcome::kTaken) {
    held->lock = fd;
    is("has lost its file .lock, which a run that began meanwhile would have "
       "found free");
    return now;
  }
  is(absl::StrCat("has lost its file .lock, and another run has it now",
                  fd < 0 ? "" : ReadHolder(fd)));
  if (fd >= 0) close(fd);
  now.where.clear();
  return now;
}

}  // namespace capstan
