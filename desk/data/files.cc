// SPDX-License-Identifier: Apache-2.0
#include "desk/data/files.h"

#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error_code.h"
#include "base/files.h"
#include "host/config/load_config.h"
#include "trainer/commands/command.h"

namespace capstan {
namespace {

// Rows that are read to learn what kind they are.
constexpr int64_t kFirstRows = 8;

// Which reader takes files of a kind.
struct KindReader {
  const char* what;
  const char* file;
  const char* length;
  int64_t default_length;  // 0: the reader's own
  bool rows;               // takes several files, and needs a tokenizer
  // FileReadings::configs of train_data, where FILES is `file` of each file and
  // LENGTH is `length`.
  std::vector<const char*> readers;
};

// By FileKind.
const KindReader& ReaderOf(FileKind kind) {
  static const auto* const readers = new std::vector<KindReader>{
      {"rows",
       "source { path: \"NAME\" } ",
       "max_length: ",
       0,
       true,
       {"[plugin/capstan.chat.Config] { kind: PREFERENCE FILES LENGTH }",
        "[plugin/capstan.chat.Config] { kind: UNPAIRED FILES LENGTH }",
        "[plugin/capstan.chat.Config] { FILES LENGTH }",
        // Prompts without answers.
        "[plugin/capstan.chat.Config] { kind: PROMPT FILES LENGTH }",
        "[plugin/capstan.chat.Config] { FILES LENGTH }"}},
      {"learning histories",
       "path: \"NAME\" ",
       "n_transit: ",
       0,
       false,
       {"[plugin/capstan.ad_history.Config] { FILES LENGTH }"}},
      {"text",
       "path: \"NAME\" ",
       "sequence_length: ",
       128,
       false,
       {"[plugin/capstan.text.Config] { FILES LENGTH }"}}};
  return (*readers)[static_cast<size_t>(kind)];
}

}  // namespace

FileKind KindOfFile(const std::string& file) {
  if (HasRowsName(file)) return FileKind::kRows;
  for (const char* end : {".h5", ".hdf5"}) {
    if (absl::EndsWithIgnoreCase(file, end)) return FileKind::kHistories;
  }
  for (const char* end : {".txt", ".md"}) {
    if (absl::EndsWithIgnoreCase(file, end)) return FileKind::kText;
  }
  const std::string path = FromCaller(file);
  if (!IsRegularFile(path)) return FileKind::kRows;
  std::string begin(8, '\0');
  std::ifstream(path).read(&begin[0], static_cast<int64_t>(begin.size()));
  if (begin == "\x89HDF\r\n\x1a\n") return FileKind::kHistories;
  const absl::string_view text = absl::StripLeadingAsciiWhitespace(begin);
  return absl::StartsWith(text, "{") || absl::StartsWith(text, "[")
             ? FileKind::kRows
             : FileKind::kText;
}

absl::optional<DataRow> FirstGoodRow(const google::protobuf::Any& reader,
                                     std::string* kind) {
  constexpr char kNoKind[] = "AUTO";
  absl::optional<DataRow> good;
  const VisitRowsFunction visit = VisitRowsOf(TypeOf(reader));
  if (visit == nullptr) return good;
  const bool known = *kind != kNoKind;
  int64_t rows = 0;
  visit(reader.value(), [&](const RowsOfReader&, const DataRow& row) {
    *kind = row.kind;
    const bool taken = row.status.ok() && !(row.is_prompt && known);
    if (taken) good = row;
    return taken || ++rows == kFirstRows ? absl::CancelledError()
                                         : absl::OkStatus();
  }).IgnoreError();
  return good;
}

absl::StatusOr<FileReadings> ReadingsOf(const std::vector<std::string>& files,
                                        int64_t length) {
  const KindReader& kind = ReaderOf(KindOfFile(files[0]));
  std::string paths;
  for (const std::string& file : files) {
    const KindReader& own = ReaderOf(KindOfFile(file));
    if (&own != &kind) {
      return WithCode(absl::InvalidArgumentError(absl::StrCat(
                          files[0], " has ", kind.what, " and ", file, " has ",
                          own.what, ": look at them one after the other")),
                      "command/word");
    }
    absl::StrAppend(
        &paths, absl::StrReplaceAll(kind.file,
                                    {{"NAME", absl::Utf8SafeCEscape(file)}}));
  }
  if (files.size() > 1 && !kind.rows) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            files[0], " and ", files[1], " have ", kind.what,
            ", which is read one file at a time: look at each by itself")),
        "command/word");
  }
  if (length == 0) length = kind.default_length;
  FileReadings readings;
  readings.needs_tokenizer = kind.rows;
  for (const char* const reader : kind.readers) {
    readings.configs.push_back(absl::StrCat(
        "train_data { ",
        absl::StrReplaceAll(
            reader,
            {{"FILES", paths},
             {"LENGTH", length == 0 ? "" : absl::StrCat(kind.length, length)}}),
        " }"));
  }
  return readings;
}

}  // namespace capstan
