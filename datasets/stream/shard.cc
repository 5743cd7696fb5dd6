// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/shard.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/crc32c.h"
#include "base/error_code.h"
#include "base/status.h"
#include "datasets/chat/data_paths.h"
#include "text/tokens/token_file.h"

namespace capstan::stream {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kEndBytes = 4096;
constexpr absl::string_view kParquet = "PAR1";

int64_t ModifiedOf(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1000000000 + info.st_mtim.tv_nsec;
}

absl::Status CantRead(const std::string& path, int error) {
  return WithCode(absl::NotFoundError(absl::StrCat(
                      path, " can't be read: ", std::strerror(error))),
                  "data/file");
}

absl::Status Damaged(const std::string& path, absl::string_view why) {
  return WithCode(absl::DataLossError(
                      absl::StrCat(path, " ", why, ": fetch or make it again")),
                  "data/damaged");
}

absl::Status ReadAt(int fd, int64_t begin, int64_t size, char* to,
                    const std::string& path) {
  while (size > 0) {
    const ssize_t read =
        pread(fd, to, static_cast<size_t>(size), static_cast<off_t>(begin));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return CantRead(path, errno);
    if (read == 0) {
      return Damaged(path, absl::StrCat("has lost what was behind byte ", begin,
                                        " since the run began"));
    }
    to += read;
    begin += read;
    size -= read;
  }
  return absl::OkStatus();
}

// By the name, without what says that it is packed.
absl::StatusOr<Format> FormatOf(const std::string& path,
                                absl::string_view begin) {
  const std::string lower = absl::AsciiStrToLower(path);
  absl::string_view name = lower;
  const chat::Packed packed = chat::ConsumePackedExtension(&name);
  const auto ends = [&](absl::string_view with) {
    return absl::EndsWith(name, with);
  };
  const bool plain = packed == chat::Packed::kNot;
  if (plain && ends(".parquet")) return Format::kParquet;
  if (ends(".jsonl") || ends(".json") || ends(".ndjson")) {
    return Format::kJsonLines;
  }
  if (plain && ends(".tar")) return Format::kTar;
  if (plain && (ends(".tokens") || text::TokenFile::IsTokenFile(begin))) {
    return Format::kTokenFile;
  }
  if (plain && ends(".bin")) return Format::kBareTokens;
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      " isn't known by its name: shards are .parquet, .jsonl (.gz, .zst), .tar,"
      " .tokens or .bin"));
}

absl::Status CheckBegin(const Shard& shard, absl::string_view begin,
                        absl::string_view end) {
  if (shard.format == Format::kParquet) {
    if (!absl::StartsWith(begin, kParquet)) {
      return Damaged(shard.path, "isn't Parquet: it doesn't begin with PAR1");
    }
    if (shard.bytes < 12 || !absl::EndsWith(end, kParquet)) {
      return Damaged(shard.path,
                     "is cut off: it doesn't end with Parquet's footer");
    }
  }
  std::string name = absl::AsciiStrToLower(shard.path);
  absl::string_view rest = name;
  const chat::Packed named = chat::ConsumePackedExtension(&rest);
  if (named != shard.packed && shard.format == Format::kJsonLines) {
    return Damaged(shard.path,
                   named == chat::Packed::kNot
                       ? "is packed, and its name doesn't say so"
                       : "is named as packed, and doesn't begin so");
  }
  if (shard.format == Format::kTar && shard.bytes % 512 != 0) {
    return Damaged(shard.path,
                   "is cut off: a tar file has whole blocks of "
                   "512 bytes");
  }
  return absl::OkStatus();
}

void SetCells(Shard* shard) {
  const int64_t cell =
      shard->packed == chat::Packed::kNot ? kCellBytes : kPackedCellBytes;
  shard->cells = (shard->bytes + cell - 1) / cell;
  shard->weight = shard->bytes;
}

absl::StatusOr<Shard> Look(const std::string& path) {
  Shard shard;
  shard.path = path;
  shard.file = path;
  // Of a pipe, too, for which another process would be waited for.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return CantRead(path, errno);
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info;
  if (fstat(fd, &info) != 0) return CantRead(path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " isn't a file"));
  }
  shard.bytes = info.st_size;
  shard.modified = ModifiedOf(info);
  if (shard.bytes == 0) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            path, " is empty: remove it, or fetch or make it again")),
        "data/damaged");
  }
  const int64_t size = std::min(shard.bytes, kEndBytes);
  std::string begin(static_cast<size_t>(size), '\0');
  std::string end = begin;
  CAPSTAN_RETURN_IF_ERROR(ReadAt(fd, 0, size, &begin[0], path));
  CAPSTAN_RETURN_IF_ERROR(ReadAt(fd, shard.bytes - size, size, &end[0], path));
  shard.ends_hash = (uint64_t{Crc32c(begin)} << 32) | Crc32c(end);
  CAPSTAN_ASSIGN_OR_RETURN(shard.format, FormatOf(path, begin));
  if (shard.format == Format::kJsonLines) shard.packed = chat::PackedAs(begin);
  CAPSTAN_RETURN_IF_ERROR(CheckBegin(shard, begin, end));
  SetCells(&shard);
  return shard;
}

absl::Status CheckFormat(const Shard& shard, const std::vector<Shard>& others) {
  if (others.empty() || shard.format == others[0].format) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there are shards of two formats, ", others[0].path, " (",
                   NameOf(others[0].format), ") and ", shard.path, " (",
                   NameOf(shard.format), "): name one by a pattern"));
}

// Those in a folder that the readers of rows don't know.
std::vector<std::string> OtherShards(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name =
        absl::AsciiStrToLower(at->path().filename().string());
    std::error_code ignored;
    if (!absl::StartsWith(name, ".") && at->is_regular_file(ignored) &&
        (absl::EndsWith(name, ".tokens") || absl::EndsWith(name, ".tar") ||
         absl::EndsWith(name, ".bin"))) {
      files.push_back(at->path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// All of a folder, so that those of one format don't hide those of another.
absl::StatusOr<std::vector<std::string>> FilesIn(const std::string& folder) {
  std::vector<std::string> others = OtherShards(folder);
  absl::StatusOr<std::vector<std::string>> files = chat::FilesOf(folder);
  if (others.empty()) return files;
  if (files.ok()) {
    others.insert(others.begin(), files->begin(), files->end());
  }
  return others;
}

}  // namespace

const char* NameOf(Format format) {
  switch (format) {
    case Format::kJsonLines:
      return "JSON lines";
    case Format::kParquet:
      return "Parquet";
    case Format::kTar:
      return "tar";
    case Format::kTokenFile:
      return "tokens";
    default:
      return "bare tokens";
  }
}

absl::StatusOr<std::vector<Shard>> ListShards(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::string> files,
      IsFolder(path) ? FilesIn(path) : chat::FilesOf(path));
  std::vector<Shard> shards;
  for (const std::string& file : files) {
    CAPSTAN_ASSIGN_OR_RETURN(Shard shard, Look(file));
    CAPSTAN_RETURN_IF_ERROR(CheckFormat(shard, shards));
    shards.push_back(std::move(shard));
  }
  return shards;
}

absl::StatusOr<std::vector<Shard>> ListShards(RemoteShards* remote) {
  std::vector<Shard> shards;
  absl::Status unknown;
  for (size_t i = 0; i < remote->objects().size(); ++i) {
    const RemoteObject& object = remote->objects()[i];
    Shard shard;
    shard.object = static_cast<int64_t>(i);
    shard.path = remote->AddressOf(shard.object);
    const absl::StatusOr<Format> format = FormatOf(shard.path, "");
    if (!format.ok()) {
      unknown.Update(format.status());
      continue;  // such as a README beside them
    }
    shard.format = *format;
    shard.file = remote->FileOf(shard.object);
    shard.remote = remote;
    shard.bytes = object.bytes;
    shard.ends_hash = Crc32c(object.version);
    if (shard.bytes == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(shard.path, " is empty: remove it, or make it again"));
    }
    std::string name = absl::AsciiStrToLower(shard.path);
    absl::string_view rest = name;
    shard.packed = chat::ConsumePackedExtension(&rest);
    SetCells(&shard);
    CAPSTAN_RETURN_IF_ERROR(CheckFormat(shard, shards));
    shards.push_back(std::move(shard));
  }
  if (shards.empty()) return unknown;
  return shards;
}

absl::Status Ensure(const Shard& shard, int64_t begin, int64_t bytes) {
  if (shard.remote == nullptr) return absl::OkStatus();
  return shard.remote->Ensure({{shard.object, begin, bytes}});
}

absl::Status CheckUnchanged(const Shard& shard) {
  return ShardFile::Open(shard).status();
}

absl::StatusOr<std::unique_ptr<ShardFile>> ShardFile::Open(const Shard& shard) {
  CAPSTAN_RETURN_IF_ERROR(Ensure(shard, 0, 0));
  const int fd = open(shard.file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::DataLossError(absl::StrCat(
        shard.path, " was there when the run began, and can't be read now (",
        std::strerror(errno), "): put it back, and resume"));
  }
  std::unique_ptr<ShardFile> file(new ShardFile(shard, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return CantRead(shard.path, errno);
  if (info.st_size != shard.bytes ||
      (shard.remote == nullptr && ModifiedOf(info) != shard.modified)) {
    return absl::DataLossError(absl::StrFormat(
        "%s has changed since the run began (from %d bytes to %d): put the old "
        "one back and resume, or begin a new run",
        shard.path, shard.bytes, info.st_size));
  }
  return file;
}

ShardFile::~ShardFile() { close(fd_); }

absl::Status ShardFile::Read(int64_t begin, int64_t size, char* to) const {
  CAPSTAN_RETURN_IF_ERROR(Ensure(shard_, begin, size));
  struct stat info;
  if (shard_.remote == nullptr || fstat(fd_, &info) != 0 || info.st_nlink > 0) {
    return ReadAt(fd_, begin, size, to, shard_.path);
  }
  // The copy was removed and made again: what was fetched now is in that.
  CAPSTAN_ASSIGN_OR_RETURN(const auto again, Open(shard_));
  return ReadAt(again->fd_, begin, size, to, shard_.path);
}

}  // namespace capstan::stream
