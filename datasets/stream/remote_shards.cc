// SPDX-License-Identifier: Apache-2.0
//
// Beside each copy, FILE, is FILE.have: a byte for each block of 64 KiB, 1 if
// it is there. The folder's name has the boot's id: after a power loss a file
// may have lost what its .have tells of.
#include "datasets/stream/remote_shards.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::stream {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBlock = 64 << 10;
constexpr int64_t kAhead = 16;        // blocks
constexpr int64_t kMadeBetween = 32;  // looks for room
constexpr char kHave[] = ".have";
constexpr char kShards[] = "shards-";
constexpr int64_t kOldSeconds = 24 * 3600;
// What was used within this time isn't removed.
constexpr int64_t kInUseSeconds = 600;

std::string BootId() {
  const auto id = ReadWholeFile("/proc/sys/kernel/random/boot_id", 100);
  return Sha256Text(id.ok() ? *id : "").substr(0, 8);
}

int64_t BlocksOf(int64_t bytes) { return (bytes + kBlock - 1) / kBlock; }

bool HasSize(const std::string& path, int64_t bytes) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         info.st_size == bytes;
}

// Zeros, in another file than the one that may be there.
absl::Status MakeFile(const std::string& path, int64_t bytes) {
  unlink(path.c_str());
  const int fd =
      open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  return ftruncate(fd, bytes) == 0 ? absl::OkStatus() : WriteError(path, errno);
}

// Of the folder of the copies: held while one is made or removed, and shared
// while one is looked for. Best effort, where the disk has no locks.
class FolderLock {
 public:
  FolderLock(const std::string& folder, bool shared)
      : fd_(open((folder + "/.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC,
                 0666)) {
    struct flock range = {};
    range.l_type = static_cast<int16_t>(shared ? F_RDLCK : F_WRLCK);
    range.l_whence = SEEK_SET;
    while (fd_ >= 0 && fcntl(fd_, F_OFD_SETLKW, &range) != 0 &&
           errno == EINTR) {
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int fd_;
};

// Nothing in it, nor itself, was used or changed for so long.
bool IsUnusedFor(const std::string& folder, int64_t seconds) {
  const auto before = static_cast<int64_t>(time(nullptr)) - seconds;
  struct stat info;
  if (stat(folder.c_str(), &info) != 0 || info.st_mtim.tv_sec > before) {
    return false;
  }
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    if (stat(at->path().c_str(), &info) == 0 && info.st_mtim.tv_sec > before) {
      return false;
    }
  }
  return !error;
}

// The copies of earlier boots, which nobody uses again. Those of another host
// may be in use.
void RemoveOldFolders(const std::string& local) {
  std::vector<fs::path> old;
  std::error_code error;
  for (fs::directory_iterator at(fs::path(local).parent_path(), error), end;
       !error && at != end; at.increment(error)) {
    if (absl::StartsWith(at->path().filename().string(), kShards) &&
        at->path() != fs::path(local) &&
        IsUnusedFor(at->path().string(), kOldSeconds)) {
      old.push_back(at->path());
    }
  }
  for (const fs::path& folder : old) fs::remove_all(folder, error);
}

// The .have of a copy, locked from the first block that is asked for.
class Have {
 public:
  static absl::StatusOr<std::unique_ptr<Have>> Open(const std::string& file) {
    const std::string path = file + kHave;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return WriteError(path, errno);
    return std::unique_ptr<Have>(new Have(path, fd));
  }
  ~Have() { close(fd_); }

  // Which of the blocks aren't there.
  std::vector<int64_t> Missing(int64_t first, int64_t count) const {
    std::string there(static_cast<size_t>(count), '\0');
    const ssize_t read = pread(fd_, &there[0], there.size(), first);
    std::vector<int64_t> missing;
    for (int64_t i = 0; i < count; ++i) {
      if (i >= read || there[static_cast<size_t>(i)] != 1) {
        missing.push_back(first + i);
      }
    }
    return missing;
  }
  // Until it is closed; best effort, as two may fetch the same.
  void Lock(int64_t first, int64_t count) const {
    struct flock range = {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = first;
    range.l_len = count;
    while (fcntl(fd_, F_OFD_SETLKW, &range) != 0 && errno == EINTR) {
    }
  }
  absl::Status Mark(int64_t block) const {
    const char one = 1;
    return pwrite(fd_, &one, 1, block) == 1 ? absl::OkStatus()
                                            : WriteError(path_, errno);
  }

 private:
  Have(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  const std::string path_;
  const int fd_;
};

}  // namespace

RemoteShards::RemoteShards(RemoteFolder folder) : folder_(std::move(folder)) {
  local_ =
      absl::StrCat(TheRemoteStore()->LocalFolder(), "/", kShards, BootId());
  for (const RemoteObject& object : folder_.objects) {
    const std::string key =
        Sha256Text(absl::StrCat(folder_.address, "\n", object.name, "\n",
                                object.bytes, "\n", object.version));
    files_.push_back(absl::StrCat(local_, "/", key.substr(0, 24)));
  }
}

RemoteShards::~RemoteShards() {
  if (owner_ == getpid()) return;
  for (auto& reader : idle_) reader.release();  // another process's
}

void RemoteShards::EndHelpers() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (owner_ == getpid()) idle_.clear();
}

absl::StatusOr<std::unique_ptr<RemoteShards>> RemoteShards::List(
    const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(RemoteFolder folder, TheRemoteStore()->List(path));
  std::sort(folder.objects.begin(), folder.objects.end(),
            [](const RemoteObject& a, const RemoteObject& b) {
              return a.name < b.name;
            });
  if (folder.objects.empty()) {
    return WithCode(absl::NotFoundError(absl::StrCat(
                        path, ": there is no such object or folder")),
                    "data/file");
  }
  std::unique_ptr<RemoteShards> shards(new RemoteShards(std::move(folder)));
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(shards->local_));
  RemoveOldFolders(shards->local_);
  return shards;
}

std::string RemoteShards::AddressOf(int64_t object) const {
  return absl::StrCat(folder_.address, "/", folder_.objects[object].name);
}

absl::Status RemoteShards::Make(int64_t object) {
  const int64_t bytes = folder_.objects[object].bytes;
  const std::string& file = files_[object];
  const auto is_there = [&] {
    return HasSize(file, bytes) && HasSize(file + kHave, BlocksOf(bytes)) &&
           // Now is its last use, so that it isn't removed soon.
           utimensat(AT_FDCWD, file.c_str(), nullptr, 0) == 0;
  };
  {
    const FolderLock lock(local_, /*shared=*/true);
    if (is_there()) return absl::OkStatus();
  }
  const FolderLock lock(local_, /*shared=*/false);
  if (is_there()) return absl::OkStatus();  // another has made it
  // Not for each of many: it looks at all.
  if (made_++ % kMadeBetween == 0) MakeRoom();
  // What a .have tells of is there: so it goes first, and comes last.
  unlink((file + kHave).c_str());
  CAPSTAN_RETURN_IF_ERROR(MakeFile(file, bytes));
  return MakeFile(file + kHave, BlocksOf(bytes));
}

// What can't be removed stays. The folder is locked.
void RemoteShards::MakeRoom() const {
  struct Copy {
    int64_t used = 0;
    int64_t bytes = 0;
    std::string path;
  };
  std::vector<Copy> copies;
  int64_t sum = 0;
  std::error_code error;
  for (fs::directory_iterator at(local_, error), end; !error && at != end;
       at.increment(error)) {
    Copy copy;
    copy.path = at->path().string();
    struct stat info;
    if (fs::path(copy.path).filename().string().find('.') !=
            std::string::npos ||  // a copy's name has none
        stat(copy.path.c_str(), &info) != 0) {
      continue;
    }
    copy.used = info.st_mtim.tv_sec;
    copy.bytes = int64_t{info.st_blocks} * 512;
    sum += copy.bytes;
    copies.push_back(std::move(copy));
  }
  std::sort(copies.begin(), copies.end(),
            [](const Copy& a, const Copy& b) { return a.used < b.used; });
  for (const Copy& copy : copies) {
    if (sum <= TheRemoteStore()->LocalBytes() ||
        time(nullptr) - copy.used < kInUseSeconds) {
      return;
    }
    unlink((copy.path + kHave).c_str());
    unlink(copy.path.c_str());
    sum -= copy.bytes;
  }
}

absl::Status RemoteShards::Fetch(const std::vector<RemotePart>& parts) {
  std::unique_ptr<RemoteReader> reader;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (owner_ != getpid()) {
      for (auto& idle : idle_) idle.release();
      idle_.clear();
      owner_ = getpid();
    }
    if (!idle_.empty()) {
      reader = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  // One that fails isn't used again. The process of an idle one may have ended
  // with the thread that has started it.
  if (reader == nullptr || !reader->Fetch(parts).ok()) {
    CAPSTAN_ASSIGN_OR_RETURN(reader, TheRemoteStore()->Open(folder_.address));
    CAPSTAN_RETURN_IF_ERROR(reader->Fetch(parts));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(reader));
  return absl::OkStatus();
}

absl::Status RemoteShards::Ensure(const std::vector<Part>& parts) {
  std::vector<RemotePart> wanted;
  // Whose locks are held until their blocks are there.
  std::vector<std::unique_ptr<Have>> held;
  std::vector<std::pair<const Have*, int64_t>> blocks;
  for (const Part& part : parts) {
    CAPSTAN_RETURN_IF_ERROR(Make(part.object));
    if (part.bytes == 0) continue;
    CAPSTAN_ASSIGN_OR_RETURN(auto have, Have::Open(files_[part.object]));
    const RemoteObject& object = folder_.objects[part.object];
    const int64_t first = part.begin / kBlock;
    int64_t count = (part.begin + part.bytes - 1) / kBlock - first + 1;
    if (have->Missing(first, count).empty()) continue;
    const int64_t all = BlocksOf(object.bytes);
    count = std::min(count + kAhead, all - first);
    have->Lock(first, count);
    for (const int64_t block : have->Missing(first, count)) {
      RemotePart fetch;
      fetch.name = object.name;
      fetch.object_bytes = object.bytes;
      fetch.offset = block * kBlock;
      fetch.bytes = std::min(kBlock, object.bytes - fetch.offset);
      fetch.file = files_[part.object];
      blocks.emplace_back(have.get(), block);
      RemotePart* const last = wanted.empty() ? nullptr : &wanted.back();
      if (last != nullptr && last->file == fetch.file &&
          last->offset + last->bytes == fetch.offset) {
        last->bytes += fetch.bytes;
      } else {
        wanted.push_back(std::move(fetch));
      }
    }
    held.push_back(std::move(have));
  }
  if (wanted.empty()) return absl::OkStatus();
  CAPSTAN_RETURN_IF_ERROR(Fetch(wanted));
  for (const auto& [have, block] : blocks) {
    CAPSTAN_RETURN_IF_ERROR(have->Mark(block));
  }
  return absl::OkStatus();
}

}  // namespace capstan::stream
