// SPDX-License-Identifier: Apache-2.0
#include <simdjson.h>
#include <unistd.h>

#include <algorithm>
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
#include "base/in_order.h"
#include "base/json_document.h"
#include "base/machine.h"
#include "base/status.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/definition.h"
#include "text/tokens/text_pieces.h"
#include "text/tokens/token_file.h"
#include "trainer/commands/command.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"

namespace capstan {
namespace {

struct TokenizeOptions {
  std::string tokenizer;
  std::vector<std::string> inputs;
  std::string output;  // without ".tokens"
  int threads = 0;     // 0: one per core
  bool add_ends = false;
};

// Unit of work of a thread.
constexpr size_t kUnitBytes = 1 << 20;

// Part of an input: rows, or a piece of a text.
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

// What the tokenizer adds around a document.
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

// Cuts into blocks of whole lines.
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
  // Copied, as no more than the line may be read.
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
    const absl::Status known =
        text.ok() ? CheckKnown(tokenizer, *text) : text.status();
    if (!known.ok()) {
      return Annotate(known, absl::StrCat(unit.file->path(), ":", number));
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
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<int64_t> ids,
      text::EncodePiece(tokenizer, unit.bytes, *unit.file));
  Append(ids, &tokens.ids);
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

std::string Summary(const std::string& path, int64_t bytes, double seconds,
                    const text::TokenFileWriter& writer) {
  return absl::StrFormat(
      "%s: %s tokens, %s document%s, of %s in %.3f s (%.1f MB/s)\n", path,
      WithCommas(writer.tokens()), WithCommas(writer.documents()),
      writer.documents() == 1 ? "" : "s", ShortBytes(bytes), seconds,
      static_cast<double>(bytes) / seconds / 1e6);
}

absl::StatusOr<int> Tokenize(const TokenizeOptions& options) {
  if (options.threads < 0) {
    return FieldError("--threads", "must be at least 1, or 0 for one a core");
  }
  const std::string folder = FromCaller(options.tokenizer);
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                           LoadTokenizer(folder));
  CAPSTAN_ASSIGN_OR_RETURN(const std::string definition,
                           tokenizer::TokenizerDefinition(*tokenizer, folder));
  text::TokenFileInfo info;
  info.vocab_size = tokenizer->vocab_size();
  info.tokenizer_hash = text::TokenizerHash(definition);
  info.ends_added = options.add_ends;
  const DocumentEnds ends =
      options.add_ends ? EndsOf(*tokenizer) : DocumentEnds();

  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<Unit> units;
  int64_t bytes = 0;
  for (const std::string& input : AllFromCaller(options.inputs)) {
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
      FromCaller(std::string(absl::StripSuffix(options.output, ".tokens"))) +
      ".tokens";
  CAPSTAN_ASSIGN_OR_RETURN(const auto writer,
                           text::TokenFileWriter::Create(path, info));
  std::string summary;
  {
    WorkBar bar("tokenizing", STDOUT_FILENO);
    // Progress is only shown on a terminal.
    const bool terminal = Console(STDOUT_FILENO).terminal();
    int64_t done = 0;
    CAPSTAN_RETURN_IF_ERROR(InOrder<Tokens>(
        options.threads > 0 ? options.threads : AvailableCores(),
        static_cast<int64_t>(units.size()),
        [&](int64_t i) { return TokenizeUnit(units[i], *tokenizer, ends); },
        [&](const Tokens& tokens) {
          done += static_cast<int64_t>(tokens.bytes);
          if (terminal) {
            bar.Show(static_cast<double>(done) / std::max<int64_t>(bytes, 1),
                     absl::StrFormat(
                         "%s of %s  %s tokens  %.1f MB/s", ShortBytes(done),
                         ShortBytes(bytes),
                         ShortCount(static_cast<double>(writer->tokens())),
                         done / bar.Seconds() / 1e6));
          }
          return Write(tokens, writer.get());
        }));
    for (const auto& file : files) CAPSTAN_RETURN_IF_ERROR(file->Check());
    CAPSTAN_RETURN_IF_ERROR(writer->Close());
    summary = Summary(path, bytes, bar.Seconds(), *writer);
  }
  std::cout << PrintableText(summary) << std::flush;
  return 0;
}

void AddFlags(Flags& flags, TokenizeOptions* options) {
  flags
      .Add("--tokenizer", &options->tokenizer,
           "A Hugging Face folder with a tokenizer.json")
      .Type("FOLDER")
      .Required();
  flags
      .Add("--input", &options->inputs,
           "A text (a document), or, named .jsonl, rows {\"text\": ..} (a "
           "document each); may be given several times")
      .Type("FILE")
      .Required();
  flags.Add("--output", &options->output, "Writes PREFIX.tokens")
      .Type("PREFIX")
      .Required();
  flags.Add("--threads", &options->threads, "Default: one a core");
  flags.Add("--add_ends", &options->add_ends,
            "Put around each document what the tokenizer puts around a text "
            "(a token of beginning, mostly)");
}

const RegisterFunction<TokenizeOptions> tokenize("tokenize", AddFlags,
                                                 Tokenize);

}  // namespace
}  // namespace capstan
