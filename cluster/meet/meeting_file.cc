// SPDX-License-Identifier: Apache-2.0
#include "cluster/meet/meeting_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/launch/launchers.h"
#include "cluster/launch/network.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;

// Longer files are something else.
constexpr size_t kMostFileBytes = 4096;

absl::Status NoPlace() {
  return absl::InvalidArgumentError("it isn't a file of Capstan's meeting");
}

// The file's text. NOT_FOUND if there is none.
absl::StatusOr<std::string> ReadText(const std::string& path) {
  const fs::path name(path);
  const std::string folder =
      name.has_parent_path() ? name.parent_path().string() : ".";
  // Opening the folder makes an NFS client ask its server what has changed in
  // it; without that, one that has seen no file here can go on seeing none for
  // half a minute.
  const SocketFd in(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!in.valid()) return absl::ErrnoToStatus(errno, folder);
  const SocketFd file(openat(in.get(), name.filename().c_str(),
                             O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) return absl::ErrnoToStatus(errno, path);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return NoPlace();
  // A file of another user could lead the run to that user. The folder's owner
  // is trusted: NFS may show root's files as nobody's, and the owner controls
  // the folder anyway.
  struct stat folder_info;
  if (fstat(in.get(), &folder_info) != 0) {
    return absl::ErrnoToStatus(errno, folder);
  }
  if (info.st_uid != geteuid() && info.st_uid != folder_info.st_uid) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is of another user (", info.st_uid,
                     "), who may be leading this run astray: remove it"));
  }
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        path,
        " can be written by other users: remove it, or set the umask of "
        "its file system"));
  }
  // One more than a whole file can have.
  std::string text(kMostFileBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t n = read(file.get(), &text[size], text.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, path);
    if (n == 0) break;
    size += static_cast<size_t>(n);
  }
  text.resize(size);
  return text;
}

}  // namespace

absl::StatusOr<MeetingPlace> ParseMeetingPlace(absl::string_view text) {
  const absl::StatusOr<MeetingPlace> place = ParsePlace(PayloadOf(text));
  // Half a file isn't taken for a whole one.
  if (!place.ok() || Encode(*place) != text) return NoPlace();
  return place;
}

std::string MeetingFilePath(const std::string& folder,
                            const std::string& run_key) {
  return absl::StrCat(folder, "/.meeting-", RunKey(run_key));
}

absl::StatusOr<MeetingPlace> ReadMeetingPlace(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  return ParseMeetingPlace(text);
}

absl::StatusOr<std::unique_ptr<MeetingFile>> MeetingFile::Publish(
    const std::string& path, const MeetingPlace& place) {
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) CAPSTAN_RETURN_IF_ERROR(MakeFolder(parent.string()));
  const std::string text = Encode(place);
  // A random name, which nobody can guess.
  const std::string hidden = absl::StrCat(path, ".", RandomToken());
  {
    SocketFd file(open(hidden.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                       0600));
    if (!file.valid()) return WriteError(hidden, errno);
    absl::Status written = WriteAll(file.get(), text, hidden);
    // NFS sends it to the server here.
    if (close(file.Release()) != 0) written.Update(WriteError(hidden, errno));
    if (written.ok() && rename(hidden.c_str(), path.c_str()) != 0) {
      written = WriteError(path, errno);
    }
    if (!written.ok()) {
      unlink(hidden.c_str());
      return written;
    }
  }
  return absl::WrapUnique(new MeetingFile(path, text));
}

MeetingFile::~MeetingFile() {
  const absl::StatusOr<std::string> now = ReadText(path_);
  if (now.ok() && *now == text_) unlink(path_.c_str());
}

}  // namespace capstan
