// SPDX-License-Identifier: Apache-2.0
#include "desk/data/samples.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "plugins/sdk/tokenizer.h"
#include "text/tokenizer/unicode.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

// One document's tokens, in a batch's or a row's memory.
struct Tokens {
  absl::Span<const int64_t> ids;
  absl::Span<const int64_t> labels;  // empty: all are trained on
  std::string name;
  bool is_prompt = false;  // none is

  // Nothing predicts a document's first token.
  bool trained(size_t i) const {
    return i > 0 && !is_prompt && (labels.empty() || labels[i] >= 0);
  }
};

const int64_t* Memory(const Batch& batch, const char* name) {
  const auto found = batch.find(name);
  return found == batch.end() ? nullptr
                              : found->second.const_data_ptr<int64_t>();
}

// The documents of a batch of one sample, without padding, whose size is added
// to *padding. They view the batch.
absl::StatusOr<std::vector<Tokens>> DocumentsIn(const Batch& batch,
                                                int64_t* padding) {
  const int64_t* const ids = Memory(batch, kInputIds);
  if (ids == nullptr) {
    return absl::UnimplementedError(
        "this data has no \"input_ids\": only texts can be shown");
  }
  const int64_t* const labels = Memory(batch, kLabels);
  const int64_t* const positions = Memory(batch, kPositions);
  const int64_t* const counts = Memory(batch, kTokenCounts);
  const bool pair = batch.count(kPairKeys) > 0;
  const bool is_prompt = batch.count(kRowText) > 0;
  const int64_t texts = batch.at(kInputIds).size(0);
  const int64_t length = batch.at(kInputIds).size(1);
  std::vector<Tokens> documents;
  for (int64_t t = 0; t < texts; ++t) {
    const int64_t count = counts == nullptr ? length : counts[t];
    *padding += length - count;
    const int64_t row = t * length;
    for (int64_t begin = 0, end = 0; begin < count; begin = end) {
      end = positions == nullptr ? count : begin + 1;
      while (end < count && positions[row + end] != 0) ++end;
      const auto part = [&](const int64_t* values) {
        return absl::MakeConstSpan(values + row + begin, end - begin);
      };
      documents.push_back(
          {part(ids),
           labels == nullptr ? absl::Span<const int64_t>() : part(labels),
           !pair    ? ""
           : t == 0 ? "chosen"
                    : "rejected",
           is_prompt});
    }
  }
  return documents;
}

// Controls, marks of direction (Unicode Standard Annex 9), and what is blank
// and not even a space.
bool IsHidden(uint32_t c) {
  return (c < 0x20 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) ||
         c == 0x61c || c == 0x200b || c == 0x200e || c == 0x200f ||
         (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x2069) ||
         c == 0xfeff;
}

// "1:<|im_start|> 722:us", with spaces shown as dots.
std::string Piece(const Tokenizer& tokenizer, int64_t id) {
  return absl::StrCat(
      id, ":",
      absl::StrReplaceAll(VisibleText(tokenizer.Decode({id})),
                          {{"\n", "\\n"}, {"\t", "\\t"}, {" ", "\u00b7"}}));
}

ShownDocument Show(const Tokens& tokens, const Tokenizer& tokenizer,
                   int64_t most) {
  ShownDocument document;
  document.name = tokens.name;
  const size_t count = tokens.ids.size();
  document.tokens = static_cast<int64_t>(count);
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    const bool trained = tokens.trained(begin);
    while (end < count && tokens.trained(end) == trained) ++end;
    if (trained) document.trained += static_cast<int64_t>(end - begin);
    document.runs.push_back(
        {VisibleText(tokenizer.Decode(tokens.ids.subspan(begin, end - begin))),
         trained});
  }
  for (size_t i = 0; i < std::min<size_t>(count, most); ++i) {
    document.pieces.push_back(
        {Piece(tokenizer, tokens.ids[i]), tokens.trained(i)});
  }
  return document;
}

}  // namespace

std::string VisibleText(absl::string_view text) {
  std::string visible;
  for (size_t at = 0; at < text.size();) {
    const absl::string_view bytes =
        text.substr(at, tokenizer::CharacterBytes(text[at]));
    const uint32_t c = tokenizer::CharacterAt(text, at);
    if (IsHidden(c)) {
      absl::StrAppendFormat(&visible, "\\u%04x", c);
    } else {
      absl::StrAppend(&visible, bytes);
    }
    at += bytes.size();
  }
  return PrintableText(visible);
}

absl::StatusOr<ShownSample> ShowSample(const DatasetReader& reader,
                                       int64_t sample, int64_t most) {
  Batch batch;
  CAPSTAN_RETURN_IF_ERROR(reader.Read({sample}, &batch));
  ShownSample shown;
  shown.name = "sample " + WithCommas(sample);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Tokens> documents,
                           DocumentsIn(batch, &shown.padding));
  for (const Tokens& tokens : documents) {
    shown.documents.push_back(Show(tokens, *reader.tokenizer(), most));
  }
  return shown;
}

ShownSample ShowRow(const RowsOfReader& all, const DataRow& row, int64_t most) {
  ShownSample shown;
  shown.name = row.place;
  if (!row.status.ok()) {
    shown.why = std::string(row.status.message());
    return shown;
  }
  if (row.left_out()) shown.why = "nothing of it is trained on";
  if (row.held_back) shown.why = "it is held back, for validation";
  const bool pair = row.texts.size() == 2;
  for (const RowText& text : row.texts) {
    const char* const name = !pair                     ? ""
                             : shown.documents.empty() ? "chosen"
                                                       : "rejected";
    shown.documents.push_back(Show({text.ids, text.labels, name, row.is_prompt},
                                   *all.tokenizer, most));
  }
  return shown;
}

absl::Status VisitSamples(const DatasetReader& reader,
                          const RowVisitor& visit) {
  RowsOfReader all;
  all.tokenizer = reader.tokenizer();
  all.max_length = reader.max_sequence_length();
  const int64_t size = reader.size();
  for (int64_t i = 0; i < size; ++i) {
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(reader.Read({i}, &batch));
    int64_t padding = 0;
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Tokens> documents,
                             DocumentsIn(batch, &padding));
    for (const Tokens& tokens : documents) {
      DataRow row;
      row.place = "sample " + WithCommas(i);
      row.length = static_cast<int64_t>(tokens.ids.size());
      row.done = static_cast<double>(i + 1) / static_cast<double>(size);
      const auto labels = tokens.labels.empty() ? tokens.ids : tokens.labels;
      row.texts[0].ids.assign(tokens.ids.begin(), tokens.ids.end());
      row.texts[0].labels.assign(labels.begin(), labels.end());
      row.is_prompt = tokens.is_prompt;
      CAPSTAN_RETURN_IF_ERROR(visit(all, row));
    }
  }
  return absl::OkStatus();
}

}  // namespace capstan
