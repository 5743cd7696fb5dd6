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
#include <iostream>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/clock.h"
#include "text/tokens/in_order.h"

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

  bool Fits(uint64_t bytes) const {
    const uint64_t rows = bytes - sizeof(Header);
    return rows % sizeof(IndexedRow) == 0 &&
           rows / sizeof(IndexedRow) == facts.rows;
  }
};

constexpr double kReportSeconds = 5.0;

void Add(const RowIndex::Facts& from, RowIndex::Facts* to) {
  to->rows += from.rows;
  to->untrained += from.untrained;
  to->cut += from.cut;
  to->chats += from.chats;
  to->tokens += from.tokens;
  to->trained += from.trained;
  to->longest = std::max(to->longest, from.longest);
  if (to->bad == 0) {
    std::memcpy(to->first_bad, from.first_bad, sizeof(to->first_bad));
  }
  to->bad += from.bad;
}

struct Places {
  std::vector<RowPlace> rows;
  absl::Status end;  // the scanner's error behind them
};

struct Chunk {
  std::vector<IndexedRow> rows;
  RowIndex::Facts facts;
  uint64_t end = 0;  // offset of its end in the text
};

absl::Status AddRow(const SourceFile& source, const IndexOptions& options,
                    const RowPlace& place, Chunk* chunk) {
  thread_local RowReader reader;
  if (place.bytes > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError("the row is longer than 4 GiB");
  }
  const absl::string_view text = source.text->bytes();
  const absl::string_view json = text.substr(place.offset, place.bytes);
  CAPSTAN_RETURN_IF_ERROR(reader.Read(json, text.size() - place.offset,
                                      options.kind, *options.encoder));
  const TokenRow& tokens = reader.tokens;
  const auto trained = static_cast<uint64_t>(tokens.trained());
  RowIndex::Facts& facts = chunk->facts;
  if (trained == 0) {
    ++facts.untrained;
    return absl::OkStatus();
  }
  const uint64_t count = tokens.ids.size();
  ++facts.rows;
  facts.cut += tokens.was_cut ? 1 : 0;
  facts.chats += reader.row.is_text ? 0 : 1;
  facts.tokens += count;
  facts.trained += trained;
  facts.longest = std::max(facts.longest, count);
  chunk->rows.push_back(
      {place.offset, HashOf(json), static_cast<uint32_t>(place.bytes),
       static_cast<uint32_t>(count), static_cast<uint32_t>(trained), 0});
  return absl::OkStatus();
}

absl::StatusOr<Chunk> Index(const SourceFile& source,
                            const IndexOptions& options, const Places& places) {
  Chunk chunk;
  for (const RowPlace& place : places.rows) {
    chunk.end = place.offset + place.bytes;
    const absl::Status status = AddRow(source, options, place, &chunk);
    if (status.ok()) continue;
    const std::string message =
        absl::StrCat(source.path, ":", place.line, ": ", status.message());
    // A problem of the config isn't one of a single row.
    if (options.bad_rows == ERROR || !absl::IsInvalidArgument(status)) {
      return absl::Status(status.code(), message);
    }
    if (chunk.facts.bad++ == 0) {
      message.copy(chunk.facts.first_bad, sizeof(chunk.facts.first_bad) - 1);
    }
  }
  if (places.end.ok()) return chunk;
  return absl::InvalidArgumentError(
      absl::StrCat(source.path, ":", places.end.message()));
}

// Reports progress, for files that take long.
class Progress {
 public:
  explicit Progress(const SourceFile& source) : source_(source) {}

  // `end`: how many bytes are done.
  void Report(uint64_t end) {
    const double now = MonotonicSeconds();
    if (now - reported_ < kReportSeconds) return;
    reported_ = now;
    const double done = static_cast<double>(end) /
                        static_cast<double>(source_.text->bytes().size());
    std::cerr << absl::StrCat(
        "capstan.chat: indexing ", source_.path, ", ",
        static_cast<int>(100 * done), " %, ",
        static_cast<int>((now - start_) * (1 - done) / std::max(done, 1e-6)),
        " s left (once: the index is kept)\n");
  }

 private:
  const SourceFile& source_;
  const double start_ = MonotonicSeconds();
  double reported_ = start_;
};

absl::Status Write(const SourceFile& source, const IndexOptions& how,
                   uint64_t key, HiddenFile* file) {
  Header header;
  header.key = key;
  CAPSTAN_RETURN_IF_ERROR(file->Write(BytesOf(&header, 1)));
  const auto sink = [file](absl::Span<const IndexedRow> rows) {
    return file->Write(BytesOf(rows.data(), rows.size()));
  };
  CAPSTAN_ASSIGN_OR_RETURN(header.facts, IndexRows(source, how, sink));
  CAPSTAN_RETURN_IF_ERROR(file->Rewind());
  return file->Write(BytesOf(&header, 1));
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
  CAPSTAN_ASSIGN_OR_RETURN(
      index.file_,
      MapCached<Header>(source.path, index.key_, "rows", [&](HiddenFile* to) {
        return Write(source, {kind, bad_rows, &encoder}, index.key_, to);
      }));
  const auto* const header =
      reinterpret_cast<const Header*>(index.file_->bytes().data());
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

absl::StatusOr<RowIndex::Facts> IndexRows(
    const SourceFile& source, const IndexOptions& options,
    const std::function<absl::Status(absl::Span<const IndexedRow>)>& sink) {
  RowScanner scanner(source.text->bytes());
  bool at_end = false;
  const auto next = [&]() -> absl::optional<Places> {
    if (at_end) return absl::nullopt;
    Places places;
    places.end = scanner.Next(options.chunk_bytes, &places.rows);
    at_end = !places.end.ok() || places.rows.empty();
    if (at_end && places.end.ok()) return absl::nullopt;
    return places;
  };
  RowIndex::Facts facts;
  Progress progress(source);
  const auto take = [&](const Chunk& chunk) {
    Add(chunk.facts, &facts);
    progress.Report(chunk.end);
    return sink(chunk.rows);
  };
  // A file of one or two chunks isn't worth a thread.
  const uint64_t chunks = source.text->bytes().size() / options.chunk_bytes;
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  CAPSTAN_RETURN_IF_ERROR((text::MapInOrder<Places, Chunk>(
      static_cast<int>(std::min(cores, chunks)), next,
      [&](const Places& places) { return Index(source, options, places); },
      take)));
  return facts;
}

}  // namespace capstan::chat
