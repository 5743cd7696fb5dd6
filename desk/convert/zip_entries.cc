// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/zip_entries.h"

#include <zlib.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr char kFile[] = "PK\3\4";
constexpr char kCentralFile[] = "PK\1\2";
constexpr char kEnd[] = "PK\5\6";
constexpr char kEnd64[] = "PK\6\6";
constexpr char kEnd64Locator[] = "PK\6\7";
constexpr uint64_t kFileBytes = 30, kCentralFileBytes = 46, kEndBytes = 22,
                   kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kMostComment = 0xffff;
constexpr uint64_t kIn64 = 0xffffffff;  // the number is elsewhere, in 64 bits

absl::Status Damaged(absl::string_view how) {
  return absl::InvalidArgumentError(
      absl::StrCat("isn't a whole zip archive (", how,
                   "): it is damaged or was cut off; copy it again"));
}

// A little-endian number; the caller has checked that it is there.
uint64_t Number(absl::string_view bytes, uint64_t at, int size) {
  uint64_t number = 0;
  for (int i = size; i-- > 0;) {
    number = number << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return number;
}

// Whether `size` bytes from `at` on are within the archive.
bool Within(absl::string_view bytes, uint64_t at, uint64_t size) {
  return at <= bytes.size() && size <= bytes.size() - at;
}

bool HasRecord(absl::string_view bytes, uint64_t at, absl::string_view sign,
               uint64_t size) {
  return Within(bytes, at, size) && absl::StartsWith(bytes.substr(at), sign);
}

// Where the central directory is, and how many files it lists.
struct Directory {
  uint64_t at = 0;
  uint64_t files = 0;
};

absl::StatusOr<Directory> FindDirectory(absl::string_view bytes) {
  if (bytes.size() < kEndBytes) return Damaged("it is too short");
  const uint64_t last = bytes.size() - kEndBytes;
  const uint64_t first = last < kMostComment ? 0 : last - kMostComment;
  uint64_t end = last + 1;
  while (end > first && !HasRecord(bytes, end - 1, kEnd, kEndBytes)) --end;
  if (end == first) return Damaged("its directory is missing");
  --end;
  Directory directory = {Number(bytes, end + 16, 4),
                         Number(bytes, end + 10, 2)};
  if (end < kLocatorBytes ||
      !HasRecord(bytes, end - kLocatorBytes, kEnd64Locator, kLocatorBytes)) {
    return directory;
  }
  const uint64_t end64 = Number(bytes, end - kLocatorBytes + 8, 8);
  if (!HasRecord(bytes, end64, kEnd64, kEnd64Bytes)) {
    return Damaged("its directory is missing");
  }
  directory = {Number(bytes, end64 + 48, 8), Number(bytes, end64 + 32, 8)};
  return directory;
}

struct Entry {
  std::string name;
  uint64_t at = 0;    // of the file's header
  uint64_t size = 0;  // in the archive
  bool plain = true;  // neither compressed nor encrypted
  ZipEntry file;
};

// Takes sizes and place from the entry's 64-bit field where they are in it.
bool ReadExtra(absl::string_view extra, uint64_t whole, Entry* entry) {
  if (entry->size != kIn64 && entry->at != kIn64) return true;
  for (uint64_t at = 0; Within(extra, at, 4);) {
    const uint64_t id = Number(extra, at, 2), size = Number(extra, at + 2, 2);
    at += 4;
    if (!Within(extra, at, size)) return false;
    if (id == 1) {
      uint64_t next = at;
      bool there = true;
      // In this order, those alone that are elsewhere.
      for (uint64_t* value : {&whole, &entry->size, &entry->at}) {
        if (*value != kIn64) continue;
        there = there && next + 8 <= at + size;
        if (there) *value = Number(extra, next, 8);
        next += 8;
      }
      return there;
    }
    at += size;
  }
  return false;
}

absl::StatusOr<Entry> ReadEntry(absl::string_view bytes, uint64_t* at) {
  if (!HasRecord(bytes, *at, kCentralFile, kCentralFileBytes)) {
    return Damaged("its directory is cut off");
  }
  const absl::string_view record = bytes.substr(*at);
  const uint64_t flags = Number(record, 8, 2), method = Number(record, 10, 2);
  const uint64_t whole = Number(record, 24, 4);
  const uint64_t name = Number(record, 28, 2), extra = Number(record, 30, 2),
                 comment = Number(record, 32, 2);
  const uint64_t size = kCentralFileBytes + name + extra + comment;
  if (!Within(bytes, *at, size)) return Damaged("its directory is cut off");
  *at += size;
  Entry entry;
  entry.name = std::string(record.substr(kCentralFileBytes, name));
  const std::string shown = absl::CHexEscape(entry.name);
  entry.plain = (flags & 1) == 0 && method == 0;
  entry.size = Number(record, 20, 4);
  entry.at = Number(record, 42, 4);
  if (!ReadExtra(record.substr(kCentralFileBytes + name, extra), whole,
                 &entry) ||
      !HasRecord(bytes, entry.at, kFile, kFileBytes)) {
    return Damaged(absl::StrCat("'", shown, "' isn't where it should be"));
  }
  const uint64_t begin = entry.at + kFileBytes +
                         Number(bytes, entry.at + 26, 2) +
                         Number(bytes, entry.at + 28, 2);
  if (!Within(bytes, begin, entry.size)) {
    return Damaged(absl::StrCat("'", shown, "' ends beyond the file"));
  }
  entry.file = {bytes.substr(begin, entry.size),
                static_cast<uint32_t>(Number(record, 16, 4))};
  return entry;
}

// Entries that share bytes are a trick.
absl::Status CheckApart(absl::string_view bytes, std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end(),
            [](const Entry& a, const Entry& b) { return a.at < b.at; });
  uint64_t end = 0;
  for (const Entry& entry : *entries) {
    if (entry.at < end) {
      return Damaged(absl::StrCat("'", absl::CHexEscape(entry.name),
                                  "' overlaps another file"));
    }
    end = entry.file.bytes.data() - bytes.data() + entry.size;
  }
  return absl::OkStatus();
}

}  // namespace

bool LooksLikeZip(absl::string_view bytes) {
  return absl::StartsWith(bytes, kFile);
}

absl::Status CheckZipEntry(absl::string_view name, const ZipEntry& entry) {
  const auto* const data = reinterpret_cast<const Bytef*>(entry.bytes.data());
  if (entry.crc32 == 0 || crc32_z(0, data, entry.bytes.size()) == entry.crc32) {
    return absl::OkStatus();
  }
  return Damaged(absl::StrCat("the checksum of '", absl::CHexEscape(name),
                              "' is another"));
}

absl::StatusOr<std::map<std::string, ZipEntry>> ZipEntries(
    absl::string_view bytes) {
  CAPSTAN_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(bytes));
  std::vector<Entry> entries;
  uint64_t at = directory.at;
  for (uint64_t i = 0; i < directory.files; ++i) {
    CAPSTAN_ASSIGN_OR_RETURN(Entry entry, ReadEntry(bytes, &at));
    entries.push_back(std::move(entry));
  }
  CAPSTAN_RETURN_IF_ERROR(CheckApart(bytes, &entries));
  std::map<std::string, ZipEntry> files;
  for (Entry& entry : entries) {
    if (!entry.plain) continue;
    if (!files.emplace(entry.name, entry.file).second) {
      return Damaged(
          absl::StrCat("'", absl::CHexEscape(entry.name), "' is in it twice"));
    }
  }
  return files;
}

}  // namespace capstan
