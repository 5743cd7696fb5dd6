// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/cached_file.h"

#include <fcntl.h>
#include <isa-l/crc64.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;

// ECMA-182, reflected; continues `crc`.
uint64_t Crc64(uint64_t crc, absl::string_view bytes) {
  return crc64_ecma_refl(
      crc, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

// Behind the contents.
struct TrailerFields {
  uint64_t magic = 0x31454843414343ULL;  // "CCACHE1"
  uint64_t key = 0;
  uint64_t bytes = 0;       // of the contents
  uint64_t crc = 0;         // of the contents
  uint64_t fields_crc = 0;  // of the fields before

  uint64_t FieldsCrc() const {
    return Crc64(0, BytesOf(this, 1).substr(0, sizeof(*this) - sizeof(crc)));
  }
};
static_assert(sizeof(TrailerFields) == 40, "a file's layout");

void Note(const std::string& note) {
  std::cerr << absl::StrCat("capstan.chat: ", note, "\n");
}

// Held while a file is made. Without support for locks in the file system, two
// processes may make the same file, and the later one's stays.
class Lock {
 public:
  Lock(const fs::path& path, const std::string& made)
      : fd_(open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666)) {
    held_ = fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0;
    if (held_ || fd_ < 0 || errno != EWOULDBLOCK) return;
    Note(absl::StrCat(
        "waiting for another process, which makes a file next to ", made));
    do {
      held_ = flock(fd_, LOCK_EX) == 0;
    } while (!held_ && errno == EINTR);
  }
  ~Lock() {
    if (fd_ >= 0) close(fd_);
  }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  bool held() const { return held_; }

 private:
  const int fd_;
  bool held_ = false;
};

std::vector<fs::path> Folders(const std::string& data_path) {
  std::error_code error;
  std::vector<fs::path> folders = {
      fs::absolute(data_path, error).parent_path() / ".capstan"};
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    folders.push_back(fs::path(cache) / "capstan");
  } else if (home != nullptr && *home == '/') {
    folders.push_back(fs::path(home) / ".cache" / "capstan");
  }
  return folders;
}

absl::Status CheckWritable(const fs::path& folder) {
  // Even root leaves a read-only folder alone.
  struct stat parent;
  std::error_code error;
  if (!fs::exists(folder, error) &&
      stat(folder.parent_path().c_str(), &parent) == 0 &&
      (parent.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0) {
    return WriteError(folder.string(), EACCES);
  }
  fs::create_directories(folder, error);
  if (error) return WriteError(folder.string(), error.value());
  // The only way to detect a read-only or full file system.
  const fs::path probe = folder / absl::StrCat(".probe-", getpid());
  const int fd = open(probe.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(folder.string(), errno);
  close(fd);
  fs::remove(probe, error);
  return absl::OkStatus();
}

// The contents of a whole file of this key; an error says what is wrong.
absl::StatusOr<absl::string_view> Contents(const MappedFile& file,
                                           uint64_t key) {
  const absl::string_view bytes = file.bytes();
  TrailerFields trailer;
  if (bytes.size() < sizeof(trailer)) {
    return absl::DataLossError("its end is missing");
  }
  const size_t size = bytes.size() - sizeof(trailer);
  std::memcpy(&trailer, bytes.data() + size, sizeof(trailer));
  if (trailer.magic != TrailerFields().magic || trailer.key != key ||
      trailer.bytes != size || trailer.fields_crc != trailer.FieldsCrc()) {
    return absl::DataLossError("its end is missing");
  }
  const absl::string_view contents = bytes.substr(0, size);
  if (Crc64(0, contents) != trailer.crc) {
    return absl::DataLossError("its checksum is another");
  }
  CAPSTAN_RETURN_IF_ERROR(file.Check());
  return contents;
}

class Cache {
 public:
  Cache(const std::string& data_path, uint64_t key,
        const std::string& extension,
        const std::function<absl::Status(absl::string_view)>& check,
        const std::function<absl::Status(CacheWriter*)>& make)
      : data_path_(data_path),
        name_(absl::StrCat(fs::path(data_path).filename().string(), "-",
                           absl::Hex(key, absl::kZeroPad16), ".", extension)),
        key_(key),
        check_(check),
        make_(make) {}

  absl::StatusOr<CachedFile> Open() {
    const std::vector<fs::path> folders = Folders(data_path_);
    for (const fs::path& folder : folders) {
      absl::StatusOr<CachedFile> file = OpenIn(folder, /*notes=*/true);
      if (file.ok()) return file;
    }
    for (const fs::path& folder : folders) {
      absl::StatusOr<CachedFile> made = MakeIn(folder);
      // A place that can't be written is the only reason to try another.
      if (made.ok() || place_.ok()) return made;
      reasons_.push_back(std::string(place_.message()));
    }
    return MakeNameless();
  }

 private:
  absl::StatusOr<CachedFile> Of(std::shared_ptr<const MappedFile> file) const {
    CAPSTAN_ASSIGN_OR_RETURN(const absl::string_view contents,
                             Contents(*file, key_));
    CAPSTAN_RETURN_IF_ERROR(check_(contents));
    return CachedFile{std::move(file), contents};
  }

  absl::StatusOr<CachedFile> OpenIn(const fs::path& folder, bool notes) const {
    const std::string path = (folder / name_).string();
    CAPSTAN_ASSIGN_OR_RETURN(auto mapped, MappedFile::Open(path));
    absl::StatusOr<CachedFile> file = Of(std::move(mapped));
    if (!file.ok() && notes) {
      Note(absl::StrCat(path, " is damaged (", file.status().message(),
                        "): it is made again"));
    }
    return file;
  }

  // Sets place_ to what is wrong with the folder.
  absl::StatusOr<CachedFile> MakeIn(const fs::path& folder) {
    const std::string path = (folder / name_).string();
    place_ = CheckWritable(folder);
    CAPSTAN_RETURN_IF_ERROR(place_);
    const Lock lock(folder / "lock", path);
    absl::StatusOr<CachedFile> file = OpenIn(folder, /*notes=*/false);
    if (file.ok()) return file;
    // Named after this process for file systems without locks; else the next
    // one removes what a killed process leaves.
    absl::StatusOr<std::unique_ptr<HiddenFile>> hidden = HiddenFile::Create(
        path, lock.held() ? "new" : absl::StrCat(getpid(), ".new"));
    place_ = hidden.status();
    CAPSTAN_RETURN_IF_ERROR(place_);
    CacheWriter writer(
        [&](absl::string_view bytes) { return (*hidden)->Write(bytes); });
    const absl::Status made = make_(&writer);
    place_ = writer.status();
    CAPSTAN_RETURN_IF_ERROR(made);
    place_ = writer.Finish(key_);
    if (place_.ok()) place_ = (*hidden)->Close();
    CAPSTAN_RETURN_IF_ERROR(place_);
    // The name, too; a file system that can't sync a folder can do without.
    SyncPath(folder.string()).IgnoreError();
    return OpenMade(MappedFile::Open(path));
  }

  absl::StatusOr<CachedFile> MakeNameless() {
    Note(absl::StrCat(data_path_,
                      ": what is made of it is kept for this run only, as no "
                      "folder for it can be written (",
                      absl::StrJoin(reasons_, "; "),
                      "); set XDG_CACHE_HOME to one that can"));
    // In $TMPDIR or /tmp: nothing is left over.
    const char* const folder = std::getenv("TMPDIR");
    std::string path =
        absl::StrCat(folder != nullptr && *folder == '/' ? folder : "/tmp",
                     "/capstan-XXXXXX");
    const int fd = mkostemp(&path[0], O_CLOEXEC);
    const int error = fd < 0 ? errno : 0;
    const auto closer = absl::MakeCleanup([fd] {
      if (fd >= 0) close(fd);
    });
    if (fd >= 0) unlink(path.c_str());
    CacheWriter writer([&](absl::string_view bytes) {
      return fd < 0 ? WriteError(path, error) : WriteAll(fd, bytes, path);
    });
    const absl::Status made = make_(&writer);
    if (!made.ok() && writer.status().ok()) return made;
    if (writer.Finish(key_).ok()) return OpenMade(MappedFile::Open(fd, path));
    reasons_.push_back(std::string(writer.status().message()));
    return WithMessage(
        writer.status(),
        absl::StrCat(data_path_, ": what is made of it can be kept nowhere (",
                     absl::StrJoin(reasons_, "; "),
                     "): set XDG_CACHE_HOME to a folder that can be written"));
  }

  absl::StatusOr<CachedFile> OpenMade(
      absl::StatusOr<std::shared_ptr<const MappedFile>> mapped) const {
    CAPSTAN_RETURN_IF_ERROR(mapped.status());
    const std::string path = (*mapped)->path();
    absl::StatusOr<CachedFile> file = Of(*std::move(mapped));
    if (file.ok()) return file;
    return absl::DataLossError(absl::StrCat(
        path, " was written, but is damaged (", file.status().message(),
        "): its disk or memory fails, or another program writes it"));
  }

  const std::string& data_path_;
  const std::string name_;
  const uint64_t key_;
  const std::function<absl::Status(absl::string_view)>& check_;
  const std::function<absl::Status(CacheWriter*)>& make_;
  absl::Status place_;
  std::vector<std::string> reasons_;
};

}  // namespace

uint64_t HashOf(absl::string_view bytes) {
  uint64_t h = Crc64(0x9e3779b97f4a7c15ULL, bytes);
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

absl::Status CacheWriter::Write(absl::string_view bytes) {
  if (!status_.ok() || bytes.empty()) return status_;
  status_ = sink_(bytes);
  bytes_ += bytes.size();
  crc_ = Crc64(crc_, bytes);
  return status_;
}

absl::Status CacheWriter::Finish(uint64_t key) {
  TrailerFields trailer;
  trailer.key = key;
  trailer.bytes = bytes_;
  trailer.crc = crc_;
  trailer.fields_crc = trailer.FieldsCrc();
  return Write(BytesOf(&trailer, 1));
}

absl::StatusOr<CachedFile> OpenCached(
    const std::string& data_path, uint64_t key, const std::string& extension,
    const std::function<absl::Status(absl::string_view)>& check,
    const std::function<absl::Status(CacheWriter*)>& make) {
  return Cache(data_path, key, extension, check, make).Open();
}

}  // namespace capstan::chat
