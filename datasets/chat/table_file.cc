// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/table_file.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/confined_child.h"
#include "base/files.h"
#include "base/own_library.h"
#include "base/status.h"
#include "datasets/chat/row.h"
#include "datasets/tables/tables.h"

namespace capstan::chat {
namespace {

constexpr absl::string_view kParquet("PAR1", 4);
// What Arrow may take; a row group's dictionaries and a page are in memory.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int64_t kMostMemory = int64_t{1} << 60;  // shadows need address space
#else
constexpr int64_t kMostMemory = int64_t{6} << 30;
#endif
constexpr size_t kPiece = 1 << 20;
constexpr size_t kMostMessage = 1000;
constexpr size_t kMostHeader = 1 << 16;
// Of rows, beside IsRowKey's.
constexpr absl::string_view kOtherKeys[] = {"system", "context", "chosen",
                                            "rejected", "label"};

const char* NameOf(Table table) {
  if (table == Table::kParquet) return "Parquet";
  return table == Table::kCsv ? "CSV" : "TSV";
}

absl::StatusOr<std::string> FindLibrary() {
  const char* const set = std::getenv("CAPSTAN_TABLES_LIBRARY");
  if (set != nullptr && *set != 0) return set;
  return OwnLibrary(kTablesLibrary, "datasets/tables",
                    "the reader of Parquet, CSV and TSV");
}

// Longer takes only what was made to; text grows in unpacking.
ChildLimits LimitsOf(const std::string& path) {
  ChildLimits limits;
  limits.bytes = kMostMemory;
  struct stat info;
  if (stat(path.c_str(), &info) == 0) limits.cpu_seconds += info.st_size >> 20;
  return limits;
}

std::string CantRead(const std::string& path, Table table) {
  return absl::StrCat(path, " can't be read as ", NameOf(table), ": ");
}

// The first line, which may have quoted newlines.
absl::string_view HeaderIn(absl::string_view text) {
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    quoted ^= text[i] == '"';
    if (text[i] == '\n' && !quoted) return text.substr(0, i);
  }
  return text;
}

// Spreadsheets write ";" where "," is in numbers.
char DelimiterOf(absl::string_view header) {
  bool quoted = false, commas = false, semicolons = false;
  for (const char c : header) {
    quoted ^= c == '"';
    commas |= c == ',' && !quoted;
    semicolons |= c == ';' && !quoted;
  }
  return semicolons && !commas ? ';' : ',';
}

// `text` with "Question " in its header as "question", if no other column has
// that name: as rows know it.
std::string WithOurNames(absl::string_view text, char delimiter) {
  const absl::string_view header = HeaderIn(text);
  std::vector<std::string> names = absl::StrSplit(header, delimiter);
  for (std::string& name : names) {
    absl::string_view bare = absl::StripAsciiWhitespace(name);
    absl::ConsumePrefix(&bare, "\xef\xbb\xbf");  // a byte order mark
    if (absl::ConsumePrefix(&bare, "\"") && !absl::ConsumeSuffix(&bare, "\"")) {
      continue;  // a part of a name
    }
    const std::string ours =
        absl::AsciiStrToLower(absl::StripAsciiWhitespace(bare));
    if ((IsRowKey(ours) || absl::c_linear_search(kOtherKeys, ours)) &&
        !absl::c_linear_search(names, ours)) {
      name = ours;
    }
  }
  return absl::StrCat(absl::StrJoin(names, std::string(1, delimiter)),
                      text.substr(header.size()));
}

// What runs in the child: sends the lines, and returns the packed file's
// members, as text.
class Reader {
 public:
  Reader(const std::string& path, Table table, Packed packed,
         const ConfinedChild::Parent& parent)
      : path_(path), table_(table), packed_(packed), parent_(parent) {}

  absl::StatusOr<std::string> Run(const std::string& library_path) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // not longer than its parent
    // Others reserve more address space than they use.
    setenv("ARROW_DEFAULT_MEMORY_POOL", "system", 1);
    const absl::StatusOr<void*> symbol = LibrarySymbol(
        library_path, kTablesLibrary, kTablesSymbol, RTLD_NOW | RTLD_LOCAL);
    if (!symbol.ok()) {
      return absl::UnimplementedError(
          absl::StrCat(CantRead(path_, table_), symbol.status().message()));
    }
    const auto convert = reinterpret_cast<TableToJson>(*symbol);
    TableJob job;
    job.path = path_.c_str();
    job.context = this;
    job.write = [](void* context, const char* bytes, size_t size) {
      return static_cast<Reader*>(context)->Write({bytes, size});
    };
    if (table_ != Table::kParquet) {
      CAPSTAN_ASSIGN_OR_RETURN(bytes_, OpenBytes(path_, packed_));
      CAPSTAN_RETURN_IF_ERROR(ReadHeader());
      job.delimiter =
          table_ == Table::kTsv ? '\t' : DelimiterOf(HeaderIn(begin_));
      begin_ = WithOurNames(begin_, job.delimiter);
      job.read = [](void* context, char* to, int64_t most) {
        return static_cast<Reader*>(context)->Read(to, most);
      };
    }
    char why[kMostMessage] = {};
    if (convert(&job, why, sizeof(why))) {
      return absl::StrCat(bytes_ == nullptr ? 0 : bytes_->members());
    }
    CAPSTAN_RETURN_IF_ERROR(error_);
    // A row that doesn't fit its header follows as it is, in several lines.
    const absl::string_view line =
        absl::string_view(why).substr(0, absl::string_view(why).find('\n'));
    return absl::DataLossError(absl::StrCat(
        CantRead(path_, table_), line,
        absl::StrContains(line, " columns, got ")
            ? "; is a quote open there, or a text with separators without any?"
            : ""));
  }

 private:
  bool Write(absl::string_view lines) {
    for (; !lines.empty();
         lines.remove_prefix(std::min(kPiece, lines.size()))) {
      if (!parent_.Send(lines.substr(0, kPiece))) return false;
    }
    return true;
  }

  // Enough bytes for the names of columns.
  absl::Status ReadHeader() {
    while (HeaderIn(begin_).size() == begin_.size() &&
           begin_.size() < kMostHeader) {
      char more[1 << 12];
      CAPSTAN_ASSIGN_OR_RETURN(const size_t size,
                               bytes_->Read(more, sizeof(more)));
      if (size == 0) break;
      begin_.append(more, size);
    }
    return absl::OkStatus();
  }

  int64_t Read(char* to, int64_t most) {
    if (!begin_.empty()) {
      const size_t size = begin_.copy(to, static_cast<size_t>(most));
      begin_.erase(0, size);
      return static_cast<int64_t>(size);
    }
    const absl::StatusOr<size_t> size =
        bytes_->Read(to, static_cast<size_t>(most));
    if (size.ok()) return static_cast<int64_t>(*size);
    error_ = size.status();
    return -1;
  }

  const std::string& path_;
  const Table table_;
  const Packed packed_;
  const ConfinedChild::Parent& parent_;
  std::unique_ptr<ByteStream> bytes_;
  std::string begin_;   // what has been read of them and not given out
  absl::Status error_;  // of bytes_
};

}  // namespace

Table TableOf(const std::string& path, absl::string_view bytes) {
  if (absl::StartsWith(bytes, kParquet)) return Table::kParquet;
  std::string name = absl::AsciiStrToLower(path);
  absl::string_view rest = name;
  ConsumePackedExtension(&rest);
  if (absl::EndsWith(rest, ".parquet")) return Table::kParquet;
  if (absl::EndsWith(rest, ".csv")) return Table::kCsv;
  return absl::EndsWith(rest, ".tsv") ? Table::kTsv : Table::kNot;
}

absl::StatusOr<uint64_t> TableRows(
    const std::string& path, Table table, Packed packed, uint64_t most,
    const std::function<absl::Status(absl::string_view)>& sink) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string library, FindLibrary());
  if (library.empty()) {
    return absl::UnimplementedError(absl::StrCat(
        path, " is ", NameOf(table), ", which is read by Arrow, and ",
        kTablesLibrary,
        " isn't part of this build: build where the Python package pyarrow can "
        "be fetched (docs/chat_data.md), or convert the file to JSON lines"));
  }
  const ChildLimits limits = LimitsOf(path);
  absl::StatusOr<std::unique_ptr<ConfinedChild>> child =
      ConfinedChild::Start(limits, [&](const ConfinedChild::Parent& parent) {
        const absl::StatusOr<std::string> members =
            Reader(path, table, packed, parent).Run(library);
        // Behind the lines.
        if (members.ok()) parent.Send(absl::string_view());
        parent.Send(members);
      });
  if (!child.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, " can't be read: ", child.status().message()));
  }
  uint64_t all = 0;
  bool at_end = false;
  while (true) {
    const absl::StatusOr<std::string> piece = (*child)->Receive(kPiece);
    if (absl::IsResourceExhausted(piece.status()) && (*child)->ended()) {
      return absl::DataLossError(absl::StrCat(
          CantRead(path, table), "it takes too long, more than ",
          limits.cpu_seconds, " s: split it, or convert it to JSON lines"));
    }
    if ((*child)->ended()) {
      return absl::DataLossError(absl::StrCat(
          CantRead(path, table),
          "it is damaged in a way that ends Arrow: the process that reads it ",
          piece.status().message()));
    }
    CAPSTAN_RETURN_IF_ERROR(piece.status());
    if (at_end) {
      uint64_t members = 0;
      if (absl::SimpleAtoi(*piece, &members)) return members;
      return absl::DataLossError(
          absl::StrCat(CantRead(path, table), "its end is lost"));
    }
    at_end = piece->empty();
    all += piece->size();
    if (all > most) return TooLarge(path, most);
    CAPSTAN_RETURN_IF_ERROR(sink(*piece));
  }
}

}  // namespace capstan::chat
