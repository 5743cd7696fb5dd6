// SPDX-License-Identifier: Apache-2.0
//
// Chat::VisitRows: every row, also those that aren't trained on.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/json_parts.h"
#include "base/status.h"
#include "datasets/chat/chat.h"
#include "datasets/chat/data_paths.h"
#include "datasets/chat/map_rows.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {
namespace {

// Of a file's text, for one thread.
constexpr uint64_t kChunkBytes = 1 << 18;

// How the rows of a source are read.
struct Reading {
  Kind kind;
  const RowEncoder* encoder;  // cuts nothing
  int64_t max_length;         // kMostUncut if samples are pieces of rows
};

void AddTurns(const Row& row, std::vector<RowTurn>* turns) {
  if (row.is_text) {
    if (row.kind != TEXT) turns->push_back({"prompt", row.prompt, false});
    if (row.kind == PROMPT) return;
    turns->push_back({row.kind == TEXT ? "text" : "completion", row.completion,
                      row.kind != TEXT});
    return;
  }
  for (size_t i = 0; i < row.messages().size(); ++i) {
    const ChatMessage& message = row.messages()[i];
    const std::string& json = row.json(i);
    turns->push_back({message.role, json.empty() ? message.content : json,
                      message.role == "assistant" && row.kind != PROMPT});
  }
}

void AddTokens(const Reading& reading, TokenRow* tokens, RowText* text) {
  tokens->Cut(reading.max_length, reading.encoder->truncation());
  text->ids = tokens->ids;
  text->labels = tokens->labels;
}

// The JSON of a label that a row of this kind isn't read with; "" if none, as
// of an empty cell. "labels" of answers are often tokens.
std::string LabelOf(absl::string_view json, Kind kind) {
  if (kind == UNPAIRED || kind == PROMPT || json.empty() || json[0] != '{')
    return "";
  absl::string_view label = JsonMember(json, "label");
  if (label.empty() && kind == TEXT) label = JsonMember(json, "labels");
  return label == "null" || label == "\"\"" ? "" : std::string(label);
}

DataRow RowAt(const SourceFile& file, const RowPlace& place,
              const Reading& reading) {
  thread_local RowReader reader;
  DataRow row;
  row.place = file.PlaceOf(place.line);
  const absl::string_view json = file.text.substr(place.offset, place.bytes);
  row.status = reader.Read(json, reading.kind, *reading.encoder);
  row.kind = Kind_Name(reader.row.kind);
  row.length = static_cast<int64_t>(reader.length());
  row.is_prompt = reader.row.kind == PROMPT;
  if (row.status.ok() && row.is_prompt) {
    row.status = CheckPromptLength(row.length, reading.max_length);
  }
  if (!row.status.ok()) return row;
  row.label = LabelOf(json, reader.row.kind);
  row.cut = row.length > reading.max_length;
  AddTurns(reader.row, &row.texts[0].turns);
  AddTokens(reading, &reader.tokens, &row.texts[0]);
  if (reader.row.kind == PREFERENCE) {
    row.texts.resize(2);
    AddTurns(*reader.row.rejected, &row.texts[1].turns);
    AddTokens(reading, &reader.rejected, &row.texts[1]);
  }
  return row;
}

// Visits a file's rows; `done` of a row is its place in the file.
absl::Status VisitFile(const SourceFile& file, const Reading& reading,
                       const std::function<absl::Status(DataRow*)>& visit) {
  const auto size = static_cast<double>(file.text.size());
  const auto make = [&](const RowPlaces& places) {
    std::vector<DataRow> rows;
    for (const RowPlace& place : places.rows) {
      rows.push_back(RowAt(file, place, reading));
      rows.back().done = static_cast<double>(place.offset + place.bytes) / size;
    }
    if (places.end.ok()) return rows;
    // The file's syntax is broken from here on.
    const std::pair<std::string, std::string> line_and_why =
        absl::StrSplit(places.end.message(), absl::MaxSplits(": ", 1));
    DataRow rest;
    rest.place = absl::StrCat(file.path, ":", line_and_why.first);
    rest.status = absl::InvalidArgumentError(line_and_why.second);
    rest.done = 1.0;
    rows.push_back(std::move(rest));
    return rows;
  };
  const auto take = [&](std::vector<DataRow> rows) -> absl::Status {
    for (DataRow& row : rows) CAPSTAN_RETURN_IF_ERROR(visit(&row));
    return file.file->Check();
  };
  return MapRows<std::vector<DataRow>>(file, kChunkBytes, make, take);
}

// The part of each row with something to train on; none if all are of
// `config`'s own, or if no row can be trained on.
std::vector<Part> PartsOf(const Config& config, const Source& source,
                          const RowEncoder& encoder, uint64_t tokenizer_hash) {
  std::vector<Part> parts;
  if (config.validation_fraction() == 0 && !config.has_split()) return parts;
  const auto rows = SourceRows::Open(
      source.path(), {source.kind(), SKIP, &encoder}, tokenizer_hash);
  if (!rows.ok()) return parts;
  Config unpacked = config;
  unpacked.set_packing(NONE);
  const auto table = SampleTable::Create(&*rows, unpacked);
  if (!table.ok()) return parts;
  parts.assign(rows->size(), TESTING);
  for (const Part part : {config.part(), VALIDATION}) {
    for (int64_t i = 0; i < table->size(part); ++i) {
      parts[table->Row(part, i)] = part;
    }
  }
  return parts;
}

// Visits the rows of a source; `done` of a row is its place in the source.
absl::Status VisitSource(const Config& config, const Source& source,
                         const Reading& reading, std::vector<Part> parts,
                         const std::function<absl::Status(DataRow*)>& visit) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           FilesOf(source.path()));
  const auto files = static_cast<double>(paths.size());
  double before = 0;   // files
  size_t trained = 0;  // rows so far, as the index counts them
  const auto one = [&](DataRow* row) {
    row->done = (before + row->done) / files;
    if (row->status.ok() && !row->left_out() && trained < parts.size()) {
      const Part part = parts[trained++];
      row->held_back = part != config.part();
      if (row->held_back && part != VALIDATION) return absl::OkStatus();
    }
    return visit(row);
  };
  for (const std::string& path : paths) {
    CAPSTAN_ASSIGN_OR_RETURN(const SourceFile file, OpenSource(path));
    CAPSTAN_RETURN_IF_ERROR(VisitFile(file, reading, one));
    ++before;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Chat::VisitRows(absl::string_view bytes, const RowVisitor& visit) {
  Config config;
  if (!config.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InternalError("the config's bytes do not parse");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const HashedTokenizer tokenizer,
                           OpenTokenizer(config));
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<Data> data,
                           WithoutSources(config, tokenizer.tokenizer));
  config = data->config;
  const RowsOfReader all = {
      data->tokenizer.get(), config.max_length(),
      "raise max_length, or set packing: BEST_FIT_SPLIT, which loses nothing",
      config.bad_rows() == SKIP ? "mend them"
                                : "mend them, or set bad_rows: SKIP",
      "see loss_on, and whether answers begin, and pairs differ, within "
      "max_length"};
  const int64_t most =
      CutsRows(config.packing()) ? kMostUncut : config.max_length();
  const int sources = config.source_size();
  for (int s = 0; s < sources; ++s) {
    const Source& source = config.source(s);
    const auto encoder = [&](int64_t max_length) {
      return RowEncoder(data->tokenizer.get(), data->chat_template.get(),
                        data->no_template, source.loss_on(), max_length,
                        config.chat_template_kwargs(), config.truncation());
    };
    const RowEncoder whole = encoder(kMostUncut);
    const absl::Status status =
        VisitSource(config, source, {source.kind(), &whole, most},
                    PartsOf(config, source, encoder(most), tokenizer.hash),
                    [&](DataRow* row) {
                      row->done = (s + row->done) / sources;
                      return visit(all, *row);
                    });
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

namespace {
const RegisterRows rows("capstan.chat.Config", Chat::VisitRows);
}  // namespace

}  // namespace capstan::chat
