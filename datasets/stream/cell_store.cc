// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/cell_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::stream {
namespace {

namespace fs = std::filesystem;

constexpr char kMagic[8] = {'C', 'A', 'P', 'C', 'E', 'L', 'L', '1'};
constexpr int64_t kHeaderBytes = 32;
constexpr size_t kMostNameKept = 150;  // of a shard, in names of files
constexpr uint32_t kKnown = 1;
constexpr uint32_t kKept = 2;

struct Entry {
  uint64_t offset = 0;  // in the pack
  uint32_t tokens = 0;
  uint32_t documents = 0;
  uint32_t bad_rows = 0;
  uint32_t flags = 0;
  uint32_t data_crc = 0;
  uint32_t crc = 0;  // of the fields before, and the cell's number

  uint32_t CrcOf(int64_t cell) const {
    std::string bytes(reinterpret_cast<const char*>(this),
                      sizeof(*this) - sizeof(crc));
    bytes.append(reinterpret_cast<const char*>(&cell), sizeof(cell));
    return Crc32c(bytes);
  }
  bool IsOf(int64_t cell) const {
    return (flags & kKnown) != 0 && crc == CrcOf(cell);
  }
};
static_assert(sizeof(Entry) == 32, "a file's layout");

int64_t PlaceOf(int64_t cell) {
  return kHeaderBytes + cell * static_cast<int64_t>(sizeof(Entry));
}

bool ReadAll(int fd, void* to, int64_t size, int64_t at) {
  auto* bytes = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t read = pread(fd, bytes, static_cast<size_t>(size), at);
    if (read < 0 && errno == EINTR) continue;
    if (read <= 0) return false;
    bytes += read;
    at += read;
    size -= read;
  }
  return true;
}

absl::Status WriteAllAt(int fd, absl::string_view bytes, int64_t at,
                        const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = pwrite(fd, bytes.data(), bytes.size(), at);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return WriteError(path, errno);
    bytes.remove_prefix(static_cast<size_t>(wrote));
    at += wrote;
  }
  return absl::OkStatus();
}

// Of the open file, so that threads exclude each other, too. Best effort:
// without it two may do the same work.
void LockRange(int fd, int64_t begin, int64_t size) {
  struct flock range = {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = begin;
  range.l_len = size;
  while (fcntl(fd, F_OFD_SETLKW, &range) != 0 && errno == EINTR) {
  }
}

absl::Status CheckWritable(const std::string& folder) {
  // Even root leaves a read-only folder alone.
  struct stat parent;
  if (!PathExists(folder) &&
      stat(fs::path(folder).parent_path().c_str(), &parent) == 0 &&
      (parent.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0) {
    return WriteError(folder, EACCES);
  }
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(folder));
  const std::string probe = absl::StrCat(folder, "/.probe-", getpid());
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(probe, "x"));
  unlink(probe.c_str());
  return absl::OkStatus();
}

std::vector<std::string> Folders(const std::string& shard_path) {
  std::error_code error;
  std::vector<std::string> folders = {
      (fs::absolute(shard_path, error).parent_path() / ".capstan").string()};
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    folders.push_back(absl::StrCat(cache, "/capstan"));
  } else if (home != nullptr && *home == '/') {
    folders.push_back(absl::StrCat(home, "/.cache/capstan"));
  }
  return folders;
}

template <typename Token>
void AppendTokens(const std::vector<uint32_t>& ids, std::string* bytes) {
  const size_t at = bytes->size();
  bytes->resize(at + ids.size() * sizeof(Token));
  char* to = &(*bytes)[at];
  for (const uint32_t id : ids) {
    const Token token = static_cast<Token>(id);
    std::memcpy(to, &token, sizeof(token));
    to += sizeof(token);
  }
}

template <typename Token>
void TakeTokens(const char* from, std::vector<uint32_t>* ids) {
  for (uint32_t& id : *ids) {
    Token token;
    std::memcpy(&token, from, sizeof(token));
    id = token;
    from += sizeof(token);
  }
}

// No document's end is beyond the tokens, or before the one before.
bool FitTogether(const CellTokens& tokens) {
  return std::is_sorted(tokens.ends.begin(), tokens.ends.end()) &&
         (tokens.ends.empty() ? tokens.ids.empty()
                              : tokens.ends.back() == tokens.ids.size());
}

}  // namespace

std::unique_ptr<CellStore> CellStore::Open(const std::vector<Shard>* shards,
                                           absl::string_view settings,
                                           int64_t vocab_size,
                                           const std::string& folder) {
  std::unique_ptr<CellStore> store(new CellStore(shards, vocab_size));
  store->settings_ = std::string(settings);
  const std::vector<std::string> folders =
      folder.empty() ? Folders((*shards)[0].path)
                     : std::vector<std::string>{folder};
  for (const std::string& place : folders) {
    const absl::Status writable = CheckWritable(place);
    if (writable.ok()) {
      store->folder_ = place;
      store->problem_.clear();
      break;
    }
    absl::StrAppend(&store->problem_, store->problem_.empty() ? "" : "; ",
                    writable.message());
  }
  return store;
}

std::string CellStore::PathOf(int64_t shard, absl::string_view ending) const {
  const Shard& of = shards_[shard];
  const std::string key = Sha256Text(
      absl::StrCat(settings_, "\n", of.bytes, "\n", of.modified, "\n",
                   of.ends_hash, "\n", of.cells, "\n", of.per_cell));
  return absl::StrCat(
      folder_, "/",
      fs::path(of.path).filename().string().substr(0, kMostNameKept), "-",
      key.substr(0, 16), ending);
}

int64_t CellStore::KeptBytes() const {
  int64_t bytes = 0;
  for (size_t i = 0; !folder_.empty() && i < shards_.size(); ++i) {
    struct stat info;
    if (stat(PathOf(static_cast<int64_t>(i), ".pack").c_str(), &info) == 0) {
      bytes += info.st_size;
    }
  }
  return bytes;
}

// -1 if there is none, or it can't be made.
int CellStore::OpenIndex(int64_t shard, bool make) const {
  if (folder_.empty()) return -1;
  const std::string path = PathOf(shard, ".cells");
  const int fd = open(path.c_str(),
                      (make ? O_CREAT | O_RDWR : O_RDONLY) | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  char header[sizeof(kMagic)] = {};
  if (ReadAll(fd, header, sizeof(header), 0) &&
      std::memcmp(header, kMagic, sizeof(kMagic)) == 0) {
    return fd;
  }
  if (make && WriteAllAt(fd, {kMagic, sizeof(kMagic)}, 0, path).ok()) return fd;
  close(fd);
  return -1;
}

std::vector<int64_t> CellStore::Counts(int64_t shard, int64_t first,
                                       int64_t count) const {
  std::vector<int64_t> counts(static_cast<size_t>(count), -1);
  const int fd = OpenIndex(shard, /*make=*/false);
  if (fd < 0) return counts;
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) return counts;
  const int64_t there =
      std::min<int64_t>(
          first + count,
          (info.st_size - kHeaderBytes) / static_cast<int64_t>(sizeof(Entry))) -
      first;
  if (there <= 0) return counts;
  std::vector<Entry> entries(static_cast<size_t>(there));
  if (!ReadAll(fd, entries.data(), there * sizeof(Entry), PlaceOf(first))) {
    return counts;
  }
  for (int64_t i = 0; i < there; ++i) {
    if (entries[i].IsOf(first + i)) counts[i] = entries[i].tokens;
  }
  return counts;
}

std::unique_ptr<CellTokens> CellStore::Read(int64_t shard, int64_t cell) const {
  const int fd = OpenIndex(shard, /*make=*/false);
  if (fd < 0) return nullptr;
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  Entry entry;
  if (!ReadAll(fd, &entry, sizeof(entry), PlaceOf(cell)) || !entry.IsOf(cell) ||
      (entry.flags & kKept) == 0) {
    return nullptr;
  }
  const int pack = open(PathOf(shard, ".pack").c_str(), O_RDONLY | O_CLOEXEC);
  if (pack < 0) return nullptr;
  const auto pack_closer = absl::MakeCleanup([pack] { close(pack); });
  struct stat info;
  const int64_t ends_bytes = int64_t{entry.documents} * sizeof(uint32_t);
  const int64_t size = ends_bytes + int64_t{entry.tokens} * (wide_ ? 4 : 2);
  if (fstat(pack, &info) != 0 || size > info.st_size) return nullptr;
  std::string bytes(static_cast<size_t>(size), '\0');
  if (!ReadAll(pack, &bytes[0], size, static_cast<int64_t>(entry.offset)) ||
      Crc32c(bytes) != entry.data_crc) {
    return nullptr;
  }
  auto tokens = std::make_unique<CellTokens>();
  tokens->bad_rows = entry.bad_rows;
  tokens->ends.resize(entry.documents);
  std::memcpy(tokens->ends.data(), bytes.data(),
              static_cast<size_t>(ends_bytes));
  tokens->ids.resize(entry.tokens);
  if (wide_) {
    TakeTokens<uint32_t>(bytes.data() + ends_bytes, &tokens->ids);
  } else {
    TakeTokens<uint16_t>(bytes.data() + ends_bytes, &tokens->ids);
  }
  return FitTogether(*tokens) ? std::move(tokens) : nullptr;
}

absl::Status CellStore::Append(int64_t shard, const std::string& bytes,
                               uint64_t* offset) const {
  const std::string path = PathOf(shard, ".pack");
  const int fd = open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
  if (fd < 0) return WriteError(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  LockRange(fd, 0, 1);
  struct stat info;
  if (fstat(fd, &info) != 0) return WriteError(path, errno);
  *offset = static_cast<uint64_t>(info.st_size);
  const absl::Status wrote = WriteAllAt(fd, bytes, info.st_size, path);
  // A full disk keeps no half.
  if (!wrote.ok() && ftruncate(fd, info.st_size) != 0) return wrote;
  return wrote;
}

absl::Status CellStore::Write(int64_t shard, int64_t cell,
                              const CellTokens& tokens, bool keep) const {
  if (folder_.empty()) return absl::OkStatus();
  Entry entry;
  entry.tokens = static_cast<uint32_t>(tokens.ids.size());
  entry.documents = static_cast<uint32_t>(tokens.ends.size());
  entry.bad_rows = static_cast<uint32_t>(tokens.bad_rows);
  entry.flags = kKnown;
  absl::Status kept;
  if (keep) {
    std::string bytes(reinterpret_cast<const char*>(tokens.ends.data()),
                      tokens.ends.size() * sizeof(uint32_t));
    if (wide_) {
      AppendTokens<uint32_t>(tokens.ids, &bytes);
    } else {
      AppendTokens<uint16_t>(tokens.ids, &bytes);
    }
    entry.data_crc = Crc32c(bytes);
    kept = Append(shard, bytes, &entry.offset);
    if (kept.ok()) entry.flags |= kKept;
  }
  entry.crc = entry.CrcOf(cell);
  const int fd = OpenIndex(shard, /*make=*/true);
  if (fd < 0) return WriteError(PathOf(shard, ".cells"), errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  CAPSTAN_RETURN_IF_ERROR(
      WriteAllAt(fd, {reinterpret_cast<const char*>(&entry), sizeof(entry)},
                 PlaceOf(cell), PathOf(shard, ".cells")));
  return kept;
}

CellStore::Lock::Lock(const CellStore& store, int64_t shard, int64_t cell)
    : fd_(store.OpenIndex(shard, /*make=*/true)) {
  if (fd_ >= 0) LockRange(fd_, PlaceOf(cell), sizeof(Entry));
}

CellStore::Lock::~Lock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace capstan::stream
