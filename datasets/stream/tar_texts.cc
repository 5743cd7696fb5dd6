// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/status.h"
#include "datasets/stream/texts.h"

namespace capstan::stream {
namespace {

constexpr int64_t kTarBlock = 512;
constexpr int64_t kMostName = 1 << 16;
// Behind the archive's end, that are looked at.
constexpr int64_t kBehindEnd = 1 << 20;

struct Member {
  std::string name;
  int64_t begin = 0;  // of its header, or of those that name it
  int64_t data = 0;
  int64_t size = 0;
  int64_t end = 0;  // where the next one's header is
  bool is_file = false;
  // Why it has no text, if it should have one.
  const char* bad = nullptr;
};

// A sample of webdataset is what neighbouring members' names have in common,
// up to the first dot of the file's name.
absl::string_view KeyOf(const Member& member) {
  const absl::string_view name = member.name;
  const size_t slash = name.rfind('/');
  const size_t dot = name.find('.', slash == name.npos ? 0 : slash + 1);
  return name.substr(0, dot);
}

absl::Status Torn(const Shard& shard, int64_t at, absl::string_view why) {
  return WithCode(absl::DataLossError(absl::StrCat(
                      shard.path, " is damaged or cut off: at byte ", at, " ",
                      why, "; fetch or make it again")),
                  "data/damaged");
}

// Octal, or GNU's binary for numbers that are too large for it.
absl::optional<int64_t> NumberIn(absl::string_view field) {
  uint64_t value = 0;
  if ((static_cast<unsigned char>(field[0]) & 0x80) != 0) {
    const absl::string_view high = field.substr(1, field.size() - 9);
    if (field[0] != '\x80' || high.find_first_not_of('\0') != high.npos) {
      return absl::nullopt;  // too large, or negative
    }
    for (const char c : field.substr(field.size() - 8)) {
      value = value << 8 | static_cast<unsigned char>(c);
    }
    if (value >> 62 != 0) return absl::nullopt;
    return static_cast<int64_t>(value);
  }
  while (!field.empty() && field[0] == ' ') field.remove_prefix(1);
  bool any = false;
  for (const char c : field) {
    if (c == ' ' || c == '\0') break;
    if (c < '0' || c > '7' || value >> 59 != 0) return absl::nullopt;
    value = value << 3 | static_cast<uint64_t>(c - '0');
    any = true;
  }
  if (!any) return absl::nullopt;
  return static_cast<int64_t>(value);
}

bool HasItsChecksum(absl::string_view header) {
  constexpr size_t kAt = 148;
  int64_t sum = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    sum +=
        i >= kAt && i < kAt + 8 ? ' ' : static_cast<unsigned char>(header[i]);
  }
  return NumberIn(header.substr(kAt, 8)) == sum;
}

absl::string_view TextIn(absl::string_view field) {
  return field.substr(0, field.find('\0'));
}

// What a pax header says of the member behind it.
struct Pax {
  std::string name;
  absl::optional<int64_t> size;
  bool sparse = false;
};

// Records "LENGTH KEY=VALUE\n"; false: they aren't.
bool ReadPax(absl::string_view records, Pax* pax) {
  // Blocks end in zeros.
  while (!records.empty() && records[0] != '\0') {
    size_t length = 0;
    size_t at = 0;
    for (; at < records.size() && records[at] >= '0' && records[at] <= '9' &&
           length < records.size();
         ++at) {
      length = 10 * length + static_cast<size_t>(records[at] - '0');
    }
    if (length <= at + 1 || length > records.size()) return false;
    absl::string_view record = records.substr(at + 1, length - at - 2);
    if (absl::ConsumePrefix(&record, "path=")) pax->name = std::string(record);
    if (absl::StartsWith(record, "GNU.sparse.")) pax->sparse = true;
    if (absl::ConsumePrefix(&record, "size=")) {
      int64_t value = 0;
      if (record.find_first_not_of("0123456789") != record.npos ||
          !absl::SimpleAtoi(record, &value)) {
        return false;
      }
      pax->size = value;
    }
    records.remove_prefix(length);
  }
  return true;
}

// Of archives one behind the other only the first would be read.
absl::Status CheckEnd(const Shard& shard, const ShardFile& file, int64_t at) {
  std::string rest(static_cast<size_t>(std::min(kBehindEnd, shard.bytes - at)),
                   '\0');
  CAPSTAN_RETURN_IF_ERROR(
      file.Read(at, static_cast<int64_t>(rest.size()), &rest[0]));
  const size_t other = rest.find_first_not_of('\0');
  if (other == rest.npos) return absl::OkStatus();
  return WithCode(
      absl::InvalidArgumentError(absl::StrCat(
          shard.path, " goes on at byte ", at + static_cast<int64_t>(other),
          ", behind the archive's end at byte ", at,
          ": make one archive of those that were joined (tar -A), or fetch it "
          "again")),
      "data/damaged");
}

// The member whose headers begin at `at`; nullopt at the archive's end.
absl::StatusOr<absl::optional<Member>> MemberAt(const Shard& shard,
                                                const ShardFile& file,
                                                int64_t at) {
  Member member;
  member.begin = at;
  Pax pax;
  while (true) {
    if (at + kTarBlock > shard.bytes) {
      return Torn(shard, at, "a member or the archive's end is missing");
    }
    char block[kTarBlock];
    CAPSTAN_RETURN_IF_ERROR(file.Read(at, kTarBlock, block));
    const absl::string_view header(block, kTarBlock);
    if (header.find_first_not_of('\0') == header.npos) {
      CAPSTAN_RETURN_IF_ERROR(CheckEnd(shard, file, at));
      return absl::optional<Member>();
    }
    const absl::optional<int64_t> size = NumberIn(header.substr(124, 12));
    if (!HasItsChecksum(header) || !size.has_value()) {
      return Torn(shard, at, "there is no header of a member");
    }
    const char type = header[156];
    member.data = at + kTarBlock;
    const bool names = type == 'x' || type == 'g' || type == 'L' || type == 'K';
    member.size = names ? *size : pax.size.value_or(*size);
    if (member.size < 0 || member.size > shard.bytes - member.data) {
      return Torn(shard, at,
                  absl::StrCat("a member of ", member.size,
                               " bytes begins, and the file ends before it"));
    }
    at = member.data + (member.size + kTarBlock - 1) / kTarBlock * kTarBlock;
    if (!names) {
      member.is_file = type == '0' || type == '\0' || type == '7';
      if (type == '1' || type == '2') {
        member.bad = "is a link, and its text isn't in the member";
      } else if (type == 'S' || pax.sparse) {
        member.bad =
            "is a sparse file, which isn't read: make the archive "
            "without --sparse";
      }
      member.end = at;
      if (pax.name.empty()) {
        const absl::string_view prefix = TextIn(header.substr(345, 155));
        const bool has_prefix =
            absl::StartsWith(header.substr(257), "ustar\0") && !prefix.empty();
        pax.name = has_prefix ? absl::StrCat(prefix, "/",
                                             TextIn(header.substr(0, 100)))
                              : std::string(TextIn(header.substr(0, 100)));
      }
      member.name = pax.name;
      return absl::optional<Member>(std::move(member));
    }
    if (member.size > kMostName) {
      return Torn(shard, member.begin, "a member has a name of many bytes");
    }
    std::string records(static_cast<size_t>(member.size), '\0');
    CAPSTAN_RETURN_IF_ERROR(file.Read(member.data, member.size, &records[0]));
    if (type == 'x' && !ReadPax(records, &pax)) {
      return Torn(shard, member.begin, "there is a bad header (pax)");
    }
    if (type == 'L') pax.name = std::string(TextIn(records));
  }
}

class TarTexts final : public Texts {
 public:
  explicit TarTexts(const std::string& field) : field_(field) {}

  absl::StatusOr<std::vector<Document>> Read(const Shard& shard,
                                             int64_t cell) override {
    CAPSTAN_ASSIGN_OR_RETURN(const auto file, ShardFile::Open(shard));
    std::vector<Document> documents;
    CAPSTAN_ASSIGN_OR_RETURN(int64_t at, FirstIn(shard, *file, cell));
    const int64_t end = (cell + 1) * kCellBytes;
    std::vector<Member> sample;
    while (true) {
      absl::optional<Member> member;
      if (at < shard.bytes || cell + 1 == shard.cells) {
        CAPSTAN_ASSIGN_OR_RETURN(member, MemberAt(shard, *file, at));
      }
      if (member.has_value() && !sample.empty() &&
          KeyOf(*member) == KeyOf(sample[0])) {
        at = member->end;
        sample.push_back(*std::move(member));
        continue;
      }
      CAPSTAN_RETURN_IF_ERROR(Take(*file, sample, &documents));
      sample.clear();
      if (!member.has_value() || member->begin >= end) break;
      at = member->end;
      sample.push_back(*std::move(member));
    }
    Know(shard, cell + 1, at);
    return documents;
  }

  // A member's byte.
  std::string PlaceOf(const Shard& shard, int64_t place) const override {
    const auto file = ShardFile::Open(shard);
    if (file.ok()) {
      const auto member = MemberAt(shard, **file, place);
      if (member.ok() && member->has_value()) {
        return absl::StrCat(shard.path, ", member ",
                            absl::Utf8SafeCHexEscape((*member)->name));
      }
    }
    return absl::StrCat(shard.path, ", byte ", place);
  }

 private:
  // The texts of a sample's members.
  absl::Status Take(const ShardFile& file, const std::vector<Member>& sample,
                    std::vector<Document>* documents) const {
    const Member* chosen = nullptr;
    for (const char* ending : {".json", ".txt"}) {
      for (const Member& member : sample) {
        // Not KEY.url.txt, which is of another kind.
        if ((member.is_file || member.bad != nullptr) &&
            absl::string_view(member.name).substr(KeyOf(member).size()) ==
                ending) {
          chosen = &member;
        }
      }
    }
    if (chosen == nullptr) return absl::OkStatus();
    Document document;
    document.place = chosen->begin;
    if (chosen->bad != nullptr) {
      document.bad = absl::InvalidArgumentError(chosen->bad);
    } else if (chosen->size > kMostDocument) {
      document.bad = TooLong(chosen->size);
    } else {
      document.text.resize(static_cast<size_t>(chosen->size));
      CAPSTAN_RETURN_IF_ERROR(
          file.Read(chosen->data, chosen->size, &document.text[0]));
      if (absl::EndsWith(chosen->name, ".json")) {
        absl::StatusOr<std::string> text = TextOfJson(document.text, field_);
        document.bad = text.status();
        document.text = text.ok() ? *std::move(text) : "";
      }
    }
    documents->push_back(std::move(document));
    return absl::OkStatus();
  }

  // Where the first sample of the cell begins, or what comes behind it.
  absl::StatusOr<int64_t> FirstIn(const Shard& shard, const ShardFile& file,
                                  int64_t cell) {
    int64_t at = 0;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto& known = begins_[shard.path];
      const auto next = known.upper_bound(cell);
      if (next != known.begin()) at = std::prev(next)->second;
    }
    const int64_t begin = cell * kCellBytes;
    std::string key;
    bool first = true;
    while (at < shard.bytes) {
      CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<Member> member,
                               MemberAt(shard, file, at));
      if (!member.has_value()) break;
      const bool same = !first && KeyOf(*member) == key;
      if (at >= begin && !same) break;
      key = std::string(KeyOf(*member));
      first = false;
      at = member->end;
    }
    Know(shard, cell, at);
    return at;
  }

  void Know(const Shard& shard, int64_t cell, int64_t at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    begins_[shard.path][cell] = at;
  }

  const std::string field_;
  std::mutex mutex_;
  // By shard and cell: where the first sample in it or behind it begins.
  std::map<std::string, std::map<int64_t, int64_t>> begins_;
};

}  // namespace

std::unique_ptr<Texts> NewTarTexts(const std::string& field) {
  return std::make_unique<TarTexts>(field);
}

}  // namespace capstan::stream
