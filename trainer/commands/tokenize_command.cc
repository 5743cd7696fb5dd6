// SPDX-License-Identifier: Apache-2.0
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "base/json_document.h"
#include "base/machine.h"
#include "base/status.h"
#include "datasets/text/in_order.h"
#include "datasets/text/text_pieces.h"
#include "datasets/text/token_file.h"
#include "plugins/sdk/tokenizer.h"
#include "trainer/commands/commands.h"
#include "trainer/launcher/launcher.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/number_text.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

// What a thread works on at a time.
constexpr size_t kUnitBytes = 1 << 20;
constexpr std::chrono::milliseconds kRedrawEvery(100);

// A part of an input: rows, or a piece of a text.
struct Unit {
  const MappedFile* file = nullptr;
  absl::string_view bytes;
  bool rows = false;
  int64_t first_line = 1;    // of rows
  bool begins_text = false;  // the text's first piece
  bool ends_text = false;    // its last
};

struct Tokens {
  std::vector<int64_t> ids;
  std::vector<size_t> document_ends;  // in ids
  size_t bytes = 0;                   // of the input
};

// What the tokenizer puts around a document.
struct DocumentEnds {
  std::vector<int64_t> before;
  std::vector<int64_t> behind;
};

DocumentEnds EndsOf(const Tokenizer& tokenizer) {
  constexpr int64_t kText = -1;  // no id
  std::vector<int64_t> ids = {kText};
  tokenizer.AddEnds(&ids);
  const auto text = std::find(ids.begin(), ids.end(), kText);
  return {{ids.begin(), text}, {text + 1, ids.end()}};
}

void Append(const std::vector<int64_t>& more, std::vector<int64_t>* ids) {
  ids->insert(ids->end(), more.begin(), more.end());
}

// Blocks of whole lines.
void AddRows(const MappedFile& file, std::vector<Unit>* units) {
  absl::string_view rest = file.bytes();
  int64_t line = 1;
  while (!rest.empty()) {
    size_t size = rest.find('\n', std::min(rest.size() - 1, kUnitBytes));
    size = size == absl::string_view::npos ? rest.size() : size + 1;
    Unit unit;
    unit.file = &file;
    unit.bytes = rest.substr(0, size);
    unit.rows = true;
    unit.first_line = line;
    units->push_back(unit);
    line += std::count(unit.bytes.begin(), unit.bytes.end(), '\n');
    rest.remove_prefix(size);
  }
}

void AddText(const MappedFile& file, const Tokenizer& tokenizer,
             std::vector<Unit>* units) {
  const size_t first = units->size();
  for (absl::string_view piece :
       text::CutText(tokenizer, file.bytes(), kUnitBytes)) {
    Unit unit;
    unit.file = &file;
    unit.bytes = piece;
    units->push_back(unit);
  }
  (*units)[first].begins_text = true;
  units->back().ends_text = true;
}

absl::StatusOr<absl::string_view> RowText(absl::string_view line,
                                          simdjson::dom::parser* parser) {
  simdjson::dom::element row;
  const simdjson::error_code error =
      ParseJsonDocument(line, line.size(), parser, &row);
  if (error != simdjson::SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat("isn't valid JSON: ", simdjson::error_message(error)));
  }
  std::string_view text;
  if (row["text"].get(text) != simdjson::SUCCESS) {
    return absl::InvalidArgumentError("has no string \"text\"");
  }
  return absl::string_view(text.data(), text.size());
}

absl::StatusOr<Tokens> TokenizeRows(const Unit& unit,
                                    const Tokenizer& tokenizer,
                                    const DocumentEnds& ends) {
  Tokens tokens;
  tokens.bytes = unit.bytes.size();
  simdjson::dom::parser parser;
  absl::string_view rest = unit.bytes;
  for (int64_t number = unit.first_line; !rest.empty(); ++number) {
    const size_t newline = rest.find('\n');
    const absl::string_view line = rest.substr(0, newline);
    rest.remove_prefix(newline == absl::string_view::npos ? rest.size()
                                                          : newline + 1);
    if (line.find_first_not_of(" \t\r") == absl::string_view::npos) continue;
    const absl::StatusOr<absl::string_view> text = RowText(line, &parser);
    if (!text.ok()) {
      return Annotate(text.status(),
                      absl::StrCat(unit.file->path(), ":", number));
    }
    Append(ends.before, &tokens.ids);
    Append(tokenizer.Encode(*text), &tokens.ids);
    Append(ends.behind, &tokens.ids);
    tokens.document_ends.push_back(tokens.ids.size());
  }
  return tokens;
}

absl::StatusOr<Tokens> TokenizeUnit(const Unit& unit,
                                    const Tokenizer& tokenizer,
                                    const DocumentEnds& ends) {
  if (unit.rows) return TokenizeRows(unit, tokenizer, ends);
  Tokens tokens;
  tokens.bytes = unit.bytes.size();
  if (unit.begins_text) Append(ends.before, &tokens.ids);
  Append(tokenizer.Encode(unit.bytes), &tokens.ids);
  if (unit.ends_text) {
    Append(ends.behind, &tokens.ids);
    tokens.document_ends.push_back(tokens.ids.size());
  }
  return tokens;
}

absl::Status Write(const Tokens& tokens, text::TokenFileWriter* writer) {
  size_t begin = 0;
  const absl::Span<const int64_t> ids = tokens.ids;
  for (size_t end : tokens.document_ends) {
    CAPSTAN_RETURN_IF_ERROR(writer->Append(ids.subspan(begin, end - begin)));
    writer->EndDocument();
    begin = end;
  }
  return writer->Append(ids.subspan(begin));
}

// How far it is, on a terminal one line that is redrawn.
class TokenizeProgress {
 public:
  explicit TokenizeProgress(int64_t bytes)
      : console_(STDOUT_FILENO), bytes_(bytes) {}
  ~TokenizeProgress() {
    if (drawn_) console_.Write("\r\x1b[K");
  }

  void Add(size_t bytes, const text::TokenFileWriter& writer) {
    done_ += static_cast<int64_t>(bytes);
    if (!console_.terminal() || Clock::now() - last_ < kRedrawEvery) return;
    last_ = Clock::now();
    drawn_ = true;
    std::string line = absl::StrFormat(
        "%3.0f%%  %s of %s  %s tokens  %.1f MB/s", 100.0 * done_ / bytes_,
        ShortBytes(done_), ShortBytes(bytes_),
        ShortCount(static_cast<double>(writer.tokens())),
        done_ / Seconds() / 1e6);
    line.resize(std::min<size_t>(line.size(), console_.Columns() - 1));
    console_.Write(absl::StrCat("\r\x1b[K", line));
  }

  std::string Summary(const std::string& path,
                      const text::TokenFileWriter& writer) const {
    const double seconds = Seconds();
    return absl::StrFormat(
        "%s: %s tokens, %s document%s, of %s in %.3f s (%.1f MB/s)\n", path,
        WithCommas(writer.tokens()), WithCommas(writer.documents()),
        writer.documents() == 1 ? "" : "s", ShortBytes(bytes_), seconds,
        static_cast<double>(bytes_) / seconds / 1e6);
  }

 private:
  double Seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

  const Console console_;
  const int64_t bytes_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_ = begin_;
  int64_t done_ = 0;
  bool drawn_ = false;
};

absl::Status Tokenize(const TokenizeOptions& options) {
  if (options.threads < 0) {
    return FieldError("--threads", "must be at least 1");
  }
  const std::string folder = FromCaller({options.tokenizer})[0];
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           LoadTokenizer(folder));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string json,
                           ReadWholeFile(folder + "/tokenizer.json"));
  text::TokenFileInfo info;
  info.vocab_size = tokenizer->vocab_size();
  info.tokenizer_hash = text::TokenizerHash(json);
  info.ends_added = options.add_ends;
  const DocumentEnds ends =
      options.add_ends ? EndsOf(*tokenizer) : DocumentEnds();

  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<Unit> units;
  int64_t bytes = 0;
  for (const std::string& input : FromCaller(options.inputs)) {
    CAPSTAN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(input));
    bytes += static_cast<int64_t>(file->bytes().size());
    if (absl::EndsWith(input, ".jsonl")) {
      AddRows(*file, &units);
    } else {
      AddText(*file, *tokenizer, &units);
    }
    files.push_back(std::move(file));
  }
  const std::string path =
      FromCaller(
          {std::string(absl::StripSuffix(options.output, ".tokens"))})[0] +
      ".tokens";
  CAPSTAN_ASSIGN_OR_RETURN(const auto writer,
                           text::TokenFileWriter::Create(path, info));
  std::string summary;
  {
    TokenizeProgress progress(bytes);
    CAPSTAN_RETURN_IF_ERROR(text::InOrder<Tokens>(
        options.threads > 0 ? options.threads : AvailableCores(),
        static_cast<int64_t>(units.size()),
        [&](int64_t i) { return TokenizeUnit(units[i], *tokenizer, ends); },
        [&](const Tokens& tokens) {
          progress.Add(tokens.bytes, *writer);
          return Write(tokens, writer.get());
        }));
    CAPSTAN_RETURN_IF_ERROR(writer->Close());
    summary = progress.Summary(path, *writer);
  }
  std::cout << summary << std::flush;
  return absl::OkStatus();
}

}  // namespace

int TokenizeCommand(const TokenizeOptions& options) {
  absl::Status status;
  try {
    status = Tokenize(options);
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  return status.ok() ? 0 : Fail(status);
}

}  // namespace capstan
