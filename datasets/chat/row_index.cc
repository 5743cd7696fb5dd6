// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/row_index.h"

#include <fcntl.h>
#include <isa-l/crc64.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/index_builder.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;

// Held while a file is made. Without support for locks in the file system, two
// processes may make the same file, and the later one's stays.
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
  // Even root leaves a read-only folder alone.
  struct stat parent;
  std::error_code error;
  if (!fs::exists(folder, error) &&
      stat(folder.parent_path().c_str(), &parent) == 0 &&
      (parent.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0) {
    return false;
  }
  fs::create_directories(folder, error);
  if (error || access(folder.c_str(), W_OK | X_OK) != 0) return false;
  // The only way to detect a read-only or full file system.
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
    // Named after this process, for file systems without locks.
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

namespace {

constexpr uint64_t kMagic = 0x32574f5250414343ULL;  // "CCAPROW2"
// Incremented when the same rows yield different tokens than before.
constexpr uint64_t kRowsVersion = 2;

struct Header {
  uint64_t magic = kMagic;
  uint64_t key = 0;
  RowIndex::Facts facts;
};

template <typename T>
absl::string_view BytesOf(const T* values, size_t size) {
  return {reinterpret_cast<const char*>(values), size * sizeof(T)};
}

absl::Status Write(const SourceFile& source, const IndexBuilder::Options& how,
                   uint64_t key, HiddenFile* file) {
  Header header;
  header.key = key;
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  IndexBuilder builder(source, how);
  CAPSTAN_ASSIGN_OR_RETURN(
      header.facts, builder.Run([file](absl::Span<const IndexedRow> rows) {
        return file->Write(BytesOf(rows.data(), rows.size()));
      }));
  CAPSTAN_RETURN_IF_ERROR(file->Rewind());
  return file->Write(BytesOf(&header, 1));
}

// The header if the file is complete and has this key, else null.
const Header* HeaderOf(const MappedFile& file, uint64_t key) {
  const absl::string_view bytes = file.bytes();
  if (bytes.size() < sizeof(Header)) return nullptr;
  const auto* const header = reinterpret_cast<const Header*>(bytes.data());
  const bool whole =
      header->magic == kMagic && header->key == key &&
      (bytes.size() - sizeof(Header)) % sizeof(IndexedRow) == 0 &&
      (bytes.size() - sizeof(Header)) / sizeof(IndexedRow) ==
          header->facts.rows;
  return whole ? header : nullptr;
}

}  // namespace

absl::StatusOr<RowIndex> RowIndex::Open(const SourceFile& source, Kind kind,
                                        BadRows bad_rows,
                                        const RowEncoder& encoder,
                                        uint64_t tokenizer_hash) {
  CacheKey key;
  CAPSTAN_RETURN_IF_ERROR(key.AddFile(source.path));
  key.Add(tokenizer_hash)
      .Add(encoder.Settings())
      .Add(kRowsVersion)
      .Add(Kind_Name(kind))
      .Add(BadRows_Name(bad_rows));
  RowIndex index;
  index.key_ = key.hash();
  const auto is_valid = [&](const std::string& path) {
    const auto file = MappedFile::Open(path);
    return file.ok() && HeaderOf(**file, index.key_) != nullptr;
  };
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string path,
      CachedFile(
          source.path, index.key_, "rows", is_valid, [&](HiddenFile* to) {
            return Write(source, {kind, bad_rows, &encoder}, index.key_, to);
          }));
  CAPSTAN_ASSIGN_OR_RETURN(index.file_, MappedFile::Open(path));
  const Header* const header = HeaderOf(*index.file_, index.key_);
  if (header == nullptr) {
    return absl::DataLossError(
        absl::StrCat(path, " changed while it was opened: start again"));
  }
  index.facts_ = &header->facts;
  index.rows_ = absl::MakeConstSpan(
      reinterpret_cast<const IndexedRow*>(header + 1), header->facts.rows);
  if (index.rows_.empty()) {
    const Facts& facts = *index.facts_;
    return absl::InvalidArgumentError(absl::StrCat(
        source.path,
        " has no row to train on: rows without a token to train "
        "on within max_length: ",
        facts.untrained, "; bad rows: ", facts.bad,
        facts.bad > 0 ? absl::StrCat(", the first is ", facts.first_bad)
                      : std::string()));
  }
  if (index.rows_.size() > std::numeric_limits<uint32_t>::max()) {
    return absl::UnimplementedError(absl::StrCat(
        source.path, " has more than 4,294,967,295 rows: cut it in pieces"));
  }
  return index;
}

}  // namespace capstan::chat
