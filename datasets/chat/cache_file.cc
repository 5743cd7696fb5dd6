// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/cache_file.h"

#include <fcntl.h>
#include <isa-l/crc64.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace chat {
namespace {

namespace fs = std::filesystem;

// Held while a file is made. Where a file system knows no locks there is none:
// then two may make the same file, and the later one's stays.
class Lock {
 public:
  explicit Lock(const fs::path& path)
      : fd_(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    while (fd_ >= 0 && flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~Lock() {
    if (fd_ >= 0) close(fd_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  const int fd_;
};

std::vector<fs::path> Folders(const std::string& data_path) {
  std::vector<fs::path> folders = {fs::absolute(data_path).parent_path() /
                                   ".capstan"};
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    folders.push_back(fs::path(cache) / "capstan");
  } else if (home != nullptr && *home == '/') {
    folders.push_back(fs::path(home) / ".cache" / "capstan");
  }
  return folders;
}

bool CanWrite(const fs::path& folder) {
  // A folder that nobody may write is left alone by root, too.
  struct stat parent;
  std::error_code error;
  if (!fs::exists(folder, error) &&
      stat(folder.parent_path().c_str(), &parent) == 0 &&
      (parent.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0) {
    return false;
  }
  fs::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) return false;
  // A file system that is mounted read-only, or is full, shows only so.
  const fs::path probe = folder / absl::StrCat(".probe-", getpid());
  const int fd = open(probe.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  close(fd);
  fs::remove(probe, error);
  return true;
}

}  // namespace

uint64_t HashOf(absl::string_view bytes) {
  uint64_t h = crc64_ecma_refl(
      0x9e3779b97f4a7c15ULL,
      reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  // The finaliser of SplitMix64 (Steele et al., "Fast splittable pseudorandom
  // number generators", OOPSLA 2014).
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebULL;
  return h ^ (h >> 31);
}

CacheKey& CacheKey::Add(absl::string_view field) {
  absl::StrAppend(&fields_, field.size(), ":", field);
  return *this;
}

CacheKey& CacheKey::Add(uint64_t field) { return Add(absl::StrCat(field)); }

absl::Status CacheKey::AddFile(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(
        absl::StrCat(path, " can't be opened: ", std::strerror(errno)));
  }
  Add(fs::absolute(path).string());
  Add(static_cast<uint64_t>(info.st_size));
  Add(static_cast<uint64_t>(info.st_mtim.tv_sec));
  Add(static_cast<uint64_t>(info.st_mtim.tv_nsec));
  return absl::OkStatus();
}

absl::StatusOr<std::string> CachedFile(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<bool(const std::string&)>& is_valid,
    const std::function<absl::Status(HiddenFile*)>& make) {
  const std::string name =
      absl::StrCat(fs::path(data_path).filename().string(), "-",
                   absl::Hex(key, absl::kZeroPad16), ".", extension);
  const std::vector<fs::path> folders = Folders(data_path);
  for (const fs::path& folder : folders) {
    const std::string path = (folder / name).string();
    if (is_valid(path)) return path;
  }
  for (const fs::path& folder : folders) {
    if (!CanWrite(folder)) continue;
    const std::string path = (folder / name).string();
    const Lock lock(folder / "lock");
    if (is_valid(path)) return path;
    // Its name is this process's, for file systems without locks.
    CAPSTAN_ASSIGN_OR_RETURN(
        const std::unique_ptr<HiddenFile> file,
        HiddenFile::Create(path, absl::StrCat(getpid(), ".new")));
    CAPSTAN_RETURN_IF_ERROR(make(file.get()));
    CAPSTAN_RETURN_IF_ERROR(file->Close());
    return path;
  }
  return absl::PermissionDeniedError(absl::StrCat(
      data_path, ": its index can be kept neither in ", folders[0].string(),
      " nor in a folder of the user's: set XDG_CACHE_HOME to one that can be "
      "written"));
}

}  // namespace chat
}  // namespace capstan
